//! Where a message goes: one look at the index, then straight into the output of whoever wants it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use headwater_core::interest::QueueGroup;
use headwater_protocol::{status, subject};

use super::conn::{Conn, ConnHandle};
use super::interest::{Interest, Taker};
use super::peer_wire::{self, Routed};
use super::reply_cache::parent;
use super::subscription::Subscription;
use super::{Broker, Inbound, Inner};
use crate::transport::NodeId;

const API_PREFIX: &[u8] = b"$JS.";

/// What became of a message.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Somebody got it.
    pub(crate) any: bool,
    /// Bytes that wait in the fullest queue it was put into.
    pub(crate) pending_bytes: usize,
}

/// The last subject a connection published to, if nobody but one stream wants it.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    subject: Vec<u8>,
    generation: u64,
    stream: Option<u64>,
}

impl RouteCache {
    fn get(&self, subject: &[u8], generation: u64) -> Option<u64> {
        self.stream.filter(|_| self.generation == generation && self.subject == subject)
    }

    fn put(&mut self, subject: &[u8], generation: u64, stream: u64) {
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        self.generation = generation;
        self.stream = Some(stream);
    }
}

/// Which takers a walk serves.
struct Scope<'a> {
    from: Option<&'a Arc<Conn>>,
    /// What a peer chose for this node; `None` when this node chooses.
    chosen: Option<&'a Routed<'a>>,
}

/// What is left to do once the index is unlocked.
#[derive(Default)]
struct After {
    reach: Reach,
    /// Streams hardly ever overlap, so the first one needs no allocation.
    stream: Option<u64>,
    more_streams: Vec<u64>,
    /// Nobody but `stream` wants the subject.
    stream_alone: bool,
    generation: u64,
    crowded: Option<Arc<Conn>>,
}

impl After {
    fn streams(&self) -> impl Iterator<Item = u64> {
        self.stream.iter().chain(&self.more_streams).copied()
    }

    fn note(&mut self, conn: &Arc<Conn>, waiting: usize) {
        self.reach.any = true;
        self.reach.pending_bytes = self.reach.pending_bytes.max(waiting);
        if conn.out.is_crowded(waiting) && self.crowded.is_none() {
            self.crowded = Some(Arc::clone(conn));
        }
    }
}

/// One peer's share of a message.
struct PeerShare<'a> {
    node: NodeId,
    plain: bool,
    queues: Vec<&'a [u8]>,
}

#[derive(Default)]
struct PeerShares<'a>(Vec<PeerShare<'a>>);

impl<'a> PeerShares<'a> {
    fn of(&mut self, node: NodeId) -> &mut PeerShare<'a> {
        let at = self.0.iter().position(|share| share.node == node).unwrap_or_else(|| {
            self.0.push(PeerShare { node, plain: false, queues: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

/// The one subscription that takes a subject.
pub(super) struct SoleTaker<'a> {
    pub(super) subscription: Arc<Subscription>,
    pub(super) generation: u64,
    /// Set when all subjects below this parent go the same way.
    pub(super) parent: Option<&'a [u8]>,
}

impl Inner {
    /// Serves clients and peers, and collects the rest.
    fn walk(&self, to: &[u8], msg: &Inbound<'_>, scope: &Scope<'_>) -> After {
        let mut after = After::default();
        let mut ended: Vec<Arc<Subscription>> = Vec::new();
        let mut guard = self.interest.lock();
        let interest = &mut *guard;
        after.generation = self.generation.load(Ordering::Acquire);
        let Interest { index, clients, peers, .. } = &mut *interest;
        let hits = index.matches(to);
        let mut shares = PeerShares::default();
        let mut serve = |after: &mut After, subscription: &Arc<Subscription>| {
            let conn = &subscription.conn;
            if scope.from.is_some_and(|from| Arc::ptr_eq(from, conn) && !conn.echoes()) {
                return false;
            }
            let Some(last) = subscription.claim() else { return false };
            if last {
                ended.push(Arc::clone(subscription));
            }
            let Some(waiting) = conn.deliver(subscription, msg) else { return false };
            after.note(conn, waiting);
            true
        };
        let is_plain_wanted = scope.chosen.is_none_or(|chosen| chosen.plain);
        if is_plain_wanted {
            for taker in &hits.plain {
                match *taker {
                    Taker::Client(slot) => {
                        if let Some(subscription) = &clients[slot as usize] {
                            serve(&mut after, subscription);
                        }
                    }
                    Taker::Peer(node) => {
                        if scope.chosen.is_none() && peers.get(&node).is_some_and(|peer| peer.is_up) {
                            shares.of(node).plain = true;
                        }
                    }
                    Taker::Stream(stream) if after.stream.is_none() => after.stream = Some(stream),
                    Taker::Stream(stream) => after.more_streams.push(stream),
                }
            }
            after.stream_alone = after.stream.is_some() && hits.plain.len() == 1 && hits.queues.is_empty();
        }
        for group in &hits.queues {
            if scope.chosen.is_some_and(|chosen| !chosen.names_queue(&group.name)) {
                continue;
            }
            let start = self.random(group.members.len());
            let served = locals_from(group, start)
                .filter_map(|slot| clients[slot as usize].as_ref())
                .any(|subscription| serve(&mut after, subscription));
            if served || scope.chosen.is_some() {
                continue;
            }
            let (before, behind) = group.members.split_at(start);
            let remote = behind.iter().chain(before).find_map(|taker| match taker {
                Taker::Peer(node) if peers.get(node).is_some_and(|peer| peer.is_up) => Some(*node),
                _ => None,
            });
            if let Some(node) = remote {
                shares.of(node).queues.push(&group.name);
            }
        }
        // Sent before the lock is released, so that no change of interest overtakes the message.
        self.send_shares(to, msg, &shares, &mut after);
        if !ended.is_empty() {
            for subscription in ended {
                self.remove(interest, &subscription);
            }
            self.touch(interest);
        }
        after
    }

    fn send_shares(&self, to: &[u8], msg: &Inbound<'_>, shares: &PeerShares<'_>, after: &mut After) {
        let (Some(transport), false) = (self.transport.get(), shares.0.is_empty()) else { return };
        let body = peer_wire::routed_body(msg);
        for share in &shares.0 {
            let head = peer_wire::routed_head(to, share.plain, &share.queues, msg);
            let parts: [Bytes; 2] = [head, body.clone()];
            if transport.send(share.node, peer_wire::KIND_ROUTED, &parts).is_ok() {
                let waiting = transport.queued_bytes(share.node);
                after.reach.any = true;
                after.reach.pending_bytes = after.reach.pending_bytes.max(waiting);
            }
        }
    }

    /// A number below `bound`, well enough spread to share work among queue members.
    fn random(&self, bound: usize) -> usize {
        // splitmix64: a counter, scrambled.
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % (bound.max(1) as u64)) as usize
    }

    /// The subscription of `conn` that takes `to`, if nobody else does.
    pub(super) fn sole_taker<'a>(&self, conn: &Arc<Conn>, to: &'a [u8]) -> Option<SoleTaker<'a>> {
        let mut guard = self.interest.lock();
        let interest = &mut *guard;
        let hits = interest.index.matches(to);
        let ([Taker::Client(slot)], true) = (hits.plain.as_slice(), hits.queues.is_empty()) else { return None };
        let subscription = interest.clients[*slot as usize].clone()?;
        if !Arc::ptr_eq(&subscription.conn, conn) {
            return None;
        }
        let generation = self.generation.load(Ordering::Acquire);
        let parent = parent(to).filter(|parent| !subscription.is_limited() && interest.is_uniform_below(parent));
        Some(SoleTaker { subscription, generation, parent })
    }
}

/// Slots of the local members, each equally likely to be first.
fn locals_from(group: &QueueGroup<Taker>, start: usize) -> impl Iterator<Item = u32> {
    let local = |taker: &Taker| if let Taker::Client(slot) = taker { Some(*slot) } else { None };
    // Members that are not local would give their turn to whoever stands behind them.
    let first = match group.members.get(start) {
        Some(Taker::Client(_)) => start,
        _ => {
            let count = group.members.iter().filter_map(local).count().max(1);
            let nth = group.members.iter().enumerate().filter(|(_, taker)| local(taker).is_some()).nth(start % count);
            nth.map_or(0, |(at, _)| at)
        }
    };
    let (before, behind) = group.members.split_at(first);
    behind.iter().chain(before).filter_map(local)
}

impl Broker {
    /// A publish of a client. Returns a connection that lags so far behind that the publisher should pause for it.
    pub(crate) fn publish_from(
        &self,
        from: &ConnHandle,
        cache: &mut RouteCache,
        msg: &Inbound<'_>,
    ) -> Option<ConnHandle> {
        let jetstream = self.inner.jetstream.get();
        let mut serviced = false;
        if msg.subject.starts_with(API_PREFIX) {
            serviced = jetstream.is_some_and(|js| js.service(Some(from), msg));
            if serviced && self.inner.api_watchers.load(Ordering::Relaxed) == 0 {
                return None;
            }
        } else if let Some(stream) = cache.get(msg.subject, self.inner.generation.load(Ordering::Acquire)) {
            if !jetstream.is_some_and(|js| js.publish(Some(from), stream, msg)) {
                self.tell_no_responders(from, msg);
            }
            return None;
        }
        let after = self.inner.walk(msg.subject, msg, &Scope { from: Some(&from.0), chosen: None });
        let mut reached = serviced | after.reach.any;
        if after.stream.is_some()
            && let Some(js) = jetstream
            // A subject with wildcards would be stored under a name that no filter can tell from a filter.
            && subject::is_valid_literal(msg.subject)
        {
            for stream in after.streams() {
                reached |= js.publish(Some(from), stream, msg);
            }
            if after.stream_alone
                && let Some(stream) = after.stream
            {
                cache.put(msg.subject, after.generation, stream);
            }
        }
        if !reached {
            self.tell_no_responders(from, msg);
        }
        after.crowded.map(ConnHandle)
    }

    /// Routes a message of this node to subscribers here and on other nodes; false when nobody is interested.
    /// Streams do not store it.
    pub(crate) fn publish(&self, msg: &Inbound<'_>) -> bool {
        self.deliver(msg.subject, msg).any
    }

    /// As [`Broker::publish`], for a message that shows another subject than the one it is sent `to`.
    pub(crate) fn deliver(&self, to: &[u8], msg: &Inbound<'_>) -> Reach {
        let after = self.inner.walk(to, msg, &Scope { from: None, chosen: None });
        after.reach
    }

    /// Whether any subscriber here, or on a node that can be reached, wants `subject`.
    pub(crate) fn has_interest(&self, subject: &[u8]) -> bool {
        let mut guard = self.inner.interest.lock();
        let Interest { index, peers, .. } = &mut *guard;
        let hits = index.matches(subject);
        let wants = |taker: &Taker| match taker {
            Taker::Client(_) => true,
            Taker::Peer(node) => peers.get(node).is_some_and(|peer| peer.is_up),
            Taker::Stream(_) => false,
        };
        hits.plain.iter().any(wants) || hits.queues.iter().any(|group| group.members.iter().any(wants))
    }

    pub(super) fn route_from_peer(&self, routed: &Routed<'_>) {
        self.inner.walk(routed.to, &routed.msg, &Scope { from: None, chosen: Some(routed) });
    }

    fn tell_no_responders(&self, from: &ConnHandle, msg: &Inbound<'_>) {
        let Some(reply) = msg.reply.filter(|_| from.wants_no_responders()) else { return };
        let headers = status::no_responders(msg.subject);
        let answer = Inbound { subject: reply, reply: None, headers: &headers, payload: b"" };
        if from.deliver_direct(reply, &answer) {
            return;
        }
        // Others listen to that inbox too, yet the news is for the requester alone.
        let own = from.0.subscriptions.lock().values().find(|own| subject::matches(&own.filter, reply)).cloned();
        if let Some(own) = own
            && let Some(last) = own.claim()
        {
            from.0.deliver(&own, &answer);
            if last {
                self.inner.unsubscribe(&own);
            }
        }
    }
}
