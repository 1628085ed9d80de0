//! The task beside each replicated replica: proposes what was sealed, follows leadership, reports checkpoints to Raft,
//! and reopens the group on its storage if its Raft task died.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_core::ids::{Ordinal, Term};

use super::forward::Fate;
use super::leading::{CommandFate, Leading};
use super::replica::{Inner, StreamReplica};
use crate::raft::{GroupState, Proposed, RaftGroup, Role};

impl StreamReplica {
    /// Runs until the replica is closed or has failed, or its Raft task has died; returns why.
    pub(crate) async fn drive(self: &Arc<Self>, raft: RaftGroup) -> String {
        let mut watch = raft.watch();
        let mut reported = self.lock().flushing.persisted();
        loop {
            tokio::select! {
                () = self.wake.notified() => {}
                alive = watch.changed() => if !alive {
                    return raft.fatal().unwrap_or_else(|| "stopped".to_owned());
                },
            }
            if let Some(why) = raft.fatal() {
                return why;
            }
            if let Some(failure) = &self.lock().failed {
                return failure.why.clone();
            }
            if self.is_starting_over() {
                return "its peers have to go on with what their logs hold".to_owned();
            }
            let state = raft.state();
            if state.leader.is_some() && self.sits_out() {
                self.sit_out(false);
                raft.stand_for_election(true);
            }
            if state.leader.is_some() && self.context.streams.kept_out(self.spec.stream.get()).is_some() {
                self.context.streams.keep_out(self.spec.stream, None);
                self.is_let_in();
            }
            self.follow_leadership(&state);
            self.propose_sealed(&raft).await;
            let persisted = self.lock().flushing.persisted();
            if persisted > reported {
                reported = persisted;
                raft.persisted_moved().await;
            }
        }
    }

    /// Starts or ends leading as Raft says.
    pub(crate) fn follow_leadership(self: &Arc<Self>, now: &GroupState) {
        let mut inner = self.lock();
        if inner.failed.is_some() {
            return;
        }
        let leads = now.role == Role::Leader;
        self.follow(now.leader.map(|id| self.context.node_of(id)));
        match &inner.leading {
            Some(leading) if !leads || leading.term.get() != now.term => self.stop_leading(&mut inner),
            _ => {}
        }
        // A sequencer starts from a state in which everything committed before its term is applied: Raft's own first
        // entry of the term is the last of that.
        let may_lead = leads && !self.is_intake_closed();
        if may_lead && inner.leading.is_none() && inner.state.applied().term.get() == now.term {
            let term = Term::new(now.term);
            inner.leading = Some(Leading::new(&inner.state, term));
            self.start_pumps(&mut inner);
            self.set_leads(true);
            drop(inner);
            tracing::info!(stream = self.spec.name, term = now.term, "leading");
            self.context.claim_leadership(self.spec.stream, now.term);
            self.wake.notify_one();
            self.pump_wake.notify_one();
            self.context.catalogue_changed();
        }
    }

    async fn propose_sealed(self: &Arc<Self>, raft: &RaftGroup) {
        while let Some((term, ordinal, frame)) = self.next_sealed() {
            let this = Arc::clone(self);
            raft.propose(term.get(), frame, move |fate| this.proposal_ended(term, ordinal, &fate)).await;
        }
    }

    fn next_sealed(&self) -> Option<(Term, Ordinal, Bytes)> {
        let mut inner = self.lock();
        let leading = inner.leading.as_mut()?;
        let (ordinal, frame) = leading.admission.seal()?;
        leading.outstanding += 1;
        Some((leading.term, ordinal, frame))
    }

    /// Raft has decided one proposal. Applied ones were settled when they were applied.
    fn proposal_ended(self: &Arc<Self>, term: Term, ordinal: Ordinal, fate: &Proposed) {
        let mut inner = self.lock();
        let Inner { leading: Some(leading), state, .. } = &mut *inner else { return };
        if leading.term != term {
            return;
        }
        leading.outstanding -= 1;
        if !matches!(fate, Proposed::Applied) && !leading.admission.is_halted() {
            leading.admission.refused(ordinal);
            // Everything behind the refused frame is void if it is in the log at all.
            let told = if matches!(fate, Proposed::Refused) { not_ready() } else { Fate::Unknown };
            for (_, flight) in leading.take_from(ordinal) {
                self.acks.release_as(flight.acks, &told);
                if let Some(waiter) = flight.command {
                    // The proposer may have given up.
                    let _gone = waiter.send(CommandFate::Lost);
                }
                for (consumer, token) in flight.tokens {
                    if let Some(pump) = leading.pumps.get_mut(&consumer) {
                        pump.refused(token);
                    }
                }
            }
        }
        if leading.admission.is_halted() && leading.outstanding == 0 {
            leading.admission.reset(state, term);
            tracing::info!(stream = self.spec.name, term = %term, "a proposal was refused: the sequencer starts over");
            drop(inner);
            self.wake.notify_one();
            self.pump_wake.notify_one();
            self.room.notify_waiters();
        }
    }

    /// Founds the group if nobody else does: the placement's first replica at once, the others after a while.
    pub(crate) async fn found(self: Arc<Self>, raft: RaftGroup, voters: BTreeSet<u64>, first: bool) {
        if !first {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let state = raft.state();
        if raft.is_initialized().await || state.term > 0 || !voters.contains(&raft.raft_id()) {
            return;
        }
        if let Err(error) = raft.initialize(voters).await {
            tracing::warn!(stream = self.spec.name, error, "the group could not be founded from here");
        }
    }
}

/// The refusal of a publish that was certainly not stored.
pub(crate) fn not_ready() -> Fate {
    use headwater_core::stream::PubRefusal;
    Fate::Refused(refusal_json(&PubRefusal::NotReady))
}

/// A refusal as the `error` part of a publish ack.
pub(crate) fn refusal_json(why: &headwater_core::stream::PubRefusal) -> Bytes {
    let text = serde_json::to_string(&why.description()).expect("a string serializes");
    Bytes::from(format!("{{\"code\":{},\"err_code\":{},\"description\":{text}}}", why.code(), why.err_code()))
}
