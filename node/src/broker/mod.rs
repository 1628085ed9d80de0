//! Message routing: who wants a subject, on this node or another, and whether a stream stores it.
//!
//! One index holds clients, peers and streams, so a publish costs one look-up. Messages
//! for clients are appended to the connection's output buffer at once; a writer task per connection sends what
//! gathered. Locks are taken in the order interest, then output, and never across an await.

pub(crate) mod conn;
mod decode_any;
mod interest;
mod outbox;
mod peer_wire;
mod peers;
mod reply_cache;
pub(crate) mod route;
pub(crate) mod stats;
mod subscription;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use headwater_protocol::decode::Limits;
use headwater_protocol::encode;
use headwater_protocol::info::Info;
use headwater_protocol::wire_error::WireError;
use parking_lot::Mutex;

use conn::Conn;
pub(crate) use conn::ConnHandle;
pub use decode_any::decode_any;
use interest::{Interest, Taker};
pub(crate) use outbox::Taken;
pub(crate) use route::RouteCache;
use stats::Retired;
use subscription::Subscription;

use crate::transport::Transport;

/// A message on its way through the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbound<'a> {
    pub(crate) subject: &'a [u8],
    pub(crate) reply: Option<&'a [u8]>,
    /// The whole `NATS/1.0` block, or empty.
    pub(crate) headers: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// What the broker asks of JetStream. Called on the data thread, without any lock of the broker held.
pub(crate) trait JetStream: Send + Sync + 'static {
    /// The subject starts with `$JS.`: an API request, an ack, flow control. False when nobody will handle it.
    fn service(&self, from: Option<&ConnHandle>, msg: &Inbound<'_>) -> bool;
    /// The message matches `stream`; `from` is `None` for a message of this node. True when it is accepted for storage
    /// (the publisher is answered later), false when no leader is known, which counts as no responder.
    fn publish(&self, from: Option<&ConnHandle>, stream: u64, msg: &Inbound<'_>) -> bool;
    /// All operations of one socket read were handed over.
    fn turn_end(&self);
    /// Back-pressure: a future after which reading may go on.
    fn room(&self) -> Option<BoxFuture<'static, ()>>;
}

/// What clients are told about this server.
#[derive(Debug, Clone)]
pub(crate) struct ServerInfo {
    pub(crate) server_id: String,
    pub(crate) server_name: String,
    /// The version clients gate features on.
    pub(crate) version: String,
    pub(crate) git_commit: String,
    /// Where the client listener is bound, unless another address is advertised.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `host:port` that clients should use instead.
    pub(crate) client_advertise: Option<String>,
    pub(crate) cluster: String,
    pub(crate) domain: String,
    pub(crate) jetstream: bool,
    pub(crate) limits: ClientLimits,
}

impl ServerInfo {
    pub(crate) fn new(server_id: impl Into<String>, server_name: impl Into<String>) -> ServerInfo {
        let info = Info::default();
        ServerInfo {
            server_id: server_id.into(),
            server_name: server_name.into(),
            version: info.version,
            git_commit: String::new(),
            host: "0.0.0.0".to_owned(),
            port: info.port,
            client_advertise: None,
            cluster: String::new(),
            domain: String::new(),
            jetstream: true,
            limits: ClientLimits::default(),
        }
    }
}

/// What one client may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientLimits {
    /// Headers and payload of one message.
    pub(crate) payload_bytes_max: usize,
    pub(crate) control_line_bytes_max: usize,
    /// Output that may wait for one connection before it counts as a slow consumer.
    pub(crate) pending_bytes_max: usize,
    pub(crate) connections_max: usize,
    /// Subscriptions of one connection; `None` for no limit.
    pub(crate) subscriptions_max: Option<usize>,
    pub(crate) ping_interval: Duration,
    /// Pings that may stay unanswered.
    pub(crate) pings_unanswered_max: u32,
    /// A write that moves nothing for this long ends the connection.
    pub(crate) write_deadline: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        let wire = Limits::default();
        ClientLimits {
            payload_bytes_max: wire.payload_bytes_max,
            control_line_bytes_max: wire.control_line_bytes_max,
            pending_bytes_max: 64 << 20,
            connections_max: 65_536,
            subscriptions_max: None,
            ping_interval: Duration::from_secs(120),
            pings_unanswered_max: 2,
            write_deadline: Duration::from_secs(10),
        }
    }
}

/// Handle to the broker; clones share it.
#[derive(Clone)]
pub(crate) struct Broker {
    inner: Arc<Inner>,
}

struct Inner {
    limits: ClientLimits,
    /// What every client is told; the connection's own fields are filled in for each.
    info: Mutex<Info>,
    interest: Mutex<Interest>,
    /// Changes with the index, under its lock.
    generation: AtomicU64,
    api_watchers: AtomicUsize,
    jetstream: OnceLock<Arc<dyn JetStream>>,
    transport: OnceLock<Transport>,
    conns: Mutex<HashMap<u64, Arc<Conn>>>,
    last_conn: AtomicU64,
    random: AtomicU64,
    slow_consumers: AtomicU64,
    retired: Retired,
}

impl Inner {
    fn unsubscribe(&self, subscription: &Arc<Subscription>) {
        let mut interest = self.interest.lock();
        self.remove(&mut interest, subscription);
        self.touch(&interest);
    }

    /// Takes a client's subscription out of the index and of its connection's table.
    fn remove(&self, interest: &mut Interest, subscription: &Arc<Subscription>) {
        if interest.remove_client(subscription) {
            self.announce(interest, false, &subscription.filter, subscription.queue.as_deref());
        }
        let mut table = subscription.conn.subscriptions.lock();
        // The client may have subscribed under the same sid again.
        if table.get(&subscription.sid).is_some_and(|kept| Arc::ptr_eq(kept, subscription)) {
            table.remove(&subscription.sid);
        }
    }
}

impl Broker {
    pub(crate) fn new(server: ServerInfo) -> Broker {
        let (mut host, mut port) = (server.host, server.port);
        if let Some((advertised_host, advertised_port)) =
            server.client_advertise.as_deref().and_then(|advertised| advertised.rsplit_once(':'))
        {
            advertised_host.trim_matches(['[', ']']).clone_into(&mut host);
            port = advertised_port.parse().unwrap_or(port);
        }
        let info = Info {
            server_id: server.server_id,
            server_name: server.server_name,
            version: server.version,
            git_commit: server.git_commit,
            host,
            port,
            max_payload: server.limits.payload_bytes_max,
            jetstream: server.jetstream,
            cluster: server.cluster,
            domain: server.domain,
            ..Info::default()
        };
        let inner = Inner {
            limits: server.limits,
            info: Mutex::new(info),
            interest: Mutex::default(),
            generation: AtomicU64::new(1),
            api_watchers: AtomicUsize::new(0),
            jetstream: OnceLock::new(),
            transport: OnceLock::new(),
            conns: Mutex::default(),
            last_conn: AtomicU64::new(0),
            random: AtomicU64::new(rand::random()),
            slow_consumers: AtomicU64::new(0),
            retired: Retired::default(),
        };
        Broker { inner: Arc::new(inner) }
    }

    /// Sets who stores messages; the first call counts.
    pub(crate) fn set_jetstream(&self, jetstream: Arc<dyn JetStream>) {
        if self.inner.jetstream.set(jetstream).is_err() {
            tracing::error!("jetstream was set twice, the first stays");
        }
    }

    /// Sets how peers are reached; the first call counts.
    pub(crate) fn set_transport(&self, transport: Transport) {
        if self.inner.transport.set(transport).is_err() {
            tracing::error!("transport was set twice, the first stays");
        }
    }

    pub(crate) fn limits(&self) -> &ClientLimits {
        &self.inner.limits
    }

    pub(crate) fn jetstream(&self) -> Option<&Arc<dyn JetStream>> {
        self.inner.jetstream.get()
    }

    /// Lets messages to `subjects` be stored by `stream`, in place of the subjects it had. Invalid ones are skipped.
    pub(crate) fn add_stream(&self, stream: u64, subjects: &[String]) {
        let mut interest = self.inner.interest.lock();
        // Asked for at every look at the catalogue; each change costs every connection its cached routes.
        let same = |kept: &Vec<Box<[u8]>>| kept.iter().map(|s| &**s).eq(subjects.iter().map(String::as_bytes));
        if interest.streams.get(&stream).is_some_and(same) {
            return;
        }
        remove_stream(&mut interest, stream);
        let mut kept = Vec::with_capacity(subjects.len());
        for subject in subjects {
            if interest.insert(subject.as_bytes(), None, Taker::Stream(stream)) {
                kept.push(subject.as_bytes().into());
            } else {
                tracing::warn!(stream, %subject, "stream subject is invalid");
            }
        }
        interest.streams.insert(stream, kept);
        self.inner.touch(&interest);
    }

    pub(crate) fn remove_stream(&self, stream: u64) {
        let mut interest = self.inner.interest.lock();
        remove_stream(&mut interest, stream);
        self.inner.touch(&interest);
    }

    /// Registers a client connection; `None` when there are too many.
    pub(crate) fn connect(
        &self,
        remote: Option<SocketAddr>,
        stop: tokio_util::sync::CancellationToken,
    ) -> Option<ConnHandle> {
        let mut conns = self.inner.conns.lock();
        if conns.len() >= self.inner.limits.connections_max {
            return None;
        }
        let id = self.inner.last_conn.fetch_add(1, Ordering::Relaxed) + 1;
        let pending_bytes_max = self.inner.limits.pending_bytes_max;
        let conn = Arc::new(Conn::new(id, remote, pending_bytes_max, stop, Arc::downgrade(&self.inner)));
        conns.insert(id, Arc::clone(&conn));
        Some(ConnHandle(conn))
    }

    /// Forgets a connection and all it subscribed to.
    pub(crate) fn disconnect(&self, conn: &ConnHandle) {
        conn.close();
        conn.finish();
        let subscriptions = std::mem::take(&mut *conn.0.subscriptions.lock());
        if !subscriptions.is_empty() {
            let mut interest = self.inner.interest.lock();
            for subscription in subscriptions.values() {
                self.inner.remove(&mut interest, subscription);
            }
            self.inner.touch(&interest);
        }
        conn.0.out.lock().replies.clear();
        if self.inner.conns.lock().remove(&conn.0.id).is_some() {
            self.inner.retired.add(&conn.0);
        }
    }

    /// A client's SUB. A sid that is in use already keeps its subscription.
    pub(crate) fn subscribe(
        &self,
        conn: &ConnHandle,
        filter: &[u8],
        queue: Option<&[u8]>,
        sid: &[u8],
    ) -> Result<(), WireError> {
        if !headwater_protocol::subject::is_valid(filter) {
            return Err(WireError::InvalidSubject);
        }
        {
            let table = conn.0.subscriptions.lock();
            if table.contains_key(sid) {
                return Ok(());
            }
            if self.inner.limits.subscriptions_max.is_some_and(|max| table.len() >= max) {
                return Err(WireError::SubscriptionsExceeded);
            }
        }
        let subscription = Arc::new(Subscription::new(Arc::clone(&conn.0), filter, queue, sid));
        let mut interest = self.inner.interest.lock();
        if !interest.add_client(&subscription) {
            return Err(WireError::InvalidSubject);
        }
        conn.0.subscriptions.lock().insert(sid.into(), subscription);
        self.inner.announce(&mut interest, true, filter, queue);
        self.inner.touch(&interest);
        Ok(())
    }

    /// A client's UNSUB: at once, or after `max` deliveries counted from the start of the subscription.
    pub(crate) fn unsubscribe(&self, conn: &ConnHandle, sid: &[u8], max: Option<u64>) {
        let Some(subscription) = conn.0.subscriptions.lock().get(sid).cloned() else { return };
        if max.is_some_and(|max| subscription.limit(max)) {
            // Answers remembered for this subscription do not know of its maximum.
            self.inner.touch(&self.inner.interest.lock());
            return;
        }
        self.inner.unsubscribe(&subscription);
    }

    /// INFO as `conn` should see it.
    pub(crate) fn info(&self, conn: &ConnHandle, connect_info: bool) -> Info {
        let mut info = self.inner.info.lock().clone();
        info.client_id = conn.id();
        info.client_ip = conn.0.remote.map(|remote| remote.ip().to_string()).unwrap_or_default();
        if connect_info {
            info.connect_info = true;
            "$G".clone_into(&mut info.remote_account);
        }
        info
    }

    /// The other nodes clients may use; clients that understand it are told when the list changes.
    pub(crate) fn set_connect_urls(&self, urls: Vec<String>) {
        {
            let mut info = self.inner.info.lock();
            if info.connect_urls == urls {
                return;
            }
            info.connect_urls = urls;
        }
        self.push_info();
    }

    fn push_info(&self) {
        let conns: Vec<Arc<Conn>> = self.inner.conns.lock().values().cloned().collect();
        for conn in conns.into_iter().filter(|conn| conn.takes_info()).map(ConnHandle) {
            let info = self.info(&conn, false);
            conn.send_control(|bytes| encode::info(bytes, &info));
        }
    }

    /// Tells clients that this node will leave.
    pub(crate) fn lame_duck(&self) {
        self.inner.info.lock().ldm = true;
        self.push_info();
    }

    /// Closes every client, once what waits for it is written.
    pub(crate) fn close_clients(&self) {
        let conns: Vec<Arc<Conn>> = self.inner.conns.lock().values().cloned().collect();
        for conn in conns {
            ConnHandle(conn).finish();
        }
    }
}

fn remove_stream(interest: &mut Interest, stream: u64) {
    for filter in interest.streams.remove(&stream).unwrap_or_default() {
        interest.remove(&filter, None, Taker::Stream(stream));
    }
}
