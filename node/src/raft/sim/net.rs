//! The network of a simulated cluster: delay, loss, duplication, partition, pauses.
//!
//! As over TCP, nothing is delivered to or from an earlier life of a node, and a replication stream keeps its order.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use headwater_storage::disk::{Disk, publish};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::storage::Snapshot;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Rng, spawn};
use crate::raft::machine::SnapshotBody;
use crate::raft::receiver::has_up_to;
use crate::raft::transfer::Staged;
use crate::raft::types::*;

/// One life of one member, as others reach it.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) node: usize,
    pub(super) life: u64,
    pub(super) raft: Raft,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) staging: PathBuf,
    /// One snapshot at a time, until it is installed, as at the node's own receiver: they share a folder.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    rng: Rng,
    ports: BTreeMap<u64, Port>,
    /// Life of each node; 0 while it is down.
    lives: Vec<u64>,
    /// Directed links that carry nothing.
    cut: BTreeSet<(usize, usize)>,
    paused: BTreeSet<usize>,
    /// Messages in a thousand that are lost, and that arrive twice.
    lossy: u64,
}

#[derive(Clone)]
pub(super) struct Net(Arc<Mutex<State>>);

/// One end of a conversation.
#[derive(Clone, Copy)]
struct End {
    node: usize,
    life: u64,
}

impl Net {
    pub(super) fn new(nodes: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let lossy = [0, 0, 10, 100][rng.below(4) as usize];
        let state = State {
            rng,
            ports: BTreeMap::new(),
            lives: vec![0; nodes],
            cut: BTreeSet::new(),
            paused: BTreeSet::new(),
            lossy,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn up(&self, node: usize, life: u64) {
        self.0.lock().lives[node] = life;
    }

    pub(super) fn down(&self, node: usize) {
        let mut state = self.0.lock();
        state.lives[node] = 0;
        state.paused.remove(&node);
        state.ports.retain(|_, port| port.node != node);
    }

    pub(super) fn listen(&self, raft_id: u64, port: Port) {
        self.0.lock().ports.insert(raft_id, port);
    }

    /// Cuts every link between the two sides; `one_way` only those out of the first.
    pub(super) fn part(&self, side: &BTreeSet<usize>, one_way: bool) {
        let mut state = self.0.lock();
        for a in 0..state.lives.len() {
            for b in 0..state.lives.len() {
                if side.contains(&a) && !side.contains(&b) {
                    state.cut.insert((a, b));
                    if !one_way {
                        state.cut.insert((b, a));
                    }
                }
            }
        }
    }

    pub(super) fn heal(&self) {
        let mut state = self.0.lock();
        state.cut.clear();
        state.paused.clear();
    }

    pub(super) fn calm(&self) {
        self.0.lock().lossy = 0;
    }

    pub(super) fn pause(&self, node: usize, paused: bool) {
        let mut state = self.0.lock();
        if paused {
            state.paused.insert(node)
        } else {
            state.paused.remove(&node)
        };
    }

    pub(super) fn is_paused(&self, node: usize) -> bool {
        self.0.lock().paused.contains(&node)
    }

    /// Carries one message; fails if it is lost, or an end has died meanwhile.
    async fn hop(&self, from: End, to: End) -> Result<(), Unreachable<TypeConfig>> {
        let (mut delay, lost) = {
            let mut state = self.0.lock();
            let delay = match state.rng.below(100) {
                0 => 200 + state.rng.below(800),
                1..10 => state.rng.below(100),
                _ => state.rng.below(8),
            };
            let lossy = state.lossy;
            (delay, state.rng.below(1000) < lossy)
        };
        loop {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            let state = self.0.lock();
            if state.lives[from.node] != from.life || state.lives[to.node] != to.life {
                return Err(lost_to("an end has died"));
            }
            if lost || state.cut.contains(&(from.node, to.node)) {
                return Err(lost_to("lost"));
            }
            if !state.paused.contains(&from.node) && !state.paused.contains(&to.node) {
                return Ok(());
            }
            delay = 5;
        }
    }

    fn twice(&self) -> bool {
        let mut state = self.0.lock();
        let lossy = state.lossy;
        state.rng.below(1000) < lossy
    }

    fn port(&self, raft_id: u64) -> Result<Port, Unreachable<TypeConfig>> {
        self.0.lock().ports.get(&raft_id).cloned().ok_or_else(|| lost_to("down"))
    }
}

fn lost_to(why: &str) -> Unreachable<TypeConfig> {
    Unreachable::new(&io::Error::other(why.to_owned()))
}

pub(super) struct Factory {
    pub(super) net: Net,
    pub(super) node: usize,
    pub(super) life: u64,
}

impl RaftNetworkFactory<TypeConfig> for Factory {
    type Network = Client;

    async fn new_client(&mut self, target: u64, _node: &openraft::EmptyNode) -> Client {
        Client { net: self.net.clone(), from: End { node: self.node, life: self.life }, target }
    }
}

pub(super) struct Client {
    net: Net,
    from: End,
    target: u64,
}

impl Client {
    /// A question and its answer. What was lost on either way is noticed when the time is up.
    async fn call<T, F, E>(&self, option: &RPCOption, ask: impl Fn(Raft) -> F) -> Result<T, RPCError<TypeConfig>>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        E: std::error::Error + Send + 'static,
        T: Send + 'static,
    {
        let asked = async {
            let port = self.net.port(self.target)?;
            let to = End { node: port.node, life: port.life };
            self.net.hop(self.from, to).await?;
            if self.net.twice() {
                let (net, from, again) = (self.net.clone(), self.from, ask(port.raft.clone()));
                spawn(async move {
                    if net.hop(from, to).await.is_ok() {
                        // Its answer goes nowhere.
                        let _unheard = again.await;
                    }
                });
            }
            let answer = ask(port.raft).await.map_err(|e| lost_to(&e.to_string()))?;
            self.net.hop(to, self.from).await?;
            Ok::<T, Unreachable<TypeConfig>>(answer)
        };
        let due = tokio::time::Instant::now() + option.soft_ttl();
        match tokio::time::timeout_at(due, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(lost)) => {
                tokio::time::sleep_until(due).await;
                Err(lost.into())
            }
            Err(_) => Err(lost_to("no answer in time").into()),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = SnapshotBody;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(&option, |raft| {
            let rpc = rpc.clone();
            async move { raft.append_entries(rpc).await }
        })
        .await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>, RPCError<TypeConfig>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        Box::pin(async move {
            // openraft waits after an error only where it makes the next request: whoever fails before he takes one
            // is asked again at once, for ever.
            let Some(first) = input.next().await else {
                return Ok(Box::pin(futures::stream::empty()) as BoxStream<'s, _>);
            };
            let input = futures::stream::iter([first]).chain(input);
            let port = self.net.port(self.target)?;
            let (from, to) = (self.from, End { node: port.node, life: port.life });
            let (ask, answer) = (self.net.clone(), self.net.clone());
            // A message that is lost ends the stream, as a broken connection does.
            let arriving = futures::stream::unfold(Some((Box::pin(input), ask)), move |state| async move {
                let (mut input, net) = state?;
                let rpc = input.next().await?;
                net.hop(from, to).await.ok()?;
                Some((rpc, Some((input, net))))
            });
            let results = port.raft.stream_append(Box::pin(arriving));
            let answers = futures::stream::unfold(Some((Box::pin(results), answer)), move |state| async move {
                let (mut results, net) = state?;
                match tokio::time::timeout(Duration::from_secs(3), results.next()).await {
                    Ok(None) => None,
                    Err(_) => Some((Err(lost_to("no answer").into()), None)),
                    Ok(Some(Err(fatal))) => Some((Err(lost_to(&fatal.to_string()).into()), None)),
                    Ok(Some(Ok(result))) => match net.hop(to, from).await {
                        Err(lost) => Some((Err(lost.into()), None)),
                        Ok(()) => {
                            let next = result.is_ok().then_some((results, net));
                            Some((Ok(result), next))
                        }
                    },
                }
            });
            Ok(Box::pin(answers) as BoxStream<'s, _>)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(&option, |raft| {
            let rpc = rpc.clone();
            async move { raft.vote(rpc).await }
        })
        .await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(&option, |raft| {
            let rpc = rpc.clone();
            async move { raft.pre_vote(rpc).await }
        })
        .await
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.call(&option, |raft| {
            let req = req.clone();
            async move { raft.handle_transfer_leader(req).await }
        })
        .await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::alias::SnapshotOf<TypeConfig, SnapshotBody>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let port = self.net.port(self.target)?;
        let to = End { node: port.node, life: port.life };
        let SnapshotBody::Pinned(pinned) = snapshot.snapshot else {
            return Err(lost_to("a staged snapshot is not sent").into());
        };
        let at = snapshot.meta.last_log_id.as_ref().map(from_log_id).ok_or_else(|| lost_to("a snapshot of nothing"))?;
        let turn = Arc::clone(&port.turn).lock_owned().await;
        // As the receiver of the node does.
        self.net.hop(self.from, to).await?;
        if has_up_to(&port.raft, vote, at).await {
            self.net.hop(to, self.from).await?;
            return Ok(SnapshotResponse::new(vote));
        }
        let unwritten = |e: io::Error| lost_to(&e.to_string());
        port.disk.remove_dir_all(&port.staging).map_err(unwritten)?;
        port.disk.create_dir_all(&port.staging).map_err(unwritten)?;
        for (index, file) in pinned.files().iter().enumerate() {
            self.net.hop(self.from, to).await?;
            let mut bytes = vec![0; usize::try_from(file.bytes).expect("a small file")];
            pinned.read(index, 0, &mut bytes).map_err(unwritten)?;
            let path = port.staging.join(&file.name);
            if let Some(parent) = path.parent() {
                port.disk.create_dir_all(parent).map_err(unwritten)?;
            }
            publish(&*port.disk, &path, &bytes).map_err(unwritten)?;
        }
        self.net.hop(self.from, to).await?;
        if has_up_to(&port.raft, vote, at).await {
            self.net.hop(to, self.from).await?;
            return Ok(SnapshotResponse::new(vote));
        }
        let body = SnapshotBody::Staged(Staged { dir: port.staging.clone() });
        let staged = Snapshot { meta: snapshot.meta, snapshot: body };
        // It goes on where it is, whatever becomes of the sender; what is staged is its until it has ended.
        let (tell, installed) = oneshot::channel();
        let raft = port.raft.clone();
        spawn(async move {
            let answer = raft.install_full_snapshot(vote, staged).await.map_err(|e| e.to_string());
            drop(turn);
            // The sender may be gone.
            let _gone = tell.send(answer);
        });
        let answer = installed.await.map_err(|e| lost_to(&e.to_string()))?.map_err(|e| lost_to(&e))?;
        self.net.hop(to, self.from).await?;
        Ok(answer)
    }
}
