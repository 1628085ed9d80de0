//! What a consumer asks of its stream.

use super::config::Filters;
use crate::ids::StreamSeq;
use crate::ids::Timestamp;

/// Which messages exist. Enough to apply a consumer operation, and alike on every replica at that log index.
pub trait LiveMessages {
    /// The sequence that the next stored message will get: last sequence + 1, also when the stream is empty.
    fn next_seq(&self) -> StreamSeq;
    /// Whether the message is stored (neither evicted, purged, deleted, nor not yet written).
    fn contains(&self, seq: StreamSeq) -> bool;
}

/// The leader's look at the stream's applied messages. A filter that [`Filters::is_all`] matches everything.
pub trait MessageView: LiveMessages {
    /// The lowest stored sequence ≥ `from` whose subject matches.
    fn next_matching(&self, filters: &Filters, from: StreamSeq) -> Option<StreamSeq>;
    /// Exact number of stored messages ≥ `from` whose subject matches.
    fn count_matching(&self, filters: &Filters, from: StreamSeq) -> u64;
    /// The highest stored sequence whose subject matches.
    fn last_matching(&self, filters: &Filters) -> Option<StreamSeq>;
    /// The last stored message of every subject that matches; any order.
    fn last_per_subject(&self, filters: &Filters) -> Vec<StreamSeq>;
    /// The lowest sequence whose message was stored at or after `at`; [`LiveMessages::next_seq`] if there is none.
    fn first_at_or_after(&self, at: Timestamp) -> StreamSeq;
    /// Bytes of subject, headers and payload of a stored message, or of what is delivered of it without its payload.
    fn message_len(&self, seq: StreamSeq, headers_only: bool) -> Option<u64>;
    /// Up to which sequence messages from the stored one `seq` on can be read: at least itself. `None` if it cannot be
    /// read here, but by another replica that is about to lead.
    fn readable_up_to(&self, seq: StreamSeq) -> Option<StreamSeq>;
    /// Bytes of the stream's name.
    fn stream_name_len(&self) -> usize;
}
