//! Interest across nodes.
//!
//! Each broker tells every peer what its own clients want: everything when a link comes up, then each change. Changes
//! and routed messages travel on one link in the order they were issued, so whoever sees a request knows the interest
//! in its reply already.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::interest::{Interest, Taker};
use super::peer_wire::{self, InterestKey};
use super::{Broker, Inner};
use crate::transport::NodeId;

/// Bytes of interest that go into one message.
const SYNC_BYTES_MAX: usize = 1 << 20;

/// What is known of one peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// A link to it stands.
    pub(super) is_up: bool,
    /// It was told this node's whole interest, and every change since.
    is_told: bool,
    /// Its whole interest is known.
    is_known: bool,
    wants: HashSet<InterestKey>,
}

impl Inner {
    /// Counts one more or one fewer local subscription, and tells the peers when that is news.
    pub(super) fn announce(&self, interest: &mut Interest, begins: bool, filter: &[u8], queue: Option<&[u8]>) {
        let key = InterestKey::new(filter, queue);
        let is_news = if begins {
            let count = interest.announced.entry(key).or_default();
            *count += 1;
            *count == 1
        } else {
            match interest.announced.get_mut(&key) {
                Some(count) if *count > 1 => {
                    *count -= 1;
                    false
                }
                Some(_) => interest.announced.remove(&key).is_some(),
                None => false,
            }
        };
        if !is_news || interest.peers.is_empty() {
            return;
        }
        let mut delta = Vec::new();
        peer_wire::put_interest(&mut delta, begins, filter, queue);
        let delta = [Bytes::from(delta)];
        let untold: Vec<NodeId> =
            interest.peers.iter().filter(|(_, p)| p.is_up && !p.is_told).map(|(n, _)| *n).collect();
        let told = interest.peers.iter_mut().filter(|(_, peer)| peer.is_up && peer.is_told);
        for (node, peer) in told {
            peer.is_told = self.send(*node, peer_wire::KIND_DELTA, &delta);
        }
        for node in untold {
            self.sync(interest, node);
        }
    }

    fn send(&self, to: NodeId, kind: u8, parts: &[Bytes]) -> bool {
        self.transport.get().is_some_and(|transport| transport.send(to, kind, parts).is_ok())
    }

    /// Tells `node` everything that is wanted here. What does not fit its queue is made good at the next change.
    fn sync(&self, interest: &mut Interest, node: NodeId) {
        let Some(peer) = interest.peers.get_mut(&node) else { return };
        let mut kind = peer_wire::KIND_SYNC;
        let mut body = Vec::new();
        let mut is_told = true;
        for key in interest.announced.keys() {
            peer_wire::put_interest(&mut body, true, &key.filter, key.queue.as_deref());
            if body.len() >= SYNC_BYTES_MAX {
                is_told &= self.send(node, kind, &[Bytes::from(std::mem::take(&mut body))]);
                kind = peer_wire::KIND_DELTA;
            }
        }
        if kind == peer_wire::KIND_SYNC || !body.is_empty() {
            is_told &= self.send(node, kind, &[Bytes::from(body)]);
        }
        peer.is_told = is_told;
    }

    fn learn(&self, interest: &mut Interest, from: NodeId, body: &[u8]) {
        let peer = interest.peers.entry(from).or_default();
        let mut changes = Vec::new();
        let whole = peer_wire::each_interest(body, |begins, filter, queue| {
            let key = InterestKey::new(filter, queue);
            let is_news = if begins { peer.wants.insert(key.clone()) } else { peer.wants.remove(&key) };
            if is_news {
                changes.push((begins, key));
            }
        });
        if !whole {
            tracing::warn!(from, "peer sent unreadable interest");
        }
        for (begins, key) in changes {
            let queue = key.queue.as_deref();
            if begins {
                interest.insert(&key.filter, queue, Taker::Peer(from));
            } else {
                interest.remove(&key.filter, queue, Taker::Peer(from));
            }
        }
    }

    fn forget(&self, interest: &mut Interest, node: NodeId) {
        let Some(peer) = interest.peers.get_mut(&node) else { return };
        let wants = std::mem::take(&mut peer.wants);
        peer.is_known = false;
        for key in wants {
            interest.remove(&key.filter, key.queue.as_deref(), Taker::Peer(node));
        }
    }
}

impl Broker {
    /// A link to `node` stands: it is told what is wanted here.
    pub(crate) fn peer_up(&self, node: NodeId) {
        let mut interest = self.inner.interest.lock();
        let peer = interest.peers.entry(node).or_default();
        peer.is_up = true;
        let is_known = peer.is_known;
        self.inner.sync(&mut interest, node);
        if !is_known {
            self.inner.send(node, peer_wire::KIND_ASK_SYNC, &[]);
        }
        self.inner.touch(&interest);
    }

    /// The link to `node` is gone: nothing can be sent there, so its interest does not count.
    pub(crate) fn peer_down(&self, node: NodeId) {
        let mut interest = self.inner.interest.lock();
        self.inner.forget(&mut interest, node);
        interest.peers.remove(&node);
        self.inner.touch(&interest);
    }

    /// A broker message of a peer: kinds 0x10 to 0x1f.
    pub(crate) fn on_peer_message(&self, from: NodeId, kind: u8, body: Bytes) {
        match kind {
            peer_wire::KIND_ROUTED => match peer_wire::read_routed(&body) {
                Some(routed) => self.route_from_peer(&routed),
                None => tracing::warn!(from, "peer sent an unreadable message"),
            },
            peer_wire::KIND_SYNC | peer_wire::KIND_DELTA => {
                let mut interest = self.inner.interest.lock();
                if kind == peer_wire::KIND_SYNC {
                    self.inner.forget(&mut interest, from);
                    interest.peers.entry(from).or_default().is_known = true;
                } else if !interest.peers.get(&from).is_some_and(|peer| peer.is_known) {
                    // A change to something unknown; the sync asked for will carry it.
                    return;
                }
                self.inner.learn(&mut interest, from, &body);
                self.inner.touch(&interest);
            }
            peer_wire::KIND_ASK_SYNC => {
                let mut interest = self.inner.interest.lock();
                if interest.peers.get(&from).is_some_and(|peer| peer.is_up) {
                    self.inner.sync(&mut interest, from);
                }
            }
            _ => tracing::debug!(from, kind, "unknown broker message"),
        }
    }

    /// Peers with a link, and how many filters each wants, by node id.
    pub(crate) fn peer_interest_counts(&self) -> Vec<(NodeId, usize)> {
        let interest = self.inner.interest.lock();
        let up = interest.peers.iter().filter(|(_, peer)| peer.is_up);
        let mut counts: Vec<_> = up.map(|(node, peer)| (*node, peer.wants.len())).collect();
        counts.sort_unstable();
        counts
    }
}

impl Inner {
    /// The index changed: answers remembered elsewhere are stale.
    pub(super) fn touch(&self, interest: &Interest) {
        let watchers = interest.api_watchers;
        self.api_watchers.store(watchers, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }
}
