//! Consumers inside their stream: what their operations remove, and what removals mean to them.

use super::Records;
use super::apply::{Damaged, Done, Outcome, Rejection, StreamEvent};
use super::limits::Retention;
use super::remove::Source;
use super::state::StreamState;
use crate::consumer::{ConsumerEffects, Filters, LiveMessages, MessageView};
use crate::ids::{StreamSeq, Timestamp};

use headwater_protocol::headers::{HeaderBuilder, name};
use roaring::RoaringTreemap;

pub(super) use crate::consumer::ConsumerSet;

/// Which messages exist, borrowed apart from the consumers that ask.
struct Live<'a> {
    first: StreamSeq,
    last: StreamSeq,
    deleted: &'a RoaringTreemap,
}

impl LiveMessages for Live<'_> {
    fn next_seq(&self) -> StreamSeq {
        self.last.next()
    }

    fn contains(&self, seq: StreamSeq) -> bool {
        // An empty stream has its first sequence above its last.
        seq >= self.first && seq <= self.last && !self.deleted.contains(seq.get())
    }
}

impl LiveMessages for StreamState {
    fn next_seq(&self) -> StreamSeq {
        self.last_seq.next()
    }

    fn contains(&self, seq: StreamSeq) -> bool {
        self.is_live(seq)
    }
}

/// A stream's applied messages with their bodies in reach, as a leader's consumers look at them.
#[derive(Clone, Copy)]
pub struct StreamView<'a> {
    /// The state.
    pub state: &'a StreamState,
    /// Its bodies.
    pub records: &'a dyn Records,
    /// Whether others have them too.
    pub has_peers: bool,
}

impl std::fmt::Debug for StreamView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamView").field("stream", &self.state.id).finish_non_exhaustive()
    }
}

impl LiveMessages for StreamView<'_> {
    fn next_seq(&self) -> StreamSeq {
        self.state.next_seq()
    }

    fn contains(&self, seq: StreamSeq) -> bool {
        self.state.is_live(seq)
    }
}

impl MessageView for StreamView<'_> {
    fn next_matching(&self, filters: &Filters, from: StreamSeq) -> Option<StreamSeq> {
        self.state.next_matching(filters.as_slice(), from)
    }

    fn count_matching(&self, filters: &Filters, from: StreamSeq) -> u64 {
        self.state.count_matching(filters.as_slice(), from)
    }

    fn last_matching(&self, filters: &Filters) -> Option<StreamSeq> {
        self.state.last_matching(filters.as_slice(), self.state.last_seq)
    }

    fn last_per_subject(&self, filters: &Filters) -> Vec<StreamSeq> {
        self.state.subjects.last_per_subject(filters.as_slice(), self.state.last_seq)
    }

    fn first_at_or_after(&self, at: Timestamp) -> StreamSeq {
        self.state.first_at_or_after(at, self.records).unwrap_or_else(|| self.next_seq())
    }

    fn message_len(&self, seq: StreamSeq, headers_only: bool) -> Option<u64> {
        // One that cannot be read is no reason to end a request: whoever delivers it meets the damage.
        let Ok(record) = self.records.record(seq) else { return Some(0) };
        let record = record?;
        let rest = if headers_only {
            // As it is delivered: the payload's size instead of the payload.
            let mut headers = HeaderBuilder::from_block(record.headers());
            headers.add_number(name::MSG_SIZE, record.payload().len() as u64);
            headers.finish().len()
        } else {
            record.headers().len() + record.payload().len()
        };
        Some((record.subject().len() + rest) as u64)
    }

    fn readable_up_to(&self, seq: StreamSeq) -> Option<StreamSeq> {
        match self.records.readable_up_to(seq) {
            Ok(last) => Some(last),
            Err(_) => (!self.has_peers).then_some(seq),
        }
    }

    fn stream_name_len(&self) -> usize {
        self.state.settings().name.len()
    }
}

impl StreamState {
    pub(super) fn apply_consumers(
        &mut self,
        ops: &[u8],
        source: &Source<'_>,
        done: &mut Done,
    ) -> Result<Outcome, Damaged> {
        let mut effects = ConsumerEffects::default();
        let live = Live { first: self.first_seq, last: self.last_seq, deleted: &self.deleted };
        if self.consumers.apply_body(ops, &live, &mut effects).is_err() {
            return Ok(Outcome::Rejected(Rejection::Malformed));
        }
        match self.settings.retention {
            Retention::Limits => {}
            Retention::WorkQueue => {
                for seq in effects.settled.iter().flat_map(|run| run.iter()) {
                    if self.is_live(seq) {
                        self.remove_one(seq, source, &mut done.removals)?;
                    }
                }
            }
            Retention::Interest => {
                for seq in effects.settled.iter().flat_map(|run| run.iter()) {
                    if !self.is_live(seq) {
                        continue;
                    }
                    let consumers = &self.consumers;
                    if !source.with(seq, |record| consumers.needs(seq, record.subject()))? {
                        self.remove_one(seq, source, &mut done.removals)?;
                    }
                }
                if !effects.deleted.is_empty() {
                    self.drop_what_no_one_needs(source, done)?;
                }
            }
        }
        done.events.push(StreamEvent::Consumers(effects));
        Ok(Outcome::Done)
    }

    fn drop_what_no_one_needs(&mut self, source: &Source<'_>, done: &mut Done) -> Result<(), Damaged> {
        let consumers = &self.consumers;
        let mut unwanted: Vec<StreamSeq> = self
            .subjects
            .iter()
            .flat_map(|(subject, seqs)| seqs.iter().filter(move |seq| !consumers.needs(*seq, subject)))
            .collect();
        unwanted.sort_unstable();
        for seq in unwanted {
            self.remove_one(seq, source, &mut done.removals)?;
        }
        Ok(())
    }

    /// Interest retention: a message that no consumer wants goes as soon as it has its sequence.
    pub(super) fn drop_unwanted(&mut self, source: &Source<'_>, done: &mut Done) -> Result<(), Damaged> {
        if self.settings.retention != Retention::Interest {
            return Ok(());
        }
        let Some(frame) = source.frame else {
            return Ok(());
        };
        for record in frame.records() {
            if self.is_live(record.seq) && !self.consumers.needs(record.seq, record.subject()) {
                self.remove_one(record.seq, source, &mut done.removals)?;
            }
        }
        Ok(())
    }

    /// Tells the consumers what left the stream.
    pub(super) fn tell_consumers(&mut self, done: &Done) {
        if self.consumers.is_empty() {
            return;
        }
        for range in &done.removals.ranges {
            self.consumers.messages_removed(range.first, range.last);
        }
    }
}
