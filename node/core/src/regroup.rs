//! Going on without replicas that never come back, as a person has ordered: from which of the replicas that are left, or
//! why not. One pure decision.
//!
//! What is lost is what only the others had: a suffix of what was confirmed. Of those that are left, the one whose log
//! reaches furthest has all that any of them ever knew to be committed, so it is the one that the group goes on from.

use thiserror::Error;

use crate::catalog::NodeName;
use crate::ids::{LogIndex, LogPosition, RaftNodeId};
use crate::rejoin::Standing;

/// One member of the group that is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its node.
    pub node: NodeName,
    /// Its Raft id.
    pub raft_id: RaftNodeId,
    /// Whether its node is linked.
    pub is_up: bool,
    /// What it says of itself; `None` has not answered, or has no replica it could speak of.
    pub standing: Option<Standing>,
}

/// What a person has ordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The nodes to go on from.
    pub named: Vec<NodeName>,
    /// A named one will do although another member that answers is ahead of it.
    pub less_will_do: bool,
    /// Whoever is not named is shut out for good, and must be down.
    pub shuts_out: bool,
}

/// Why the group does not go on without the others.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegroupRefusal {
    /// Nothing to do.
    #[error("a majority of the group answers: {0}")]
    MajorityAnswers(Names),
    /// The order names nobody.
    #[error("the order names no voter to go on from")]
    NobodyNamed,
    /// A name that is no member.
    #[error("{0} has no replica in this group")]
    NotAMember(NodeName),
    /// A named one did not answer.
    #[error("{0} does not answer, or its copy has stopped")]
    Silent(NodeName),
    /// One that would be shut out for good runs.
    #[error("{0} is up: name it too, or stop it")]
    StillUp(NodeName),
    /// A named one has nothing that the group could go on from.
    #[error("{0} has no copy to go on from: it is a new member that had not caught up")]
    Empty(NodeName),
    /// A named one cannot use what it has.
    #[error("the copy on {0} is damaged")]
    Damaged(NodeName),
    /// One that is not named has more.
    #[error("{node} answers too, and its log reaches further: entry {} of term {}", last.index, last.term)]
    OtherHasMore {
        /// Its node.
        node: NodeName,
        /// The end of its log.
        last: LogPosition,
    },
}

/// Names of nodes, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub Vec<NodeName>);

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, name) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(" and ")?;
            }
            write!(f, "{name}")?;
        }
        Ok(())
    }
}

/// The member to go on from, and the end of its log: of those that are named, the one that reaches furthest.
///
/// # Errors
/// [`RegroupRefusal`]; then nothing may be changed.
pub fn decide(members: &[Member], order: &Order) -> Result<(RaftNodeId, LogPosition), RegroupRefusal> {
    // Those that wait to hear from the lost ones do not count: they have not a majority that can go on by itself.
    let sound = |member: &&Member| matches!(member.standing, Some(Standing::Sound { .. }));
    let answering: Vec<NodeName> = members.iter().filter(sound).map(|member| member.node.clone()).collect();
    if answering.len() > members.len() / 2 {
        return Err(RegroupRefusal::MajorityAnswers(Names(answering)));
    }
    let mut best: Option<(LogPosition, RaftNodeId)> = None;
    for name in &order.named {
        let member = members.iter().find(|member| member.node == *name);
        let member = member.ok_or_else(|| RegroupRefusal::NotAMember(name.clone()))?;
        match member.standing {
            None => return Err(RegroupRefusal::Silent(name.clone())),
            Some(Standing::Damaged) => return Err(RegroupRefusal::Damaged(name.clone())),
            Some(Standing::Rejoining) => return Err(RegroupRefusal::Empty(name.clone())),
            Some(Standing::Sound { last, .. } | Standing::MayHaveLost { last }) => {
                best = best.max(Some((last, member.raft_id)));
            }
        }
    }
    let (best, source) = best.ok_or(RegroupRefusal::NobodyNamed)?;
    for member in members.iter().filter(|member| !order.named.contains(&member.node)) {
        if order.shuts_out && member.is_up {
            return Err(RegroupRefusal::StillUp(member.node.clone()));
        }
        if let Some(Standing::Sound { last, .. } | Standing::MayHaveLost { last }) = member.standing
            && last > best
            && !order.less_will_do
        {
            return Err(RegroupRefusal::OtherHasMore { node: member.node.clone(), last });
        }
    }
    Ok((source, best))
}

/// What the chosen member can tell of what it may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The end of its log.
    pub last: LogPosition,
    /// The highest entry that it knows to be committed.
    pub committed: LogIndex,
    /// Milliseconds since it last heard from the group: from a leader, or, leading, from a majority. `None`: not since it
    /// started.
    pub heard_ms: Option<u64>,
}

impl Known {
    /// Entries that are known to be committed, and that it does not have.
    pub fn missing(&self) -> u64 {
        self.committed.get().saturating_sub(self.last.index.get())
    }

    /// What may be lost, for people.
    pub fn may_be_lost(&self) -> String {
        let newest = match self.heard_ms {
            Some(ms) => format!(
                "what others confirmed in the last {:.1} s, when it heard nothing from the group",
                ms as f64 / 1e3
            ),
            None => "what was confirmed without it: it has heard nothing from the group since it started".to_owned(),
        };
        match self.missing() {
            0 => newest,
            n => format!("at least the last {n} entries that were confirmed, and {newest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Term;

    fn at(term: u64, index: u64) -> LogPosition {
        LogPosition { term: Term::new(term), index: LogIndex::new(index) }
    }

    fn sound(term: u64, index: u64) -> Option<Standing> {
        Some(Standing::Sound { last: at(term, index), repairing: false })
    }

    fn lost(term: u64, index: u64) -> Option<Standing> {
        Some(Standing::MayHaveLost { last: at(term, index) })
    }

    fn name(n: usize) -> NodeName {
        NodeName::new(format!("n{n}"))
    }

    fn ask(standings: &[Option<Standing>], named: &[usize], less: bool) -> Result<u64, RegroupRefusal> {
        let member = |(n, standing): (usize, &Option<Standing>)| Member {
            node: name(n),
            raft_id: RaftNodeId::new(n as u64),
            is_up: standing.is_some(),
            standing: *standing,
        };
        let members: Vec<Member> = (1..).zip(standings).map(member).collect();
        let named: Vec<NodeName> = named.iter().map(|n| name(*n)).collect();
        let order = Order { named, less_will_do: less, shuts_out: false };
        decide(&members, &order).map(|(source, _)| source.get())
    }

    #[test]
    fn with_a_majority_there_is_nothing_to_do() {
        let two = [sound(1, 5), sound(1, 9), None];
        assert_eq!(ask(&two, &[1], true), Err(RegroupRefusal::MajorityAnswers(Names(vec![name(1), name(2)]))));
        let text = ask(&two, &[1], true).unwrap_err().to_string();
        assert_eq!(text, "a majority of the group answers: n1 and n2");
        // Of two there is none without both; of four, two are none.
        assert_eq!(ask(&[sound(1, 5), None], &[1], false), Ok(1));
        assert_eq!(ask(&[sound(1, 5), sound(1, 5), None, None], &[1, 2], false), Ok(2));
        // Two that wait for the third cannot go on by themselves.
        assert_eq!(ask(&[lost(1, 5), lost(1, 9), None], &[1, 2], false), Ok(2));
        assert_eq!(ask(&[lost(1, 5), sound(1, 3), None], &[1, 2], false), Ok(1));
    }

    #[test]
    fn the_one_that_reaches_furthest_of_those_named() {
        assert_eq!(ask(&[sound(3, 90), None, None], &[1], false), Ok(1));
        let five = [sound(3, 90), sound(4, 2), None, None, None];
        assert_eq!(ask(&five, &[1, 2], false), Ok(2), "a later term beats a longer log");
        let more = RegroupRefusal::OtherHasMore { node: name(2), last: at(4, 2) };
        assert_eq!(ask(&five, &[1], false), Err(more));
        assert_eq!(ask(&five, &[1], true), Ok(1), "a person may want it so");
        assert_eq!(ask(&five, &[2], false), Ok(2), "the other has less");
    }

    #[test]
    fn who_is_named_must_be_able_to() {
        let two = [sound(3, 90), None, None];
        assert_eq!(ask(&two, &[], false), Err(RegroupRefusal::NobodyNamed));
        assert_eq!(ask(&two, &[4], true), Err(RegroupRefusal::NotAMember(name(4))));
        assert_eq!(ask(&two, &[1, 2], true), Err(RegroupRefusal::Silent(name(2))));
        assert_eq!(ask(&[Some(Standing::Damaged), None, None], &[1], true), Err(RegroupRefusal::Damaged(name(1))));
        assert_eq!(ask(&[Some(Standing::Rejoining), None, None], &[1], true), Err(RegroupRefusal::Empty(name(1))));
    }

    #[test]
    fn who_is_shut_out_for_good_must_be_down() {
        let member = |n: usize, standing: Option<Standing>| Member {
            node: name(n),
            raft_id: RaftNodeId::new(n as u64),
            is_up: n < 3,
            standing,
        };
        let members = [member(1, sound(3, 90)), member(2, None), member(3, None)];
        let order = |shuts_out| Order { named: vec![name(1)], less_will_do: false, shuts_out };
        assert_eq!(decide(&members, &order(true)), Err(RegroupRefusal::StillUp(name(2))));
        assert_eq!(decide(&members, &order(false)), Ok((RaftNodeId::new(1), at(3, 90))));
    }

    #[test]
    fn the_loss_is_said_as_far_as_it_is_known() {
        let known = |last: u64, heard_ms: Option<u64>| {
            Known { last: at(3, last), committed: LogIndex::new(90), heard_ms }.may_be_lost()
        };
        assert_eq!(
            known(90, Some(2_340)),
            "what others confirmed in the last 2.3 s, when it heard nothing from the group"
        );
        assert!(known(80, Some(1)).starts_with("at least the last 10 entries that were confirmed, and what others"));
        assert!(known(95, None).contains("since it started"));
    }
}
