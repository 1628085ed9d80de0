//! Questions about live messages.

use super::state::StreamState;
use super::{FRAME_COUNT_MAX, Records};
use crate::ids::{StreamSeq, Timestamp};
use crate::subject_index::is_everything;

/// Counters as stream info shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCounts {
    /// Live messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// First sequence; zero for a stream that never stored anything, as nats-server shows it.
    pub first_seq: u64,
    /// Last sequence.
    pub last_seq: u64,
    /// Subjects with live messages.
    pub num_subjects: u64,
    /// Removed sequences between first and last.
    pub num_deleted: u64,
    /// Time of the last stored message.
    pub last_ts: Timestamp,
}

fn covers_all<F: AsRef<[u8]>>(filters: &[F]) -> bool {
    filters.is_empty() || filters.iter().any(|filter| is_everything(filter.as_ref()))
}

impl StreamState {
    /// Counters as stream info shows them.
    pub fn counts(&self) -> StreamCounts {
        StreamCounts {
            messages: self.messages,
            bytes: self.bytes,
            first_seq: if self.last_seq == StreamSeq::ZERO { 0 } else { self.first_seq.get() },
            last_seq: self.last_seq.get(),
            num_subjects: self.subjects.subject_count(),
            num_deleted: self.deleted.len(),
            last_ts: self.last_ts,
        }
    }

    /// The lowest live message at or above `from`.
    pub fn next_live(&self, from: StreamSeq) -> Option<StreamSeq> {
        if self.messages == 0 || from > self.last_seq {
            return None;
        }
        let from = from.max(self.first_seq);
        if !self.deleted.contains(from.get()) {
            return Some(from);
        }
        // The end of the run of removed sequences that starts at or before `from`.
        let below = self.deleted.rank(from.get() - 1);
        let (mut inside, mut outside) = (from.get(), self.last_seq.get() + 1);
        let run_reaches = |at: u64| self.deleted.rank(at) - below == at - from.get() + 1;
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
            if run_reaches(middle) { inside = middle } else { outside = middle }
        }
        (inside < self.last_seq.get()).then(|| StreamSeq::new(inside + 1))
    }

    /// How many live messages are at or below `seq`.
    pub fn live_count_up_to(&self, seq: StreamSeq) -> u64 {
        let seq = seq.min(self.last_seq);
        if self.messages == 0 || seq < self.first_seq {
            return 0;
        }
        seq.get() - self.first_seq.get() + 1 - self.deleted.rank(seq.get())
    }

    /// How many live messages are at or above `seq`.
    pub fn live_count_from(&self, seq: StreamSeq) -> u64 {
        match seq.get().checked_sub(1) {
            None => self.messages,
            Some(below) => self.messages - self.live_count_up_to(StreamSeq::new(below)),
        }
    }

    /// The highest live message at or below `seq`.
    pub fn last_live_up_to(&self, seq: StreamSeq) -> Option<StreamSeq> {
        let mut seq = seq.min(self.last_seq);
        if self.messages == 0 {
            return None;
        }
        // Runs of removed messages end at a live one: jump over each by binary search on ranks.
        if self.is_live(seq) {
            return Some(seq);
        }
        let wanted = self.live_count_up_to(seq);
        if wanted == 0 {
            return None;
        }
        let mut low = self.first_seq;
        while low < seq {
            let middle = StreamSeq::new(low.get() + (seq.get() - low.get()) / 2);
            if self.live_count_up_to(middle) >= wanted { seq = middle } else { low = middle.next() }
        }
        Some(low)
    }

    /// Live messages at or above `from`, in order.
    pub fn live_from(&self, from: StreamSeq) -> impl Iterator<Item = StreamSeq> + '_ {
        std::iter::successors(self.next_live(from), |seq| self.next_live(seq.next()))
    }

    /// The lowest live message at or above `from` that any filter covers; no filters cover all.
    pub fn next_matching<F: AsRef<[u8]>>(&self, filters: &[F], from: StreamSeq) -> Option<StreamSeq> {
        if covers_all(filters) { self.next_live(from) } else { self.subjects.next_matching(filters, from) }
    }

    /// How many live messages at or above `from` any filter covers; no filters cover all.
    pub fn count_matching<F: AsRef<[u8]>>(&self, filters: &[F], from: StreamSeq) -> u64 {
        if covers_all(filters) { self.live_count_from(from) } else { self.subjects.count_matching(filters, from) }
    }

    /// The highest live message at or below `up_to` that any filter covers; no filters cover all.
    pub fn last_matching<F: AsRef<[u8]>>(&self, filters: &[F], up_to: StreamSeq) -> Option<StreamSeq> {
        if covers_all(filters) { self.last_live_up_to(up_to) } else { self.subjects.last_matching(filters, up_to) }
    }

    /// The last live message of a subject.
    pub fn last_by_subject(&self, subject: &[u8]) -> Option<StreamSeq> {
        self.subjects.last_by_subject(subject)
    }

    /// When a live message was stored. Of one that cannot be read, when the next one was that can: times never go back,
    /// so it is not younger.
    pub(super) fn time_of(&self, seq: StreamSeq, records: &dyn Records) -> Timestamp {
        // What is damaged is a frame; when more than one is, this answer is as good as any.
        let near = self.live_from(seq).take(FRAME_COUNT_MAX as usize);
        near.flat_map(|seq| records.record(seq)).flatten().next().map_or(self.last_ts, |record| record.ts())
    }

    /// The lowest live message stored at or after `ts`; `None` if there is none. Times never go back, so
    /// this reads a record per halving. If those before a message that is late enough cannot be read, it is the first of
    /// them: it may be the one, and whoever reads it meets the damage.
    pub fn first_at_or_after(&self, ts: Timestamp, records: &dyn Records) -> Option<StreamSeq> {
        let late_enough = |seq: StreamSeq| self.time_of(seq, records) >= ts;
        let (mut low, mut high) = (self.first_seq.get(), self.last_seq.get() + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.next_live(StreamSeq::new(middle)) {
                Some(seq) if !late_enough(seq) => low = seq.get() + 1,
                _ => high = middle,
            }
        }
        self.next_live(StreamSeq::new(low))
    }

    /// When an `Expire` would next remove something: the first message's age limit or the first TTL.
    /// Messages that never expire at the front make this early, not late.
    pub fn next_expiry(&self, records: &dyn Records) -> Option<Timestamp> {
        let by_age =
            self.settings.limits.max_age_ns.and_then(|max_age_ns| {
                Some(self.time_of(self.next_live(StreamSeq::FIRST)?, records).plus_ns(max_age_ns))
            });
        let by_ttl = self.next_ttl();
        match (by_age, by_ttl) {
            (Some(age), Some(ttl)) => Some(age.min(ttl)),
            (age, ttl) => age.or(ttl),
        }
    }

    /// The nearest deadline of a message that has one of its own.
    pub fn next_ttl(&self) -> Option<Timestamp> {
        self.ttls.first().map(|(deadline, _)| *deadline)
    }
}
