//! Removing messages: the one place where a message leaves the state.

use super::apply::{Damaged, SeqRange};
use super::limits::stored_len;
use super::state::StreamState;
use super::{Outline, Records, headers};
use crate::frame::{Frame, Record};
use crate::ids::{StreamSeq, Timestamp};

/// Where `apply` finds records: the frame at hand holds messages the store does not have yet.
pub(super) struct Source<'a> {
    pub(super) frame: Option<&'a Frame>,
    pub(super) records: &'a dyn Records,
}

impl Source<'_> {
    pub(super) fn with<T>(&self, seq: StreamSeq, read: impl FnOnce(&Record<'_>) -> T) -> Result<T, Damaged> {
        if let Some(record) = self.frame.and_then(|frame| frame.by_seq(seq)) {
            return Ok(read(&record));
        }
        match self.records.record(seq)? {
            Some(owned) if owned.seq() == seq => Ok(read(&owned.as_record())),
            _ => Err(Damaged { seq }),
        }
    }
}

/// Removed sequences, adjacent ones joined.
#[derive(Debug, Default)]
pub(super) struct Removals {
    pub(super) ranges: Vec<SeqRange>,
    pub(super) count: u64,
}

impl Removals {
    fn push(&mut self, seq: StreamSeq) {
        self.count += 1;
        match self.ranges.last_mut() {
            Some(range) if range.last.next() == seq => range.last = seq,
            _ => self.ranges.push(SeqRange { first: seq, last: seq }),
        }
    }
}

impl StreamState {
    /// Removes a live message.
    pub(super) fn remove_one(
        &mut self,
        seq: StreamSeq,
        source: &Source<'_>,
        removals: &mut Removals,
    ) -> Result<(), Damaged> {
        debug_assert!(self.is_live(seq), "{seq} is not live in {}..={}", self.first_seq, self.last_seq);
        let read = source.with(seq, |record| {
            let len = self.len_of(record);
            self.forget(seq, record.subject(), len, record.crc, headers::deadline(record));
        });
        if let Err(damaged) = read {
            // What cannot be read any more can still be removed, so that the only copy goes on around it.
            let Outline { subject, headers_len, payload_len, crc, deadline } =
                source.records.outline(seq).ok_or(damaged)?;
            let len = stored_len(self.settings.storage, subject.len(), headers_len, payload_len);
            self.forget(seq, &subject, len, crc, deadline);
        }
        if seq == self.first_seq {
            self.advance_first();
        } else {
            self.deleted.insert(seq.get());
        }
        removals.push(seq);
        Ok(())
    }

    fn forget(&mut self, seq: StreamSeq, subject: &[u8], len: u64, crc: u32, deadline: Option<Timestamp>) {
        self.subjects.remove(subject, seq);
        self.messages -= 1;
        self.bytes = self.bytes.saturating_sub(len);
        self.digest.remove(seq, crc);
        if let Some(deadline) = deadline {
            self.ttls.remove(&(deadline, seq));
        }
    }

    pub(super) fn len_of(&self, record: &Record<'_>) -> u64 {
        stored_len(self.settings.storage, record.subject().len(), record.headers().len(), record.payload().len())
    }

    /// Moves `first_seq` from a removed message to the next live one.
    pub(super) fn advance_first(&mut self) {
        if self.messages == 0 {
            self.first_seq = self.last_seq.next();
            self.deleted.clear();
            return;
        }
        let next = self.first_seq.next();
        if self.deleted.min() != Some(next.get()) {
            self.first_seq = next;
            return;
        }
        // `deleted` starts at `next`: find the end of that run by how many of it lie below a point, so
        // that a gap of millions costs a few dozen looks.
        let (mut inside, mut outside) = (next.get(), self.last_seq.get() + 1);
        let run_reaches = |at: u64| self.deleted.rank(at) == at - next.get() + 1;
        let mut step = 1;
        while inside + step < outside {
            if !run_reaches(inside + step) {
                outside = inside + step;
                break;
            }
            inside += step;
            step *= 2;
        }
        while outside - inside > 1 {
            let middle = inside + (outside - inside) / 2;
            if run_reaches(middle) {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        self.deleted.remove_range(..=inside);
        self.first_seq = StreamSeq::new(inside + 1);
    }

    /// Removes every live message without reading one.
    pub(super) fn remove_all(&mut self, removals: &mut Removals) {
        if self.messages == 0 {
            return;
        }
        removals.count += self.messages;
        removals.ranges.push(SeqRange { first: self.first_seq, last: self.last_seq });
        self.messages = 0;
        self.bytes = 0;
        self.digest.clear();
        self.subjects.clear();
        self.ttls.clear();
        self.deleted.clear();
        self.first_seq = self.last_seq.next();
    }

    /// Removes from the front while `more` says so and messages up to `bound` remain.
    pub(super) fn remove_front(
        &mut self,
        bound: StreamSeq,
        source: &Source<'_>,
        removals: &mut Removals,
        more: impl Fn(&Self) -> bool,
    ) -> Result<(), Damaged> {
        while self.messages > 0 && self.first_seq <= bound && more(self) {
            self.remove_one(self.first_seq, source, removals)?;
        }
        Ok(())
    }
}
