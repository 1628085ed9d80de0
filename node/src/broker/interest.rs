//! Everybody who wants messages, in one index: clients, peers, streams, and the node itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headwater_core::interest::Sublist;
use headwater_protocol::subject;

use super::peer_wire::InterestKey;
use super::peers::Peer;
use super::reply_cache::parent;
use super::subscription::Subscription;
use crate::transport::NodeId;

/// Filters that single out some replies of an inbox, tracked one by one up to this many.
const ODD_FILTERS_MAX: usize = 256;

/// One taker in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taker {
    Client(u32),
    Peer(NodeId),
    Stream(u64),
}

/// The index and what its entries stand for. Guarded by one lock, which is taken before any output lock.
#[derive(Default)]
pub(super) struct Interest {
    pub(super) index: Sublist<Taker>,
    pub(super) clients: Vec<Option<Arc<Subscription>>>,
    free_slots: Vec<u32>,
    pub(super) streams: HashMap<u64, Vec<Box<[u8]>>>,
    pub(super) peers: HashMap<NodeId, Peer>,
    /// What this node's clients want, counted: peers hear of the first and the last only.
    pub(super) announced: HashMap<InterestKey, u32>,
    singled_out: SingledOut,
    /// Filters that see requests to the JetStream API beside the API itself.
    pub(super) api_watchers: usize,
}

impl Interest {
    /// Adds to the index; the filter must be valid.
    pub(super) fn insert(&mut self, filter: &[u8], queue: Option<&[u8]>, taker: Taker) -> bool {
        if self.index.insert(filter, queue, taker).is_err() {
            return false;
        }
        self.singled_out.add(filter);
        self.api_watchers += usize::from(watches_api(filter));
        true
    }

    pub(super) fn remove(&mut self, filter: &[u8], queue: Option<&[u8]>, taker: Taker) -> bool {
        if !self.index.remove(filter, queue, &taker) {
            return false;
        }
        self.singled_out.remove(filter);
        self.api_watchers -= usize::from(watches_api(filter));
        true
    }

    pub(super) fn add_client(&mut self, subscription: &Arc<Subscription>) -> bool {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.clients.push(None);
            u32::try_from(self.clients.len() - 1).expect("four billion subscriptions do not fit in memory")
        });
        if !self.insert(&subscription.filter, subscription.queue.as_deref(), Taker::Client(slot)) {
            self.free_slots.push(slot);
            return false;
        }
        subscription.slot.store(slot, Ordering::Relaxed);
        self.clients[slot as usize] = Some(Arc::clone(subscription));
        true
    }

    /// False when it is gone already.
    pub(super) fn remove_client(&mut self, subscription: &Arc<Subscription>) -> bool {
        let slot = subscription.slot.load(Ordering::Relaxed);
        let kept = self.clients.get_mut(slot as usize);
        let Some(kept) = kept.filter(|kept| kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, subscription))) else {
            return false;
        };
        *kept = None;
        self.free_slots.push(slot);
        self.remove(&subscription.filter, subscription.queue.as_deref(), Taker::Client(slot))
    }

    /// Whether every subject `parent` + one token has the same takers.
    pub(super) fn is_uniform_below(&self, parent: &[u8]) -> bool {
        self.singled_out.is_uniform_below(parent)
    }

    pub(super) fn client_count(&self) -> usize {
        self.clients.len() - self.free_slots.len()
    }
}

fn watches_api(filter: &[u8]) -> bool {
    subject::overlaps(filter, b"$JS.>")
}

/// Filters or their parents, counted.
type Counts = HashMap<Box<[u8]>, u32>;

/// Filters whose last token is literal: they tell apart what lies below one parent, say two replies of one inbox.
#[derive(Debug, Default)]
struct SingledOut {
    /// Literal filters, counted by their parent.
    literal: Counts,
    /// Filters with a wildcard before their literal last token.
    odd: Counts,
}

impl SingledOut {
    fn table(&mut self, filter: &[u8]) -> Option<(&mut Counts, Box<[u8]>)> {
        let parent = parent(filter).unwrap_or_default();
        let last = &filter[parent.len()..];
        if last == b"*" || last == b">" {
            return None;
        }
        if subject::has_wildcards(filter) {
            return Some((&mut self.odd, filter.into()));
        }
        // A subject of one token has no parent and no replies are told apart by it.
        (!parent.is_empty()).then(|| (&mut self.literal, parent.into()))
    }

    fn add(&mut self, filter: &[u8]) {
        if let Some((table, key)) = self.table(filter) {
            *table.entry(key).or_default() += 1;
        }
    }

    fn remove(&mut self, filter: &[u8]) {
        if let Some((table, key)) = self.table(filter)
            && let Some(count) = table.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                table.remove(&key);
            }
        }
    }

    fn is_uniform_below(&self, parent: &[u8]) -> bool {
        if self.literal.contains_key(parent) || self.odd.len() > ODD_FILTERS_MAX {
            return false;
        }
        let mut all = parent.to_vec();
        all.push(b'*');
        !self.odd.keys().any(|odd| subject::overlaps(odd, &all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inboxes_are_uniform_until_a_filter_tells_their_replies_apart() {
        let mut interest = Interest::default();
        assert!(interest.insert(b"_INBOX.x.*", None, Taker::Stream(1)));
        assert!(interest.insert(b"orders.*.created", None, Taker::Stream(2)));
        assert!(interest.is_uniform_below(b"_INBOX.x."));
        for odd in [&b"_INBOX.x.one"[..], b"*.*.two", b"_INBOX.*.three"] {
            assert!(interest.insert(odd, None, Taker::Stream(3)));
            assert!(!interest.is_uniform_below(b"_INBOX.x."), "{}", String::from_utf8_lossy(odd));
            assert!(interest.remove(odd, None, Taker::Stream(3)));
            assert!(interest.is_uniform_below(b"_INBOX.x."));
        }
        assert!(!interest.insert(b"a..b", None, Taker::Stream(3)));
    }

    #[test]
    fn api_watchers_are_counted() {
        let mut interest = Interest::default();
        for filter in [&b">"[..], b"$JS.API.>", b"*.ACK.x"] {
            interest.insert(filter, None, Taker::Client(1));
        }
        interest.insert(b"orders.>", None, Taker::Client(1));
        assert_eq!(interest.api_watchers, 3);
        interest.remove(b">", None, Taker::Client(1));
        assert_eq!(interest.api_watchers, 2);
    }
}
