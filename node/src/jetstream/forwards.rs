//! Publishes on their way to other nodes' leaders, and who waits for their acks here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::broker::{ConnHandle, Inbound};
use crate::stream::acks::{AckWriter, PUBLISH_BATCH};
use crate::stream::forward::{BatchBuilder, read_acks};
use crate::transport::{NodeId, Transport};

/// A batch is sent when it has this many bytes, or at the end of the turn.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes under way to all leaders before publishers wait (I-14).
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// A batch without acks for this long is given up: its publishers time out and retry.
const BATCH_PATIENCE: Duration = Duration::from_secs(60);

struct Waiting {
    conn: Option<ConnHandle>,
    reply: Bytes,
}

struct Open {
    stream: u64,
    number: u64,
    builder: BatchBuilder,
    waiting: Vec<Option<Waiting>>,
}

struct Sent {
    node: NodeId,
    stream: u64,
    bytes: usize,
    at: Instant,
    waiting: Vec<Option<Waiting>>,
    left: usize,
}

struct Inner {
    open: HashMap<(NodeId, u64), Open>,
    sent: HashMap<u64, Sent>,
    /// Starts anywhere: acks of a batch that an earlier boot of this node sent must not match one of this boot.
    next: u64,
    in_flight_bytes: usize,
}

impl Default for Inner {
    fn default() -> Self {
        Self { open: HashMap::new(), sent: HashMap::new(), next: rand::random(), in_flight_bytes: 0 }
    }
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Forwards {
    inner: Mutex<Inner>,
    pub(crate) room: tokio::sync::Notify,
}

impl Forwards {
    /// Takes a message for `node`; false if there is no room for it.
    pub(crate) fn push(
        &self,
        transport: &Transport,
        node: NodeId,
        stream: u64,
        from: Option<&ConnHandle>,
        msg: &Inbound<'_>,
    ) -> bool {
        let mut inner = self.inner.lock();
        // Publishers that were asked to wait and could not any longer.
        if inner.in_flight_bytes >= 2 * IN_FLIGHT_BYTES_MAX {
            return false;
        }
        if !inner.open.contains_key(&(node, stream)) {
            inner.next = inner.next.wrapping_add(1);
            let number = inner.next;
            let builder = BatchBuilder::new(stream, number);
            inner.open.insert((node, stream), Open { stream, number, builder, waiting: Vec::new() });
        }
        let open = inner.open.get_mut(&(node, stream)).expect("inserted above");
        open.builder.push(msg.reply.is_some(), msg.subject, msg.headers, msg.payload);
        open.waiting.push(msg.reply.map(|reply| Waiting { conn: from.cloned(), reply: Bytes::copy_from_slice(reply) }));
        if open.builder.len() >= BATCH_BYTES
            && let Some(open) = inner.open.remove(&(node, stream))
        {
            send(&mut inner, transport, node, open);
        }
        true
    }

    /// The turn is over: everything gathered leaves.
    pub(crate) fn turn_end(&self, transport: &Transport) {
        let mut inner = self.inner.lock();
        if inner.open.is_empty() {
            return;
        }
        let open: Vec<_> = inner.open.drain().collect();
        for ((node, _), open) in open {
            send(&mut inner, transport, node, open);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.inner.lock().in_flight_bytes >= IN_FLIGHT_BYTES_MAX
    }

    /// Acks came back; `writer` gives the stream's ack writer.
    pub(crate) fn on_acks(&self, from: NodeId, body: Bytes, writer: impl Fn(u64) -> Option<AckWriter>) {
        let Ok((number, acks)) = read_acks(body) else {
            tracing::warn!("publish acks from a peer do not parse");
            return;
        };
        let mut inner = self.inner.lock();
        let Some(sent) = inner.sent.get_mut(&number).filter(|sent| sent.node == from) else { return };
        let stream = sent.stream;
        let mut answers = Vec::with_capacity(acks.len());
        for (message, fate) in acks {
            let slot = sent.waiting.get_mut(message as usize).and_then(Option::take);
            if let Some(waiting) = slot {
                sent.left = sent.left.saturating_sub(1);
                answers.push((waiting, fate));
            }
        }
        if sent.left == 0 {
            let bytes = sent.bytes;
            inner.sent.remove(&number);
            inner.in_flight_bytes = inner.in_flight_bytes.saturating_sub(bytes);
        }
        drop(inner);
        if let Some(writer) = writer(stream) {
            for (waiting, fate) in answers {
                writer.relay(waiting.conn.as_ref(), &waiting.reply, &fate);
            }
        }
        self.room.notify_waiters();
    }

    /// The link to `node` is gone: nobody will hear about what was sent there.
    pub(crate) fn on_down(&self, node: NodeId) {
        let mut inner = self.inner.lock();
        inner.open.retain(|(to, _), _| *to != node);
        forget(&mut inner, |sent| sent.node == node);
        drop(inner);
        self.room.notify_waiters();
    }

    pub(crate) fn tick(&self) {
        forget(&mut self.inner.lock(), |sent| sent.at.elapsed() > BATCH_PATIENCE);
        self.room.notify_waiters();
    }
}

fn forget(inner: &mut Inner, gone: impl Fn(&Sent) -> bool) {
    let mut freed = 0;
    inner.sent.retain(|_, sent| {
        let drop = gone(sent);
        if drop {
            freed += sent.bytes;
        }
        !drop
    });
    inner.in_flight_bytes = inner.in_flight_bytes.saturating_sub(freed);
}

fn send(inner: &mut Inner, transport: &Transport, node: NodeId, open: Open) {
    let bytes = open.builder.finish();
    let left = open.waiting.iter().flatten().count();
    let len = bytes.len();
    if transport.send(node, PUBLISH_BATCH, &[bytes]).is_err() || left == 0 {
        return;
    }
    inner.in_flight_bytes += len;
    let sent = Sent { node, stream: open.stream, bytes: len, at: Instant::now(), waiting: open.waiting, left };
    inner.sent.insert(open.number, sent);
}
