//! A client connection as the rest of the node sees it.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use headwater_protocol::connect::ConnectOptions;
use headwater_protocol::encode::{self, Address};
use headwater_protocol::wire_error::WireError;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::outbox::{OutState, Outbox, Pushed, Taken};
use super::subscription::Subscription;
use super::{Inbound, Inner};

const HEADERS: u8 = 1;
const NO_RESPONDERS: u8 = 2;
const ECHO: u8 = 4;
const ASYNC_INFO: u8 = 8;
/// The first PING was answered, so the client has finished connecting and takes INFO at any time.
const GREETED: u8 = 16;

/// Shared state of one client connection.
pub(super) struct Conn {
    pub(super) id: u64,
    pub(super) remote: Option<SocketAddr>,
    pub(super) started: Instant,
    pub(super) out: Outbox,
    flags: AtomicU8,
    pub(super) client: Mutex<ClientNames>,
    pub(super) subscriptions: Mutex<HashMap<Box<[u8]>, Arc<Subscription>>>,
    pub(super) in_messages: AtomicU64,
    pub(super) in_bytes: AtomicU64,
    /// Cancelled when the connection must end now.
    pub(super) stop: CancellationToken,
    pub(super) broker: Weak<Inner>,
}

/// Subscriptions point back here, so only the id is printed.
impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What the client calls itself.
#[derive(Debug, Default, Clone)]
pub(super) struct ClientNames {
    pub(super) name: String,
    pub(super) lang: String,
    pub(super) version: String,
}

impl Conn {
    pub(super) fn new(
        id: u64,
        remote: Option<SocketAddr>,
        pending_bytes_max: usize,
        stop: CancellationToken,
        broker: Weak<Inner>,
    ) -> Conn {
        Conn {
            id,
            remote,
            started: Instant::now(),
            out: Outbox::new(pending_bytes_max),
            flags: AtomicU8::new(ECHO),
            client: Mutex::default(),
            subscriptions: Mutex::default(),
            in_messages: AtomicU64::new(0),
            in_bytes: AtomicU64::new(0),
            stop,
            broker,
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    pub(super) fn echoes(&self) -> bool {
        self.has(ECHO)
    }

    pub(super) fn takes_info(&self) -> bool {
        self.has(ASYNC_INFO) && self.has(GREETED)
    }

    /// Writes one message for `to`, which is a subscription of this connection; the bytes now waiting, or `None` when
    /// the connection is closing.
    pub(super) fn deliver(&self, to: &Subscription, msg: &Inbound<'_>) -> Option<usize> {
        let mut state = self.out.lock();
        self.deliver_locked(&mut state, to, msg)
    }

    pub(super) fn deliver_locked(&self, state: &mut OutState, to: &Subscription, msg: &Inbound<'_>) -> Option<usize> {
        let address = Address { subject: msg.subject, sid: &to.sid, reply: msg.reply };
        let headers = self.has(HEADERS);
        let pushed =
            self.out.push_locked(state, |bytes| encode::deliver(bytes, address, msg.headers, msg.payload, headers));
        match pushed {
            Pushed::Waiting(waiting) => {
                state.messages += 1;
                let headers_bytes = if headers { msg.headers.len() } else { 0 };
                state.message_bytes += (headers_bytes + msg.payload.len()) as u64;
                Some(waiting)
            }
            Pushed::Closed => None,
            Pushed::Overflow => {
                self.slow("too much is waiting");
                None
            }
        }
    }

    /// Ends a connection that does not take its messages fast enough.
    pub(super) fn slow(&self, why: &'static str) {
        if let Some(broker) = self.broker.upgrade() {
            broker.slow_consumers.fetch_add(1, Ordering::Relaxed);
        }
        tracing::info!(client = self.id, why, "slow consumer closed");
        self.stop.cancel();
    }
}

/// Handle to a client connection; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ConnHandle(pub(super) Arc<Conn>);

impl ConnHandle {
    /// Unique on this node until it restarts.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Whether the client asked to be told that nobody listens.
    pub(crate) fn wants_no_responders(&self) -> bool {
        self.0.has(NO_RESPONDERS)
    }

    /// Writes a message to this connection's own subscription that matches `reply`. False when that subscription is
    /// not the only taker of `reply`: then [`super::Broker::publish`] is the way.
    pub(crate) fn reply_direct(&self, reply: &[u8], headers: &[u8], payload: &[u8]) -> bool {
        self.deliver_direct(reply, &Inbound { subject: reply, reply: None, headers, payload })
    }

    /// As [`ConnHandle::reply_direct`], for a message that shows another subject than the inbox `to` it goes to.
    pub(crate) fn deliver_direct(&self, to: &[u8], msg: &Inbound<'_>) -> bool {
        self.batch().deliver(to, msg)
    }

    /// Several messages in a row under one lock. Nothing else of the broker may be called while the batch is held.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { conn: &self.0, state: Some(self.0.out.lock()), broker: self.0.broker.upgrade() }
    }

    pub(crate) fn set_options(&self, options: &ConnectOptions) {
        let mut flags = self.0.flags.load(Ordering::Relaxed) & GREETED;
        for (flag, set) in [
            (HEADERS, options.headers),
            (NO_RESPONDERS, options.no_responders),
            (ECHO, options.echo),
            (ASYNC_INFO, options.takes_async_info()),
        ] {
            flags |= if set { flag } else { 0 };
        }
        self.0.flags.store(flags, Ordering::Relaxed);
        *self.0.client.lock() =
            ClientNames { name: options.name.clone(), lang: options.lang.clone(), version: options.version.clone() };
    }

    /// Notes that the first PING is answered; true when it was this one and the client takes INFO now.
    pub(crate) fn greet(&self) -> bool {
        let before = self.0.flags.fetch_or(GREETED, Ordering::Relaxed);
        before & GREETED == 0 && before & ASYNC_INFO != 0
    }

    pub(crate) fn send_control(&self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.0.out.push_control(write) == Pushed::Overflow {
            self.0.slow("too much is waiting");
        }
    }

    /// Tells the client what is wrong; the caller closes if the error says so.
    pub(crate) fn send_error(&self, error: &WireError) {
        self.send_control(|bytes| encode::err(bytes, error));
    }

    /// Writes what waits and then closes.
    pub(crate) fn finish(&self) {
        self.0.out.finish();
    }

    /// Closes now.
    pub(crate) fn close(&self) {
        self.0.stop.cancel();
    }

    pub(crate) fn close_slow(&self) {
        self.0.slow("a write took too long");
    }

    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.0.stop
    }

    pub(crate) fn count_in(&self, messages: u64, bytes: u64) {
        self.0.in_messages.fetch_add(messages, Ordering::Relaxed);
        self.0.in_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_output(&self, batch: &mut Vec<u8>) -> Taken {
        self.0.out.take(batch)
    }

    pub(crate) fn output_written(&self, bytes: usize) {
        self.0.out.written(bytes);
    }

    pub(crate) async fn output_woken(&self) {
        self.0.out.woken().await;
    }

    /// Returns once the client has taken most of what waits for it.
    pub(crate) async fn until_drained(&self) {
        self.0.out.until_drained().await;
    }
}

/// The output of one connection, locked for several messages in a row.
pub(crate) struct Batch<'a> {
    conn: &'a Arc<Conn>,
    state: Option<parking_lot::MutexGuard<'a, OutState>>,
    broker: Option<Arc<Inner>>,
}

impl Batch<'_> {
    /// As [`ConnHandle::deliver_direct`].
    pub(crate) fn deliver(&mut self, to: &[u8], msg: &Inbound<'_>) -> bool {
        let Some(broker) = &self.broker else { return false };
        let generation = broker.generation.load(Ordering::Acquire);
        let state = self.state.get_or_insert_with(|| self.conn.out.lock());
        if let Some(subscription) = state.replies.get(to, generation).cloned() {
            return subscription.claim().is_some() && self.conn.deliver_locked(state, &subscription, msg).is_some();
        }
        // The interest lock comes before the output lock everywhere.
        self.state = None;
        let Some(found) = broker.sole_taker(self.conn, to) else { return false };
        let state = self.state.get_or_insert_with(|| self.conn.out.lock());
        if let Some(parent) = found.parent {
            state.replies.put(parent, found.generation, Arc::clone(&found.subscription));
        }
        let Some(last) = found.subscription.claim() else { return false };
        let delivered = self.conn.deliver_locked(state, &found.subscription, msg).is_some();
        if last {
            self.state = None;
            broker.unsubscribe(&found.subscription);
        }
        delivered
    }
}
