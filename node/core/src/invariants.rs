//! The invariants of this crate as functions, for debug assertions, simulation and property tests. The
//! numbers are those of `docs/ARCHITECTURE.md`.

use crate::ids::StreamSeq;
use crate::recovery::{RecoveryPlan, RejoinReason};
use crate::stream::StreamState;
use crate::watermark::Watermarks;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{id}: {what}")]
pub struct Broken {
    /// Number of the invariant.
    pub id: &'static str,
    /// What was found.
    pub what: String,
}

fn holds(id: &'static str, fine: bool, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if fine { Ok(()) } else { Err(Broken { id, what: what() }) }
}

/// I-4: the watermarks of a replica are in order.
pub fn watermarks_ordered(marks: &Watermarks, has_files: bool) -> Result<(), Broken> {
    let checked = if has_files { marks.check() } else { marks.check_volatile() };
    checked.map_err(|violation| Broken { id: "I-4", what: violation.to_string() })
}

/// I-4, over time: no watermark of a running replica goes back, and what was purged stays purged.
pub fn watermarks_advance(before: &Watermarks, after: &Watermarks) -> Result<(), Broken> {
    for (name, old, new) in [
        ("purged", before.purged, after.purged),
        ("persisted", before.persisted, after.persisted),
        ("stored", before.stored, after.stored),
        ("applied", before.applied, after.applied),
        ("committed", before.committed, after.committed),
    ] {
        holds("I-4", old <= new, || format!("{name} went back from {old} to {new}"))?;
    }
    Ok(())
}

/// I-9: a replica that may have lost what it confirmed does not vote.
pub fn may_vote(plan: &RecoveryPlan) -> Result<(), Broken> {
    let lost = match plan {
        RecoveryPlan::Replay { .. } | RecoveryPlan::TruncateTail { .. } => None,
        RecoveryPlan::RejoinAsLearner { why } => Some(*why),
        RecoveryPlan::Repair { .. } | RecoveryPlan::Refuse { .. } => Some(RejoinReason::IoError),
    };
    holds("I-9", lost.is_none(), || format!("a replica with plan {plan:?} would vote"))
}

/// I-11: what is derived agrees with what it is derived from. Cost is linear in subjects.
pub fn stream_consistent(state: &StreamState) -> Result<(), Broken> {
    let (first, last) = (state.first_seq(), state.last_seq());
    let span = last.get() + 1 - first.get().min(last.get() + 1);
    let deleted = state.deleted().len();
    holds("I-11", span >= deleted && span - deleted == state.messages(), || {
        format!("{first}..={last} without {deleted} is not {} messages", state.messages())
    })?;
    holds("I-11", state.messages() > 0 || first == last.next(), || {
        format!("an empty stream starts at {first} and ends at {last}")
    })?;
    holds("I-11", state.messages() == 0 || state.is_live(first), || format!("the first message {first} is not live"))?;
    let inside = state.deleted().min().is_none_or(|seq| StreamSeq::new(seq) > first)
        && state.deleted().max().is_none_or(|seq| StreamSeq::new(seq) <= last);
    holds("I-11", inside, || format!("deleted sequences lie outside {first}..={last}"))?;
    let indexed: u64 = state.subjects().iter().map(|(_, seqs)| seqs.len()).sum();
    holds("I-11", indexed == state.messages(), || {
        format!("{indexed} messages are indexed, {} are live", state.messages())
    })?;
    let stray = state
        .subjects()
        .iter()
        .flat_map(|(_, seqs)| [seqs.first(), seqs.last()])
        .flatten()
        .find(|seq| !state.is_live(*seq));
    holds("I-11", stray.is_none(), || format!("{stray:?} is indexed and not live"))
}

/// I-15: a stream's last sequence and first sequence never go back, whatever is applied.
pub fn sequences_advance(before: (StreamSeq, StreamSeq), after: (StreamSeq, StreamSeq)) -> Result<(), Broken> {
    holds("I-15", before.0 <= after.0, || format!("the first sequence went back from {} to {}", before.0, after.0))?;
    holds("I-15", before.1 <= after.1, || format!("the last sequence went back from {} to {}", before.1, after.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LogIndex;

    #[test]
    fn each_check_can_fail() {
        let at = LogIndex::new;
        let marks = Watermarks { applied: at(2), committed: at(1), ..Watermarks::default() };
        assert_eq!(watermarks_ordered(&marks, true).unwrap_err().id, "I-4");
        assert_eq!(watermarks_ordered(&marks, false).unwrap_err().id, "I-4");
        let fewer = Watermarks { applied: at(1), ..marks };
        assert!(watermarks_advance(&marks, &fewer).is_err());
        assert!(watermarks_advance(&fewer, &marks).is_ok());
        let rejoin = RecoveryPlan::RejoinAsLearner { why: RejoinReason::Wiped };
        assert_eq!(may_vote(&rejoin).unwrap_err().id, "I-9");
        assert_eq!(may_vote(&RecoveryPlan::Replay { from: at(0) }), Ok(()));
        let seq = StreamSeq::new;
        assert!(sequences_advance((seq(2), seq(5)), (seq(1), seq(5))).is_err());
        assert!(sequences_advance((seq(2), seq(5)), (seq(2), seq(4))).is_err());
        assert!(sequences_advance((seq(2), seq(5)), (seq(6), seq(5))).is_ok());
    }
}
