//! What holds for a stream's state after whatever was applied.

use crate::ids::StreamSeq;
use crate::stream::StreamState;

/// I-11: what is derived agrees with what it is derived from. Cost is linear in subjects.
pub(super) fn assert_consistent(state: &StreamState) {
    let (first, last, messages) = (state.first_seq(), state.last_seq(), state.messages());
    let span = last.get() + 1 - first.get().min(last.get() + 1);
    let deleted = state.deleted().len();
    assert_eq!(span.checked_sub(deleted), Some(messages), "messages in {first}..={last} without {deleted}");
    if messages == 0 {
        assert_eq!(first, last.next(), "an empty stream starts behind its end");
    } else {
        assert!(state.is_live(first), "the first message {first} is not live");
    }
    let inside = state.deleted().min().is_none_or(|seq| StreamSeq::new(seq) > first)
        && state.deleted().max().is_none_or(|seq| StreamSeq::new(seq) <= last);
    assert!(inside, "deleted sequences lie outside {first}..={last}");
    let indexed: u64 = state.subjects().iter().map(|(_, seqs)| seqs.len()).sum();
    assert_eq!(indexed, messages, "as many messages are indexed as are live");
    let stray = state
        .subjects()
        .iter()
        .flat_map(|(_, seqs)| [seqs.first(), seqs.last()])
        .flatten()
        .find(|seq| !state.is_live(*seq));
    assert_eq!(stray, None, "an indexed message is not live");
}

/// Neither end of a stream goes back: a sequence never means two messages.
pub(super) fn assert_advanced(before: (StreamSeq, StreamSeq), after: (StreamSeq, StreamSeq)) {
    assert!(before.0 <= after.0, "the first sequence went back from {} to {}", before.0, after.0);
    assert!(before.1 <= after.1, "the last sequence went back from {} to {}", before.1, after.1);
}
