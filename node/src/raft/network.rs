//! openraft's network over the node's one link per peer: pipelined appends, unary heartbeats and votes, bulk snapshots.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use headwater_core::ids::{GroupId, LogIndex};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::codec::{self, Reader};
use super::heartbeats::Heartbeats;
use super::machine::SnapshotBody;
use super::transfer;
use super::types::*;
use crate::transport::{NodeId, Transport};

/// Frame kinds on the peer link that belong to Raft.
pub(crate) mod kind {
    /// One append of a replication stream; answered in the stream's order.
    pub(crate) const APPEND: u8 = 0x01;
    /// A message: the stream has ended.
    pub(crate) const APPEND_CLOSE: u8 = 0x02;
    pub(crate) const APPEND_UNARY: u8 = 0x03;
    pub(crate) const VOTE: u8 = 0x04;
    pub(crate) const PRE_VOTE: u8 = 0x05;
    pub(crate) const TRANSFER_LEADER: u8 = 0x06;
    /// Entry-less appends of many groups; see [`super::super::heartbeats`].
    pub(crate) const HEARTBEATS: u8 = 0x07;
}

/// A replication stream with no answer for this long is dead.
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// Appends in flight on one stream; openraft pipelines at most 64.
const STREAM_WINDOW: usize = 128;

/// Where a group's Raft ids live now; from the catalogue.
pub(crate) trait Directory: Send + Sync + 'static {
    fn node_of(&self, group: u64, raft_id: u64) -> Option<NodeId>;
}

/// Shared by all groups of the node.
#[derive(Clone)]
pub(crate) struct RaftNet {
    pub(super) transport: Transport,
    pub(super) directory: Arc<dyn Directory>,
    heartbeats: Heartbeats,
    next_stream: Arc<AtomicU64>,
    /// By group: entries up to here are not kept any longer for members that are slow to take them.
    releases: Arc<Mutex<HashMap<u64, LogIndex>>>,
}

impl RaftNet {
    pub(crate) fn new(transport: Transport, directory: Arc<dyn Directory>) -> Self {
        // Stream ids start anywhere: what is still on its way for a stream of an earlier boot must match none of this one.
        let next_stream = Arc::new(AtomicU64::new(rand::random()));
        Self { transport, directory, heartbeats: Heartbeats::default(), next_stream, releases: Arc::default() }
    }

    /// The log is too long: in these groups it is not kept up to these entries for members that are slow to take them;
    /// they get a snapshot instead. openraft does not purge what a replication stream is to send, and ends a stream only
    /// at an error. A stream to a member that is away has an error at each try.
    pub(crate) fn release_log(&self, groups: impl Iterator<Item = (GroupId, LogIndex)>) {
        *self.releases.lock() = groups.map(|(group, upto)| (group.get(), upto)).collect();
    }

    /// Whether the group's log is kept for a member that has it up to `matched`.
    fn keeps_log_for(&self, group: u64, matched: Option<LogIndex>) -> bool {
        self.releases.lock().get(&group).is_none_or(|upto| matched >= Some(*upto))
    }
}

fn unreachable(why: impl std::fmt::Display) -> Unreachable<TypeConfig> {
    Unreachable::new(&io::Error::other(why.to_string()))
}

pub(super) struct Factory {
    pub(super) net: RaftNet,
    pub(super) group: u64,
}

impl Factory {
    fn client(&self, target: u64, heartbeat: bool) -> Client {
        Client { net: self.net.clone(), group: self.group, target, heartbeat }
    }
}

impl RaftNetworkFactory<TypeConfig> for Factory {
    type Network = Client;

    async fn new_client(&mut self, target: u64, _node: &openraft::EmptyNode) -> Client {
        self.client(target, false)
    }

    async fn new_heartbeat_client(&mut self, target: u64, _node: &openraft::EmptyNode) -> Client {
        self.client(target, true)
    }
}

/// Talks to one member of one group.
pub(super) struct Client {
    net: RaftNet,
    group: u64,
    target: u64,
    heartbeat: bool,
}

impl Client {
    fn node(&self) -> Result<NodeId, Unreachable<TypeConfig>> {
        self.net
            .directory
            .node_of(self.group, self.target)
            .ok_or_else(|| unreachable(format!("no node hosts member {} of group {}", self.target, self.group)))
    }

    /// `group | target`, which every Raft message starts with.
    fn head(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(128);
        out.put_u64_le(self.group);
        out.put_u64_le(self.target);
        out
    }

    /// Sends an entry-less append with those of other groups to the same peer.
    async fn beat(
        &self,
        rpc: &AppendEntriesRequest<TypeConfig>,
        patience: Duration,
    ) -> Result<codec::AppendResult, RPCError<TypeConfig>> {
        let (node, transport) = (self.node()?, self.net.transport.clone());
        let request: BytesMut = codec::append_request(self.head(), rpc).iter().flatten().copied().collect();
        let carry = move |body: Bytes| async move {
            transport.request(node, kind::HEARTBEATS, &[body], patience).await.map_err(|e| e.to_string())
        };
        let answer = self.net.heartbeats.beat(node, request.freeze(), carry).await.map_err(unreachable)?;
        codec::read_append_result(&mut Reader(answer)).map_err(bad)
    }

    async fn unary(&self, kind: u8, parts: &[Bytes], option: &RPCOption) -> Result<Reader, RPCError<TypeConfig>> {
        let node = self.node()?;
        match self.net.transport.request(node, kind, parts, option.hard_ttl()).await {
            Ok(body) => Ok(Reader(body)),
            Err(e) => Err(unreachable(e).into()),
        }
    }
}

fn bad(e: codec::BadMessage) -> RPCError<TypeConfig> {
    NetworkError::new(&e).into()
}

type ResultStream = BoxStream<'static, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>;

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = SnapshotBody;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let mut r = self.unary(kind::APPEND_UNARY, &codec::append_request(self.head(), &rpc), &option).await?;
        Ok(codec::read_append_result(&mut r).map_err(bad)?.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>, RPCError<TypeConfig>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        Box::pin(async move {
            if self.heartbeat {
                // A heartbeat is one entry-less request: a whole stream (task, channel) on both sides would be waste.
                let Some(rpc) = input.next().await else {
                    return Ok(Box::pin(futures::stream::empty()) as BoxStream<'s, _>);
                };
                let result = self.beat(&rpc, option.hard_ttl()).await?;
                return Ok(Box::pin(futures::stream::iter([Ok(result)])) as BoxStream<'s, _>);
            }
            let node = match self.node() {
                Ok(node) => node,
                Err(nowhere) => {
                    // openraft waits after an error where it makes the next request, and nowhere else: whoever fails
                    // without taking one is asked again at once, for ever.
                    let _unsent = input.next().await;
                    return Err(nowhere.into());
                }
            };
            let stream: ResultStream = pipelined(self.net.clone(), node, self.group, self.target, input);
            Ok(stream as BoxStream<'s, _>)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let mut out = self.head();
        codec::put_vote_request(&mut out, &rpc);
        let mut r = self.unary(kind::VOTE, &[out.freeze()], &option).await?;
        codec::read_vote_response(&mut r).map_err(bad)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let mut out = self.head();
        codec::put_vote_request(&mut out, &rpc);
        let mut r = self.unary(kind::PRE_VOTE, &[out.freeze()], &option).await?;
        codec::read_vote_response(&mut r).map_err(bad)
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let mut out = self.head();
        codec::put_vote(&mut out, req.from_leader());
        out.put_u64_le(*req.to_node_id());
        codec::put_log_id(&mut out, req.last_log_id());
        self.unary(kind::TRANSFER_LEADER, &[out.freeze()], &option).await?;
        Ok(Ok(()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::alias::SnapshotOf<TypeConfig, SnapshotBody>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let node = self.node()?;
        let SnapshotBody::Pinned(body) = snapshot.snapshot else {
            return Err(unreachable("a staged snapshot cannot be sent").into());
        };
        let at =
            snapshot.meta.last_log_id.as_ref().map(from_log_id).ok_or_else(|| unreachable("a snapshot of nothing"))?;
        let header = transfer::encode_header(&transfer::Header {
            group: self.group,
            target: self.target,
            vote: (vote.leader_id().term, vote.leader_id().voted_for, vote.is_committed()),
            head: (at, from_stored(&snapshot.meta.last_membership)),
            files: body.files(),
        });
        let transport = self.net.transport.clone();
        let transfer = async move {
            let mut socket = transport.open_bulk(node, header).await?;
            transfer::send(&mut socket, Arc::new(body)).await?;
            let mut answer = [0; 17];
            transfer::in_time(transfer::INSTALL_PATIENCE, socket.read_exact(&mut answer)).await?;
            Reader(Bytes::copy_from_slice(&answer)).vote().map_err(io::Error::other)
        };
        tokio::select! {
            sent = transfer => match sent {
                Ok(vote) => Ok(SnapshotResponse::new(vote)),
                Err(e) => Err(unreachable(e).into()),
            },
            closed = cancel => Err(closed.into()),
        }
    }
}

/// Sends requests as they come and yields their answers in order.
fn pipelined<S>(net: RaftNet, node: NodeId, group: u64, target: u64, mut input: S) -> ResultStream
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
{
    let stream = net.next_stream.fetch_add(1, Ordering::Relaxed);

    // Requests go out on their own task, so that answers never wait for the next request.
    let transport = net.transport.clone();
    let (asked_tx, asked) = mpsc::channel(STREAM_WINDOW);
    let sender = tokio::spawn(async move {
        let mut is_first = true;
        while let Some(rpc) = input.next().await {
            let mut head = BytesMut::with_capacity(160);
            for n in [group, target, stream] {
                head.put_u64_le(n);
            }
            head.put_u8(u8::from(is_first));
            let sent = transport.ask(node, kind::APPEND, &codec::append_request(head, &rpc));
            let is_lost = sent.is_err();
            if asked_tx.send(sent).await.is_err() || is_lost {
                break;
            }
            is_first = false;
        }
    });

    struct Session {
        net: RaftNet,
        node: NodeId,
        group: u64,
        stream: u64,
        sender: tokio::task::JoinHandle<()>,
    }
    impl Drop for Session {
        fn drop(&mut self) {
            self.sender.abort();
            let mut out = BytesMut::with_capacity(16);
            out.put_u64_le(self.group);
            out.put_u64_le(self.stream);
            // If the peer is down it has dropped the stream already.
            let _down = self.net.transport.send(self.node, kind::APPEND_CLOSE, &[out.freeze()]);
        }
    }
    let session = Session { net, node, group, stream, sender };

    Box::pin(futures::stream::unfold(Some((session, asked)), |state| async move {
        let (session, mut asked) = state?;
        let answer = match asked.recv().await? {
            Ok(asked) => asked.answer(STREAM_IDLE).await,
            Err(not_sent) => Err(not_sent),
        };
        // An error, and no end: an end has openraft take up the order that began the stream, which may be older than the
        // last purge, and the entries that it wants then are gone.
        let result = match answer {
            Ok(body) => codec::read_append_result(&mut Reader(body)).map_err(bad),
            Err(lost) => Err(unreachable(lost).into()),
        };
        let matched = |result: &codec::AppendResult| {
            result.as_ref().ok().map(|matched| matched.as_ref().map(|id| LogIndex::new(id.index())))
        };
        match result {
            Ok(result) if matched(&result).is_some_and(|at| !session.net.keeps_log_for(session.group, at)) => {
                Some((Err(unreachable("it is too slow for the log to be kept for it").into()), None))
            }
            Ok(result) => {
                let next = result.is_ok().then_some((session, asked));
                Some((Ok(result), next))
            }
            Err(lost) => Some((Err(lost), None)),
        }
    }))
}
