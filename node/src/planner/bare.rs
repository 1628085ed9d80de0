//! The meta leader as planner: with nobody else to do it, it carries out what plain NATS clients have configured.
//!
//! A client's stream update puts a new durability into the catalogue and, from there, into the stream's log. The moves
//! of its replicas, one by one, are what is left to do. While everything is in sync, by the replicas that are here,
//! nothing is asked of any other node and nothing is written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use headwater_core::catalog::{NodeState, StreamEntry};
use headwater_core::durability::{Durability, DurabilityState};
use headwater_core::ids::{Generation, RaftNodeId, StreamId};
use headwater_core::stream::StorageKind;
use headwater_plan::{Desired, NodeAnswer, Observed, Request, Step, StreamView, WaitingOn, assemble, render, request};

use super::now;
use super::reconciler::checked;
use crate::admin::peer::{self, PeerError};
use crate::admin::{self, Refusal, Taken};
use crate::jetstream::convert;
use crate::jetstream::streams::config_of;
use crate::node::Context;
use crate::stream::StreamReplica;
use crate::transport::NodeId;

/// Pause between two looks.
const PACE: Duration = Duration::from_secs(1);
/// Pause while a change is on its way: a replica drains in a fraction of a second.
const MOVING_PACE: Duration = Duration::from_millis(250);
/// Longest wait for another node's report.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);
/// How long the fence is asked for; it is given back after every step.
const FENCE_TTL_MS: u64 = 3_000;

/// Runs while the node does.
pub(crate) async fn run(context: Arc<Context>) {
    let mut keeper = Keeper { context: Arc::clone(&context), settled: HashMap::new(), told: HashMap::new() };
    let mut pace = PACE;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pace) => {}
            () = context.stopping.cancelled() => return,
        }
        pace = if keeper.turn().await { MOVING_PACE } else { PACE };
    }
}

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("{0}")]
    Here(Refusal),
    #[error(transparent)]
    There(#[from] PeerError),
}

struct Keeper {
    context: Arc<Context>,
    /// Streams without a replica here that were seen in sync, at which generation of their configuration.
    settled: HashMap<StreamId, Generation>,
    /// What was last said about each stream, so that a wait is told once.
    told: HashMap<StreamId, String>,
}

impl Keeper {
    fn holder(&self) -> String {
        format!("{}{}", admin::fence::NODE_HOLDER, self.context.config.name)
    }

    /// Whether planning is this node's business now.
    fn is_due(&self) -> bool {
        if !self.context.meta.leads() {
            return false;
        }
        let (now, own) = (crate::clock::now(), self.holder());
        self.context.meta.read(|c| {
            let fence = c.fence();
            !fence.is_live(now) || fence.holder.as_deref() == Some(own.as_str())
        })
    }

    /// One look at every stream; at most one step for each. True if anything is on its way.
    async fn turn(&mut self) -> bool {
        if !self.is_due() {
            self.told.clear();
            return false;
        }
        let streams: Vec<StreamEntry> = self.context.meta.read(|c| c.streams().cloned().collect());
        self.settled.retain(|id, _| streams.iter().any(|s| s.id == *id));
        self.told.retain(|id, _| streams.iter().any(|s| s.id == *id));
        let unsettled: Vec<StreamEntry> = streams.into_iter().filter(|s| !self.is_settled(s)).collect();
        if unsettled.is_empty() {
            return false;
        }
        let answers = self.look().await;
        let mut moving = false;
        for entry in unsettled {
            if !self.is_due() {
                break;
            }
            moving |= self.pass(&entry, &answers).await;
        }
        moving
    }

    /// Whether the stream is as its configuration wants, by what is known here.
    fn is_settled(&self, entry: &StreamEntry) -> bool {
        match self.context.streams.local(entry.id.get()) {
            Some(replica) => in_sync_here(&replica, entry),
            None => self.settled.get(&entry.id) == Some(&entry.generation),
        }
    }

    /// Every node's report; this one's without a detour.
    async fn look(&self) -> Vec<NodeAnswer> {
        let context = &self.context;
        let nodes: Vec<(String, String, NodeId)> = context.meta.read(|c| {
            let current = c.nodes().filter(|n| n.state != NodeState::Removed);
            current.map(|n| (n.name.as_str().to_owned(), admin::admin_url(n), n.incarnation.get())).collect()
        });
        join_all(nodes.into_iter().map(|(name, url, node)| async move {
            let report = if node == context.node_id {
                Ok(admin::recovery_report(context))
            } else {
                peer::get(context, node, "/v1/recovery", LOOK_DEADLINE).await.map_err(|e| e.to_string())
            };
            NodeAnswer { name, url, pod: None, at: now(), report }
        }))
        .await
    }

    /// Plans one stream and takes the step, if there is one. True if its replicas are on their way.
    async fn pass(&mut self, entry: &StreamEntry, answers: &[NodeAnswer]) -> bool {
        let (account, name) = (&entry.key.account, &entry.key.name);
        let desired = Desired::unmanaged(account, name);
        let view = StreamView::Present(admin::stream_report(entry).into());
        let observed = assemble(account, name, answers, view, now());
        let planned = checked(&desired, &observed);
        let Some(step) = &planned.step else {
            if planned.is_done() {
                self.settled.insert(entry.id, entry.generation);
                return false;
            }
            self.tell(entry, render::plan(&planned).trim_end());
            return planned.waiting.iter().any(|w| matches!(w, WaitingOn::Drain { .. } | WaitingOn::Settling { .. }));
        };
        let words = render::step(step);
        match self.take(step, &desired, &observed).await {
            Ok(()) => {
                tracing::info!(stream = name, step = words, "step taken");
                true
            }
            Err(error) => {
                self.tell(entry, &format!("{words}: {error}"));
                false
            }
        }
    }

    async fn take(&self, step: &Step, desired: &Desired, observed: &Observed) -> Result<(), StepError> {
        let holder = self.holder();
        let fence = admin::fence::obtain(&self.context, &holder, FENCE_TTL_MS).await.map_err(StepError::Here)?;
        let result = self.execute(&request(step, desired, observed, fence.get()), &desired.name).await;
        // An operator that waits for the fence gets it between two steps; if this fails the fence runs out.
        let _runs_out = admin::fence::give_back(&self.context, &holder).await;
        result
    }

    /// Takes the step here if it can be taken here, otherwise at the node that must.
    async fn execute(&self, call: &Request, stream: &str) -> Result<(), StepError> {
        let context = &self.context;
        match call {
            Request::Durability(step) => {
                if let Taken::By(node) = admin::durability_step(context, stream, step).await.map_err(StepError::Here)? {
                    peer::post(context, node, &admin::durability_path(stream), step).await?;
                }
            }
            Request::Transfer(transfer) => {
                if let Taken::By(node) = admin::leadership_transfer(context, transfer).await.map_err(StepError::Here)? {
                    peer::post(context, node, admin::LEADERSHIP_TRANSFER, transfer).await?;
                }
            }
            // A wish without a manifest never asks for these.
            Request::Put(_) | Request::Delete(_) => {}
        }
        Ok(())
    }

    /// Logs what is awaited when that changes.
    fn tell(&mut self, entry: &StreamEntry, what: &str) {
        let told = self.told.entry(entry.id).or_default();
        if told != what {
            tracing::info!(stream = entry.key.name, plan = what.replace('\n', "; "), "not in sync yet");
            what.clone_into(told);
        }
    }
}

fn in_sync_here(replica: &StreamReplica, entry: &StreamEntry) -> bool {
    let config = config_of(entry);
    let Ok(wanted) = convert::durability(&config) else {
        // The catalogue holds checked configurations only.
        return true;
    };
    let voters = replica.voters();
    let inner = replica.lock();
    if inner.state.generation().get() == 0 {
        // Its first configuration is on its way; replicas start with what that wants.
        return true;
    }
    is_in_sync(inner.state.durability(), wanted, &voters, replica.spec.replicas, inner.state.settings().storage)
}

/// Whether every voter has what is wanted, as far as that has an effect on such a stream.
fn is_in_sync(
    state: &DurabilityState,
    wanted: Durability,
    voters: &[RaftNodeId],
    replicas: u32,
    storage: StorageKind,
) -> bool {
    let acting = |d: Durability| d.effective(replicas, storage).durability;
    acting(state.desired()) == acting(wanted)
        && voters.iter().all(|voter| {
            acting(state.effective(*voter)) == acting(wanted)
                && state.replicas().get(voter).is_none_or(|known| known.granted.is_none())
        })
}

#[cfg(test)]
mod tests {
    use headwater_core::durability::{DurabilityCommand, FlushMode, SyncMode};
    use headwater_core::ids::LogIndex;

    use super::*;

    const FAST: Durability = Durability { sync: SyncMode::Always, interval_ms: 0, flush: FlushMode::Async };
    const STRICT: Durability = Durability { flush: FlushMode::Sync, ..FAST };

    #[test]
    fn in_sync_means_every_voter_and_nobody_on_the_way() {
        let voters = [1, 2, 3].map(RaftNodeId::new);
        let (generation, file) = (Generation::new(2), StorageKind::File);
        let mut state = DurabilityState::new(FAST, Generation::new(1));
        assert!(is_in_sync(&state, FAST, &voters, 3, file));
        assert!(!is_in_sync(&state, STRICT, &voters, 3, file), "the log does not know of it yet");
        assert!(is_in_sync(&state, STRICT, &voters[..1], 1, file), "without a log behind it the flush mode acts alike");

        let change = DurabilityCommand::Change { desired: STRICT, generation, voters: voters.to_vec() };
        state.apply(LogIndex::new(7), &change);
        for voter in voters {
            assert!(!is_in_sync(&state, STRICT, &voters, 3, file));
            state.apply(LogIndex::new(8), &DurabilityCommand::Grant { generation, replica: voter });
            assert!(!is_in_sync(&state, STRICT, &voters, 3, file));
            state.apply(LogIndex::new(9), &DurabilityCommand::Complete { generation, replica: voter });
        }
        assert!(is_in_sync(&state, STRICT, &voters, 3, file));
    }
}
