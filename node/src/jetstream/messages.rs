//! Reading and deleting single messages through the API.

use std::sync::Arc;

use headwater_core::ids::StreamSeq;
use headwater_core::stream::{Command, DeleteMessage, Records, Rejection};
use headwater_protocol::api::envelope::Success;
use headwater_protocol::api::error;
use headwater_protocol::api::message::{MsgDeleteRequest, MsgGet, MsgGetResponse, StoredMessage, parse_msg_get};
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::rfc3339::ApiTime;

use super::api::{Answer, ok};
use super::direct::pick_one;
use super::streams::{command_error, leader_of};
use crate::node::Context;
use crate::stream::commands::CommandError;

pub(crate) fn get(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let MsgGet { pick, no_hdr } = parse_msg_get(payload)?;
    let replica = leader_of(context, stream)?;
    let mut inner = replica.lock();
    let seq = pick_one(&inner.state, &inner.store, &pick).ok_or(error::NO_MESSAGE_FOUND)?;
    let record = match inner.store.record(seq) {
        Ok(record) => record.ok_or(error::NO_MESSAGE_FOUND)?,
        Err(damaged) => {
            let met = replica.met_damage(&mut inner);
            return Err(error::stream_general(met.map_or_else(|| damaged.to_string(), |met| met.why)));
        }
    };
    let message = StoredMessage {
        subject: String::from_utf8_lossy(record.subject()).into_owned(),
        seq: seq.get(),
        headers: if no_hdr { Vec::new() } else { record.headers().to_vec() },
        payload: record.payload().to_vec(),
        time: ApiTime::from_ns(record.ts().get()),
    };
    ok(route, &MsgGetResponse { message })
}

pub(crate) async fn delete(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = MsgDeleteRequest::parse(payload)?;
    let replica = leader_of(context, stream)?;
    let seq = StreamSeq::new(request.seq);
    let not_there = || {
        let inner = replica.lock();
        request.not_there(inner.state.first_seq().get(), inner.state.last_seq().get())
    };
    if !replica.lock().state.is_live(seq) {
        return Err(not_there());
    }
    let command = Command::DeleteMessage(DeleteMessage { seq, erase: !request.no_erase });
    match replica.command(command).await {
        Ok(_) => ok(route, &Success::YES),
        Err(CommandError::Rejected(Rejection::NotFound)) => Err(not_there()),
        Err(CommandError::Rejected(Rejection::DeleteDenied)) => {
            Err(error::stream_msg_delete_failed("message delete not permitted"))
        }
        Err(e) => Err(command_error(&e)),
    }
}
