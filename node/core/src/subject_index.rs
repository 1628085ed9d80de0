//! Which live messages each subject has.
//!
//! Subjects live in a slab and a hash table points into it, so iteration order follows insertion, not
//! hashing. The index is derived: it is rebuilt from block frames and never stored.

use hashbrown::HashTable;
use headwater_protocol::subject;

use crate::hash;
use crate::ids::StreamSeq;
use crate::seq_set::SeqSet;

#[derive(Clone, Debug)]
struct Entry {
    subject: Box<[u8]>,
    seqs: SeqSet,
}

/// The index.
#[derive(Clone, Debug, Default)]
pub struct SubjectIndex {
    /// `None` where a subject lost its last message; the slot waits in `free`.
    slab: Vec<Option<Entry>>,
    free: Vec<u32>,
    table: HashTable<u32>,
    /// Slot of the latest push: publishers send runs of one subject.
    latest: Option<u32>,
}

/// A place in the index, valid until a subject is removed.
#[derive(Clone, Copy, Debug)]
pub struct SubjectSlot(u32);

impl SubjectIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }

    fn slot_of(&self, subject: &[u8]) -> Option<u32> {
        self.table.find(hash::bytes(subject), |&slot| self.is(slot, subject)).copied()
    }

    fn is(&self, slot: u32, subject: &[u8]) -> bool {
        self.slab[slot as usize].as_ref().is_some_and(|entry| *entry.subject == *subject)
    }

    /// Notes a message with a sequence above all others.
    pub fn push_back(&mut self, subject: &[u8], seq: StreamSeq) -> SubjectSlot {
        if let Some(slot) = self.latest
            && let Some(entry) = &mut self.slab[slot as usize]
            && *entry.subject == *subject
        {
            entry.seqs.push_back(seq);
            return SubjectSlot(slot);
        }
        let slot = match self.slot_of(subject) {
            Some(slot) => slot,
            None => self.add(subject),
        };
        if let Some(entry) = &mut self.slab[slot as usize] {
            entry.seqs.push_back(seq);
        }
        self.latest = Some(slot);
        SubjectSlot(slot)
    }

    /// As [`push_back`](Self::push_back), for the subject of an earlier push; no subject was removed since.
    pub fn push_at(&mut self, slot: SubjectSlot, seq: StreamSeq) {
        if let Some(Some(entry)) = self.slab.get_mut(slot.0 as usize) {
            entry.seqs.push_back(seq);
        }
    }

    fn add(&mut self, subject: &[u8]) -> u32 {
        let entry = Some(Entry { subject: subject.into(), seqs: SeqSet::Empty });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slab[slot as usize] = entry;
                slot
            }
            None => {
                let slot = u32::try_from(self.slab.len()).expect("fewer than 2^32 subjects fit memory");
                self.slab.push(entry);
                slot
            }
        };
        let slab = &self.slab;
        self.table.insert_unique(hash::bytes(subject), slot, |&slot| {
            slab[slot as usize].as_ref().map_or(0, |entry| hash::bytes(&entry.subject))
        });
        slot
    }

    /// The messages of the subject that was just pushed.
    pub fn at(&self, slot: SubjectSlot) -> &SeqSet {
        const NONE: &SeqSet = &SeqSet::Empty;
        self.slab[slot.0 as usize].as_ref().map_or(NONE, |entry| &entry.seqs)
    }

    /// Forgets a message; whether it was there. A subject without messages is forgotten.
    pub fn remove(&mut self, subject: &[u8], seq: StreamSeq) -> bool {
        let slot = match self.latest {
            Some(slot) if self.is(slot, subject) => Some(slot),
            _ => self.slot_of(subject),
        };
        let Some(slot) = slot else { return false };
        let Some(entry) = &mut self.slab[slot as usize] else {
            return false;
        };
        let was = entry.seqs.remove(seq);
        if entry.seqs.is_empty() {
            if let Ok(found) = self.table.find_entry(hash::bytes(subject), |&at| at == slot) {
                found.remove();
            }
            self.slab[slot as usize] = None;
            self.free.push(slot);
            if self.latest == Some(slot) {
                self.latest = None;
            }
        }
        was
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The messages of one subject.
    pub fn get(&self, subject: &[u8]) -> Option<&SeqSet> {
        let slot = self.slot_of(subject)?;
        self.slab[slot as usize].as_ref().map(|entry| &entry.seqs)
    }

    /// Number of subjects that have messages.
    pub fn subject_count(&self) -> u64 {
        self.table.len() as u64
    }

    /// Every subject with its messages, in no promised order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &SeqSet)> {
        self.slab.iter().flatten().map(|entry| (&*entry.subject, &entry.seqs))
    }

    /// Subjects a filter covers, in no promised order. A literal costs one look-up; a wildcard walks all
    /// subjects (kept behind this method so that a token tree can replace the walk).
    pub fn by_filter<'a>(&'a self, filter: &'a [u8]) -> Box<dyn Iterator<Item = (&'a [u8], &'a SeqSet)> + 'a> {
        if is_everything(filter) {
            Box::new(self.iter())
        } else if !subject::has_wildcards(filter) {
            let entry = self.slot_of(filter).and_then(|slot| self.slab[slot as usize].as_ref());
            Box::new(entry.into_iter().map(|entry| (&*entry.subject, &entry.seqs)))
        } else {
            Box::new(self.iter().filter(move |(subject, _)| subject::matches(filter, subject)))
        }
    }

    /// Subjects that any of the filters covers, each once, in no promised order. No filters cover all.
    pub fn by_filters<'a, F: AsRef<[u8]>>(
        &'a self,
        filters: &'a [F],
    ) -> Box<dyn Iterator<Item = (&'a [u8], &'a SeqSet)> + 'a> {
        match filters {
            [] => Box::new(self.iter()),
            [one] => self.by_filter(one.as_ref()),
            _ if filters.iter().all(|f| !subject::has_wildcards(f.as_ref()) && !f.as_ref().is_empty()) => {
                let distinct = filters
                    .iter()
                    .enumerate()
                    .filter(|(i, filter)| !filters[..*i].iter().any(|earlier| earlier.as_ref() == filter.as_ref()));
                Box::new(distinct.flat_map(|(_, filter)| self.by_filter(filter.as_ref())))
            }
            _ => Box::new(self.iter().filter(move |(subject, _)| covers_any(filters, subject))),
        }
    }

    /// The lowest message at or above `from` that a filter covers.
    pub fn next_matching<F: AsRef<[u8]>>(&self, filters: &[F], from: StreamSeq) -> Option<StreamSeq> {
        self.by_filters(filters).filter_map(|(_, seqs)| seqs.next_from(from)).min()
    }

    /// The highest message at or below `up_to` that a filter covers.
    pub fn last_matching<F: AsRef<[u8]>>(&self, filters: &[F], up_to: StreamSeq) -> Option<StreamSeq> {
        self.by_filters(filters).filter_map(|(_, seqs)| seqs.last_up_to(up_to)).max()
    }

    /// How many messages at or above `from` a filter covers.
    pub fn count_matching<F: AsRef<[u8]>>(&self, filters: &[F], from: StreamSeq) -> u64 {
        self.by_filters(filters).map(|(_, seqs)| seqs.count_from(from)).sum()
    }

    /// The last message of a literal subject.
    pub fn last_by_subject(&self, subject: &[u8]) -> Option<StreamSeq> {
        self.get(subject)?.last()
    }

    /// The last message at or below `up_to` of every subject that a filter covers, in sequence order.
    pub fn last_per_subject<F: AsRef<[u8]>>(&self, filters: &[F], up_to: StreamSeq) -> Vec<StreamSeq> {
        let mut lasts: Vec<StreamSeq> =
            self.by_filters(filters).filter_map(|(_, seqs)| seqs.last_up_to(up_to)).collect();
        lasts.sort_unstable();
        lasts
    }

    /// Message count of every subject that the filter covers, sorted by subject.
    pub fn subjects_matching(&self, filter: &[u8]) -> Vec<(Box<[u8]>, u64)> {
        let mut counts: Vec<(Box<[u8]>, u64)> =
            self.by_filter(filter).map(|(subject, seqs)| (subject.into(), seqs.len())).collect();
        counts.sort_unstable();
        counts
    }
}

/// Whether any of the filters covers the subject; no filters cover all.
pub fn covers_any<F: AsRef<[u8]>>(filters: &[F], subject: &[u8]) -> bool {
    filters.is_empty()
        || filters.iter().any(|filter| is_everything(filter.as_ref()) || subject::matches(filter.as_ref(), subject))
}

/// Whether a filter covers every subject.
pub(crate) fn is_everything(filter: &[u8]) -> bool {
    filter.is_empty() || filter == b">"
}

#[cfg(test)]
mod tests {
    use super::SubjectIndex;
    use crate::ids::StreamSeq;

    fn index() -> SubjectIndex {
        let mut index = SubjectIndex::new();
        for (i, subject) in ["a.x", "a.y", "b", "a.x", "b", "a.z"].iter().enumerate() {
            index.push_back(subject.as_bytes(), StreamSeq::new(i as u64 + 1));
        }
        index
    }

    #[test]
    fn filters_find_next_last_and_count() {
        let index = index();
        let seq = StreamSeq::new;
        assert_eq!(index.next_matching(&["a.*"], seq(3)), Some(seq(4)));
        assert_eq!(index.next_matching(&["b"], seq(6)), None);
        assert_eq!(index.next_matching::<&str>(&[], seq(3)), Some(seq(3)));
        assert_eq!(index.next_matching(&["b", "a.z"], seq(4)), Some(seq(5)));
        assert_eq!(index.count_matching(&["a.*"], seq(2)), 3);
        assert_eq!(index.count_matching(&["b", "b"], seq(0)), 2);
        assert_eq!(index.count_matching(&["b", ">"], seq(0)), 6);
        assert_eq!(index.last_matching(&["a.*"], seq(5)), Some(seq(4)));
        assert_eq!(index.last_by_subject(b"a.x"), Some(seq(4)));
        assert_eq!(index.last_per_subject(&["a.>"], seq(5)), [seq(2), seq(4)]);
        let counts = index.subjects_matching(b"a.>");
        let counts: Vec<_> = counts.iter().map(|(s, n)| (std::str::from_utf8(s).unwrap(), *n)).collect();
        assert_eq!(counts, [("a.x", 2), ("a.y", 1), ("a.z", 1)]);
    }

    #[test]
    fn a_subject_without_messages_is_forgotten_and_its_slot_reused() {
        let mut index = index();
        assert!(index.remove(b"a.z", StreamSeq::new(6)));
        assert!(!index.remove(b"a.z", StreamSeq::new(6)));
        assert_eq!(index.subject_count(), 3);
        assert!(index.get(b"a.z").is_none());
        index.push_back(b"new", StreamSeq::new(7));
        assert_eq!(index.slab.len(), 4);
        assert_eq!(index.last_by_subject(b"new"), Some(StreamSeq::new(7)));
    }

    #[test]
    fn many_subjects_survive_growth() {
        let mut index = SubjectIndex::new();
        for i in 0..5_000u64 {
            index.push_back(format!("s.{}", i % 1_000).as_bytes(), StreamSeq::new(i + 1));
        }
        assert_eq!(index.subject_count(), 1_000);
        for i in 0..1_000u64 {
            assert_eq!(index.get(format!("s.{i}").as_bytes()).unwrap().len(), 5);
        }
    }
}
