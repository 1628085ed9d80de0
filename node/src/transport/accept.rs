//! Connections that peers open to this node.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::frame::{FrameBuffer, Role};
use super::hello::{self, HandshakeError, PeerHello, Purpose};
use super::keepalive::Pulse;
use super::outqueue::OutQueue;
use super::{BulkStream, Inner, NodeId, QUEUE_BYTES_MAX};

/// Longest header in front of a bulk stream.
pub(super) const BULK_HEADER_BYTES_MAX: usize = 1 << 20;

/// The one answer to a request; dropping it answers with an error.
#[derive(Debug)]
pub(crate) struct Respond {
    out: Option<Arc<OutQueue>>,
    id: u64,
}

impl Respond {
    /// Sends the answer. Nothing is reported when the requester is gone by now.
    pub(crate) fn send(mut self, answer: Result<Vec<Bytes>, String>) {
        self.deliver(answer);
    }

    fn deliver(&mut self, answer: Result<Vec<Bytes>, String>) {
        let Some(out) = self.out.take() else { return };
        let pushed = match answer {
            Ok(parts) => out.push(Role::Response, 0, self.id, &parts),
            Err(why) => out.push(Role::ResponseError, 0, self.id, &[Bytes::from(why)]),
        };
        if let Err(why) = pushed {
            // Small enough to pass unless the link is closed, in which case the requester knows already.
            let text = Bytes::from(format!("answer not sent: {why:?}"));
            let _ = out.push(Role::ResponseError, 0, self.id, &[text]);
        }
    }
}

impl Drop for Respond {
    fn drop(&mut self) {
        self.deliver(Err("the request was dropped".to_owned()));
    }
}

/// Accepts until the transport shuts down.
pub(super) async fn run(inner: Arc<Inner>, listener: tokio::net::TcpListener) {
    loop {
        let accepted = tokio::select! {
            () = inner.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let inner = Arc::clone(&inner);
                tokio::spawn(async move { serve(inner, stream).await });
            }
            Err(error) => {
                tracing::warn!(%error, "peer connection not accepted");
                tokio::time::sleep(inner.timing.backoff_min).await;
            }
        }
    }
}

async fn serve(inner: Arc<Inner>, mut stream: TcpStream) {
    let stop = inner.stop.child_token();
    let handshake = timeout(inner.timing.handshake_max, shake(&inner, &mut stream));
    let shaken = tokio::select! {
        () = stop.cancelled() => return,
        shaken = handshake => shaken.unwrap_or(Err(HandshakeError::TooSlow)),
    };
    let from = stream.peer_addr().map(|addr| addr.to_string()).unwrap_or_default();
    let (purpose, peer) = match shaken {
        Ok(shaken) => shaken,
        Err(HandshakeError::NotNeeded) => return,
        Err(error @ (HandshakeError::RefusedHere(_) | HandshakeError::RefusedByPeer(_))) => {
            inner.refused(&from, &error);
            return;
        }
        Err(error) => {
            tracing::debug!(%from, error = %error, "peer handshake failed");
            return;
        }
    };
    match purpose {
        Purpose::Bulk => serve_bulk(&inner, stream, peer.node_id).await,
        Purpose::Link => serve_link(&inner, stream, &peer, stop).await,
    }
}

async fn shake(inner: &Inner, stream: &mut TcpStream) -> Result<(Purpose, PeerHello), HandshakeError> {
    stream.set_nodelay(true)?;
    let (purpose, peer) = hello::hear(stream).await?;
    let local = inner.handler.local_hello();
    // A node that reaches itself finds out from the answer and declines.
    if peer.node_id != local.node_id
        && let Err(refusal) = inner.handler.on_hello(&peer)
    {
        hello::refuse(stream, &refusal).await?;
        return Err(HandshakeError::RefusedHere(refusal));
    }
    hello::answer(stream, &local).await?;
    Ok((purpose, peer))
}

async fn serve_bulk(inner: &Inner, mut stream: TcpStream, from: NodeId) {
    let header = timeout(inner.timing.handshake_max, read_bulk_header(&mut stream)).await;
    match header {
        Ok(Ok(header)) => inner.handler.on_bulk(from, BulkStream { header, stream }),
        Ok(Err(error)) => tracing::debug!(from, %error, "bulk connection without header"),
        Err(_) => tracing::debug!(from, "bulk connection without header"),
    }
}

async fn read_bulk_header(stream: &mut TcpStream) -> io::Result<Bytes> {
    let len = stream.read_u32_le().await? as usize;
    if len > BULK_HEADER_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bulk header is too long"));
    }
    let mut header = vec![0; len];
    stream.read_exact(&mut header).await?;
    Ok(Bytes::from(header))
}

async fn serve_link(inner: &Inner, stream: TcpStream, peer: &PeerHello, stop: CancellationToken) {
    // A peer that dials again has given its old link up: what is still unread there is older than what follows here.
    let replaced = inner.incoming.lock().insert(peer.node_id, stop.clone());
    if let Some(old) = replaced {
        old.cancel();
    }
    // A peer that is back is dialed now: what it is told of its own accord does not wait for a pause to end.
    inner.links_changed.notify_waiters();
    let (mut read, mut write) = stream.into_split();
    let out = Arc::new(OutQueue::new(QUEUE_BYTES_MAX));
    let pulse = Pulse::default();
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = receive(inner, &mut read, peer.node_id, &out, &pulse, &stop) => ended,
        ended = out.write_to(&mut write) => ended,
        () = pulse.until_silent(&inner.timing, None) => Err(io::Error::new(io::ErrorKind::TimedOut, "peer is silent")),
    };
    out.close();
    if inner.stop.is_cancelled() {
        // Answers given just before the shutdown still leave; the peer may be gone already.
        let _ = timeout(inner.timing.ping_after, out.write_to(&mut write)).await;
    }
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.node_name, %error, "incoming link ended");
    }
    let mut incoming = inner.incoming.lock();
    if !stop.is_cancelled() {
        incoming.remove(&peer.node_id);
    }
}

async fn receive(
    inner: &Inner,
    read: &mut OwnedReadHalf,
    from: NodeId,
    out: &Arc<OutQueue>,
    pulse: &Pulse,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut buffer = FrameBuffer::default();
    loop {
        let filled = buffer.fill(read).await?;
        if filled.bytes == 0 {
            return Ok(());
        }
        pulse.heard();
        let mut handed_over = false;
        while let Some(frame) = buffer.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            if stop.is_cancelled() {
                return Ok(());
            }
            match frame.role {
                Role::OneWay => inner.handler.on_message(from, frame.kind, frame.body),
                Role::Request => {
                    let respond = Respond { out: Some(Arc::clone(out)), id: frame.id };
                    inner.handler.on_request(from, frame.kind, frame.body, respond);
                }
                Role::Ping => {
                    // A full queue already holds bytes the peer will hear.
                    let _ = out.push(Role::Pong, 0, frame.id, &[]);
                    continue;
                }
                Role::Pong | Role::Response | Role::ResponseError => continue,
            }
            handed_over = true;
        }
        if handed_over {
            inner.handler.on_turn_end(from);
        }
        if filled.more {
            tokio::task::yield_now().await;
        }
    }
}
