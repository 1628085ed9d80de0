//! Links this node opens to its peers, one task per target.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::accept::BULK_HEADER_BYTES_MAX;
use super::frame::{FrameBuffer, Role};
use super::hello::{self, HandshakeError, PeerHello, Purpose};
use super::keepalive::Pulse;
use super::outqueue::OutQueue;
use super::pending::PendingRequests;
use super::{Inner, NodeId, QUEUE_BYTES_MAX, RequestError, Target};

/// Resolved addresses of one target tried per dial.
const ADDRESSES_MAX: usize = 4;

/// An outgoing link that is up.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: PeerHello,
    /// Address the link was dialed at; bulk connections go there too.
    pub(super) addr: String,
    pub(super) out: OutQueue,
    pub(super) pending: PendingRequests,
    pulse: Pulse,
}

/// The right to be the one link to a node; two targets may lead to the same.
struct Claim<'a> {
    inner: &'a Inner,
    node: NodeId,
}

impl<'a> Claim<'a> {
    fn new(inner: &'a Inner, node: NodeId) -> Option<Claim<'a>> {
        let claimed = inner.claimed.lock().insert(node);
        claimed.then(|| Claim { inner, node })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.inner.claimed.lock().remove(&self.node);
    }
}

impl Link {
    pub(super) fn said(&self) {
        self.pulse.said();
    }
}

/// Keeps one target dialed.
#[derive(Debug)]
pub(super) struct Dialer {
    target: Mutex<Target>,
    /// The peer behind this target, once known: linked here, or through the dialer of another target.
    reached: Mutex<Option<NodeId>>,
    /// The link to that peer is this dialer's.
    linked: AtomicBool,
    pub(super) stop: CancellationToken,
}

/// How one dial ended without a link.
enum NoLink {
    /// The target is this very node, or a node that is linked already.
    NotNeeded,
    Failed(HandshakeError),
}

impl From<HandshakeError> for NoLink {
    fn from(error: HandshakeError) -> NoLink {
        NoLink::Failed(error)
    }
}

impl From<io::Error> for NoLink {
    fn from(error: io::Error) -> NoLink {
        NoLink::Failed(error.into())
    }
}

impl Dialer {
    pub(super) fn new(target: Target, stop: CancellationToken) -> Arc<Dialer> {
        Arc::new(Dialer { target: Mutex::new(target), reached: Mutex::new(None), linked: AtomicBool::new(false), stop })
    }

    pub(super) fn target(&self) -> Target {
        self.target.lock().clone()
    }

    pub(super) fn set_target(&self, target: Target) {
        *self.target.lock() = target;
    }

    pub(super) fn reached(&self) -> Option<NodeId> {
        *self.reached.lock()
    }

    pub(super) fn linked(&self) -> bool {
        self.linked.load(Ordering::Relaxed)
    }

    /// Dials, serves the link, and dials again, until stopped.
    pub(super) async fn run(self: Arc<Self>, inner: Arc<Inner>) {
        let mut backoff = inner.timing.backoff_min;
        let mut failing = false;
        while !self.stop.is_cancelled() {
            let target = self.target();
            let linked = tokio::select! {
                () = self.stop.cancelled() => return,
                linked = self.connect(&inner, &target) => linked,
            };
            match linked {
                Ok((link, claim, stream)) => {
                    backoff = inner.timing.backoff_min;
                    failing = false;
                    self.serve(&inner, link, stream).await;
                    drop(claim);
                    inner.links_changed.notify_waiters();
                }
                Err(NoLink::NotNeeded) => {
                    backoff = inner.timing.backoff_max;
                    failing = false;
                }
                Err(NoLink::Failed(error)) => {
                    if matches!(error, HandshakeError::RefusedByPeer(_) | HandshakeError::RefusedHere(_)) {
                        inner.refused(&target.addr, &error);
                    } else if !failing {
                        tracing::info!(peer = %target.name, addr = %target.addr, error = %chain(&error), "peer not reached");
                    }
                    failing = true;
                }
            }
            // Spread, so that nodes which lost each other at once do not dial in step.
            let pause = backoff.mul_f64(rand::rng().random_range(0.75..1.25));
            backoff = (backoff * 2).min(inner.timing.backoff_max);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = inner.links_changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn connect<'a>(
        &self,
        inner: &'a Inner,
        target: &Target,
    ) -> Result<(Arc<Link>, Claim<'a>, TcpStream), NoLink> {
        let mut stream = connect_tcp(&target.addr, inner.timing.handshake_max).await?;
        let shake = self.shake(inner, target, &mut stream);
        let (link, claim) = timeout(inner.timing.handshake_max, shake).await.map_err(|_| HandshakeError::TooSlow)??;
        Ok((link, claim, stream))
    }

    async fn shake<'a>(
        &self,
        inner: &'a Inner,
        target: &Target,
        stream: &mut TcpStream,
    ) -> Result<(Arc<Link>, Claim<'a>), NoLink> {
        let local = inner.handler.local_hello();
        let peer = hello::introduce(stream, Purpose::Link, &local).await?;
        *self.reached.lock() = Some(peer.node_id);
        let claim = Claim::new(inner, peer.node_id).filter(|_| peer.node_id != local.node_id);
        let Some(claim) = claim else {
            hello::decline(stream).await?;
            return Err(NoLink::NotNeeded);
        };
        if let Err(refusal) = inner.handler.on_hello(&peer) {
            hello::refuse(stream, &refusal).await?;
            return Err(HandshakeError::RefusedHere(refusal).into());
        }
        hello::confirm(stream).await?;
        let link = Link {
            peer,
            addr: target.addr.clone(),
            out: OutQueue::new(QUEUE_BYTES_MAX),
            pending: PendingRequests::default(),
            pulse: Pulse::default(),
        };
        Ok((Arc::new(link), claim))
    }

    async fn serve(&self, inner: &Inner, link: Arc<Link>, stream: TcpStream) {
        let node_id = link.peer.node_id;
        inner.links.lock().insert(node_id, Arc::clone(&link));
        self.linked.store(true, Ordering::Relaxed);
        tracing::info!(peer = %link.peer.node_name, node_id, addr = %link.addr, "peer link up");
        inner.handler.on_up(&link.peer);
        let (mut read, mut write) = stream.into_split();
        let ended = tokio::select! {
            biased;
            () = self.stop.cancelled() => Ok(()),
            ended = receive(inner, &mut read, &link) => ended,
            ended = link.out.write_to(&mut write) => ended,
            () = link.pulse.until_silent(&inner.timing, Some(&link.out)) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "peer is silent"))
            }
        };
        inner.links.lock().remove(&node_id);
        self.linked.store(false, Ordering::Relaxed);
        link.out.close();
        if inner.stop.is_cancelled() {
            // Words said just before the shutdown still leave; the peer may be gone already.
            let _ = timeout(inner.timing.ping_after, link.out.write_to(&mut write)).await;
        }
        link.pending.lose();
        match ended {
            Ok(()) => tracing::info!(peer = %link.peer.node_name, node_id, "peer link closed"),
            Err(error) => tracing::info!(peer = %link.peer.node_name, node_id, %error, "peer link lost"),
        }
        inner.handler.on_down(node_id);
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Resolves `addr` anew and connects to the first address that answers.
async fn connect_tcp(addr: &str, patience: Duration) -> io::Result<TcpStream> {
    let resolving = timeout(patience, tokio::net::lookup_host(addr));
    let resolved: Vec<SocketAddr> =
        resolving.await.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "name not resolved in time"))??.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "name has no address");
    for addr in resolved.into_iter().take(ADDRESSES_MAX) {
        match timeout(patience, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "connect timed out"),
        }
    }
    Err(last)
}

async fn receive(inner: &Inner, read: &mut OwnedReadHalf, link: &Link) -> io::Result<()> {
    let mut buffer = FrameBuffer::default();
    loop {
        let filled = buffer.fill(read).await?;
        if filled.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the peer"));
        }
        link.pulse.heard();
        while let Some(frame) = buffer.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            match frame.role {
                Role::Response => link.pending.answer(frame.id, Ok(frame.body)),
                Role::ResponseError => {
                    let why = String::from_utf8_lossy(&frame.body).into_owned();
                    link.pending.answer(frame.id, Err(RequestError::Remote(why)));
                }
                Role::Pong => {}
                Role::OneWay | Role::Request | Role::Ping => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "request on a link dialed by this node"));
                }
            }
        }
        if inner.stop.is_cancelled() {
            return Ok(());
        }
        if filled.more {
            tokio::task::yield_now().await;
        }
    }
}

/// Opens a bulk connection to `node` at `addr` and sends `header`.
pub(super) async fn open_bulk(inner: &Inner, node: NodeId, addr: &str, header: &[u8]) -> io::Result<TcpStream> {
    let len = u32::try_from(header.len()).ok().filter(|_| header.len() <= BULK_HEADER_BYTES_MAX);
    let Some(len) = len else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "bulk header is too long"));
    };
    let mut stream = connect_tcp(addr, inner.timing.handshake_max).await?;
    let shake = async {
        let peer = hello::introduce(&mut stream, Purpose::Bulk, &inner.handler.local_hello()).await?;
        if peer.node_id != node {
            hello::decline(&mut stream).await?;
            return Err(HandshakeError::RefusedHere("another node answers at this address".to_owned().into()));
        }
        hello::confirm(&mut stream).await?;
        stream.write_all(&len.to_le_bytes()).await?;
        stream.write_all(header).await?;
        Ok(())
    };
    match timeout(inner.timing.handshake_max, shake).await {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(HandshakeError::Io(error))) => Err(error),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "handshake took too long")),
    }
}
