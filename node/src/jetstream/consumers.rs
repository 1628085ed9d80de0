//! Pull consumers through the API, at their stream's leader.

use std::sync::Arc;

use headwater_core::consumer::{ConsumerOp, CreateConsumer, CreateOutcome, StartAt, Tracking, UpdateConsumer};
use headwater_core::stream::{Applied, StreamEvent, StreamView};
use headwater_protocol::api::consumer::{
    ConsumerAction, ConsumerInfo, CreateConsumerRequest, PauseRequest, PauseResponse, SequenceInfo,
};
use headwater_protocol::api::consumer_config::ConsumerConfig;
use headwater_protocol::api::consumer_rules::{
    ConsumerChange, decide_consumer_change, named_config, validate_consumer_config,
};
use headwater_protocol::api::envelope::Success;
use headwater_protocol::api::error;
use headwater_protocol::api::page::{
    ConsumerListRequest, ConsumerListResponse, ConsumerNamesResponse, LIST_LIMIT, NAMES_LIMIT, Page,
};
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::api::stream_config::StreamConfig;
use headwater_protocol::api::{level, parse_optional_body};
use headwater_protocol::rfc3339::ApiTime;

use super::api::{Answer, ok};
use super::convert;
use super::streams::{cluster_info, command_error, leader_of};
use crate::node::Context;
use crate::stream::{Inner, StreamReplica};

pub(crate) async fn create(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = CreateConsumerRequest::parse(payload)?;
    let action = request.action;
    let generated = context.random_name();
    let named = named_config(route, request, &generated)?;
    let replica = leader_of(context, stream)?;
    let op = {
        let inner = replica.lock();
        let stream_config: StreamConfig =
            serde_json::from_str(inner.state.config_json()).map_err(|_| error::CLUSTER_NOT_AVAILABLE)?;
        let mut config = validate_consumer_config(named, &stream_config, context.is_clustered())?;
        let existing = inner.state.consumers().by_name(&name_of(&config));
        let current: Option<ConsumerConfig> = existing.and_then(|(_, s)| serde_json::from_str(s.config_json()).ok());
        let change = decide_consumer_change(current.as_ref(), &config, action)?;
        let level = config.required_level();
        level::stamp_stored(&mut config.metadata, level);
        let core = convert::consumer(&config);
        if config.name == generated {
            // Nobody asked for this name, so the configuration as it was asked for does not have it.
            config.name.clear();
        }
        let config_json = serde_json::to_string(&config).expect("a configuration is plain data");
        match (change, existing) {
            (ConsumerChange::Unchanged, _) => None,
            (ConsumerChange::Update, Some((id, _))) => {
                Some(ConsumerOp::Update { id, update: Box::new(UpdateConsumer { config: core, config_json }) })
            }
            (ConsumerChange::Create | ConsumerChange::Update, _) => {
                let limit = stream_config.max_consumers;
                if limit > 0 && inner.state.consumers().len() as i64 >= limit {
                    return Err(error::MAXIMUM_CONSUMERS_LIMIT);
                }
                let has_peers = replica.is_replicated();
                let view = StreamView { state: &inner.state, records: &inner.store, has_peers };
                let start = StartAt::resolve(&core, &view);
                let create = Box::new(CreateConsumer { config: core, config_json, start });
                Some(ConsumerOp::Create { ts: crate::clock::now(), create })
            }
        }
    };
    let name = match &op {
        Some(ConsumerOp::Create { create, .. }) => create.config.name.clone(),
        Some(ConsumerOp::Update { update, .. }) => update.config.name.clone(),
        _ => name_in(route, &generated, payload),
    };
    if let Some(op) = op {
        let applied = replica.consumer_op(op).await.map_err(|e| command_error(&e))?;
        if conflicted(&applied) && action == ConsumerAction::Create {
            return Err(error::CONSUMER_ALREADY_EXISTS);
        }
    }
    let info = describe(context, &replica, &name).ok_or(error::CONSUMER_NOT_FOUND)?;
    ok(route, &info)
}

fn name_of(config: &ConsumerConfig) -> String {
    if config.name.is_empty() { config.durable_name.clone() } else { config.name.clone() }
}

fn name_in(route: &ApiRoute<'_>, generated: &str, payload: &[u8]) -> String {
    let named = CreateConsumerRequest::parse(payload).ok().and_then(|r| named_config(route, r, generated).ok());
    named.map(|c| name_of(&c)).unwrap_or_default()
}

/// A consumer of that name was created with another configuration while this one was on its way.
fn conflicted(applied: &Applied) -> bool {
    applied.events.iter().any(|event| match event {
        StreamEvent::Consumers(effects) => effects.created.iter().any(|c| matches!(c, CreateOutcome::Conflict(_))),
        _ => false,
    })
}

pub(crate) fn describe(context: &Context, replica: &Arc<StreamReplica>, name: &str) -> Option<ConsumerInfo> {
    let raft = replica.raft_state();
    let mut guard = replica.lock();
    let inner = &mut *guard;
    let now = crate::clock::now();
    let Inner { state, store, leading: Some(leading), .. } = inner else { return None };
    let (id, consumer) = state.consumers().by_name(name)?;
    let pump = leading.pumps.get_mut(&id)?;
    let config: ConsumerConfig = serde_json::from_str(consumer.config_json()).ok()?;
    let found = pump.info(consumer, &StreamView { state, records: store, has_peers: replica.is_replicated() }, now);
    let pair = |p: headwater_core::consumer::SequencePair, at: Option<headwater_core::ids::Timestamp>| SequenceInfo {
        consumer_seq: p.consumer.get(),
        stream_seq: p.stream.get(),
        last_active: at.map(|t| ApiTime::from_ns(t.get())),
    };
    // What left the stream undelivered is behind the consumer.
    let gone = state.first_seq().get().saturating_sub(1);
    let pair = |p, at| {
        let pair: SequenceInfo = pair(p, at);
        SequenceInfo { stream_seq: pair.stream_seq.max(gone), ..pair }
    };
    let cluster = context.is_clustered().then(|| {
        let mut cluster = cluster_info(context, replica, raft.as_ref());
        if pump.tracking() == Tracking::Local {
            // Where it stands is known to the leader alone.
            cluster.replicas.clear();
        }
        cluster
    });
    let remaining = found.paused_until.map_or(0, |until| i64::try_from(until.since_ns(now)).unwrap_or(i64::MAX));
    Some(ConsumerInfo {
        stream_name: replica.spec.name.clone(),
        name: name.to_owned(),
        created: ApiTime::from_ns(consumer.created().get()),
        config: config.for_response(),
        delivered: pair(found.delivered, found.last_delivered_at),
        ack_floor: pair(found.ack_floor, found.last_ack_at),
        num_ack_pending: found.num_ack_pending,
        num_redelivered: found.num_redelivered,
        num_waiting: found.num_waiting,
        num_pending: found.num_pending,
        cluster,
        push_bound: false,
        paused: found.paused_until.is_some(),
        pause_remaining: remaining,
        ts: ApiTime::from_ns(now.get()),
    })
}

pub(crate) fn info(
    context: &Arc<Context>,
    route: &ApiRoute<'_>,
    stream: &str,
    consumer: &str,
    payload: &[u8],
) -> Answer {
    headwater_protocol::api::expect_no_body(payload)?;
    let replica = leader_of(context, stream)?;
    let info = describe(context, &replica, consumer).ok_or(error::CONSUMER_NOT_FOUND)?;
    ok(route, &info)
}

fn all_names(replica: &StreamReplica) -> Vec<String> {
    replica.lock().state.consumers().iter_by_name().map(|(name, _)| name.to_owned()).collect()
}

pub(crate) fn names(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request: ConsumerListRequest = parse_optional_body(payload)?;
    let replica = leader_of(context, stream)?;
    let all = all_names(&replica);
    let page = Page::new(all.len(), request.offset, NAMES_LIMIT);
    let consumers = page.of(&all).to_vec();
    ok(route, &ConsumerNamesResponse { page, consumers })
}

pub(crate) fn list(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request: ConsumerListRequest = parse_optional_body(payload)?;
    let replica = leader_of(context, stream)?;
    let all = all_names(&replica);
    let page = Page::new(all.len(), request.offset, LIST_LIMIT);
    let consumers = page.of(&all).iter().filter_map(|name| describe(context, &replica, name)).collect();
    ok(route, &ConsumerListResponse { page, consumers, missing: Vec::new() })
}

pub(crate) async fn delete(
    context: &Arc<Context>,
    route: &ApiRoute<'_>,
    stream: &str,
    consumer: &str,
    payload: &[u8],
) -> Answer {
    headwater_protocol::api::expect_no_body(payload)?;
    let replica = leader_of(context, stream)?;
    let id = replica.lock().state.consumers().id_of(consumer).ok_or(error::CONSUMER_NOT_FOUND)?;
    replica.consumer_op(ConsumerOp::Delete { id }).await.map_err(|e| command_error(&e))?;
    ok(route, &Success::YES)
}

pub(crate) async fn pause(
    context: &Arc<Context>,
    route: &ApiRoute<'_>,
    stream: &str,
    consumer: &str,
    payload: &[u8],
) -> Answer {
    let request: PauseRequest = parse_optional_body(payload)?;
    let replica = leader_of(context, stream)?;
    let now = crate::clock::now();
    let until = request.pause_until.filter(|t| t.ns().is_some_and(|ns| ns > now.get()));
    let op = {
        let inner = replica.lock();
        let (id, state) = inner.state.consumers().by_name(consumer).ok_or(error::CONSUMER_NOT_FOUND)?;
        let mut config: ConsumerConfig =
            serde_json::from_str(state.config_json()).map_err(|_| error::CLUSTER_NOT_AVAILABLE)?;
        config.pause_until = until;
        let mut core = convert::consumer(&config);
        // A generated name is not in the configuration.
        core.name.clone_from(&state.config().name);
        let config_json = serde_json::to_string(&config).expect("a configuration is plain data");
        ConsumerOp::Update { id, update: Box::new(UpdateConsumer { config: core, config_json }) }
    };
    replica.consumer_op(op).await.map_err(|e| command_error(&e))?;
    let remaining =
        until.and_then(ApiTime::ns).map_or(0, |ns| i64::try_from(ns.saturating_sub(now.get())).unwrap_or(i64::MAX));
    ok(
        route,
        &PauseResponse { paused: until.is_some(), pause_until: until.unwrap_or_default(), pause_remaining: remaining },
    )
}
