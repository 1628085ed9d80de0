//! The duplicate window: which message ids were stored lately, by the log's time.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::hash;
use crate::ids::{StreamSeq, Timestamp};

#[derive(Clone, Debug)]
pub(super) struct IdEntry {
    pub(super) id: Box<[u8]>,
    pub(super) seq: StreamSeq,
    pub(super) ts: Timestamp,
}

/// Ids in the order they were stored, with a table that finds the newest of each.
#[derive(Clone, Debug, Default)]
pub struct DedupWindow {
    entries: VecDeque<IdEntry>,
    /// Number of entries that ever left at the front: entry `i` of the queue is number `gone + i`.
    gone: u64,
    /// Entry numbers.
    table: HashTable<u64>,
}

impl DedupWindow {
    fn entry(&self, number: u64) -> &IdEntry {
        &self.entries[(number - self.gone) as usize]
    }

    fn find(&self, id: &[u8]) -> Option<u64> {
        self.table.find(hash::bytes(id), |&n| *self.entry(n).id == *id).copied()
    }

    /// The message that an id stands for, if one was stored less than `window_ns` before `now`.
    pub fn lookup(&self, id: &[u8], now: Timestamp, window_ns: u64) -> Option<StreamSeq> {
        let entry = self.entry(self.find(id)?);
        (now.since_ns(entry.ts) < window_ns).then_some(entry.seq)
    }

    /// Notes a stored message; it replaces an older one of the same id. Sequences and times must not
    /// go back.
    pub fn insert(&mut self, id: &[u8], seq: StreamSeq, ts: Timestamp) {
        let number = self.gone + self.entries.len() as u64;
        let hash = hash::bytes(id);
        self.entries.push_back(IdEntry { id: id.into(), seq, ts });
        let Self { entries, gone, table } = self;
        let entry = |n: u64| &entries[(n - *gone) as usize];
        match table.find_mut(hash, |&n| *entry(n).id == *id) {
            Some(newest) => *newest = number,
            None => {
                table.insert_unique(hash, number, |&n| hash::bytes(&entry(n).id));
            }
        }
    }

    fn pop(&mut self) {
        let number = self.gone;
        let Some(front) = self.entries.front() else {
            return;
        };
        // A newer message of the same id took over the table's entry; then only the queue's goes.
        if let Ok(found) = self.table.find_entry(hash::bytes(&front.id), |&n| n == number) {
            found.remove();
        }
        self.entries.pop_front();
        self.gone += 1;
    }

    /// Forgets what is `window_ns` old or older.
    pub fn expire(&mut self, now: Timestamp, window_ns: u64) {
        while self.entries.front().is_some_and(|entry| now.since_ns(entry.ts) >= window_ns) {
            self.pop();
        }
    }

    /// Forgets ids of messages up to `seq`.
    pub(super) fn pop_through(&mut self, seq: StreamSeq) {
        while self.entries.front().is_some_and(|entry| entry.seq <= seq) {
            self.pop();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many ids are remembered.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = &IdEntry> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::DedupWindow;
    use crate::ids::{StreamSeq, Timestamp};

    #[test]
    fn ids_are_forgotten_by_the_logs_time() {
        let mut window = DedupWindow::default();
        let (seq, at) = (StreamSeq::new, Timestamp::new);
        window.insert(b"a", seq(1), at(100));
        window.insert(b"b", seq(2), at(150));
        assert_eq!(window.lookup(b"a", at(199), 100), Some(seq(1)));
        assert_eq!(window.lookup(b"a", at(200), 100), None);
        window.expire(at(200), 100);
        assert_eq!(window.len(), 1);
        assert_eq!(window.lookup(b"b", at(200), 100), Some(seq(2)));
    }

    #[test]
    fn the_newest_message_of_an_id_counts_and_outlives_the_older() {
        let mut window = DedupWindow::default();
        let (seq, at) = (StreamSeq::new, Timestamp::new);
        window.insert(b"a", seq(1), at(100));
        window.insert(b"a", seq(2), at(250));
        assert_eq!(window.len(), 1);
        window.expire(at(260), 100);
        assert_eq!(window.lookup(b"a", at(260), 100), Some(seq(2)));
        window.pop_through(seq(2));
        assert!(window.is_empty());
    }

    #[test]
    fn many_ids_come_and_go() {
        let mut window = DedupWindow::default();
        for i in 0..10_000u64 {
            window.insert(format!("id-{i}").as_bytes(), StreamSeq::new(i + 1), Timestamp::new(i));
            window.expire(Timestamp::new(i), 1_000);
        }
        assert_eq!(window.len(), 1_000);
        assert_eq!(window.lookup(b"id-9500", Timestamp::new(9_999), 1_000), Some(StreamSeq::new(9_501)));
        assert_eq!(window.lookup(b"id-8999", Timestamp::new(9_999), 1_000), None);
    }
}
