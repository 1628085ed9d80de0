//! What a replica says of itself: watermarks, phase, snapshot, durability.

use headwater_core::ids::LogIndex;
use headwater_core::recovery::Phase;
use headwater_core::watermark::Watermarks;
use headwater_crds::{ReplicaPhase, ReplicaRole};
use headwater_plan::wire;

use super::replica::{Inner, StreamReplica};
use crate::node::Context;
use crate::raft::{GroupState, Role};

pub(crate) fn role(role: Role) -> ReplicaRole {
    match role {
        Role::Leader => ReplicaRole::Leader,
        Role::Follower => ReplicaRole::Follower,
        Role::Candidate => ReplicaRole::Candidate,
        Role::Learner => ReplicaRole::Learner,
        Role::Stopped => ReplicaRole::Unknown,
    }
}

pub(crate) fn phase(phase: &Phase) -> (ReplicaPhase, Option<String>) {
    match phase {
        Phase::LoadingSnapshot => (ReplicaPhase::LoadingSnapshot, None),
        Phase::ReplayingLog => (ReplicaPhase::ReplayingLog, None),
        Phase::CatchingUp => (ReplicaPhase::CatchingUp, None),
        Phase::Persisting => (ReplicaPhase::Persisting, None),
        Phase::Recovered => (ReplicaPhase::Recovered, None),
        Phase::Repairing => (ReplicaPhase::Repairing, None),
        Phase::Quarantined { why } => (ReplicaPhase::Quarantined, Some(why.clone())),
        Phase::Failed { why } => (ReplicaPhase::Failed, Some(why.clone())),
    }
}

pub(crate) fn durability(d: headwater_core::durability::Durability) -> wire::Durability {
    use headwater_core::durability::{FlushMode, SyncMode};
    let (sync_mode, sync_interval_ms) = match d.sync {
        SyncMode::Always => (headwater_crds::SyncMode::Always, None),
        SyncMode::Interval => (headwater_crds::SyncMode::Interval, Some(u64::from(d.interval_ms))),
        SyncMode::NoWait => (headwater_crds::SyncMode::NoWait, None),
    };
    wire::Durability { sync_mode, sync_interval_ms, allow_async_flush: d.flush == FlushMode::Async }
}

pub(crate) fn wire_marks(w: &Watermarks) -> wire::Watermarks {
    wire::Watermarks {
        purged: w.purged.get(),
        persisted: w.persisted.get(),
        stored: w.stored.get(),
        applied: w.applied.get(),
        committed: w.committed.get(),
        accepted: w.accepted.get(),
        synced: w.synced.get(),
        written: w.written.get(),
    }
}

impl StreamReplica {
    /// The watermarks now, in the order in which none can overtake the next while they are read: lowest first. As they
    /// are, so that a wrong order is seen.
    pub(crate) fn watermarks(&self, inner: &Inner, raft: Option<&GroupState>) -> Watermarks {
        let applied = inner.state.applied().index;
        let persisted = inner.flushing.persisted();
        // An entry without a frame, a change of members for one, brings the store nothing to write.
        let stored = inner.stored();
        let Some(raft) = raft else {
            // No log: the store is written and synced in its place.
            let synced = inner.store_synced();
            return Watermarks {
                purged: persisted,
                persisted,
                stored,
                applied,
                committed: applied,
                accepted: applied,
                synced,
                written: stored,
            };
        };
        let wal = self.context.wal.watermarks(self.spec.group);
        let purged =
            self.context.wal.group(self.spec.group).and_then(|g| g.purged).map_or(LogIndex::new(0), |p| p.index);
        // What is purged counts as synced: its marker says so. So does what came as a snapshot: no log is behind it.
        let floor = purged.max(inner.flushing.installed_at().unwrap_or(purged));
        let at = |index: Option<LogIndex>| index.unwrap_or(floor).max(floor);
        let accepted = at(wal.accepted);
        Watermarks {
            purged,
            persisted,
            stored,
            applied,
            // What is applied was committed, whatever Raft's figures, which come late; and a leader may tell of more
            // than this replica has.
            committed: LogIndex::new(raft.committed).max(applied).min(accepted),
            accepted,
            synced: at(wal.synced),
            written: at(wal.written),
        }
    }

    /// This replica's entry in `GET /v1/recovery`.
    pub(crate) fn report(&self, context: &Context) -> wire::GroupReport {
        let raft = self.raft_state();
        let names = context.node_names();
        let inner = self.lock();
        let marks = self.watermarks(&inner, raft.as_ref());
        let has_files = inner.failed.is_none();
        if has_files && let Err(violation) = marks.check() {
            // I-4 guards data: a wrong order is our own bug and must be seen, not hidden.
            tracing::error!(stream = self.spec.name, %violation, "watermarks out of order");
        }
        let state = inner.state.durability();
        let storage = inner.state.settings().storage;
        let acting =
            |d: headwater_core::durability::Durability| durability(d.effective(self.spec.replicas, storage).durability);
        let voter_ids: Vec<u64> = match &raft {
            Some(r) => r.members.voters().into_iter().collect(),
            None => vec![self.spec.raft_id.get()],
        };
        let ids = || voter_ids.iter().map(|id| headwater_core::ids::RaftNodeId::new(*id));
        let name = |id: u64| names.get(&id).cloned().unwrap_or_else(|| id.to_string());
        let voters = ids()
            .map(|id| {
                let known = state.replicas().get(&id);
                wire::Voter {
                    node: name(id.get()),
                    node_id: context.node_of(id.get()),
                    effective: acting(state.effective(id)),
                    generation: known.map_or(state.generation(), |k| k.generation).get(),
                    granted: known.and_then(|k| k.granted).map(headwater_core::ids::Generation::get),
                }
            })
            .collect();
        let learners = raft.as_ref().map_or_else(Vec::new, |r| {
            r.members.nodes.iter().filter(|id| !voter_ids.contains(id)).map(|id| name(*id)).collect()
        });
        let (replica_phase, phase_why) = phase(inner.phase.phase());
        let phase_why = phase_why.or_else(|| inner.hole.clone());
        let snapshot = inner.flushing.mark().filter(|m| m.at.index > marks.persisted).map_or_else(
            || wire::Snapshot { index: marks.persisted.get(), r#async: false, missing: 0 },
            |m| wire::Snapshot { index: m.at.index.get(), r#async: true, missing: m.missing(marks.persisted) },
        );
        wire::GroupReport {
            group: self.spec.group.get(),
            stream: self.spec.name.clone(),
            account: crate::node::ACCOUNT.to_owned(),
            role: match &raft {
                _ if inner.failed.is_some() => ReplicaRole::Unknown,
                Some(r) => role(r.role),
                None if self.is_replicated() => ReplicaRole::Unknown,
                None => ReplicaRole::Leader,
            },
            leader: match &raft {
                Some(r) => r.leader.map(name),
                None => Some(context.config.name.clone()),
            },
            term: raft.as_ref().map_or(super::local::LOCAL_TERM.get(), |r| r.term),
            watermarks: wire_marks(&marks),
            snapshot: Some(snapshot),
            phase: replica_phase,
            phase_why,
            effective: acting(state.effective(self.spec.raft_id)),
            desired: durability(state.desired()),
            promise: acting(state.promise(ids())),
            generation: state.generation().get(),
            barrier: Some(state.barrier().get()).filter(|b| *b > 0),
            quorum_acked_ms: raft.as_ref().and_then(|r| r.quorum_ack_ms),
            voters,
            learners,
        }
    }
}
