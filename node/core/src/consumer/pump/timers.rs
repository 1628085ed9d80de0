//! When pending messages are due again.
//!
//! The ack wait is the same for all, so due times mostly come in order and a queue does; what comes out of order
//! (delays, backoff, progress) goes to a heap. Entries are never searched: one whose message is settled, or has
//! another due time by now, is dropped when it surfaces.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::state::ConsumerState;
use crate::ids::{StreamSeq, Timestamp};

type Entry = (Timestamp, StreamSeq);

/// Stale entries tolerated beside the live ones before a sweep.
const STALE_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Timers {
    in_order: VecDeque<Entry>,
    others: BinaryHeap<Reverse<Entry>>,
}

impl Timers {
    /// A timer for every pending message.
    pub(super) fn of(state: &ConsumerState) -> Self {
        let mut all: Vec<Entry> = state.iter_pending().map(|entry| (entry.due, entry.seq)).collect();
        all.sort_unstable();
        Self { in_order: all.into(), others: BinaryHeap::new() }
    }

    pub(super) fn push(&mut self, due: Timestamp, seq: StreamSeq) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= due) {
            self.in_order.push_back((due, seq));
        } else {
            self.others.push(Reverse((due, seq)));
        }
    }

    /// Takes a message that is due.
    pub(super) fn pop_due(&mut self, state: &ConsumerState, now: Timestamp) -> Option<StreamSeq> {
        self.drop_stale(state);
        let (due, seq) = self.head()?;
        if due > now {
            return None;
        }
        if self.in_order.front() == Some(&(due, seq)) {
            self.in_order.pop_front();
        } else {
            self.others.pop();
        }
        Some(seq)
    }

    /// The earliest due time; may be that of a message settled meanwhile.
    pub(super) fn next(&self, state: &ConsumerState) -> Option<Timestamp> {
        if state.pending_count() == 0 {
            return None;
        }
        self.head().map(|(due, _)| due)
    }

    fn head(&self) -> Option<Entry> {
        let queued = self.in_order.front().copied();
        let heaped = self.others.peek().map(|Reverse(entry)| *entry);
        match (queued, heaped) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn drop_stale(&mut self, state: &ConsumerState) {
        let live = |(due, seq): &Entry| state.pending(*seq).is_some_and(|entry| entry.due == *due);
        while self.in_order.front().is_some_and(|entry| !live(entry)) {
            self.in_order.pop_front();
        }
        while self.others.peek().is_some_and(|Reverse(entry)| !live(entry)) {
            self.others.pop();
        }
        // A message that stays unacknowledged at the front would let settled ones pile up behind it.
        let most = state.pending_count() * 2 + STALE_MAX;
        if self.in_order.len() > most {
            self.in_order.retain(|entry| live(entry));
        }
        if self.others.len() > most {
            self.others.retain(|Reverse(entry)| live(entry));
        }
    }
}
