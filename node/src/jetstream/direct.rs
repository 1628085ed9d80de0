//! Direct gets: raw messages from any replica that is up to date.

use std::sync::Arc;

use bytes::Bytes;
use headwater_core::ids::{StreamSeq, Timestamp};
use headwater_core::stream::{Damaged, Records, StreamState};
use headwater_protocol::api::level;
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::direct::{self, BatchPosition, DirectGet, Pick};
use headwater_protocol::status::Status;
use headwater_storage::blocks::StreamStore;

use crate::broker::Inbound;
use crate::node::Context;
use crate::stream::StreamReplica;

/// Bytes of a batch that are sent before others have their turn.
const TURN_BYTES: u64 = 1 << 20;
/// Bytes of one batch answer at most, also when the request names no limit.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// A message that is there and cannot be read.
const UNREADABLE: Status = Status::new(500, "Message Cannot Be Read");

/// Sends one message to a requester; its length and whether anybody took it. `None`: it is not there any more.
fn send(
    context: &Context,
    replica: &StreamReplica,
    store: &StreamStore,
    reply: &[u8],
    seq: StreamSeq,
    no_hdr: bool,
    position: Option<BatchPosition>,
) -> Result<Option<(u64, bool)>, Damaged> {
    let Some(record) = store.record(seq)? else { return Ok(None) };
    let (subject, headers, payload) = (record.subject(), record.headers(), record.payload());
    let block = if no_hdr {
        Vec::new()
    } else {
        direct::message_headers(headers, &replica.spec.name, subject, seq.get(), record.ts().get(), position)
    };
    let taken = context.broker.publish(&Inbound { subject: reply, reply: None, headers: &block, payload });
    Ok(Some(((subject.len() + headers.len() + payload.len()) as u64, taken)))
}

/// Ends an answer that meets a message that cannot be read: no end of a batch, for there is more.
fn send_unreadable(context: &Context, replica: &StreamReplica, reply: &[u8]) {
    let _known = replica.met_damage(&mut replica.lock());
    context.broker.publish(&Inbound { subject: reply, reply: None, headers: &UNREADABLE.block(), payload: &[] });
}

/// A batch on its way: sent in turns, so that a long one holds up nobody else.
struct BatchRun {
    filter: Vec<String>,
    batch: u64,
    budget: u64,
    no_hdr: bool,
    pending: u64,
    next: StreamSeq,
    sent: u64,
    bytes: u64,
    last: u64,
}

impl BatchRun {
    /// Sends the next messages; true when the batch is done, and said to be.
    fn turn(&mut self, context: &Context, replica: &StreamReplica, reply: &[u8]) -> bool {
        let inner = replica.lock();
        let (state, store) = (&inner.state, &inner.store);
        let stop_at = self.bytes + TURN_BYTES;
        while let Some(seq) = state.next_matching(&self.filter, self.next) {
            if self.sent == self.batch || (self.sent > 0 && self.bytes >= self.budget) {
                break;
            }
            if self.bytes >= stop_at {
                return false;
            }
            if !self.no_hdr {
                // nats-server counts down in the headers of messages only, so without them the end tells the whole.
                self.pending = self.pending.saturating_sub(1);
            }
            let position = BatchPosition { num_pending: self.pending, last_sequence: self.last };
            let sent = send(context, replica, store, reply, seq, self.no_hdr, Some(position));
            let Ok(sent) = sent else {
                drop(inner);
                send_unreadable(context, replica, reply);
                return true;
            };
            let (len, taken) = sent.unwrap_or((0, true));
            if !taken {
                // The requester is gone, or does not keep up.
                return true;
            }
            (self.sent, self.bytes, self.last, self.next) = (self.sent + 1, self.bytes + len, seq.get(), seq.next());
        }
        let block = if self.sent == 0 {
            direct::MESSAGE_NOT_FOUND.block()
        } else {
            let position = BatchPosition { num_pending: self.pending, last_sequence: self.last };
            direct::end_of_batch(position, None)
        };
        context.broker.publish(&Inbound { subject: reply, reply: None, headers: &block, payload: &[] });
        true
    }
}

/// Answers one request; false if the stream does not allow direct gets, so that the caller has no responder.
pub(crate) fn serve(context: &Arc<Context>, replica: &Arc<StreamReplica>, msg: &Inbound<'_>) -> bool {
    let Some(ApiRoute::DirectGet { subject, .. }) = ApiRoute::parse(msg.subject) else { return false };
    if !replica.allows_direct() {
        return false;
    }
    let Some(reply) = msg.reply else { return true };
    let answer = |headers: &[u8], payload: &[u8]| {
        context.broker.publish(&Inbound { subject: reply, reply: None, headers, payload });
    };
    let refuse = |status: Status| answer(&status.block(), &[]);
    if let Err(error) = level::check(msg.headers) {
        refuse(Status::new(412, "Required Api Level"));
        let _ = error;
        return true;
    }
    let request = match DirectGet::parse(subject, msg.payload) {
        Ok(request) => request,
        Err(status) => {
            refuse(status);
            return true;
        }
    };
    let inner = replica.lock();
    let (state, store) = (&inner.state, &inner.store);
    let send = |seq: StreamSeq, no_hdr: bool, position: Option<BatchPosition>| {
        send(context, replica, store, reply, seq, no_hdr, position)
    };
    match request {
        DirectGet::One { pick, no_hdr } => {
            match pick_one(state, store, &pick).map_or(Ok(None), |seq| send(seq, no_hdr, None)) {
                Ok(Some(_)) => {}
                Ok(None) => refuse(direct::MESSAGE_NOT_FOUND),
                Err(_) => {
                    drop(inner);
                    send_unreadable(context, replica, reply);
                }
            }
        }
        DirectGet::Batch { pick, batch: 0, .. } => {
            let from = start_of(state, store, &pick);
            let pending = from.map_or(0, |from| state.count_matching(filter_of(&pick), from));
            answer(&direct::end_of_batch(BatchPosition { num_pending: pending, last_sequence: 0 }, None), &[]);
        }
        DirectGet::Batch { pick, batch, max_bytes, no_hdr } => {
            let filter = filter_of(&pick).to_vec();
            let Some(first) = pick_first(state, store, &pick) else {
                refuse(direct::MESSAGE_NOT_FOUND);
                return true;
            };
            let budget = budget(max_bytes);
            let pending = state.count_matching(&filter, first);
            drop(inner);
            let mut run = BatchRun { filter, batch, budget, no_hdr, pending, next: first, sent: 0, bytes: 0, last: 0 };
            let (context, replica) = (Arc::clone(context), Arc::clone(replica));
            let reply = Bytes::copy_from_slice(reply);
            if run.turn(&context, &replica, &reply) {
                return true;
            }
            tokio::spawn(async move {
                // Others on this thread, and this replica's own work, go between the turns.
                tokio::task::yield_now().await;
                while !run.turn(&context, &replica, &reply) {
                    tokio::task::yield_now().await;
                }
            });
        }
        DirectGet::MultiLast { subjects, up_to_seq, up_to_ns, batch, max_bytes, seq } => {
            let after = up_to_ns.and_then(|ns| state.first_at_or_after(Timestamp::new(ns), store));
            if up_to_seq.is_none() && after.is_some_and(|after| store.record(after).is_err()) {
                // Whether it belongs to the answer nobody can tell.
                drop(inner);
                send_unreadable(context, replica, reply);
                return true;
            }
            let newest = up_to_seq.map(StreamSeq::new);
            let newest = newest.or_else(|| Some(StreamSeq::new(after?.get().saturating_sub(1))));
            let newest = newest.unwrap_or_else(|| state.last_seq());
            // A point in time that has not come yet has no results.
            let mut found = if newest > state.last_seq() {
                Vec::new()
            } else {
                state.subjects().last_per_subject(&subjects, newest)
            };
            if found.is_empty() {
                refuse(direct::NO_RESULTS);
                return true;
            }
            if found.len() > direct::MULTI_LAST_MAX {
                refuse(direct::TOO_MANY_RESULTS);
                return true;
            }
            found.retain(|found| found.get() >= seq);
            found.sort_unstable();
            let total = found.len() as u64;
            let take = if batch == 0 { total } else { batch.min(total) };
            let budget = budget(max_bytes);
            let (mut last, mut sent, mut bytes) = (0, 0, 0);
            for seq in found.into_iter().take(usize::try_from(take).unwrap_or(usize::MAX)) {
                if bytes >= budget {
                    break;
                }
                let position = BatchPosition { num_pending: total - sent - 1, last_sequence: last };
                let Ok(found) = send(seq, false, Some(position)) else {
                    drop(inner);
                    send_unreadable(context, replica, reply);
                    return true;
                };
                let (len, _) = found.unwrap_or((0, true));
                (last, sent, bytes) = (seq.get(), sent + 1, bytes + len);
            }
            let end = BatchPosition { num_pending: total - sent, last_sequence: last };
            answer(&direct::end_of_batch(end, Some(newest.get())), &[]);
        }
    }
    true
}

/// Bytes after which an answer ends; zero is no bound of the request's own.
fn budget(max_bytes: u64) -> u64 {
    if max_bytes == 0 { BATCH_BYTES_MAX } else { max_bytes.min(BATCH_BYTES_MAX) }
}

/// The subjects that a batch is about; none means all.
fn filter_of(pick: &Pick) -> &[String] {
    match pick {
        Pick::NextBySubject { subject, .. } | Pick::NextSince { subject, .. } => std::slice::from_ref(subject),
        Pick::Seq(_) | Pick::LastBySubject(_) | Pick::Since(_) => &[],
    }
}

/// Where a request starts to look, whether there is something or not.
fn start_of(state: &StreamState, records: &dyn Records, pick: &Pick) -> Option<StreamSeq> {
    match pick {
        Pick::Seq(seq) | Pick::NextBySubject { seq, .. } => Some(StreamSeq::new(*seq)),
        Pick::LastBySubject(_) => Some(StreamSeq::FIRST),
        Pick::Since(ns) | Pick::NextSince { ns, .. } => state.first_at_or_after(Timestamp::new(*ns), records),
    }
}

/// The message that a request picks.
pub(crate) fn pick_one(state: &StreamState, records: &dyn Records, pick: &Pick) -> Option<StreamSeq> {
    match pick {
        Pick::Seq(seq) => Some(StreamSeq::new(*seq)).filter(|s| state.is_live(*s)),
        Pick::LastBySubject(subject) => state.last_matching(&[subject], state.last_seq()),
        Pick::NextBySubject { seq, subject } => state.next_matching(&[subject], StreamSeq::new(*seq)),
        Pick::Since(ns) => state.first_at_or_after(Timestamp::new(*ns), records),
        Pick::NextSince { subject, .. } => state.next_matching(&[subject], start_of(state, records, pick)?),
    }
}

/// Where a batch starts: at the sequence given, or after it if that one is gone.
fn pick_first(state: &StreamState, records: &dyn Records, pick: &Pick) -> Option<StreamSeq> {
    match pick {
        Pick::Seq(seq) => state.next_live(StreamSeq::new(*seq)),
        other => pick_one(state, records, other),
    }
}
