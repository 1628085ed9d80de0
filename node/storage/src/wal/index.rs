//! What the log knows of one group in memory: live entries, vote, purge marker, committed index.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use headwater_core::ids::{LogIndex, LogPosition, Term};

use super::segment::SegmentSeq;

/// Position in the queue of all records this process ever enqueued. Records found at open stand at zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Lsn(pub(crate) u64);

/// Where a record lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: SegmentSeq,
    pub(crate) offset: u64,
}

/// A live entry.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) term: Term,
    pub(crate) kind: u8,
    /// Payload length in bytes.
    pub(crate) len: u32,
    /// Where it stands in the queue: written and synced follow from it.
    pub(crate) lsn: Lsn,
    /// `None` until written.
    pub(crate) place: Option<Place>,
    /// Always there until written, then while cached.
    pub(crate) payload: Option<Bytes>,
}

/// A record of which only the newest counts: vote, purge marker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StateRecord {
    /// The newest one enqueued.
    pub(crate) lsn: Lsn,
    /// Segment of the newest one written.
    pub(crate) segment: Option<SegmentSeq>,
}

/// One group.
#[derive(Debug, Default)]
pub(crate) struct GroupLog {
    /// Index of `slots[0]`; meaningless while empty.
    first: LogIndex,
    slots: VecDeque<Slot>,
    pub(crate) purged: Option<LogPosition>,
    pub(crate) purge_record: StateRecord,
    pub(crate) vote: Option<Bytes>,
    pub(crate) vote_record: StateRecord,
    pub(crate) committed: Option<LogPosition>,
    /// Segment of the newest committed record; it pins nothing and is repeated when its segment goes.
    pub(crate) committed_segment: Option<SegmentSeq>,
    /// Waits to be carried by the next write.
    pub(crate) committed_dirty: bool,
    pub(crate) interval: Option<Duration>,
    /// The newest record of the group in the queue.
    pub(crate) newest: Lsn,
}

impl GroupLog {
    /// First live entry.
    pub(crate) fn first(&self) -> Option<LogIndex> {
        (!self.slots.is_empty()).then_some(self.first)
    }

    /// Last live entry.
    pub(crate) fn last(&self) -> Option<LogPosition> {
        let slot = self.slots.back()?;
        Some(LogPosition { index: self.nth(self.slots.len() - 1), term: slot.term })
    }

    /// Index the next entry must have; `None` if any will do.
    pub(crate) fn expected_next(&self) -> Option<LogIndex> {
        let last = self.last().or(self.purged)?;
        Some(last.index.next())
    }

    fn nth(&self, nth: usize) -> LogIndex {
        LogIndex::new(self.first.get() + nth as u64)
    }

    fn offset_of(&self, index: LogIndex) -> Option<usize> {
        let nth = usize::try_from(index.get().checked_sub(self.first.get())?).ok()?;
        (nth < self.slots.len()).then_some(nth)
    }

    pub(crate) fn slot(&self, index: LogIndex) -> Option<&Slot> {
        self.slots.get(self.offset_of(index)?)
    }

    pub(crate) fn slot_mut(&mut self, index: LogIndex) -> Option<&mut Slot> {
        let nth = self.offset_of(index)?;
        self.slots.get_mut(nth)
    }

    /// Appends; the caller has checked the index.
    pub(crate) fn push(&mut self, index: LogIndex, slot: Slot) {
        if self.slots.is_empty() {
            self.first = index;
        }
        debug_assert_eq!(self.nth(self.slots.len()), index, "entries of a group are contiguous");
        self.slots.push_back(slot);
    }

    /// Removes everything after `index` (`None`: everything).
    pub(crate) fn truncate_after(&mut self, index: Option<LogIndex>) -> Vec<Slot> {
        let keep = match index {
            None => 0,
            Some(index) if self.slots.is_empty() || index < self.first => 0,
            Some(index) => usize::try_from(index.get() - self.first.get() + 1).unwrap_or(usize::MAX),
        };
        if keep >= self.slots.len() {
            return Vec::new();
        }
        self.slots.drain(keep..).collect()
    }

    /// Removes everything up to and including `upto`.
    pub(crate) fn purge(&mut self, upto: LogIndex) -> Vec<Slot> {
        if self.slots.is_empty() || upto < self.first {
            return Vec::new();
        }
        let count = usize::try_from(upto.get() - self.first.get() + 1).unwrap_or(usize::MAX).min(self.slots.len());
        let gone = self.slots.drain(..count).collect();
        self.first = LogIndex::new(self.first.get() + count as u64);
        gone
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (LogIndex, &Slot)> {
        self.slots.iter().enumerate().map(|(nth, slot)| (self.nth(nth), slot))
    }

    /// Entries from `from` on.
    pub(crate) fn entries_from(&self, from: LogIndex) -> impl Iterator<Item = (LogIndex, &Slot)> {
        let skip = usize::try_from(from.get().saturating_sub(self.first.get())).unwrap_or(usize::MAX);
        self.slots.range(skip.min(self.slots.len())..).enumerate().map(move |(nth, slot)| (self.nth(skip + nth), slot))
    }

    /// Highest index whose record stands at or before `reached`: everything up to it has reached that state.
    pub(crate) fn reached(&self, reached: Lsn) -> Option<LogIndex> {
        let count = self.slots.partition_point(|slot| slot.lsn <= reached);
        if count > 0 {
            return Some(self.nth(count - 1));
        }
        // Whatever is purged was persisted before, and that implies synced.
        Some(self.purged?.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(from: u64, to: u64) -> GroupLog {
        let mut log = GroupLog::default();
        for index in from..=to {
            let slot = Slot { term: Term::new(1), kind: 0, len: 0, lsn: Lsn(index), place: None, payload: None };
            log.push(LogIndex::new(index), slot);
        }
        log
    }

    #[test]
    fn truncate_and_purge_take_exactly_their_side() {
        let mut five = log(3, 7);
        assert_eq!(five.truncate_after(Some(LogIndex::new(9))).len(), 0);
        assert_eq!(five.truncate_after(Some(LogIndex::new(5))).len(), 2);
        assert_eq!(five.last().map(|last| last.index), Some(LogIndex::new(5)));
        assert_eq!(five.purge(LogIndex::new(2)).len(), 0);
        assert_eq!(five.purge(LogIndex::new(3)).len(), 1);
        assert_eq!(five.first(), Some(LogIndex::new(4)));
        assert_eq!(five.purge(LogIndex::new(100)).len(), 2);
        assert_eq!(five.first(), None);
        assert_eq!(log(3, 7).truncate_after(None).len(), 5);
        assert_eq!(log(3, 7).truncate_after(Some(LogIndex::new(1))).len(), 5);
    }

    #[test]
    fn a_watermark_is_a_prefix() {
        let log = log(3, 7);
        assert_eq!(log.reached(Lsn(2)), None);
        assert_eq!(log.reached(Lsn(5)), Some(LogIndex::new(5)));
        assert_eq!(log.reached(Lsn(50)), Some(LogIndex::new(7)));
        assert_eq!(log.entries_from(LogIndex::new(6)).count(), 2);
        assert_eq!(log.entries_from(LogIndex::new(8)).count(), 0);
        assert_eq!(log.entries().count(), 5);
    }
}
