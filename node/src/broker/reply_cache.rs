//! Which of a connection's subscriptions takes its replies.
//!
//! Clients keep one `<inbox>.*` subscription for all their replies, so the answer found for one reply holds for the
//! next, as long as no subscription changes anywhere.

use std::sync::Arc;

use super::subscription::Subscription;

/// Inboxes remembered per connection; clients use one for requests and perhaps one per pull subscription.
const ENTRIES_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct ReplyCache {
    entries: Vec<Entry>,
    next: usize,
}

#[derive(Debug)]
struct Entry {
    generation: u64,
    /// The reply subject up to and including its last dot.
    parent: Box<[u8]>,
    to: Arc<Subscription>,
}

/// A subject up to and including its last dot.
pub(super) fn parent(subject: &[u8]) -> Option<&[u8]> {
    subject.iter().rposition(|byte| *byte == b'.').map(|dot| &subject[..=dot])
}

impl ReplyCache {
    pub(super) fn get(&self, reply: &[u8], generation: u64) -> Option<&Arc<Subscription>> {
        let hit = |entry: &&Entry| {
            let token = reply.strip_prefix(&*entry.parent);
            entry.generation == generation && token.is_some_and(|token| !token.contains(&b'.'))
        };
        self.entries.iter().find(hit).map(|entry| &entry.to)
    }

    /// Remembers that every `parent.<token>` goes to `to` alone.
    pub(super) fn put(&mut self, parent: &[u8], generation: u64, to: Arc<Subscription>) {
        let entry = Entry { generation, parent: parent.into(), to };
        if let Some(same) = self.entries.iter_mut().find(|entry| *entry.parent == *parent) {
            *same = entry;
        } else if self.entries.len() < ENTRIES_MAX {
            self.entries.push(entry);
        } else {
            self.next = (self.next + 1) % ENTRIES_MAX;
            self.entries[self.next] = entry;
        }
    }

    /// Forgets everything, so that a closed connection's subscriptions do not keep it alive.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}
