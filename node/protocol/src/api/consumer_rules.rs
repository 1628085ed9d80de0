//! What a consumer configuration must satisfy, which values are put right silently, and which changes are allowed.
//!
//! Push consumers have their rules here too, although [`crate::api::unsupported`] still refuses them.

use crate::api::consumer::{ConsumerAction, CreateConsumerRequest};
use crate::api::consumer_config::{AckPolicy, ConsumerConfig, DeliverPolicy, PriorityPolicy};
use crate::api::error::{self, ApiError};
use crate::api::route::ApiRoute;
use crate::api::stream_config::{Retention, StreamConfig, unknown_setting};
use crate::api::stream_rules::SUBJECTS_WORK_MAX as FILTERS_WORK_MAX;
use crate::api::{level, unsupported};
use crate::subject::{self, FilterSet};

/// Time to acknowledge when none is asked for, ns.
pub const DEFAULT_ACK_WAIT_NS: i64 = 30_000_000_000;
/// Unacknowledged messages when no bound is asked for.
pub const DEFAULT_MAX_ACK_PENDING: i64 = 1000;
/// Waiting pull requests when no bound is asked for.
pub const DEFAULT_MAX_WAITING: i64 = 512;
/// Inactivity after which a consumer without durable name goes, ns.
pub const DEFAULT_INACTIVE_THRESHOLD_NS: i64 = 5_000_000_000;
/// Pin time when none is asked for, ns.
pub const DEFAULT_PRIORITY_TIMEOUT_NS: i64 = 120_000_000_000;
/// Shortest idle heartbeat, ns.
pub const SHORTEST_HEARTBEAT_NS: i64 = 100_000_000;

const DESCRIPTION_BYTES_MAX: usize = 4096;
const SHORTEST_MAX_EXPIRES_NS: i64 = 1_000_000;
const GROUP_NAME_BYTES_MAX: usize = 16;

/// Checks that request and subject agree and returns the configuration under its final name.
/// `generated_name` names consumers that nobody named.
///
/// # Errors
/// The first rule that is broken; `10003` when `route` creates no consumers.
pub fn named_config(
    route: &ApiRoute<'_>,
    request: CreateConsumerRequest,
    generated_name: &str,
) -> Result<ConsumerConfig, ApiError> {
    let CreateConsumerRequest { stream_name, mut config, .. } = request;
    let (stream, consumer, filter, durable) = match *route {
        ApiRoute::ConsumerCreate { stream, consumer, filter } => (stream, consumer, filter, false),
        ApiRoute::ConsumerDurableCreate { stream, consumer } => (stream, Some(consumer), None, true),
        _ => return Err(error::BAD_REQUEST),
    };
    if stream != stream_name {
        return Err(error::STREAM_MISMATCH);
    }
    match consumer {
        None if config.is_durable() => return Err(error::CONSUMER_EPHEMERAL_WITH_DURABLE_NAME),
        None if config.name.is_empty() => config.name = generated_name.to_owned(),
        None => {}
        Some(_) if durable && !config.is_durable() => {
            return Err(error::CONSUMER_DURABLE_NAME_NOT_SET);
        }
        Some(name) if config.is_durable() && config.durable_name != name => {
            return Err(error::CONSUMER_DURABLE_NAME_MISMATCH);
        }
        // The subject wins over the name in the body.
        Some(name) => config.name = name.to_owned(),
    }
    if let Some(filter) = filter {
        if !config.filter_subjects.is_empty() {
            return Err(error::CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED);
        }
        if config.filter_subject != filter {
            return Err(error::CONSUMER_CREATE_FILTER_MISMATCH);
        }
    }
    check_name(&config)?;
    Ok(config)
}

fn check_name(config: &ConsumerConfig) -> Result<(), ApiError> {
    let name = config.name.as_str();
    if name.contains(['/', '\\']) {
        return Err(error::CONSUMER_NAME_PATH_SEPARATORS);
    }
    if name.len() > subject::NAME_BYTES_MAX {
        return Err(error::CONSUMER_NAME_TOO_LONG);
    }
    if !subject::is_valid_name(name) {
        return Err(if config.is_durable() {
            error::CONSUMER_BAD_DURABLE_NAME
        } else {
            error::stream_invalid_config("consumer name can not contain '.', '*', '>', '\\', '/'")
        });
    }
    Ok(())
}

/// Checks a configuration and puts its defaults in. Run it on every create and update request, after
/// [`named_config`].
///
/// # Errors
/// The first rule that is broken.
pub fn validate_consumer_config(
    mut config: ConsumerConfig,
    stream: &StreamConfig,
    clustered: bool,
) -> Result<ConsumerConfig, ApiError> {
    if config.description.len() > DESCRIPTION_BYTES_MAX {
        return Err(error::CONSUMER_DESCRIPTION_TOO_LONG);
    }
    if level::size(&config.metadata) > level::METADATA_BYTES_MAX {
        return Err(error::CONSUMER_METADATA_TOO_LONG);
    }
    if let Some(key) = unknown_setting(&config.metadata, &[]) {
        return Err(error::consumer_create(format_args!(
            "metadata key {key:?} is not known: consumers have no settings of that kind"
        )));
    }
    if config.ack_wait < 0 {
        return Err(error::CONSUMER_ACK_WAIT_NEGATIVE);
    }
    if config.backoff.iter().any(|wait| *wait < 0) {
        return Err(error::CONSUMER_BACKOFF_NEGATIVE);
    }
    put_defaults_in(&mut config, stream);
    check_replicas(&config, stream, clustered)?;
    if config.is_push() {
        check_push(&config, stream)?
    } else {
        check_pull(&config)?
    }
    if config.max_deliver > 0 && config.backoff.len() as u64 > config.max_deliver.unsigned_abs() {
        return Err(error::CONSUMER_MAX_DELIVER_BACKOFF);
    }
    check_filters(&config)?;
    check_start(&config)?;
    check_stream_limits(&config, stream)?;
    check_retention(&config, stream)?;
    check_sampling(&config)?;
    check_priority(&config)?;
    unsupported::check_consumer(&config)?;
    let required = config.required_level();
    level::stamp_stored(&mut config.metadata, required);
    Ok(config)
}

fn put_defaults_in(config: &mut ConsumerConfig, stream: &StreamConfig) {
    let acknowledges = config.ack_policy != AckPolicy::None;
    if let Some(first) = config.backoff.first() {
        config.ack_wait = *first;
    } else if config.ack_wait == 0 && acknowledges {
        config.ack_wait = DEFAULT_ACK_WAIT_NS;
    }
    if config.max_deliver < 1 {
        config.max_deliver = -1;
    }
    if !config.is_push() && config.max_waiting < 1 {
        config.max_waiting = DEFAULT_MAX_WAITING;
    }
    if config.max_ack_pending < -1 {
        config.max_ack_pending = -1;
    }
    if config.max_ack_pending == 0 && acknowledges {
        let limit = stream.consumer_limits.max_ack_pending;
        config.max_ack_pending = if limit > 0 { limit } else { DEFAULT_MAX_ACK_PENDING };
    }
    for limit in [&mut config.max_batch, &mut config.max_expires, &mut config.max_bytes, &mut config.inactive_threshold]
    {
        *limit = (*limit).max(0);
    }
    if config.inactive_threshold == 0 {
        if stream.consumer_limits.inactive_threshold > 0 {
            config.inactive_threshold = stream.consumer_limits.inactive_threshold;
        } else if !config.is_durable() {
            config.inactive_threshold = DEFAULT_INACTIVE_THRESHOLD_NS;
        }
    }
    if config.priority_policy == PriorityPolicy::PinnedClient && config.priority_timeout == 0 {
        config.priority_timeout = DEFAULT_PRIORITY_TIMEOUT_NS;
    }
}

fn check_replicas(config: &ConsumerConfig, stream: &StreamConfig, clustered: bool) -> Result<(), ApiError> {
    if config.num_replicas < 0 {
        return Err(error::REPLICAS_COUNT_NEGATIVE);
    }
    if config.num_replicas > 1 && !clustered {
        return Err(error::STREAM_REPLICAS_NOT_SUPPORTED);
    }
    if config.num_replicas > stream.num_replicas {
        return Err(error::CONSUMER_REPLICAS_EXCEEDS_STREAM);
    }
    Ok(())
}

fn check_pull(config: &ConsumerConfig) -> Result<(), ApiError> {
    if config.rate_limit_bps > 0 {
        return Err(error::CONSUMER_PULL_WITH_RATE_LIMIT);
    }
    if config.idle_heartbeat > 0 {
        return Err(error::CONSUMER_HEARTBEAT_REQUIRES_PUSH);
    }
    if config.flow_control {
        return Err(error::CONSUMER_FLOW_CONTROL_REQUIRES_PUSH);
    }
    if config.direct {
        return Err(error::CONSUMER_DIRECT_REQUIRES_PUSH);
    }
    if config.max_expires > 0 && config.max_expires < SHORTEST_MAX_EXPIRES_NS {
        return Err(error::CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL);
    }
    Ok(())
}

fn check_push(config: &ConsumerConfig, stream: &StreamConfig) -> Result<(), ApiError> {
    let deliver = config.deliver_subject.as_bytes();
    if !subject::is_valid(deliver) {
        return Err(error::CONSUMER_INVALID_DELIVER_SUBJECT);
    }
    if subject::has_wildcards(deliver) {
        return Err(error::CONSUMER_DELIVER_TO_WILDCARDS);
    }
    if stream.subjects.iter().any(|stored| subject::overlaps(stored.as_bytes(), deliver)) {
        return Err(error::CONSUMER_DELIVER_CYCLE);
    }
    if config.max_waiting != 0 {
        return Err(error::CONSUMER_PUSH_MAX_WAITING);
    }
    if config.max_ack_pending > 0 && config.ack_policy == AckPolicy::None {
        return Err(error::CONSUMER_MAX_ACK_PENDING_POLICY_REQUIRED);
    }
    if config.idle_heartbeat != 0 && config.idle_heartbeat < SHORTEST_HEARTBEAT_NS {
        return Err(error::CONSUMER_SMALL_HEARTBEAT);
    }
    if config.flow_control && config.idle_heartbeat == 0 {
        return Err(error::CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS);
    }
    if !config.priority_groups.is_empty() {
        return Err(error::CONSUMER_PUSH_WITH_PRIORITY_GROUP);
    }
    Ok(())
}

fn check_filters(config: &ConsumerConfig) -> Result<(), ApiError> {
    if !config.filter_subject.is_empty() && !config.filter_subjects.is_empty() {
        return Err(error::CONSUMER_DUPLICATE_FILTERS);
    }
    let filters = config.filters();
    let mut earlier = FilterSet::new();
    for filter in &filters {
        if filter.is_empty() {
            return Err(error::CONSUMER_EMPTY_FILTER);
        }
        if !subject::is_valid(filter.as_bytes()) {
            return Err(error::stream_invalid_config("invalid subject"));
        }
        if earlier.overlapping(filter.as_bytes()).is_some() {
            return Err(error::CONSUMER_OVERLAPPING_FILTERS);
        }
        earlier.insert(filter.as_bytes());
        if earlier.work() > FILTERS_WORK_MAX {
            return Err(error::consumer_create(format_args!(
                "{} filters have their wildcards in too many different places to be compared",
                filters.len()
            )));
        }
    }
    Ok(())
}

fn check_start(config: &ConsumerConfig) -> Result<(), ApiError> {
    let policy = match config.deliver_policy {
        DeliverPolicy::All => "all",
        DeliverPolicy::Last => "last",
        DeliverPolicy::New => "new",
        DeliverPolicy::ByStartSequence => "by start sequence",
        DeliverPolicy::ByStartTime => "by start time",
        DeliverPolicy::LastPerSubject => "last per subject",
    };
    let refuse = |what: &str| {
        Err(error::consumer_invalid_policy(format_args!(
            "consumer delivery policy is deliver {policy}, but optional {what}"
        )))
    };
    let (has_seq, has_time) = (config.opt_start_seq > 0, config.opt_start_time.is_some());
    let (wants_seq, wants_time) =
        (config.deliver_policy == DeliverPolicy::ByStartSequence, config.deliver_policy == DeliverPolicy::ByStartTime);
    match (wants_seq, has_seq, wants_time, has_time) {
        // What the policy needs comes before what it does not take.
        (true, false, ..) => refuse("start sequence is not set"),
        (.., true, false) => refuse("start time is not set"),
        (false, true, ..) => refuse("start sequence is also set"),
        (.., false, true) => refuse("start time is also set"),
        _ if config.deliver_policy == DeliverPolicy::LastPerSubject && config.filters().is_empty() => {
            refuse("filter subject is not set")
        }
        _ => Ok(()),
    }
}

fn check_stream_limits(config: &ConsumerConfig, stream: &StreamConfig) -> Result<(), ApiError> {
    let limits = &stream.consumer_limits;
    if limits.max_ack_pending > 0 && config.max_ack_pending > limits.max_ack_pending {
        return Err(error::consumer_max_ack_pending_excess(limits.max_ack_pending));
    }
    if limits.inactive_threshold > 0 && config.inactive_threshold > limits.inactive_threshold {
        return Err(error::consumer_inactive_threshold_excess(limits.inactive_threshold));
    }
    Ok(())
}

fn check_retention(config: &ConsumerConfig, stream: &StreamConfig) -> Result<(), ApiError> {
    if stream.retention != Retention::WorkQueue {
        return Ok(());
    }
    if config.ack_policy != AckPolicy::Explicit {
        let pull_without_ack = !config.is_push() && config.ack_policy == AckPolicy::None;
        return Err(if pull_without_ack {
            error::CONSUMER_PULL_REQUIRES_ACK
        } else {
            error::CONSUMER_WQ_REQUIRES_EXPLICIT_ACK
        });
    }
    if config.deliver_policy != DeliverPolicy::All {
        return Err(error::CONSUMER_WQ_NOT_DELIVER_ALL);
    }
    Ok(())
}

fn check_sampling(config: &ConsumerConfig) -> Result<(), ApiError> {
    let digits = config.sample_freq.trim_end_matches('%');
    if digits.is_empty() || digits.parse::<i32>().is_ok() {
        return Ok(());
    }
    Err(error::consumer_invalid_sampling(format_args!("strconv.Atoi: parsing {digits:?}: invalid syntax")))
}

fn check_priority(config: &ConsumerConfig) -> Result<(), ApiError> {
    if config.priority_policy == PriorityPolicy::None {
        if !config.priority_groups.is_empty() {
            return Err(error::CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE);
        }
        if config.priority_timeout != 0 {
            return Err(error::CONSUMER_PINNED_TTL_WITHOUT_POLICY);
        }
        return Ok(());
    }
    if config.priority_groups.is_empty() {
        return Err(error::CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP);
    }
    for group in &config.priority_groups {
        if group.is_empty() {
            return Err(error::CONSUMER_EMPTY_GROUP_NAME);
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/' | b'=');
        if group.len() > GROUP_NAME_BYTES_MAX || !group.bytes().all(allowed) {
            return Err(error::CONSUMER_INVALID_GROUP_NAME);
        }
    }
    Ok(())
}

/// What a create request comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerChange {
    /// A new consumer.
    Create,
    /// The consumer is already so.
    Unchanged,
    /// The consumer changes.
    Update,
}

/// Decides what `wanted` (already validated) means given the consumer of that name.
///
/// # Errors
/// `10148`, `10149`, or `10012` with the field that can not change.
pub fn decide_consumer_change(
    existing: Option<&ConsumerConfig>,
    wanted: &ConsumerConfig,
    action: ConsumerAction,
) -> Result<ConsumerChange, ApiError> {
    match (existing, action) {
        (None, ConsumerAction::Update) => Err(error::CONSUMER_DOES_NOT_EXIST),
        (None, _) => Ok(ConsumerChange::Create),
        (Some(current), _) if wanted.is_same_request(current) => Ok(ConsumerChange::Unchanged),
        (Some(_), ConsumerAction::Create) => Err(error::CONSUMER_ALREADY_EXISTS),
        (Some(current), _) => check_transition(current, wanted).map(|()| ConsumerChange::Update),
    }
}

fn check_transition(current: &ConsumerConfig, wanted: &ConsumerConfig) -> Result<(), ApiError> {
    match (current.is_push(), wanted.is_push()) {
        (false, true) => {
            return Err(error::consumer_create("can not update pull consumer to push based"));
        }
        (true, false) => {
            return Err(error::consumer_create("can not update push consumer to pull based"));
        }
        _ => {}
    }
    let fixed = [
        (current.deliver_policy != wanted.deliver_policy, "deliver policy"),
        (current.opt_start_seq != wanted.opt_start_seq, "start sequence"),
        (current.opt_start_time != wanted.opt_start_time, "start time"),
        (current.ack_policy != wanted.ack_policy, "ack policy"),
        (current.replay_policy != wanted.replay_policy, "replay policy"),
        (current.idle_heartbeat != wanted.idle_heartbeat, "heart beats"),
        (current.flow_control != wanted.flow_control, "flow control"),
        (current.max_waiting != wanted.max_waiting, "max waiting"),
        (current.mem_storage != wanted.mem_storage, "storage type"),
    ];
    match fixed.iter().find(|(differs, _)| *differs) {
        Some((_, what)) => Err(error::consumer_create(format_args!("{what} can not be updated"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
