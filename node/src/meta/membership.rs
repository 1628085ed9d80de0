//! Which members a group should have, and the one change that brings it closer. Pure.

use std::collections::BTreeSet;

use crate::raft::GroupState;

/// One membership change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    AddLearner(u64),
    SetVoters(BTreeSet<u64>),
    RemoveLearners(BTreeSet<u64>),
}

/// A learner is promoted when it is at most this many entries behind.
const CAUGHT_UP_ENTRIES: u64 = 16;

/// The next change of a group that this member leads, towards exactly `wanted` voters. `None`: nothing to do, or a
/// change is under way, or a learner has still to catch up.
pub(crate) fn next_change(state: &GroupState, wanted: &BTreeSet<u64>) -> Option<Change> {
    let members = &state.members;
    if wanted.is_empty() {
        return None;
    }
    if members.is_joint() {
        // An interrupted change: finish it towards what is wanted now.
        return Some(Change::SetVoters(wanted.clone()));
    }
    let voters = members.voters();
    if let Some(new) = wanted.iter().find(|id| !members.nodes.contains(id)) {
        return Some(Change::AddLearner(*new));
    }
    if voters != *wanted {
        let caught_up = |id: &u64| {
            voters.contains(id)
                || state.matched.iter().any(|(m, at)| m == id && at + CAUGHT_UP_ENTRIES >= state.accepted)
        };
        return wanted.iter().all(caught_up).then(|| Change::SetVoters(wanted.clone()));
    }
    let stale: BTreeSet<u64> = members.nodes.difference(&voters).copied().filter(|id| !wanted.contains(id)).collect();
    (!stale.is_empty()).then_some(Change::RemoveLearners(stale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{Members, Role};

    fn state(voters: &[u64], nodes: &[u64], matched: &[(u64, u64)]) -> GroupState {
        GroupState {
            role: Role::Leader,
            leader: Some(1),
            term: 3,
            accepted: 1000,
            committed: 1000,
            commit_known: true,
            applied: 1000,
            members: Members {
                at: None,
                configs: vec![voters.iter().copied().collect()],
                nodes: nodes.iter().copied().collect(),
            },
            matched: matched.to_vec(),
            heard_ms: Vec::new(),
            quorum_ack_ms: Some(1),
        }
    }

    #[test]
    fn a_new_incarnation_learns_before_it_votes_and_the_old_one_leaves_with_that() {
        let wanted = BTreeSet::from([1, 2, 9]);
        assert_eq!(next_change(&state(&[1, 2, 3], &[1, 2, 3], &[]), &wanted), Some(Change::AddLearner(9)));
        assert_eq!(next_change(&state(&[1, 2, 3], &[1, 2, 3, 9], &[(9, 10)]), &wanted), None, "it is behind");
        let promoted = next_change(&state(&[1, 2, 3], &[1, 2, 3, 9], &[(9, 990)]), &wanted);
        assert_eq!(promoted, Some(Change::SetVoters(wanted.clone())));
        let cleanup = next_change(&state(&[1, 2, 9], &[1, 2, 3, 9], &[]), &wanted);
        assert_eq!(cleanup, Some(Change::RemoveLearners([3].into())));
        assert_eq!(next_change(&state(&[1, 2, 9], &[1, 2, 9], &[]), &wanted), None);
    }

    #[test]
    fn an_interrupted_change_is_finished() {
        let mut joint = state(&[1, 2, 3], &[1, 2, 3], &[]);
        joint.members.configs.push([1, 2].into());
        assert_eq!(next_change(&joint, &[1, 2, 3].into()), Some(Change::SetVoters([1, 2, 3].into())));
    }
}
