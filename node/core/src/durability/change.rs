//! Changing durability at run time: a change, its grants and its completions are log entries, so each
//! replica's effective settings are a function of the log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Durability;
use crate::ids::{Generation, LogIndex, RaftNodeId};

/// Where one replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaDurability {
    /// Settings in force there.
    pub effective: Durability,
    /// Generation those settings were completed at.
    pub generation: Generation,
    /// Generation it was last told to move to, if that move is not complete.
    pub granted: Option<Generation>,
}

/// Desired settings and where every replica stands on the way there.
///
/// ```text
/// Change(g)   desired moves; every voter is pinned to what it had
/// Grant(g,r)  r may move: from now on only the weaker of old and new is promised for r
/// Complete(g,r)  r has drained past the barrier: the new settings are promised for r
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilityState {
    desired: Durability,
    generation: Generation,
    barrier: LogIndex,
    replicas: BTreeMap<RaftNodeId, ReplicaDurability>,
}

/// The body of a `Durability` frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "op")]
pub enum DurabilityCommand {
    /// New desired settings. `voters` are the leader's voters at that moment.
    Change {
        /// Settings wished for.
        desired: Durability,
        /// Their generation; one that is not newer is refused.
        generation: Generation,
        /// Voters to pin to what they have now.
        voters: Vec<RaftNodeId>,
    },
    /// One replica may start to move.
    Grant {
        /// Generation of the change.
        generation: Generation,
        /// The replica.
        replica: RaftNodeId,
    },
    /// One replica has moved.
    Complete {
        /// Generation of the change.
        generation: Generation,
        /// The replica.
        replica: RaftNodeId,
    },
    /// A replica left the group for good.
    Forget {
        /// The replica.
        replica: RaftNodeId,
    },
}

/// What a durability command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurabilityOutcome {
    /// It took effect, or had before.
    #[error("done")]
    Done,
    /// It belongs to an older generation.
    #[error("generation {given} is older than {current}")]
    Stale {
        /// Generation in the command.
        given: Generation,
        /// Generation of the state.
        current: Generation,
    },
    /// Another replica is on its way; one moves at a time.
    #[error("replica {0} is still moving")]
    Busy(RaftNodeId),
    /// A completion without a grant.
    #[error("the replica was not told to move")]
    NotGranted,
}

impl DurabilityState {
    /// A fresh stream's: everyone has what is desired.
    pub fn new(desired: Durability, generation: Generation) -> Self {
        Self { desired, generation, barrier: LogIndex::default(), replicas: BTreeMap::new() }
    }

    /// Settings wished for.
    pub fn desired(&self) -> Durability {
        self.desired
    }

    /// Their generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Log index of the latest change: a replica that tightens must have persisted up to here.
    pub fn barrier(&self) -> LogIndex {
        self.barrier
    }

    /// Every replica that was ever pinned, and where it stands.
    pub fn replicas(&self) -> &BTreeMap<RaftNodeId, ReplicaDurability> {
        &self.replicas
    }

    /// Settings in force at a replica. One that was never pinned joined after the latest change and has
    /// what is desired.
    pub fn effective(&self, replica: RaftNodeId) -> Durability {
        self.replicas.get(&replica).map_or(self.desired, |replica| replica.effective)
    }

    /// What the group promises: its weakest voter's settings, field by field.
    pub fn promise(&self, voters: impl IntoIterator<Item = RaftNodeId>) -> Durability {
        voters.into_iter().map(|voter| self.effective(voter)).reduce(Durability::weakest).unwrap_or(self.desired)
    }

    /// Whether every voter has what is desired.
    pub fn in_sync(&self, voters: impl IntoIterator<Item = RaftNodeId>) -> bool {
        voters.into_iter().all(|voter| self.effective(voter) == self.desired)
    }

    /// The replica that was told to move and has not reported completion.
    pub fn moving(&self) -> Option<RaftNodeId> {
        self.replicas.iter().find(|(_, replica)| replica.granted == Some(self.generation)).map(|(&id, _)| id)
    }

    /// Applies a command that was committed at `index`.
    pub fn apply(&mut self, index: LogIndex, command: &DurabilityCommand) -> DurabilityOutcome {
        match command {
            DurabilityCommand::Change { desired, generation, voters } => {
                self.change(index, *desired, *generation, voters)
            }
            DurabilityCommand::Grant { generation, replica } => self.grant(*generation, *replica),
            DurabilityCommand::Complete { generation, replica } => self.complete(*generation, *replica),
            DurabilityCommand::Forget { replica } => {
                self.replicas.remove(replica);
                DurabilityOutcome::Done
            }
        }
    }

    /// The group's membership has changed: who is not part of it any more holds up nobody.
    pub fn keep_members(&mut self, is_member: impl Fn(RaftNodeId) -> bool) {
        self.replicas.retain(|replica, _| is_member(*replica));
    }

    fn stale(&self, given: Generation) -> DurabilityOutcome {
        DurabilityOutcome::Stale { given, current: self.generation }
    }

    fn change(
        &mut self,
        index: LogIndex,
        desired: Durability,
        generation: Generation,
        voters: &[RaftNodeId],
    ) -> DurabilityOutcome {
        if generation == self.generation && desired == self.desired {
            return DurabilityOutcome::Done;
        }
        if generation <= self.generation {
            return self.stale(generation);
        }
        for &voter in voters {
            self.replicas.entry(voter).or_insert(ReplicaDurability {
                effective: self.desired,
                generation: self.generation,
                granted: None,
            });
        }
        for replica in self.replicas.values_mut() {
            // A move that was under way ends here: what is promised for that replica stays the weaker of
            // both, and the new change moves it on.
            replica.granted = None;
        }
        self.desired = desired;
        self.generation = generation;
        self.barrier = index;
        DurabilityOutcome::Done
    }

    fn pin(&mut self, replica: RaftNodeId) -> &mut ReplicaDurability {
        let (effective, generation) = (self.desired, self.generation);
        self.replicas.entry(replica).or_insert(ReplicaDurability { effective, generation, granted: None })
    }

    fn grant(&mut self, generation: Generation, replica: RaftNodeId) -> DurabilityOutcome {
        if generation != self.generation {
            return self.stale(generation);
        }
        match self.moving() {
            Some(other) if other == replica => return DurabilityOutcome::Done,
            Some(other) => return DurabilityOutcome::Busy(other),
            None => {}
        }
        let desired = self.desired;
        let pinned = self.pin(replica);
        pinned.effective = pinned.effective.weakest(desired);
        if pinned.effective == desired {
            // Only relaxations: they are immediate.
            pinned.generation = generation;
        } else {
            pinned.granted = Some(generation);
        }
        DurabilityOutcome::Done
    }

    fn complete(&mut self, generation: Generation, replica: RaftNodeId) -> DurabilityOutcome {
        if generation != self.generation {
            return self.stale(generation);
        }
        let desired = self.desired;
        let pinned = self.pin(replica);
        if pinned.granted == Some(generation) {
            *pinned = ReplicaDurability { effective: desired, generation, granted: None };
            DurabilityOutcome::Done
        } else if pinned.effective == desired && pinned.generation == generation {
            DurabilityOutcome::Done
        } else {
            DurabilityOutcome::NotGranted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::{FlushMode, SyncMode};

    const STRICT: Durability = Durability { sync: SyncMode::Always, interval_ms: 0, flush: FlushMode::Sync };
    const LOOSE: Durability = Durability { sync: SyncMode::Interval, interval_ms: 100, flush: FlushMode::Async };

    fn voters() -> [RaftNodeId; 3] {
        [1, 2, 3].map(RaftNodeId::new)
    }

    fn change(generation: u64, desired: Durability) -> DurabilityCommand {
        let generation = Generation::new(generation);
        DurabilityCommand::Change { desired, generation, voters: voters().to_vec() }
    }

    fn step(state: &mut DurabilityState, grant: bool, generation: u64, replica: u64) -> DurabilityOutcome {
        let (generation, replica) = (Generation::new(generation), RaftNodeId::new(replica));
        let command = if grant {
            DurabilityCommand::Grant { generation, replica }
        } else {
            DurabilityCommand::Complete { generation, replica }
        };
        state.apply(LogIndex::new(50), &command)
    }

    #[test]
    fn a_relaxation_lowers_the_promise_at_its_first_grant() {
        let mut state = DurabilityState::new(STRICT, Generation::new(1));
        state.apply(LogIndex::new(9), &change(2, LOOSE));
        assert_eq!(state.promise(voters()), STRICT);
        assert_eq!(step(&mut state, true, 2, 2), DurabilityOutcome::Done);
        assert_eq!(state.promise(voters()), LOOSE);
        assert_eq!(state.effective(RaftNodeId::new(2)), LOOSE);
        assert_eq!(state.moving(), None);
        assert!(!state.in_sync(voters()));
    }

    #[test]
    fn a_tightening_raises_the_promise_only_when_all_voters_completed_it() {
        let mut state = DurabilityState::new(LOOSE, Generation::new(1));
        state.apply(LogIndex::new(9), &change(2, STRICT));
        assert_eq!(state.barrier(), LogIndex::new(9));
        for replica in [2, 3, 1] {
            assert_eq!(step(&mut state, false, 2, replica), DurabilityOutcome::NotGranted);
            assert_eq!(step(&mut state, true, 2, replica), DurabilityOutcome::Done);
            assert_eq!(state.promise(voters()), LOOSE);
            let other = if replica == 1 { 2 } else { 1 };
            assert_eq!(step(&mut state, true, 2, other), DurabilityOutcome::Busy(RaftNodeId::new(replica)));
            assert_eq!(step(&mut state, false, 2, replica), DurabilityOutcome::Done);
        }
        assert_eq!(state.promise(voters()), STRICT);
        assert!(state.in_sync(voters()));
    }

    #[test]
    fn a_mixed_change_holds_only_what_both_sides_hold_in_between() {
        let from = Durability { flush: FlushMode::Sync, ..LOOSE };
        let to = Durability { flush: FlushMode::Async, ..STRICT };
        let mut state = DurabilityState::new(from, Generation::new(1));
        state.apply(LogIndex::new(9), &change(2, to));
        step(&mut state, true, 2, 1);
        assert_eq!(state.effective(RaftNodeId::new(1)), LOOSE);
        step(&mut state, false, 2, 1);
        assert_eq!(state.effective(RaftNodeId::new(1)), to);
    }

    #[test]
    fn older_generations_are_refused_and_a_reversal_is_a_new_one() {
        let mut state = DurabilityState::new(STRICT, Generation::new(3));
        let stale = DurabilityOutcome::Stale { given: Generation::new(2), current: Generation::new(3) };
        assert_eq!(state.apply(LogIndex::new(9), &change(2, LOOSE)), stale);
        assert_eq!(step(&mut state, true, 2, 1), stale);
        assert_eq!(step(&mut state, false, 2, 1), stale);
        assert_eq!(state, DurabilityState::new(STRICT, Generation::new(3)));
        state.apply(LogIndex::new(9), &change(4, LOOSE));
        step(&mut state, true, 4, 1);
        state.apply(LogIndex::new(12), &change(5, STRICT));
        assert_eq!(state.promise(voters()), LOOSE);
        assert_eq!(state.barrier(), LogIndex::new(12));
    }

    /// Found by a store that failed in the middle of a change: its replica came back under another id.
    #[test]
    fn a_member_that_is_gone_holds_up_nobody() {
        let mut state = DurabilityState::new(LOOSE, Generation::new(1));
        state.apply(LogIndex::new(9), &change(2, STRICT));
        assert_eq!(step(&mut state, true, 2, 3), DurabilityOutcome::Done);
        assert_eq!(step(&mut state, true, 2, 1), DurabilityOutcome::Busy(RaftNodeId::new(3)));
        state.keep_members(|replica| [1, 2, 8].map(RaftNodeId::new).contains(&replica));
        assert_eq!(state.effective(RaftNodeId::new(8)), STRICT);
        for replica in [1, 2] {
            assert_eq!(step(&mut state, true, 2, replica), DurabilityOutcome::Done);
            assert_eq!(step(&mut state, false, 2, replica), DurabilityOutcome::Done);
        }
        assert!(state.in_sync([1, 2, 8].map(RaftNodeId::new)));
    }

    #[test]
    fn a_replica_that_joins_later_has_what_is_desired() {
        let mut state = DurabilityState::new(LOOSE, Generation::new(1));
        state.apply(LogIndex::new(9), &change(2, STRICT));
        assert_eq!(state.effective(RaftNodeId::new(8)), STRICT);
        state.apply(LogIndex::new(10), &DurabilityCommand::Forget { replica: RaftNodeId::new(3) });
        assert_eq!(state.replicas().len(), 2);
    }
}
