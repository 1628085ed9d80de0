//! Node-to-node connections: one outgoing link per peer for messages and requests, separate ones for bulk transfers.
//!
//! Every node dials every target. The link a node dialed carries its one-way messages and requests, in the order they
//! were issued; answers come back on the same link. All that was queued for a peer during one turn of the event loop
//! leaves in one vectored write.

mod accept;
mod decode_any;
mod dial;
mod frame;
mod hello;
mod keepalive;
mod outqueue;
mod pending;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use accept::Respond;
pub use decode_any::decode_any;
use dial::{Dialer, Link};
use frame::Role;
use hello::HandshakeError;
pub(crate) use hello::{LocalHello, PeerHello, Refusal};
pub(crate) use keepalive::Timing;
use outqueue::NotQueued;
use pending::Waiting;

/// Node incarnation: random, unique for one life of a node's data.
pub(crate) type NodeId = u64;

/// Bytes that may wait for one peer.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Refusals already logged that are remembered, so that a refused peer does not fill the log.
const REFUSALS_REMEMBERED: usize = 256;

/// What the transport tells its owner. Every method is called on the data thread and must not block.
pub(crate) trait PeerHandler: Send + Sync + 'static {
    /// What to say at a handshake; asked each time, as the cluster id may be learnt later.
    fn local_hello(&self) -> LocalHello;
    /// A peer introduces itself, on a connection of either direction. An error refuses it and is logged on both sides.
    fn on_hello(&self, peer: &PeerHello) -> Result<(), Refusal>;
    /// A peer that is part of the cluster wants this node's disk never to take part again.
    fn on_banned(&self, why: &str);
    /// The outgoing link to `peer` stands; also after a reconnect.
    fn on_up(&self, peer: &PeerHello);
    /// The outgoing link to the node is gone.
    fn on_down(&self, node_id: NodeId);
    /// A one-way message; `body` is a slice of the read buffer, so what is kept for long should be copied.
    fn on_message(&self, from: NodeId, kind: u8, body: Bytes);
    /// A request; `respond` may be used at any time.
    fn on_request(&self, from: NodeId, kind: u8, body: Bytes, respond: Respond);
    /// All frames of one socket read were handed over.
    fn on_turn_end(&self, from: NodeId);
    /// A peer opened a bulk connection.
    fn on_bulk(&self, from: NodeId, stream: BulkStream);
}

/// An accepted bulk connection: what it is for, and the raw stream behind that.
#[derive(Debug)]
pub(crate) struct BulkStream {
    pub(crate) header: Bytes,
    pub(crate) stream: TcpStream,
}

/// A node to dial. `addr` is `host:port` and resolved at every dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) addr: String,
}

/// Why a message was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error("no link to the node")]
    Down,
    #[error("too much is queued for the node")]
    Full,
    #[error("message is longer than a frame may be")]
    TooLong,
}

impl From<NotQueued> for Unreachable {
    fn from(why: NotQueued) -> Unreachable {
        match why {
            NotQueued::Closed => Unreachable::Down,
            NotQueued::Full => Unreachable::Full,
            NotQueued::TooLong => Unreachable::TooLong,
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("request not sent: {0}")]
    Unreachable(Unreachable),
    #[error("no answer in time")]
    Timeout,
    /// The request may or may not have been carried out.
    #[error("link lost before the answer")]
    LinkLost,
    #[error("{0}")]
    Remote(String),
}

/// A request that was sent; its answer is dropped with it.
pub(crate) struct Asked {
    link: Arc<Link>,
    id: u64,
    answer: Waiting,
}

impl Asked {
    /// Waits for the answer, which comes on the link that the request went out on, or is lost with that link.
    pub(crate) async fn answer(mut self, patience: Duration) -> Result<Bytes, RequestError> {
        match tokio::time::timeout(patience, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(RequestError::LinkLost),
            Err(_) => Err(RequestError::Timeout),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.link.pending.forget(self.id);
    }
}

/// Handle to the running transport; clones share it.
#[derive(Clone)]
pub(crate) struct Transport {
    inner: Arc<Inner>,
}

struct Inner {
    handler: Arc<dyn PeerHandler>,
    timing: Timing,
    runtime: Handle,
    links: Mutex<HashMap<NodeId, Arc<Link>>>,
    /// Nodes with a link that stands or is about to.
    claimed: Mutex<HashSet<NodeId>>,
    links_changed: Notify,
    dialers: Mutex<Vec<Arc<Dialer>>>,
    incoming: Mutex<HashMap<NodeId, CancellationToken>>,
    refusals: Mutex<HashMap<String, String>>,
    stop: CancellationToken,
}

impl Inner {
    fn link(&self, to: NodeId) -> Result<Arc<Link>, Unreachable> {
        self.links.lock().get(&to).cloned().ok_or(Unreachable::Down)
    }

    /// A handshake was refused, by this node or by the other.
    fn refused(&self, addr: &str, error: &HandshakeError) {
        if let HandshakeError::RefusedByPeer(refusal) = error
            && refusal.for_good
        {
            self.handler.on_banned(&refusal.why);
        }
        self.log_refusal(addr, &error.to_string());
    }

    /// Logs a refused handshake once for each address and reason.
    fn log_refusal(&self, addr: &str, why: &str) {
        // Incoming connections come from a new port each time.
        let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
        let mut refusals = self.refusals.lock();
        if refusals.len() >= REFUSALS_REMEMBERED {
            refusals.clear();
        }
        if refusals.insert(host.to_owned(), why.to_owned()).is_none_or(|before| before != why) {
            tracing::warn!(%addr, why, "peer refused");
        }
    }
}

impl Transport {
    /// Starts accepting on `listen`. Must be called on the runtime that will own the connections.
    pub(crate) fn start(listen: std::net::TcpListener, handler: Arc<dyn PeerHandler>) -> Transport {
        Transport::start_with(listen, handler, Timing::default())
    }

    /// As [`Transport::start`], with other keep-alive and redial times.
    pub(crate) fn start_with(
        listen: std::net::TcpListener,
        handler: Arc<dyn PeerHandler>,
        timing: Timing,
    ) -> Transport {
        let inner = Arc::new(Inner {
            handler,
            timing,
            runtime: Handle::current(),
            links: Mutex::default(),
            claimed: Mutex::default(),
            links_changed: Notify::new(),
            dialers: Mutex::default(),
            incoming: Mutex::default(),
            refusals: Mutex::default(),
            stop: CancellationToken::new(),
        });
        let listening = listen.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listen));
        match listening {
            Ok(listener) => {
                tokio::spawn(accept::run(Arc::clone(&inner), listener));
            }
            Err(error) => tracing::error!(%error, "cluster listener cannot be used: peers cannot reach this node"),
        }
        Transport { inner }
    }

    /// Replaces the nodes to dial. Links to targets that stay, under the same name or address, are kept.
    pub(crate) fn set_targets(&self, targets: Vec<Target>) {
        let inner = &self.inner;
        if inner.stop.is_cancelled() {
            return;
        }
        let mut dialers = inner.dialers.lock();
        let mut before = std::mem::take(&mut *dialers);
        let mut missing = Vec::new();
        for target in targets {
            if dialers.iter().any(|dialer| dialer.target() == target) {
                continue;
            }
            let kept = [
                before.iter().position(|dialer| dialer.target() == target),
                before.iter().position(|dialer| dialer.target().addr == target.addr),
                before.iter().position(|dialer| dialer.target().name == target.name),
            ];
            match kept.into_iter().flatten().next() {
                Some(at) => {
                    let dialer = before.swap_remove(at);
                    dialer.set_target(target);
                    dialers.push(dialer);
                }
                None => missing.push(target),
            }
        }
        for removed in before {
            // Two targets may have led to one node, with the link held by the one that goes: the other takes it over.
            let held = removed.reached().filter(|_| removed.linked());
            let heir = held.and_then(|node| dialers.iter().position(|dialer| dialer.reached() == Some(node)));
            if let Some(heir) = heir {
                removed.set_target(dialers[heir].target());
                std::mem::replace(&mut dialers[heir], removed).stop.cancel();
            } else {
                removed.stop.cancel();
            }
        }
        for target in missing {
            let dialer = Dialer::new(target, inner.stop.child_token());
            inner.runtime.spawn(Arc::clone(&dialer).run(Arc::clone(inner)));
            dialers.push(dialer);
        }
    }

    /// Queues a one-way message. Parts of 4 KiB and more are not copied.
    pub(crate) fn send(&self, to: NodeId, kind: u8, parts: &[Bytes]) -> Result<(), Unreachable> {
        let link = self.inner.link(to)?;
        link.said();
        Ok(link.out.push(Role::OneWay, kind, 0, parts)?)
    }

    /// Queues a request, behind everything queued for that node before. Parts are as for [`Transport::send`].
    pub(crate) fn ask(&self, to: NodeId, kind: u8, parts: &[Bytes]) -> Result<Asked, RequestError> {
        let link = self.inner.link(to).map_err(RequestError::Unreachable)?;
        let (id, answer) = link.pending.register().ok_or(RequestError::LinkLost)?;
        let asked = Asked { link, id, answer };
        asked.link.said();
        asked.link.out.push(Role::Request, kind, id, parts).map_err(|why| RequestError::Unreachable(why.into()))?;
        Ok(asked)
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn request(
        &self,
        to: NodeId,
        kind: u8,
        parts: &[Bytes],
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        self.ask(to, kind, parts)?.answer(timeout).await
    }

    /// Whether the outgoing link to `node` stands.
    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.inner.links.lock().contains_key(&node)
    }

    /// What the nodes said to which a link stands, by node name.
    pub(crate) fn peers(&self) -> Vec<PeerHello> {
        let mut peers: Vec<_> = self.inner.links.lock().values().map(|link| link.peer.clone()).collect();
        peers.sort_by(|one, other| one.node_name.cmp(&other.node_name));
        peers
    }

    /// Bytes waiting for `to`; zero when no link stands.
    pub(crate) fn queued_bytes(&self, to: NodeId) -> usize {
        self.inner.links.lock().get(&to).map_or(0, |link| link.out.bytes())
    }

    /// Opens a connection of its own to a linked node; `header` (at most 1 MiB) says what it is for.
    pub(crate) async fn open_bulk(&self, to: NodeId, header: Bytes) -> io::Result<TcpStream> {
        let link = self.inner.link(to).map_err(|why| io::Error::new(io::ErrorKind::NotConnected, why))?;
        dial::open_bulk(&self.inner, to, &link.addr, &header).await
    }

    /// Closes every link and stops listening and dialing. What is queued is still written if the peer takes it soon.
    pub(crate) fn shutdown(&self) {
        self.inner.stop.cancel();
    }
}
