//! Changing durability on a live stream, at the leader: the change itself, the next replica's grant, and its completion.

use std::sync::Arc;

use headwater_core::durability::{Durability, DurabilityCommand, FlushMode, SyncMode};
use headwater_core::ids::{Generation, RaftNodeId};
use headwater_core::stream::{Command, ConfigChange};
use headwater_protocol::api::stream_config::StreamConfig;

use super::commands::CommandError;
use super::replica::StreamReplica;
use crate::jetstream::convert;

impl StreamReplica {
    /// Brings the catalogue's configuration into the group's log, where it takes effect.
    pub(crate) async fn adopt_config(
        self: &Arc<Self>,
        config: &StreamConfig,
        generation: Generation,
    ) -> Result<(), CommandError> {
        let wanted = convert::durability(config).unwrap_or_default();
        let (have, current, first) = {
            let inner = self.lock();
            let durability = inner.state.durability();
            (inner.state.generation(), durability.desired(), inner.state.generation().get() == 0)
        };
        if wanted != current {
            // A fresh stream's replicas start with what is desired; later every voter is pinned to what it has.
            let voters = if first { Vec::new() } else { self.voters() };
            let change = DurabilityCommand::Change { desired: wanted, generation, voters };
            self.command(Command::Durability(change)).await?;
        }
        if have < generation {
            let change = ConfigChange {
                settings: convert::settings(config),
                config_json: serde_json::to_string(config).expect("a configuration is plain data"),
                generation,
            };
            self.command(Command::Config(Box::new(change))).await?;
        }
        Ok(())
    }

    /// The group's voters; a stream without a group has one.
    pub(crate) fn voters(&self) -> Vec<RaftNodeId> {
        if !self.is_replicated() {
            return vec![self.spec.raft_id];
        }
        self.lock().members.voters().into_iter().map(RaftNodeId::new).collect()
    }

    /// One replica may move to the settings of `generation`.
    pub(crate) async fn grant(
        self: &Arc<Self>,
        generation: Generation,
        replica: RaftNodeId,
    ) -> Result<(), CommandError> {
        self.command(Command::Durability(DurabilityCommand::Grant { generation, replica })).await?;
        Ok(())
    }

    /// A replica says that it has drained past the barrier.
    pub(crate) async fn complete(
        self: &Arc<Self>,
        generation: Generation,
        replica: RaftNodeId,
    ) -> Result<(), CommandError> {
        self.command(Command::Durability(DurabilityCommand::Complete { generation, replica })).await?;
        Ok(())
    }

    /// At a replica that was granted a move: whether everything up to the barrier is as safe as the new settings ask,
    /// so that its completion may be reported. Asks for the flush that it waits for.
    pub(crate) fn drained(self: &Arc<Self>) -> Option<Generation> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let durability = inner.state.durability();
        let generation = durability.generation();
        let mine = durability.replicas().get(&self.spec.raft_id)?;
        let (from, to, barrier) = (mine.effective, durability.desired(), durability.barrier());
        if mine.granted != Some(generation) {
            let moved = from == to && mine.generation == generation;
            if moved && to.flush == FlushMode::Sync && self.is_replicated() && inner.flushing.persisted() < barrier {
                // A relaxation was complete with its grant. Still, a planner moves the next replica only once it
                // sees this one past the barrier, as `Sync` promises of everything that is older.
                inner.flushing.set_barrier(barrier);
                self.flush_if_due(inner);
            }
            return None;
        }
        if !needs_drain(from, to) {
            return Some(generation);
        }
        if inner.flushing.persisted() < barrier {
            inner.flushing.set_barrier(barrier);
            self.flush_if_due(inner);
            return None;
        }
        let synced =
            !self.is_replicated() || self.context.wal.watermarks(self.spec.group).synced.is_some_and(|s| s >= barrier);
        synced.then_some(generation)
    }
}

/// Strengthening any promise drains first; a pure relaxation holds at once.
fn needs_drain(from: Durability, to: Durability) -> bool {
    let rank = |s: SyncMode| match s {
        SyncMode::Always => 0,
        SyncMode::Interval => 1,
        SyncMode::NoWait => 2,
    };
    rank(to.sync) < rank(from.sync)
        || to.flush < from.flush
        || (to.sync == from.sync && to.interval_ms < from.interval_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strengthening_drains() {
        let d = |sync, interval_ms, flush| Durability { sync, interval_ms, flush };
        let strict = d(SyncMode::Always, 0, FlushMode::Sync);
        let fast = d(SyncMode::Always, 0, FlushMode::Async);
        let slow = d(SyncMode::Interval, 1000, FlushMode::Async);
        assert!(needs_drain(fast, strict) && !needs_drain(strict, fast));
        assert!(needs_drain(slow, fast) && !needs_drain(fast, slow));
        assert!(needs_drain(slow, d(SyncMode::Interval, 100, FlushMode::Async)));
    }
}
