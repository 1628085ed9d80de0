//! Interest with counts: many subscriptions of one holder show as one.
//!
//! Between nodes only the first subscription of a (filter, queue) and the end of the last one are news. The same
//! structure serves both sides: the local one tells which deltas to send, the remote one counts what a peer has.

use hashbrown::HashMap;
use headwater_protocol::subject::InvalidSubject;

use super::sublist::{MatchResult, Sublist};

/// What an insert or a remove did to the holder's interest in that filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transition {
    /// The first one: the holder is interested from now on.
    Began,
    /// The last one: the holder is not interested any more.
    Ended,
    /// Only the count changed.
    Counted,
    /// A remove of something that was never inserted.
    Unknown,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Key<T> {
    filter: Box<[u8]>,
    queue: Option<Box<[u8]>>,
    holder: T,
}

/// A [`Sublist`] in which each holder appears once per (filter, queue), with a count beside it.
#[derive(Debug)]
pub struct CountedSublist<T> {
    sublist: Sublist<T>,
    counts: HashMap<Key<T>, u32>,
}

impl<T: Copy + Eq + std::hash::Hash> Default for CountedSublist<T> {
    fn default() -> Self {
        Self { sublist: Sublist::new(), counts: HashMap::new() }
    }
}

impl<T: Copy + Eq + std::hash::Hash> CountedSublist<T> {
    /// Counts `by` more subscriptions of `holder`.
    pub fn add(
        &mut self,
        filter: &[u8],
        queue: Option<&[u8]>,
        holder: T,
        by: u32,
    ) -> Result<Transition, InvalidSubject> {
        if by == 0 {
            return Ok(Transition::Counted);
        }
        let key = Key { filter: filter.into(), queue: queue.map(Into::into), holder };
        if let Some(count) = self.counts.get_mut(&key) {
            *count = count.saturating_add(by);
            return Ok(Transition::Counted);
        }
        self.sublist.insert(filter, queue, holder)?;
        self.counts.insert(key, by);
        Ok(Transition::Began)
    }

    /// Counts `by` fewer subscriptions of `holder`.
    pub fn sub(&mut self, filter: &[u8], queue: Option<&[u8]>, holder: T, by: u32) -> Transition {
        let key = Key { filter: filter.into(), queue: queue.map(Into::into), holder };
        let Some(count) = self.counts.get_mut(&key) else {
            return Transition::Unknown;
        };
        if *count > by {
            *count -= by;
            return Transition::Counted;
        }
        self.counts.remove(&key);
        self.sublist.remove(filter, queue, &holder);
        Transition::Ended
    }

    /// Forgets everything of one holder (a peer that went away).
    pub fn forget(&mut self, holder: &T) {
        let gone: Vec<Key<T>> = self.counts.keys().filter(|key| key.holder == *holder).cloned().collect();
        for key in gone {
            self.counts.remove(&key);
            self.sublist.remove(&key.filter, key.queue.as_deref(), holder);
        }
    }

    /// The holders interested in a subject; each once per matching filter.
    pub fn matches(&mut self, subject: &[u8]) -> &MatchResult<T> {
        self.sublist.matches(subject)
    }

    /// Whether any holder wants this subject.
    pub fn has_interest(&self, subject: &[u8]) -> bool {
        self.sublist.has_interest(subject)
    }

    /// Calls `visit` for every (filter, queue, holder, count), for a full state message to a new peer.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], Option<&[u8]>, &T, u32)) {
        for (key, count) in &self.counts {
            visit(&key.filter, key.queue.as_deref(), &key.holder, *count);
        }
    }

    /// Number of distinct (filter, queue, holder).
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether nobody is interested in anything.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}
