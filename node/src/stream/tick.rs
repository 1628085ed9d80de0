//! What a replica does now and then: expiry, phases, reports, leadership handed over on request.

use std::sync::Arc;

use headwater_core::catalog::NodeName;
use headwater_core::ids::{Generation, LogIndex};
use headwater_core::recovery::Progress;
use headwater_core::stream::{Command, Expire};

use super::leading::ExpiryFacts;
use super::replica::StreamReplica;
use crate::node::Context;
use crate::raft::GroupState;

/// Messages that one expiry entry removes at most.
const EXPIRE_COUNT_MAX: u32 = 10_000;

impl StreamReplica {
    /// Runs about ten times a second for every replica; cheap when there is nothing to do.
    pub(crate) fn tick(self: &Arc<Self>) {
        let raft = self.raft_state();
        // Raft tells of a change of its leader, but not that one is heard again, or is heard no more.
        if raft.as_ref().is_some_and(|now| now.leader.map(|id| self.context.node_of(id)) != self.followed_leader()) {
            self.wake.notify_one();
        }
        self.observe_phase(raft);
        self.expire_if_due();
        if self.leads() {
            self.look_for_room();
        }
        self.drop_unheard_requests();
        let mut inner = self.lock();
        // A delivery has no one to tell.
        let _known = self.met_damage(&mut inner);
        self.flush_on_tick(&mut inner);
        drop(inner);
        self.heal_if_damaged();
        if let Some(generation) = self.drained() {
            self.report_drained(generation);
        }
    }

    fn observe_phase(self: &Arc<Self>, raft: Option<GroupState>) {
        let mut inner = self.lock();
        let applied = inner.state.applied().index;
        let progress = Progress {
            applied,
            persisted: inner.flushing.persisted(),
            committed: raft.as_ref().map_or(applied, |r| LogIndex::new(r.committed)).max(applied),
            leader_known: match &raft {
                Some(r) => r.commit_known,
                // A replicated stream whose group does not run yet has heard nothing.
                None => !self.is_replicated(),
            },
            counts: raft.as_ref().is_none_or(|r| r.members.voters().contains(&self.spec.raft_id.get())),
        };
        if inner.phase.observe(progress) {
            tracing::info!(stream = self.spec.name, phase = inner.phase.phase().as_str(), "recovery");
        }
        if let Some(barrier) = inner.phase.barrier().filter(|b| *b > inner.flushing.persisted()) {
            inner.flushing.set_barrier(barrier);
        }
    }

    fn expire_if_due(self: &Arc<Self>) {
        if !self.leads() {
            return;
        }
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = crate::clock::now();
        let Some(leading) = inner.leading.as_mut().filter(|leading| !leading.expiring) else { return };
        // Of a stream whose messages age the first one must be read for this, from disk if it is old: once.
        let of = ExpiryFacts {
            first_seq: inner.state.first_seq(),
            is_empty: inner.state.messages() == 0,
            generation: inner.state.generation(),
            next_ttl: inner.state.next_ttl(),
        };
        let next = match leading.next_expiry {
            Some((asked, next)) if asked == of => next,
            _ => inner.state.next_expiry(&inner.store),
        };
        leading.next_expiry = Some((of, next));
        if next.is_none_or(|at| at > now) {
            return;
        }
        let command = Command::Expire(Expire { now, max_count: EXPIRE_COUNT_MAX });
        if leading.admission.propose(&inner.state, command, now).is_ok() {
            leading.expiring = true;
            drop(guard);
            self.wake.notify_one();
        }
    }

    fn report_drained(self: &Arc<Self>, generation: Generation) {
        if self.leads() {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                // Reported again on the next tick if it did not take.
                let _again = this.complete(generation, this.spec.raft_id).await;
            });
        } else if let Some(leader) = self.followed_leader() {
            self.context.report_drained(leader, self.spec.stream, generation, self.spec.raft_id);
        }
    }

    /// Hands leadership to `preferred`, or to the follower that is closest behind.
    pub(crate) async fn hand_over(&self, context: &Context, preferred: Option<&NodeName>) -> Result<(), String> {
        let raft = self.raft().ok_or("a stream with one replica has nobody to hand over to")?;
        Ok(crate::handover::hand_over(context, &raft, preferred).await?)
    }
}
