//! Direct gets: raw messages from any replica that is up to date.

use std::sync::Arc;

use headwater_core::ids::{StreamSeq, Timestamp};
use headwater_core::stream::{Records, StreamState};
use headwater_protocol::api::level;
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::direct::{self, BatchPosition, DirectGet, Pick};
use headwater_protocol::status::Status;

use crate::broker::Inbound;
use crate::node::Context;
use crate::stream::StreamReplica;

/// Bytes of one batch answer when the request names no limit.
const BATCH_BYTES_MAX: u64 = 64 << 20;

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
    let send = |seq: StreamSeq, no_hdr: bool, position: Option<BatchPosition>| -> Option<u64> {
        let record = store.record(seq)?;
        if no_hdr {
            answer(&[], record.payload());
        } else {
            let name = &replica.spec.name;
            let block = direct::message_headers(
                record.headers(),
                name,
                record.subject(),
                seq.get(),
                record.ts().get(),
                position,
            );
            answer(&block, record.payload());
        }
        Some((record.subject().len() + record.headers().len() + record.payload().len()) as u64)
    };
    match request {
        DirectGet::One { pick, no_hdr } => {
            let found = pick_one(state, store, &pick).and_then(|seq| send(seq, no_hdr, None));
            if found.is_none() {
                refuse(direct::MESSAGE_NOT_FOUND);
            }
        }
        DirectGet::Batch { pick, batch, max_bytes, no_hdr } => {
            let filter = match &pick {
                Pick::NextBySubject { subject, .. } => vec![subject.clone()],
                _ => Vec::new(),
            };
            let Some(first) = pick_first(state, store, &pick) else {
                refuse(direct::MESSAGE_NOT_FOUND);
                return true;
            };
            let budget = if max_bytes == 0 { BATCH_BYTES_MAX } else { max_bytes };
            let mut pending = state.count_matching(&filter, first);
            let (mut next, mut sent, mut bytes, mut last) = (Some(first), 0, 0, 0);
            while let Some(seq) = next.and_then(|from| state.next_matching(&filter, from)) {
                if sent == batch || (sent > 0 && bytes >= budget) {
                    break;
                }
                pending = pending.saturating_sub(1);
                let position = BatchPosition { num_pending: pending, last_sequence: last };
                let Some(len) = send(seq, no_hdr, Some(position)) else { break };
                (sent, bytes, last, next) = (sent + 1, bytes + len, seq.get(), Some(seq.next()));
            }
            if sent == 0 {
                refuse(direct::MESSAGE_NOT_FOUND);
            } else {
                answer(&direct::end_of_batch(BatchPosition { num_pending: pending, last_sequence: last }, None), &[]);
            }
        }
        DirectGet::MultiLast { subjects, up_to_seq, up_to_ns, batch, seq, no_hdr } => {
            let newest = up_to_seq.map(StreamSeq::new).or_else(|| {
                let after = state.first_at_or_after(Timestamp::new(up_to_ns?.saturating_add(1)), store)?;
                Some(StreamSeq::new(after.get().saturating_sub(1)))
            });
            let newest = newest.unwrap_or_else(|| state.last_seq()).min(state.last_seq());
            let mut found = state.subjects().last_per_subject(&subjects, newest);
            found.retain(|s| s.get() >= seq);
            found.sort_unstable();
            if found.is_empty() {
                refuse(direct::NO_RESULTS);
                return true;
            }
            if found.len() > direct::MULTI_LAST_MAX {
                refuse(direct::TOO_MANY_RESULTS);
                return true;
            }
            let total = found.len() as u64;
            let take = if batch == 0 { total } else { batch.min(total) };
            let (mut last, mut sent) = (0, 0);
            for seq in found.into_iter().take(usize::try_from(take).unwrap_or(usize::MAX)) {
                sent += 1;
                let position = BatchPosition { num_pending: total - sent, last_sequence: last };
                if send(seq, no_hdr, Some(position)).is_none() {
                    break;
                }
                last = seq.get();
            }
            let end = BatchPosition { num_pending: total - sent, last_sequence: last };
            answer(&direct::end_of_batch(end, Some(newest.get())), &[]);
        }
    }
    true
}

/// The message that a request picks.
pub(crate) fn pick_one(state: &StreamState, records: &dyn Records, pick: &Pick) -> Option<StreamSeq> {
    match pick {
        Pick::Seq(seq) => Some(StreamSeq::new(*seq)).filter(|s| state.is_live(*s)),
        Pick::LastBySubject(subject) => state.last_matching(&[subject], state.last_seq()),
        Pick::NextBySubject { seq, subject } => state.next_matching(&[subject], StreamSeq::new(*seq)),
        Pick::Since(ns) => state.first_at_or_after(Timestamp::new(*ns), records),
    }
}

/// Where a batch starts: at the sequence given, or after it if that one is gone.
fn pick_first(state: &StreamState, records: &dyn Records, pick: &Pick) -> Option<StreamSeq> {
    match pick {
        Pick::Seq(seq) => state.next_live(StreamSeq::new(*seq)),
        other => pick_one(state, records, other),
    }
}
