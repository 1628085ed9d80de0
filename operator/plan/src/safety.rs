//! What may be touched now, and what speaks against it.
//!
//! A group of n voters keeps serving with ⌊n/2⌋ of them away. A step that touches a replica therefore
//! needs every *other* voter in view: with one missing already, the step would be the second loss.

use headwater_crds::{Storage, SyncMode};

use crate::observed::{GroupView, Observed, ReplicaView, failed};
use crate::step::WaitingOn;
use crate::wire::Durability;

/// How settings act in one group: its storage and size decide which of them have an effect.
#[derive(Clone, Copy, Debug)]
pub struct Acting {
    /// Storage of the stream.
    pub storage: Storage,
    /// Replicas it is configured with.
    pub replicas: usize,
}

impl Acting {
    /// Whether two settings are the same in force.
    pub fn same(self, a: Durability, b: Durability) -> bool {
        a.acting(self.storage, self.replicas) == b.acting(self.storage, self.replicas)
    }

    /// Whether moving from one to the other strengthens a promise in force.
    pub fn tightens(self, from: Durability, to: Durability) -> bool {
        from.acting(self.storage, self.replicas).tightens_to(to.acting(self.storage, self.replicas))
    }
}

/// Where one voter stands on the way to the group's desired durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has it, by the log and by its own word.
    Done,
    /// It was told to move and has not completed.
    Moving,
    /// The log says it completed, and its own answer does not agree yet.
    Settling,
    /// It has yet to be told.
    Pending,
}

/// Where a voter stands. What the leader did not record is `Settling`: not known, so nothing follows.
pub fn progress(voter: &ReplicaView, group: &GroupView, acting: Acting) -> Progress {
    let Some(recorded) = voter.recorded else {
        return Progress::Settling;
    };
    if recorded.granted.is_some() {
        return Progress::Moving;
    }
    if !acting.same(recorded.effective, group.desired) {
        return Progress::Pending;
    }
    let agrees = voter.effective.is_some_and(|own| acting.same(own, group.desired));
    // A replica that moved for this very change must show that the barrier is behind it. One that
    // had the setting all along has nothing to drain.
    let drained = recorded.generation != group.generation || drained(voter, group, acting);
    if agrees && drained { Progress::Done } else { Progress::Settling }
}

/// Whether what came before the change is as safe at this replica as the new setting promises.
fn drained(voter: &ReplicaView, group: &GroupView, acting: Acting) -> bool {
    let (Some(barrier), Some(marks)) = (group.barrier, voter.watermarks) else {
        return group.barrier.is_none();
    };
    if acting.storage == Storage::Memory || acting.replicas <= 1 {
        // Nothing lies behind a log here.
        return true;
    }
    let desired = group.desired.acting(acting.storage, acting.replicas);
    let stored = desired.allow_async_flush || marks.persisted >= barrier;
    let synced = desired.sync_mode != SyncMode::Always || marks.synced >= barrier;
    stored && synced
}

/// Voters that did not answer.
pub fn missing(observed: &Observed) -> Vec<WaitingOn> {
    observed
        .voters()
        .filter_map(|voter| match &voter.reach {
            crate::observed::Reach::Reachable => None,
            crate::observed::Reach::Unreachable { why } => {
                Some(WaitingOn::Voter { node: voter.node.clone(), why: why.clone() })
            }
        })
        .collect()
}

/// Voters that answered and have not recovered.
pub fn unrecovered(observed: &Observed) -> Vec<WaitingOn> {
    observed
        .voters()
        .filter(|voter| voter.reach.is_reachable() && !voter.is_sound())
        .map(|voter| WaitingOn::Recovery { node: voter.node.clone(), phase: voter.phase, why: voter.phase_why.clone() })
        .collect()
}

/// Voters that answered and serve nothing: a relaxation waits for them too.
pub fn broken(observed: &Observed) -> Vec<WaitingOn> {
    unrecovered(observed)
        .into_iter()
        .filter(|waiting| matches!(waiting, WaitingOn::Recovery { phase, .. } if failed(*phase)))
        .collect()
}

/// Why the members of the group are not those the configuration asks for, if they are not.
pub fn membership(observed: &Observed, replicas: usize) -> Option<WaitingOn> {
    let voters = observed.voters().count();
    let learners = observed.replicas.len() - voters;
    (voters != replicas || learners > 0).then_some(WaitingOn::Membership { voters, replicas, learners })
}

/// How far a replica has come, for choosing between replicas: persisted first, then log.
pub fn standing(replica: &ReplicaView) -> (u64, u64) {
    replica.watermarks.map_or((0, 0), |marks| (marks.persisted, marks.accepted))
}
