//! A replica that may have lost what it confirmed, or whose files are damaged: what it may do, given what the other
//! replicas of its group say. One pure decision.
//!
//! While most replicas are sound, it takes part again only as somebody new: under another Raft id, without a vote until
//! it has caught up. Where most are not, for instance after `kill -9` of all nodes in `noWait`, there is nobody to
//! catch up from. Then every replica must be heard, and the log that reaches furthest is the one that goes on: what is
//! lost is a suffix, the same on every replica.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{LogPosition, RaftNodeId};

/// What one replica says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum Standing {
    /// It runs and has everything that it confirmed.
    Sound {
        /// The end of its log.
        last: LogPosition,
        /// Something of its files cannot be read, and it would step aside for that if the others were sound.
        #[serde(default)]
        repairing: bool,
    },
    /// It is kept out of its group: it may have lost what it confirmed.
    MayHaveLost {
        /// The end of its log.
        last: LogPosition,
    },
    /// It is kept out of its group: its files, or its log, cannot be used.
    Damaged,
    /// It has a new Raft id, and no vote yet.
    Rejoining,
}

/// What a replica that is kept out does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask for a new Raft id, and give up what is on disk once it is granted.
    Rejoin,
    /// Take part with the log as it is, like all others.
    Resume {
        /// The replica whose log reaches furthest: only that one may stand for election, until there is a leader.
        leader: RaftNodeId,
    },
    /// Ask again.
    Wait {
        /// For whom: these have not answered.
        silent: Vec<RaftNodeId>,
    },
    /// Only a person can help: most replicas are unsound, and one that may reach further than all others is damaged.
    Stuck,
}

/// Decides for replica `own`, kept out for what `standing` says. `others` are all other replicas of the group; `None`
/// has not answered.
pub fn decide(own: RaftNodeId, standing: Standing, others: &BTreeMap<RaftNodeId, Option<Standing>>) -> Next {
    let majority = others.len().div_ceil(2) + 1;
    let sound = others.values().filter(|o| matches!(o, Some(Standing::Sound { .. }))).count();
    if sound >= majority {
        return Next::Rejoin;
    }
    let silent: Vec<RaftNodeId> = others.iter().filter(|(_, o)| o.is_none()).map(|(id, _)| *id).collect();
    if !silent.is_empty() {
        return Next::Wait { silent };
    }
    let all = others.iter().map(|(id, other)| (*id, *other)).chain([(own, Some(standing))]);
    let mut furthest: Option<((LogPosition, RaftNodeId), RaftNodeId)> = None;
    for (id, other) in all {
        match other {
            Some(Standing::Damaged) => return Next::Stuck,
            Some(Standing::Sound { last, .. } | Standing::MayHaveLost { last }) => {
                furthest = furthest.max(Some(((last, id), id)));
            }
            Some(Standing::Rejoining) | None => {}
        }
    }
    furthest.map_or(Next::Stuck, |(_, leader)| Next::Resume { leader })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{LogIndex, Term};

    fn at(term: u64, index: u64) -> LogPosition {
        LogPosition { term: Term::new(term), index: LogIndex::new(index) }
    }

    fn id(n: u64) -> RaftNodeId {
        RaftNodeId::new(n)
    }

    fn others(said: &[(u64, Option<Standing>)]) -> BTreeMap<RaftNodeId, Option<Standing>> {
        said.iter().map(|(n, standing)| (id(*n), *standing)).collect()
    }

    const fn lost(last: LogPosition) -> Option<Standing> {
        Some(Standing::MayHaveLost { last })
    }

    const fn sound(last: LogPosition) -> Option<Standing> {
        Some(Standing::Sound { last, repairing: false })
    }

    #[test]
    fn with_a_sound_majority_one_rejoins() {
        let own = Standing::MayHaveLost { last: at(3, 90) };
        let two = others(&[(2, sound(at(3, 95))), (3, sound(at(3, 95)))]);
        assert_eq!(decide(id(1), own, &two), Next::Rejoin);
        assert_eq!(decide(id(1), Standing::Damaged, &two), Next::Rejoin);
        // Of five, three others must be sound; the fifth need not be heard.
        let three = [(2, sound(at(1, 1))), (3, sound(at(1, 1))), (4, sound(at(1, 1))), (5, None)];
        assert_eq!(decide(id(1), own, &others(&three)), Next::Rejoin);
        assert!(matches!(decide(id(1), own, &others(&[three[0], three[1], (4, None), (5, None)])), Next::Wait { .. }));
    }

    #[test]
    fn without_one_everybody_is_heard_and_the_longest_log_goes_on() {
        let own = Standing::MayHaveLost { last: at(3, 90) };
        let missing = others(&[(2, lost(at(3, 80))), (3, None)]);
        assert_eq!(decide(id(1), own, &missing), Next::Wait { silent: vec![id(3)] });
        let resume = |said: &[(u64, Option<Standing>)]| match decide(id(1), own, &others(said)) {
            Next::Resume { leader } => leader.get(),
            other => panic!("{other:?}"),
        };
        assert_eq!(resume(&[(2, lost(at(3, 80))), (3, lost(at(2, 900)))]), 1, "a later term beats a longer log");
        assert_eq!(resume(&[(2, lost(at(3, 80))), (3, lost(at(3, 91)))]), 3);
        assert_eq!(resume(&[(2, sound(at(3, 95))), (3, lost(at(3, 91)))]), 2);
        assert_eq!(resume(&[(2, lost(at(3, 80))), (3, Some(Standing::Rejoining))]), 1, "that one has nothing to lose");
        // Equal logs: all come to the same answer.
        assert_eq!(resume(&[(2, lost(at(3, 90))), (3, lost(at(3, 90)))]), 3);
        let damaged = others(&[(2, lost(at(3, 80))), (3, Some(Standing::Damaged))]);
        assert_eq!(decide(id(1), own, &damaged), Next::Stuck);
    }
}
