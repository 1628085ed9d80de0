//! One node: what it consists of, and the order in which it starts and stops.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::join_all;
use headwater_core::catalog::{Addresses, CatalogCommand, CatalogRefusal, CatalogResponse, NodeName, StreamEntry};
use headwater_core::ids::{Generation, RaftNodeId, StreamId};
use headwater_protocol::api::stream::StreamInfo;
use headwater_storage::disk::Disk;
use headwater_storage::flusher::Flusher;
use headwater_storage::wal::{LogEnd, PinnedGroup, Wal};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::config::NodeConfig;
use crate::identity::Identity;
use crate::jetstream::{self, Forwards};
use crate::meta::{self, Meta, bootstrap};
use crate::raft::{Directory, RaftGroup, RaftNet, Receiver};
use crate::regroup;
use crate::space::{self, Space};
pub(crate) use crate::stream::Owner;
use crate::stream::acks::{AckWriter, PUBLISH_ACKS, PUBLISH_BATCH};
use crate::stream::forward::{AckBuilder, Fate, Forwarded};
use crate::stream::{self, Streams};
use crate::transport::{BulkStream, LocalHello, NodeId, PeerHandler, PeerHello, Refusal, Respond, Target, Transport};

/// The only account at this stage.
pub(crate) const ACCOUNT: &str = "$G";
/// The cluster's name, as clients are told.
pub(crate) const CLUSTER_NAME: &str = "headwater";
/// How often every replica is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long it takes to hear from peers that are told to stop at the same moment.
const LEAVING_HEARD_IN: Duration = Duration::from_millis(100);
/// Grace for handing leadership over at a stop.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(5);
/// Grace for writing what is applied to the stores at a stop.
const FLUSH_PATIENCE: Duration = Duration::from_secs(20);

mod kind {
    /// `stream u64 | term u64`: the sender leads this stream.
    pub(super) const LEADS: u8 = 0x2a;
    /// `stream u64 | generation u64 | raft id u64`: a replica has drained past the barrier.
    pub(super) const DRAINED: u8 = 0x28;
    /// The sender is about to stop: it takes no leadership any more.
    pub(super) const LEAVING: u8 = 0x2d;
    /// `boot epoch u64 | segment u64 | offset u64`: up to here the sender's log is synced.
    pub(super) const SYNCED: u8 = 0x2e;
    /// A stream's name; answered by its description from its leader.
    pub(super) const STREAM_INFO: u8 = 0x2b;
}

/// Everything that the node's parts share.
pub(crate) struct Context {
    pub(crate) config: NodeConfig,
    pub(crate) node_id: NodeId,
    pub(crate) boot_id: String,
    pub(crate) identity: Arc<Identity>,
    pub(crate) last_run: crate::identity::LastRunFacts,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) wal: Wal,
    pub(crate) flusher: Flusher,
    pub(crate) broker: Broker,
    pub(crate) transport: Transport,
    pub(crate) net: RaftNet,
    pub(crate) receiver: Receiver,
    pub(crate) meta: Meta,
    pub(crate) streams: Streams,
    pub(crate) members: Arc<MemberNodes>,
    pub(crate) forwards: Forwards,
    pub(crate) runtime: tokio::runtime::Handle,
    /// The catalogue or a leadership changed: look at what is open and what is configured.
    changed: Notify,
    /// What empty peers said of themselves, for founding a cluster.
    heard: Mutex<BTreeMap<String, bootstrap::Heard>>,
    heard_changed: Notify,
    /// Room on the store's file system, here and at the peers.
    pub(crate) space: Space,
    pub(crate) scrub: stream::scrub::ScrubStats,
    /// Held while the catalogue's group is made to go on without its majority.
    pub(crate) regrouping: tokio::sync::Mutex<()>,
    /// Peers that said they are about to stop.
    leaving: Mutex<BTreeSet<NodeId>>,
    /// How far the logs of peers were synced, as they said: a log that ends before that has lost records, or is a copy.
    logs_seen: Mutex<BTreeMap<NodeId, LogSeen>>,
    api_total: AtomicU64,
    api_errors: AtomicU64,
    /// The routes of the admin API, once it is served: peers call them too.
    pub(crate) admin: OnceLock<axum::Router>,
    /// The client listener is open.
    pub(crate) serving: AtomicBool,
    pub(crate) started: std::time::Instant,
    /// SIGTERM or Ctrl-C has come.
    pub(crate) told_to_stop: CancellationToken,
    /// Nothing is served any more.
    pub(crate) stopping: CancellationToken,
}

impl Context {
    pub(crate) fn catalogue_changed(&self) {
        self.changed.notify_one();
    }

    /// The node that a group's member is on.
    pub(crate) fn node_of(&self, raft_id: u64) -> NodeId {
        self.members.node_of(raft_id)
    }

    /// Node names by incarnation, and by the Raft ids of replicas that have rejoined.
    pub(crate) fn node_names(&self) -> HashMap<NodeId, String> {
        let mut names: HashMap<NodeId, String> =
            self.meta.read(|c| c.nodes().map(|n| (n.incarnation.get(), n.name.as_str().to_owned())).collect());
        for (id, node) in &*self.members.0.read() {
            if let Some(name) = names.get(node).cloned() {
                names.insert(*id, name);
            }
        }
        names
    }

    pub(crate) fn is_clustered(&self) -> bool {
        !self.config.peers.is_empty()
    }

    pub(crate) fn cluster_name(&self) -> String {
        CLUSTER_NAME.to_owned()
    }

    /// Nodes that this one cannot reach now: no place for a new stream if others are up.
    pub(crate) fn unreachable_nodes(&self) -> BTreeSet<NodeName> {
        self.meta.read(|c| {
            c.nodes()
                .filter(|n| n.incarnation.get() != self.node_id && !self.transport.is_up(n.incarnation.get()))
                .map(|n| n.name.clone())
                .collect()
        })
    }

    /// A name nobody else has.
    pub(crate) fn random_name(&self) -> String {
        format!("{:08x}", rand::random::<u32>())
    }

    pub(crate) fn api_requests(&self, n: u64) {
        self.api_total.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn api_errors(&self, n: u64) {
        self.api_errors.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn api_counts(&self) -> (u64, u64) {
        (self.api_total.load(Ordering::Relaxed), self.api_errors.load(Ordering::Relaxed))
    }

    /// A promise weaker than `always` is about to be given: hard state must know before.
    pub(crate) fn weak_promise(&self) {
        self.identity.weak_promise();
    }

    /// Tells every peer that this node leads a stream.
    pub(crate) fn claim_leadership(&self, stream: StreamId, term: u64) {
        self.streams.claimed(stream.get(), term, self.node_id);
        for peer in self.transport.peers() {
            self.send_claim(peer.node_id, stream, term);
        }
    }

    fn send_claim(&self, to: NodeId, stream: StreamId, term: u64) {
        let mut out = BytesMut::with_capacity(16);
        out.put_u64_le(stream.get());
        out.put_u64_le(term);
        // A peer that is down hears it when it comes up.
        let _down = self.transport.send(to, kind::LEADS, &[out.freeze()]);
    }

    pub(crate) fn report_drained(&self, leader: NodeId, stream: StreamId, generation: Generation, replica: RaftNodeId) {
        let mut out = BytesMut::with_capacity(24);
        for n in [stream.get(), generation.get(), replica.get()] {
            out.put_u64_le(n);
        }
        // Reported again on the next tick.
        let _down = self.transport.send(leader, kind::DRAINED, &[out.freeze()]);
    }

    /// Tells every peer how far this node's log is synced: whoever hears it will not accept less of it later.
    fn tell_synced(&self, end: LogEnd) {
        let mut out = BytesMut::with_capacity(24);
        for n in [self.identity.boot_epoch(), end.segment, end.offset] {
            out.put_u64_le(n);
        }
        let out = out.freeze();
        for peer in self.transport.peers() {
            // A peer that is down hears it when it comes up.
            let _down = self.transport.send(peer.node_id, kind::SYNCED, std::slice::from_ref(&out));
        }
    }

    pub(crate) async fn ask_stream_info(&self, node: NodeId, stream: &str) -> Option<StreamInfo> {
        let name = Bytes::copy_from_slice(stream.as_bytes());
        let body = self.transport.request(node, kind::STREAM_INFO, &[name], Duration::from_secs(2)).await.ok()?;
        serde_json::from_slice(&body).ok()
    }

    /// A forwarded batch came to a node that does not lead: nothing of it was stored.
    pub(crate) fn refuse_batch(&self, to: NodeId, batch: u64, messages: &[Forwarded]) {
        let mut acks = AckBuilder::new(batch);
        for (message, _) in (0_u32..).zip(messages).filter(|(_, m)| m.wants_ack) {
            acks.push(message, &Fate::Unknown);
        }
        // If the link is down the other node has given the batch up already.
        let _down = self.transport.send(to, PUBLISH_ACKS, &[acks.finish()]);
    }

    pub(crate) fn heard(&self) -> BTreeMap<String, bootstrap::Heard> {
        self.heard.lock().clone()
    }

    pub(crate) async fn heard_again(&self) {
        self.heard_changed.notified().await;
    }

    pub(crate) fn hear_again(&self) {
        self.heard_changed.notify_one();
    }

    /// Whether a peer is about to stop.
    pub(crate) fn is_leaving(&self, node: NodeId) -> bool {
        self.leaving.lock().contains(&node)
    }

    /// Whether a node id belongs to a current member, by the catalogue or by the meta group itself.
    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        self.meta.current_nodes().contains(&node) || self.meta.state().is_some_and(|s| s.members.nodes.contains(&node))
    }

    /// The cluster remembers more than this disk holds: nothing here may vote or serve.
    pub(crate) async fn quarantine(&self, why: &str) {
        for replica in self.streams.all_local() {
            replica.quarantine(&mut replica.lock(), why);
        }
        self.meta.replica.quarantine(why);
        if let Some(raft) = self.meta.raft() {
            raft.shutdown().await;
        }
    }

    /// Writes acks of a stream that has no replica here.
    pub(crate) fn ack_writer(&self, stream: u64) -> Option<AckWriter> {
        let name = self.meta.read(|c| c.stream(StreamId::new(stream)).map(|s| s.key.name.clone()))?;
        Some(AckWriter::new(self.broker.clone(), self.transport.clone(), &name))
    }

    fn targets(&self) -> Vec<Target> {
        let mut targets: BTreeMap<String, String> =
            self.config.peers.iter().map(|p| (p.name.clone(), p.addr.clone())).collect();
        self.meta.read(|c| {
            for node in c.nodes() {
                let name = node.name.as_str();
                // A seed's name is resolved at every dial, so it stays right when addresses move.
                if !targets.contains_key(name) && node.state != headwater_core::catalog::NodeState::Removed {
                    targets.insert(name.to_owned(), node.addresses.cluster.clone());
                }
            }
        });
        targets.remove(&self.config.name);
        targets.into_iter().map(|(name, addr)| Target { name, addr }).collect()
    }
}

/// What a peer said of its log in one of its boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogSeen {
    boot_epoch: u64,
    synced: (u64, u64),
}

impl LogSeen {
    /// Why a later boot of the peer cannot be trusted, if its log ends before what was synced.
    fn contradicts(&self, peer: &PeerHello) -> Option<String> {
        let ends = peer.log_end.unwrap_or((0, 0));
        (peer.boot_epoch != self.boot_epoch && ends < self.synced).then(|| {
            let at = |(segment, offset): (u64, u64)| match offset {
                u64::MAX => format!("the end of segment {segment}"),
                _ => format!("byte {offset} of segment {segment}"),
            };
            format!(
                "its log ends at {}, and was synced up to {}: it was put back from an older copy, or has lost records",
                at(ends),
                at(self.synced)
            )
        })
    }
}

/// Which node a member of a group is on. Its Raft id is the node's incarnation, unless it has rejoined: those are here.
#[derive(Default)]
pub(crate) struct MemberNodes(RwLock<HashMap<u64, NodeId>>);

impl MemberNodes {
    /// Takes in what the catalogue says of a stream.
    pub(crate) fn know(&self, entry: &StreamEntry) {
        if !entry.rejoined.is_empty() {
            let mut known = self.0.write();
            known.extend(entry.rejoined.iter().map(|(id, rejoined)| (id.get(), rejoined.incarnation.get())));
        }
    }

    fn node_of(&self, raft_id: u64) -> NodeId {
        self.0.read().get(&raft_id).copied().unwrap_or(raft_id)
    }
}

impl Directory for MemberNodes {
    fn node_of(&self, _group: u64, raft_id: u64) -> Option<NodeId> {
        Some(MemberNodes::node_of(self, raft_id))
    }
}

/// Messages from peers, sorted to whom they belong. The context is set once it exists.
#[derive(Default)]
struct Peers(OnceLock<Arc<Context>>, OnceLock<Local>);

/// What is known of this node before its context exists.
struct Local {
    identity: Arc<Identity>,
    config: NodeConfig,
    last_boot_epoch: u64,
    log_end: Option<LogEnd>,
}

impl Peers {
    fn context(&self) -> Option<&Arc<Context>> {
        self.0.get()
    }
}

impl PeerHandler for Peers {
    fn local_hello(&self) -> LocalHello {
        let Local { identity, config, last_boot_epoch, log_end } =
            self.1.get().expect("set before the transport starts");
        LocalHello {
            cluster_id: identity.cluster_id(),
            node_name: config.name.clone(),
            node_id: identity.node_id(),
            boot_epoch: identity.boot_epoch(),
            last_boot_epoch: Some(*last_boot_epoch),
            log_end: log_end.map(|end| (end.segment, end.offset)),
            client_addr: config.client_advertise.clone(),
            cluster_addr: config.cluster_advertise.clone(),
            http_addr: config.http.to_string(),
            empty: identity.cluster_id().is_none(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn on_hello(&self, peer: &PeerHello) -> Result<(), Refusal> {
        let Local { identity, config, .. } = self.1.get().expect("set before the transport starts");
        // It would vote in groups that have gone on without it.
        if identity.is_lost(peer.node_id) {
            return Err(Refusal { why: CatalogRefusal::NodeLost.to_string(), for_good: true });
        }
        if peer.node_name == config.name {
            return Err(format!("two nodes are called {:?}", peer.node_name).into());
        }
        match (identity.cluster_id(), &peer.cluster_id) {
            (Some(ours), Some(theirs)) if ours != *theirs => {
                return Err(format!("cluster {theirs} is not ours, {ours}").into());
            }
            // An empty node votes nowhere yet; what it may join as is decided when it asks.
            (_, None) => return Ok(()),
            _ => {}
        }
        // Before it can vote: a disk that has forgotten a vote could give it twice.
        let Some(context) = self.context() else { return Ok(()) };
        let (name, id) = (NodeName::new(peer.node_name.clone()), RaftNodeId::new(peer.node_id));
        let admitted = context.meta.read(|c| c.admits(&name, id, peer.boot_epoch, peer.last_boot_epoch));
        let seen = context.logs_seen.lock().get(&peer.node_id).copied();
        let lost = seen.and_then(|seen| seen.contradicts(peer));
        let why = admitted.err().map(|refusal| refusal.to_string()).or(lost);
        why.map_or(Ok(()), |why| Err(Refusal { why, for_good: true }))
    }

    fn on_banned(&self, why: &str) {
        let Some(context) = self.context().cloned() else { return };
        if context.meta.replica.failure().is_some() {
            return;
        }
        context.identity.refuse(why);
        tracing::error!(why, "the cluster refuses this node: it serves nothing");
        let why = why.to_owned();
        tokio::spawn(async move { context.quarantine(&why).await });
    }

    fn on_up(&self, peer: &PeerHello) {
        let Some(context) = self.context() else { return };
        let heard = match &peer.cluster_id {
            Some(cluster_id) => bootstrap::Heard::Member { cluster_id: cluster_id.clone() },
            None => bootstrap::Heard::Empty { node_id: peer.node_id },
        };
        context.heard.lock().insert(peer.node_name.clone(), heard);
        context.heard_changed.notify_one();
        context.broker.peer_up(peer.node_id);
        context.leaving.lock().remove(&peer.node_id);
        for replica in context.streams.all_local().into_iter().filter(|r| r.leads()) {
            let term = replica.raft().map_or(1, |r| r.state().term);
            context.send_claim(peer.node_id, replica.spec.stream, term);
        }
        context.catalogue_changed();
    }

    fn on_down(&self, node: NodeId) {
        let Some(context) = self.context() else { return };
        context.receiver.on_down(node);
        context.forwards.on_down(node);
        context.broker.peer_down(node);
        context.space.on_down(node);
        context.leaving.lock().remove(&node);
    }

    fn on_message(&self, from: NodeId, message: u8, body: Bytes) {
        let Some(context) = self.context().filter(|context| !context.identity.is_lost(from)) else { return };
        let n = |at: usize| body.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        match message {
            crate::raft::kind::APPEND_CLOSE => context.receiver.on_close(from, body),
            0x10..=0x1f => context.broker.on_peer_message(from, message, body),
            PUBLISH_BATCH => jetstream::on_publish_batch(context, from, body),
            PUBLISH_ACKS => context.forwards.on_acks(from, body, |stream| {
                let replica = context.streams.local(stream);
                replica.map(|r| r.acks.clone()).or_else(|| context.ack_writer(stream))
            }),
            jetstream::kind::SERVICE => jetstream::on_service(context, &body),
            kind::LEADS => {
                if let (Some(stream), Some(term)) = (n(0), n(8)) {
                    context.streams.claimed(stream, term, from);
                }
            }
            kind::LEAVING => {
                context.leaving.lock().insert(from);
            }
            kind::SYNCED => {
                if let (Some(boot_epoch), Some(segment), Some(offset)) = (n(0), n(8), n(16)) {
                    let now = LogSeen { boot_epoch, synced: (segment, offset) };
                    context.logs_seen.lock().insert(from, now);
                }
            }
            space::kind::LOW_SPACE => context.space.heard(from, &body),
            stream::rejoin::kind::START_OVER => stream::rejoin::on_start_over(context, &body),
            kind::DRAINED => {
                if let (Some(stream), Some(generation), Some(replica)) = (n(0), n(8), n(16))
                    && let Some(leader) = context.streams.local(stream).filter(|r| r.leads())
                {
                    tokio::spawn(async move {
                        // The replica reports again if it did not take.
                        let _again = leader.complete(Generation::new(generation), RaftNodeId::new(replica)).await;
                    });
                }
            }
            other => tracing::warn!(from, kind = other, "unknown message from a peer"),
        }
    }

    fn on_request(&self, from: NodeId, request: u8, body: Bytes, respond: Respond) {
        let Some(context) = self.context().cloned() else {
            respond.send(Err("the node is starting".to_owned()));
            return;
        };
        // A link that was up when its node was declared lost.
        if context.identity.is_lost(from) {
            return respond.send(Err(CatalogRefusal::NodeLost.to_string()));
        }
        match request {
            0x01..=0x0f => context.receiver.on_request(from, request, body, respond),
            meta::kind::WRITE => {
                tokio::spawn(async move { respond.send(context.meta.serve_write(body).await) });
            }
            jetstream::kind::API_CALL => {
                tokio::spawn(async move { respond.send(jetstream::serve_api_call(&context, body).await) });
            }
            stream::rejoin::kind::STANDING => respond.send(stream::rejoin::serve_standing(&context, &body)),
            regroup::kind::GROUP_STANDING => respond.send(regroup::serve_standing(&context, &body)),
            regroup::kind::DECLARE_LOST => respond.send(regroup::serve_declare_lost(&context, &body)),
            kind::STREAM_INFO => {
                let name = String::from_utf8_lossy(&body).into_owned();
                let info = jetstream::streams::serve_info(&context, &name);
                respond.send(match info {
                    Some(info) => Ok(vec![Bytes::from(serde_json::to_vec(&info).expect("plain data"))]),
                    None => Err("not led here".to_owned()),
                });
            }
            crate::admin::peer::KIND => {
                tokio::spawn(async move { respond.send(crate::admin::peer::serve(context, body).await) });
            }
            meta::kind::JOIN => {
                tokio::spawn(async move { respond.send(crate::join::serve_join(&context, body).await) });
            }
            meta::kind::FOUND => {
                tokio::spawn(async move { respond.send(crate::join::serve_found(&context, from, body).await) });
            }
            other => respond.send(Err(format!("unknown request {other:#x}"))),
        }
    }

    fn on_turn_end(&self, _from: NodeId) {
        if let Some(context) = self.context() {
            context.forwards.turn_end(&context.transport);
        }
    }

    fn on_bulk(&self, from: NodeId, bulk: BulkStream) {
        let Some(context) = self.context().filter(|context| !context.identity.is_lost(from)).cloned() else { return };
        tokio::spawn(async move {
            if let Err(error) = context.receiver.on_bulk(bulk.header, bulk.stream).await {
                tracing::warn!(from, %error, "snapshot transfer failed; the leader sends it again");
            }
        });
    }
}

/// Runs a node until SIGTERM or Ctrl-C.
pub(crate) async fn run(config: NodeConfig) -> anyhow::Result<ExitCode> {
    die_with_parent();
    let bind = |what: &str, addr: std::net::SocketAddr| {
        std::net::TcpListener::bind(addr).with_context(|| format!("--{what} {addr}: cannot listen"))
    };
    let client_listener = bind("listen", config.listen)?;
    let http_listener = bind("http", config.http)?;
    let cluster_listener = bind("cluster-listen", config.cluster_listen)?;

    let opened = crate::identity::open_store(&config)?;
    let identity = Arc::clone(&opened.identity);
    let node_id = identity.node_id();
    tracing::info!(node = config.name, node_id, boot = identity.boot_epoch(), store = %config.store_dir.display(), "starting");

    let peers = Arc::new(Peers::default());
    // Set once, right here.
    let local = Local {
        identity: Arc::clone(&identity),
        config: config.clone(),
        last_boot_epoch: opened.last_run.boot_epoch,
        log_end: opened.log_end,
    };
    let _first = peers.1.set(local);
    let transport = Transport::start(cluster_listener, Arc::clone(&peers) as Arc<dyn PeerHandler>);
    let mut info = crate::broker::ServerInfo::new(format!("HW{node_id:X}"), config.name.clone());
    info.host = config.listen.ip().to_string();
    info.port = config.listen.port();
    info.client_advertise = Some(config.client_advertise.clone());
    if !config.peers.is_empty() {
        CLUSTER_NAME.clone_into(&mut info.cluster);
    }
    info.jetstream = true;
    info.limits.payload_bytes_max = config.max_payload;
    info.limits.connections_max = connections_max(raise_file_limit()).min(info.limits.connections_max);
    let broker = Broker::new(info);
    let meta_replica = meta::MetaReplica::open(
        Arc::clone(&opened.disk),
        opened.wal.clone(),
        config.store_dir.join("meta"),
        crate::identity::meta_phase(&opened),
    )
    .context("the catalogue cannot be opened")?;
    let meta = Meta::new(meta_replica, transport.clone());
    let members = Arc::<MemberNodes>::default();
    let context = Arc::new(Context {
        node_id,
        boot_id: format!("{node_id:x}-{}", identity.boot_epoch()),
        identity,
        last_run: opened.last_run,
        disk: opened.disk,
        wal: opened.wal,
        flusher: opened.flusher,
        net: RaftNet::new(transport.clone(), Arc::clone(&members) as Arc<dyn Directory>),
        receiver: Receiver::new(),
        broker: broker.clone(),
        transport,
        meta,
        streams: Streams::default(),
        members,
        forwards: Forwards::default(),
        runtime: tokio::runtime::Handle::current(),
        changed: Notify::new(),
        heard: Mutex::default(),
        heard_changed: Notify::new(),
        space: Space::default(),
        scrub: stream::scrub::ScrubStats::default(),
        regrouping: tokio::sync::Mutex::default(),
        leaving: Mutex::default(),
        logs_seen: Mutex::default(),
        api_total: AtomicU64::new(0),
        api_errors: AtomicU64::new(0),
        admin: OnceLock::new(),
        serving: AtomicBool::new(false),
        started: std::time::Instant::now(),
        told_to_stop: stop_signal()?,
        stopping: CancellationToken::new(),
        config,
    });
    broker.set_jetstream(Arc::new(jetstream::Service::new(Arc::clone(&context))));
    broker.set_transport(context.transport.clone());
    if peers.0.set(Arc::clone(&context)).is_err() {
        bail!("the node was started twice");
    }
    context.transport.set_targets(context.targets());

    let http = tokio::spawn(crate::admin::serve(http_listener, Arc::clone(&context)));
    // Clients may connect before this node is part of a cluster: they are told that JetStream is not available yet.
    tokio::spawn(crate::client::listener::run(client_listener, broker, context.stopping.clone()));
    context.serving.store(true, Ordering::Release);
    crate::join::start_meta(&context).await?;
    tokio::spawn(follow_catalogue(Arc::clone(&context)));
    tokio::spawn(crate::join::register(Arc::clone(&context)));
    tokio::spawn(crate::planner::run(Arc::clone(&context)));
    tokio::spawn(tick(Arc::clone(&context)));
    tokio::spawn(space::watch(Arc::clone(&context)));
    tokio::spawn(stream::scrub::run(Arc::clone(&context)));
    tracing::info!(clients = %context.config.listen, http = %context.config.http, "serving");

    context.told_to_stop.cancelled().await;
    stop(&context).await;
    http.abort();
    Ok(ExitCode::SUCCESS)
}

/// Keeps what is open, routed and dialled as the catalogue says.
async fn follow_catalogue(context: Arc<Context>) {
    loop {
        context.transport.set_targets(context.targets());
        // Of a cluster every client learns all addresses, this node's too: it may have come by another one.
        // A node that listens on every address and advertises none is reached where clients found it, not at 0.0.0.0.
        let reachable = |url: &String| !["0.0.0.0:", "[::]:"].iter().any(|any| url.starts_with(any));
        let mut urls: Vec<String> =
            context.meta.read(|c| c.nodes().map(|n| n.addresses.client.clone()).filter(reachable).collect());
        urls.sort();
        if urls.len() < 2 {
            urls.clear();
        }
        context.broker.set_connect_urls(urls);
        if let Some(why) = context.meta.replica.failure() {
            context.quarantine(&why).await;
            return;
        }
        stream::reconcile(&context).await;
        tokio::select! {
            () = context.changed.notified() => {}
            () = context.meta.replica.changed.notified() => {}
            () = tokio::time::sleep(Duration::from_secs(5)) => {}
            () = context.stopping.cancelled() => return,
        }
    }
}

async fn tick(context: Arc<Context>) {
    let mut timer = tokio::time::interval(TICK);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0_u64;
    let mut told = None;
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            () = context.stopping.cancelled() => return,
        }
        count += 1;
        // Again once a second, for peers that came meanwhile.
        let synced = context.wal.synced_end().filter(|end| told != Some(*end) || count.is_multiple_of(10));
        if let Some(end) = synced {
            context.tell_synced(end);
            told = Some(end);
        }
        if let Some(state) = context.meta.state() {
            context.meta.replica.observe_phase(context.node_id, &state);
        }
        for replica in context.streams.all_local() {
            replica.tick();
        }
        if count.is_multiple_of(10) {
            context.forwards.tick();
            let pinned_groups = context.wal.pinned_groups();
            context
                .net
                .release_log(pinned_groups.iter().filter_map(|pinned| Some((pinned.group, pinned.release_index?))));
            for pinned in pinned_groups {
                if pinned.group == meta::GROUP {
                    context.meta.replica.checkpoint();
                    let_go(context.meta.raft(), &pinned).await;
                }
                if let Some(replica) = context.streams.all_local().into_iter().find(|r| r.spec.group == pinned.group) {
                    {
                        let mut inner = replica.lock();
                        inner.flushing.set_log_pressure();
                        replica.flush_if_due(&mut inner);
                    }
                    let_go(replica.raft(), &pinned).await;
                }
            }
        }
        if count.is_multiple_of(50) {
            context.meta.replica.checkpoint();
        }
        crate::join::tick(&context, count);
    }
}

/// An idle group must not keep the log of all others: it gives up what it keeps for followers that are behind. What is not
/// persisted yet stays, and is asked for again.
async fn let_go(raft: Option<RaftGroup>, pinned: &PinnedGroup) {
    if let (Some(raft), Some(upto)) = (raft, pinned.release_index) {
        raft.purge_log(upto).await;
    }
}

/// A token that SIGTERM or Ctrl-C cancels, from now on.
pub(crate) fn stop_signal() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (
        signal(SignalKind::terminate()).context("cannot catch SIGTERM")?,
        signal(SignalKind::interrupt()).context("cannot catch Ctrl-C")?,
    );
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        stop.cancel();
    });
    Ok(token)
}

/// Hands over leadership, tells clients, persists everything, syncs, and marks the stop as clean.
async fn stop(context: &Arc<Context>) {
    tracing::info!("stopping");
    context.broker.lame_duck();
    for peer in context.transport.peers() {
        // Who does not hear it finds out when the link goes.
        let _down = context.transport.send(peer.node_id, kind::LEAVING, &[]);
    }
    // Peers that are being stopped too say so within moments, and then are not waited for.
    tokio::time::sleep(LEAVING_HEARD_IN).await;
    let handing = async {
        let streams = context.streams.all_local().into_iter().filter(|r| r.leads()).filter_map(|r| r.raft());
        let meta = context.meta.raft().filter(|_| context.meta.leads());
        // Nobody may be up to take over; then the log is as safe as after kill -9.
        join_all(streams.chain(meta).map(|group| async move {
            let _nobody = crate::handover::hand_over(context, &group, None).await;
        }))
        .await;
    };
    // What was not handed over in time elects a new leader by itself.
    let _late = tokio::time::timeout(HANDOVER_PATIENCE, handing).await;
    for replica in context.streams.all_local() {
        replica.close_intake();
    }
    let flushing = async {
        for replica in context.streams.all_local() {
            replica.persist_all().await;
        }
        // What has failed has not been persisted, whatever it waits for.
        context.streams.all_local().iter().all(|replica| !replica.is_stopped())
    };
    let flushed = tokio::time::timeout(FLUSH_PATIENCE, flushing).await == Ok(true);
    // Every answer that may go out is in its connection's buffer now.
    context.broker.close_clients();
    context.stopping.cancel();
    for replica in context.streams.all_local() {
        if let Some(raft) = replica.raft() {
            raft.shutdown().await;
        }
    }
    if let Some(raft) = context.meta.raft() {
        raft.shutdown().await;
    }
    context.transport.shutdown();
    let wal = context.wal.clone();
    let synced = matches!(tokio::task::spawn_blocking(move || wal.shutdown()).await, Ok(Ok(())));
    if synced && flushed {
        context.identity.clean_stop();
    }
    tracing::info!(flushed, synced, "stopped");
}

/// Raises the soft limit of open files to the hard one and returns it.
fn raise_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let now = getrlimit(Resource::Nofile).current;
    now.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Clients at a time, so that the stores, the log and the peers never lack a file descriptor.
fn connections_max(files: usize) -> usize {
    files - (files / 4).max(256.min(files / 2))
}

/// `dev` and `demo` start nodes that must not outlive them.
fn die_with_parent() {
    let Some(parent) = std::env::var("HEADWATER_PARENT").ok().and_then(|p| p.parse::<i32>().ok()) else { return };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)) {
        tracing::warn!(%error, "this node may outlive the command that started it");
    }
    // The parent may have gone before the line above.
    if rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero).is_none_or(|p| p.get() != parent) {
        tracing::warn!("the command that started this node is gone");
        #[expect(clippy::exit, reason = "nothing has been started yet")]
        std::process::exit(1);
    }
}

/// Registers this node's current incarnation; `Ok(false)` if it has to be tried again.
pub(crate) async fn register_once(context: &Arc<Context>) -> Result<bool, String> {
    let name = NodeName::new(context.config.name.clone());
    let addresses = Addresses {
        client: context.config.client_advertise.clone(),
        cluster: context.config.cluster_advertise.clone(),
        http: context.config.http.to_string(),
    };
    let epoch = context.identity.boot_epoch();
    let current = context.meta.read(|c| {
        c.node(&name).is_some_and(|n| {
            n.incarnation.get() == context.node_id && n.addresses == addresses && n.boot_epoch == epoch
        })
    });
    if current {
        return Ok(true);
    }
    let command = CatalogCommand::RegisterNode {
        name,
        incarnation: RaftNodeId::new(context.node_id),
        addresses,
        boot_epoch: epoch,
        last_boot_epoch: Some(context.last_run.boot_epoch),
        tags: BTreeSet::new(),
        zone: None,
    };
    match context.meta.write(None, command).await {
        Ok(CatalogResponse::Refused(why)) => {
            if why.is_final_for_the_disk() {
                context.identity.refuse(&why.to_string());
            }
            Err(why.to_string())
        }
        Ok(_) => Ok(true),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_ends_before_what_was_synced_is_noticed() {
        let seen = LogSeen { boot_epoch: 7, synced: (3, 900) };
        let peer = |boot_epoch: u64, log_end: Option<(u64, u64)>| PeerHello {
            boot_epoch,
            log_end,
            ..serde_json::from_value(serde_json::json!({ "node_name": "n1", "node_id": 1 })).unwrap()
        };
        assert_eq!(seen.contradicts(&peer(7, None)), None, "the same boot goes on");
        for sound in [(3, 900), (3, u64::MAX), (4, 64)] {
            assert_eq!(seen.contradicts(&peer(8, Some(sound))), None, "{sound:?}");
        }
        for lost in [Some((3, 896)), Some((2, u64::MAX)), None] {
            assert!(seen.contradicts(&peer(8, lost)).is_some(), "{lost:?}");
        }
        let why = seen.contradicts(&peer(8, Some((2, u64::MAX)))).unwrap();
        assert!(why.contains("ends at the end of segment 2, and was synced up to byte 900 of segment 3"), "{why}");
    }

    #[test]
    fn clients_leave_file_descriptors_to_the_stores() {
        assert_eq!([150, 1024, 65_536, 1 << 20].map(connections_max), [75, 768, 49_152, 786_432]);
    }
}
