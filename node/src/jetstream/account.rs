//! `$JS.API.INFO` and the meta group's leadership.

use std::sync::Arc;
use std::time::Duration;

use headwater_protocol::api::account::{AccountInfo, AccountLimits, ApiStats};
use headwater_protocol::api::envelope::Success;
use headwater_protocol::api::error;
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::api::stream_config::Storage;

use super::api::{Answer, ok};
use super::streams;
use crate::node::Context;

pub(crate) async fn info(context: &Arc<Context>, route: &ApiRoute<'_>) -> Answer {
    let mut info = AccountInfo { limits: AccountLimits::default(), ..AccountInfo::default() };
    let (entries, _) = streams::gather(context, None).await;
    for stream in entries {
        info.streams += 1;
        info.consumers += stream.state.consumer_count;
        match stream.config.storage {
            Storage::File => info.storage += stream.state.bytes,
            Storage::Memory => info.memory += stream.state.bytes,
        }
    }
    let (total, errors) = context.api_counts();
    info.api = ApiStats { total, errors, ..ApiStats::default() };
    ok(route, &info)
}

pub(crate) async fn meta_stepdown(context: &Arc<Context>, route: &ApiRoute<'_>) -> Answer {
    let Some(raft) = context.meta.raft() else { return Err(error::CLUSTER_NOT_AVAILABLE) };
    let state = raft.state();
    let up = |id: &u64| *id != context.node_id && context.transport.is_up(*id);
    let Some(to) = state.members.voters().into_iter().find(up) else { return Err(error::CLUSTER_NO_PEERS) };
    match raft.transfer_leader(to, Duration::from_secs(5)).await {
        Ok(true) => ok(route, &Success::YES),
        Ok(false) | Err(_) => Err(error::CLUSTER_NOT_AVAILABLE),
    }
}
