//! The hot way in: publishes to streams, acks, pulls and direct gets, straight to the stream's leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use headwater_core::consumer::{Ack, AckVerb, PullRequest};
use headwater_core::ids::{ConsumerSeq, StreamSeq};
use headwater_protocol::ack::{AckKind, AckSubject, parse_kind};
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::pull;
use headwater_protocol::status::no_responders;
use parking_lot::Mutex;

use super::{api, direct, kind};
use crate::broker::{ConnHandle, Inbound, JetStream};
use crate::node::{Context, Owner};
use crate::stream::StreamReplica;
use crate::stream::acks::AckTo;
use crate::stream::forward::read_batch;
use crate::transport::NodeId;

/// A connection waits at most this long for room before it is read on. Then its publishes are refused while there is
/// none, and everything else it asks for is served.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// JetStream as the broker sees it.
pub(crate) struct Service {
    context: Arc<Context>,
    /// What the messages of the turn that is going on ran into: only the connection that sent them waits.
    pressed: Mutex<Pressed>,
    /// The turn published to a stream that is led here, so its log must have room.
    wrote: AtomicBool,
}

#[derive(Default)]
struct Pressed {
    replicas: Vec<Arc<StreamReplica>>,
    forwards: bool,
}

impl Service {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, pressed: Mutex::default(), wrote: AtomicBool::new(false) }
    }

    fn note_full(&self, replica: Arc<StreamReplica>) {
        let full = &mut self.pressed.lock().replicas;
        if !full.iter().any(|r| Arc::ptr_eq(r, &replica)) {
            full.push(replica);
        }
    }
}

impl JetStream for Service {
    fn service(&self, _from: Option<&ConnHandle>, msg: &Inbound<'_>) -> bool {
        let context = &self.context;
        if msg.subject.starts_with(b"$JS.ACK.") {
            return to_stream(context, msg, true);
        }
        let Some(route) = ApiRoute::parse(msg.subject) else { return false };
        match route {
            ApiRoute::ConsumerMsgNext { .. } | ApiRoute::DirectGet { .. } => to_stream(context, msg, true),
            _ => {
                api::serve_client(context, msg);
                true
            }
        }
    }

    fn publish(&self, from: Option<&ConnHandle>, stream: u64, msg: &Inbound<'_>) -> bool {
        let context = &self.context;
        match context.streams.owner(stream) {
            Owner::Here(replica) => {
                self.wrote.store(true, Ordering::Relaxed);
                let to =
                    msg.reply.map(|reply| AckTo::Reply { conn: from.cloned(), reply: Bytes::copy_from_slice(reply) });
                let accepted = replica.publish(msg.subject, msg.headers, msg.payload, to);
                if accepted && replica.is_full() {
                    self.note_full(replica);
                }
                accepted
            }
            Owner::Node(node) => {
                if context.forwards.is_full() {
                    self.pressed.lock().forwards = true;
                }
                context.forwards.push(&context.transport, node, stream, from, msg)
            }
            Owner::Nobody => false,
        }
    }

    fn turn_end(&self) {
        self.context.forwards.turn_end(&self.context.transport);
    }

    fn room(&self) -> Option<BoxFuture<'static, ()>> {
        let Pressed { replicas, forwards } = std::mem::take(&mut *self.pressed.lock());
        let log = self.wrote.swap(false, Ordering::Relaxed) && !self.context.wal.has_room();
        if replicas.is_empty() && !forwards && !log {
            return None;
        }
        let context = Arc::clone(&self.context);
        let room = async move {
            for replica in replicas {
                loop {
                    let room = replica.room.notified();
                    if !replica.is_full() {
                        break;
                    }
                    room.await;
                }
            }
            if forwards {
                loop {
                    let room = context.forwards.room.notified();
                    if !context.forwards.is_full() {
                        break;
                    }
                    room.await;
                }
            }
            if log {
                let (tx, rx) = tokio::sync::oneshot::channel();
                context.wal.when_room(Box::new(move || {
                    // The connection may be gone.
                    let _gone = tx.send(());
                }));
                // A log that shut down never has room; the node is stopping then.
                let _stopping = rx.await;
            }
        };
        Some(Box::pin(async move {
            let _read_on_anyway = tokio::time::timeout(ROOM_PATIENCE, room).await;
        }))
    }
}

fn stream_of(subject: &[u8]) -> Option<&str> {
    if let Some(ack) = AckSubject::parse(subject) {
        return Some(ack.stream);
    }
    match ApiRoute::parse(subject)? {
        ApiRoute::ConsumerMsgNext { stream, .. } | ApiRoute::DirectGet { stream, .. } => Some(stream),
        _ => None,
    }
}

/// Handles a message for a stream here, or sends it on to where the leader is. False if nobody can be found.
fn to_stream(context: &Arc<Context>, msg: &Inbound<'_>, forward: bool) -> bool {
    let Some(id) = stream_of(msg.subject).and_then(|name| context.streams.id_of(name)) else { return false };
    // Any replica that is up to date may answer a direct get.
    let direct = matches!(ApiRoute::parse(msg.subject), Some(ApiRoute::DirectGet { .. }));
    if direct && let Some(replica) = context.streams.local(id).filter(|r| r.serves_reads()) {
        return direct::serve(context, &replica, msg);
    }
    let sent_on = match context.streams.owner(id) {
        Owner::Here(replica) => return here(context, &replica, msg),
        Owner::Node(node) if forward => context.transport.send(node, kind::SERVICE, &[encode(msg)]).is_ok(),
        Owner::Node(_) | Owner::Nobody => false,
    };
    // Some clients take any answer to an ack for a confirmation, even "no responders": one that found no leader gets
    // none, and the message comes again.
    sent_on || msg.subject.starts_with(b"$JS.ACK.")
}

fn here(context: &Arc<Context>, replica: &Arc<StreamReplica>, msg: &Inbound<'_>) -> bool {
    if let Some(ack) = AckSubject::parse(msg.subject) {
        return take_ack(context, replica, &ack, msg);
    }
    match ApiRoute::parse(msg.subject) {
        Some(ApiRoute::ConsumerMsgNext { consumer, .. }) => take_pull(context, replica, consumer, msg),
        Some(ApiRoute::DirectGet { .. }) => direct::serve(context, replica, msg),
        _ => false,
    }
}

/// Whether somebody takes acks of this consumer. Only the leader's word counts: while there is none, or it has not begun,
/// an ack gets no answer rather than a wrong one.
fn takes_acks(replica: &StreamReplica, consumer: &str) -> bool {
    let inner = replica.lock();
    inner.leading.is_none()
        || inner.state.consumers().by_name(consumer).is_some_and(|(_, consumer)| consumer.config().tracks_acks())
}

/// Takes an ack; false if its consumer is gone, or has none: then nobody listens.
fn take_ack(context: &Context, replica: &Arc<StreamReplica>, ack: &AckSubject<'_>, msg: &Inbound<'_>) -> bool {
    if !takes_acks(replica, ack.consumer) {
        return false;
    }
    let answer = |to: &[u8], headers: &[u8]| {
        context.broker.publish(&Inbound { subject: to, reply: None, headers, payload: &[] });
    };
    let mut reply = msg.reply.map(Bytes::copy_from_slice);
    let verb = match parse_kind(msg.payload) {
        AckKind::Ack => AckVerb::Ack,
        AckKind::Nak { delay_ns } => AckVerb::Nak { delay_ns },
        AckKind::InProgress => AckVerb::Progress,
        AckKind::Terminate { reason } => AckVerb::Term { reason: reason.map(str::to_owned) },
        // Its reply subject is where the next messages go: it gets no confirmation beside them.
        AckKind::Next(body) => match (pull::PullRequest::parse(body), reply.take()) {
            (Ok(request), Some(to)) => match request.over_before_it_began() {
                Some(end) => {
                    answer(&to, &end);
                    AckVerb::Ack
                }
                None => AckVerb::Next(pull_request(to, &request)),
            },
            _ => AckVerb::Ack,
        },
        AckKind::Unknown => {
            // It changes nothing, and whoever asks hears that it came, as from nats-server.
            if let Some(to) = &reply {
                answer(to, &[]);
            }
            return true;
        }
    };
    let seqs = (StreamSeq::new(ack.stream_seq), ConsumerSeq::new(ack.consumer_seq));
    replica.ack(ack.consumer, Ack { seq: seqs.0, cseq: seqs.1, verb, reply });
    true
}

fn pull_request(reply: Bytes, request: &pull::PullRequest) -> PullRequest {
    let positive = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0);
    PullRequest {
        reply,
        batch: u32::try_from(request.batch).unwrap_or(1),
        no_wait: request.no_wait,
        expires_ns: positive(request.expires),
        max_bytes: positive(request.max_bytes),
        heartbeat_ns: positive(request.idle_heartbeat),
    }
}

fn take_pull(context: &Arc<Context>, replica: &Arc<StreamReplica>, consumer: &str, msg: &Inbound<'_>) -> bool {
    // A pull without an inbox has nowhere to deliver to.
    let Some(reply) = msg.reply else { return true };
    let end = match pull::PullRequest::parse_message(msg.headers, msg.payload) {
        Ok(request) => match request.over_before_it_began() {
            Some(end) => end,
            None => return replica.pull(consumer, pull_request(Bytes::copy_from_slice(reply), &request)),
        },
        Err(status) => status.block(),
    };
    if replica.lock().state.consumers().id_of(consumer).is_none() {
        return false;
    }
    context.broker.publish(&Inbound { subject: reply, reply: None, headers: &end, payload: &[] });
    true
}

/// `subject u16 | reply u16 | headers u32 | bytes`: one message for a stream's leader on another node.
fn encode(msg: &Inbound<'_>) -> Bytes {
    let reply = msg.reply.unwrap_or_default();
    let mut out = BytesMut::with_capacity(8 + msg.subject.len() + reply.len() + msg.headers.len() + msg.payload.len());
    out.put_u16_le(u16::try_from(msg.subject.len()).expect("a control line is at most 4 KiB"));
    out.put_u16_le(u16::try_from(reply.len()).expect("a control line is at most 4 KiB"));
    out.put_u32_le(u32::try_from(msg.headers.len()).expect("bounded by max_payload"));
    for part in [msg.subject, reply, msg.headers, msg.payload] {
        out.extend_from_slice(part);
    }
    out.freeze()
}

/// Reads what [`encode`] wrote.
fn decode(body: &[u8]) -> Option<Inbound<'_>> {
    let n16 = |at: usize| Some(usize::from(u16::from_le_bytes(body.get(at..at + 2)?.try_into().ok()?)));
    let (s, r) = (n16(0)?, n16(2)?);
    let h = u32::from_le_bytes(body.get(4..8)?.try_into().ok()?) as usize;
    let (subject, rest) = body.get(8..)?.split_at_checked(s)?;
    let (reply, rest) = rest.split_at_checked(r)?;
    let (headers, payload) = rest.split_at_checked(h)?;
    Some(Inbound { subject, reply: (!reply.is_empty()).then_some(reply), headers, payload })
}

/// Any bytes as a SERVICE frame: see [`crate::decoders`].
///
/// # Panics
/// If the decoder contradicts itself.
pub(super) fn decode_any(body: &[u8]) {
    if let Some(msg) = decode(body) {
        assert_eq!(encode(&msg), body);
    }
}

/// A SERVICE frame from another node.
pub(crate) fn on_service(context: &Arc<Context>, body: &[u8]) {
    match decode(body) {
        // Not forwarded again: leadership that moved meanwhile is the client's to retry.
        Some(msg) => {
            if !to_stream(context, &msg, false)
                && let Some(reply) = msg.reply
            {
                let block = no_responders(msg.subject);
                context.broker.publish(&Inbound { subject: reply, reply: None, headers: &block, payload: &[] });
            }
        }
        None => tracing::warn!("service message from a peer does not parse"),
    }
}

/// A batch of publishes from another node.
pub(crate) fn on_publish_batch(context: &Arc<Context>, from: NodeId, body: Bytes) {
    let Ok((stream, batch, messages)) = read_batch(body) else {
        tracing::warn!(from, "publish batch from a peer does not parse");
        return;
    };
    let Owner::Here(replica) = context.streams.owner(stream) else {
        // Leadership moved: the source's publishers hear nothing and retry.
        context.refuse_batch(from, batch, &messages);
        return;
    };
    for (message, m) in (0_u32..).zip(&messages) {
        let to = m.wants_ack.then_some(AckTo::Peer { node: from, batch, message });
        if !replica.publish(&m.subject, &m.headers, &m.payload, to) {
            context.refuse_batch(from, batch, &messages[message as usize..]);
            return;
        }
    }
}
