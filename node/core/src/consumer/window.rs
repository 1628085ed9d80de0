//! The delivered and not yet settled messages of one consumer.
//!
//! New deliveries come in stream order, so the entries are a sorted ring: appended at the back, mostly removed at
//! the front. An entry removed in the middle leaves a tombstone that goes when it reaches an end, or when
//! tombstones outnumber entries. Lookup first guesses that sequences are consecutive, then searches by halves.

use std::collections::VecDeque;

use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

/// A message that was delivered and is neither acknowledged nor given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pending {
    /// The message.
    pub seq: StreamSeq,
    /// Consumer sequence of its first delivery.
    pub cseq: ConsumerSeq,
    /// When it was last delivered or reported as in progress.
    pub delivered_at: Timestamp,
    /// When it is to be delivered again.
    pub due: Timestamp,
    /// How often it was delivered, at least 1.
    pub deliveries: u32,
}

const TOMBSTONE: u32 = 0;
/// Below this many slots tombstones are not worth a compaction.
const COMPACT_MIN: usize = 64;

/// See the module's description. First and last slot are never tombstones.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Window {
    slots: VecDeque<Pending>,
    live: usize,
    redelivered: usize,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Entries that were delivered more than once.
    pub(super) fn redelivered(&self) -> usize {
        self.redelivered
    }

    pub(super) fn first(&self) -> Option<&Pending> {
        self.slots.front()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.slots.iter().filter(|slot| slot.deliveries != TOMBSTONE)
    }

    pub(super) fn get(&self, seq: StreamSeq) -> Option<&Pending> {
        let at = self.find(seq).ok()?;
        Some(&self.slots[at]).filter(|slot| slot.deliveries != TOMBSTONE)
    }

    /// Adds an entry; one for the same message is replaced.
    pub(super) fn insert(&mut self, entry: Pending) {
        assert!(entry.deliveries != TOMBSTONE, "an entry of {} has no delivery", entry.seq);
        match self.find(entry.seq) {
            Ok(at) => {
                self.forget(at);
                self.slots[at] = entry;
            }
            Err(at) => self.slots.insert(at, entry),
        }
        self.live += 1;
        self.redelivered += usize::from(entry.deliveries > 1);
    }

    /// Changes the entries from `first` through `last`. `change` must leave `seq` and `cseq` alone.
    pub(super) fn update_range(&mut self, first: StreamSeq, last: StreamSeq, mut change: impl FnMut(&mut Pending)) {
        let (Ok(mut at) | Err(mut at)) = self.find(first);
        while let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.seq <= last) {
            if slot.deliveries != TOMBSTONE {
                let before = slot.deliveries > 1;
                change(slot);
                self.redelivered += usize::from(slot.deliveries > 1);
                self.redelivered -= usize::from(before);
            }
            at += 1;
        }
    }

    /// Changes every entry.
    pub(super) fn update_all(&mut self, mut change: impl FnMut(&mut Pending)) {
        for slot in self.slots.iter_mut().filter(|slot| slot.deliveries != TOMBSTONE) {
            change(slot);
        }
    }

    /// Removes the entries from `first` through `last`, telling `removed` of each.
    pub(super) fn remove_range(&mut self, first: StreamSeq, last: StreamSeq, mut removed: impl FnMut(&Pending)) {
        let (Ok(mut at) | Err(mut at)) = self.find(first);
        while let Some(slot) = self.slots.get(at).filter(|slot| slot.seq <= last) {
            if slot.deliveries != TOMBSTONE {
                removed(slot);
                self.forget(at);
            }
            at += 1;
        }
        self.tidy();
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn forget(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if slot.deliveries == TOMBSTONE {
            return;
        }
        self.live -= 1;
        self.redelivered -= usize::from(slot.deliveries > 1);
        slot.deliveries = TOMBSTONE;
    }

    fn tidy(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.deliveries == TOMBSTONE) {
            self.slots.pop_front();
        }
        while self.slots.back().is_some_and(|slot| slot.deliveries == TOMBSTONE) {
            self.slots.pop_back();
        }
        if self.slots.len() >= COMPACT_MIN && self.live * 2 < self.slots.len() {
            self.slots.retain(|slot| slot.deliveries != TOMBSTONE);
        }
    }

    fn find(&self, seq: StreamSeq) -> Result<usize, usize> {
        let Some(first) = self.slots.front() else {
            return Err(0);
        };
        if self.slots.back().is_some_and(|last| last.seq < seq) {
            return Err(self.slots.len());
        }
        let guess = usize::try_from(seq.get().wrapping_sub(first.seq.get())).unwrap_or(usize::MAX);
        if self.slots.get(guess).is_some_and(|slot| slot.seq == seq) {
            return Ok(guess);
        }
        self.slots.binary_search_by_key(&seq, |slot| slot.seq)
    }
}
