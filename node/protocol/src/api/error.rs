//! API errors: HTTP-like code, the error code that clients match on, and a text.

use std::borrow::Cow;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::duration;

/// An error as the API tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{description} ({err_code})")]
pub struct ApiError {
    /// HTTP-like status.
    pub code: u16,
    /// What went wrong; clients match on it.
    pub err_code: u16,
    /// For people; a few clients match on it too.
    pub description: Cow<'static, str>,
}

impl ApiError {
    /// An error with a fixed text.
    pub const fn new(code: u16, err_code: u16, description: &'static str) -> Self {
        Self { code, err_code, description: Cow::Borrowed(description) }
    }

    fn with(code: u16, err_code: u16, description: String) -> Self {
        Self { code, err_code, description: Cow::Owned(description) }
    }
}

macro_rules! errors {
    ($($name:ident = $code:literal $err_code:literal $text:literal;)*) => {
        $(#[doc = concat!("`", stringify!($err_code), "`: ", $text, ".")]
        pub const $name: ApiError = ApiError::new($code, $err_code, $text);)*

        /// Every error with a fixed text.
        pub const ALL: &[ApiError] = &[$($name,)*];
    };
}

errors! {
    BAD_REQUEST = 400 10003 "bad request";
    CLUSTER_NO_PEERS = 400 10005 "no suitable peers for placement";
    CLUSTER_NOT_LEADER = 500 10009 "JetStream cluster can not handle request";
    CLUSTER_NOT_AVAILABLE = 503 10008 "JetStream system temporarily unavailable";
    CLUSTER_REQUIRED = 503 10010 "JetStream clustering support required";
    CONSUMER_NAME_IN_USE = 400 10013 "consumer name already in use";
    CONSUMER_NOT_FOUND = 404 10014 "consumer not found";
    CONSUMER_DURABLE_NAME_MISMATCH = 400 10017 "consumer name in subject does not match durable name in request";
    CONSUMER_DURABLE_NAME_NOT_SET = 400 10018 "consumer expected to be durable but a durable name was not set";
    CONSUMER_EPHEMERAL_WITH_DURABLE_NAME = 400 10020 "consumer expected to be ephemeral but a durable name was set in request";
    INSUFFICIENT_RESOURCES = 503 10023 "insufficient resources";
    MAXIMUM_CONSUMERS_LIMIT = 400 10026 "maximum consumers limit reached";
    MAXIMUM_STREAMS_LIMIT = 400 10027 "maximum number of streams reached";
    MEMORY_RESOURCES_EXCEEDED = 500 10028 "insufficient memory resources available";
    MIRROR_WITH_SUBJECTS = 400 10034 "stream mirrors can not contain subjects";
    NO_MESSAGE_FOUND = 404 10037 "no message found";
    NOT_EMPTY_REQUEST = 400 10038 "expected an empty request payload";
    NOT_ENABLED_FOR_ACCOUNT = 503 10039 "JetStream not enabled for account";
    CLUSTER_PEER_NOT_MEMBER = 400 10040 "peer not a member";
    STORAGE_RESOURCES_EXCEEDED = 500 10047 "insufficient storage resources available";
    STREAM_MESSAGE_EXCEEDS_MAXIMUM = 400 10054 "message size exceeds maximum allowed";
    MIRROR_NOT_UPDATABLE = 400 10055 "stream mirror configuration can not be updated";
    STREAM_MISMATCH = 400 10056 "stream name in subject does not match request";
    MESSAGE_DELETE_NOT_PERMITTED = 500 10057 "message delete not permitted";
    STREAM_NAME_EXISTS = 400 10058 "stream name already in use with a different configuration";
    STREAM_NOT_FOUND = 404 10059 "stream not found";
    STREAM_NOT_MATCH = 400 10060 "expected stream does not match";
    STREAM_SUBJECT_OVERLAP = 400 10065 "subjects overlap with an existing stream";
    STREAM_REPLICAS_NOT_SUPPORTED = 500 10074 "replicas > 1 not supported in non-clustered mode";
    PEER_REMAP_FAILED = 503 10075 "peer remap failed";
    NOT_ENABLED = 503 10076 "JetStream not enabled";
    STORE_MAXIMUM_MESSAGES = 503 10077 "maximum messages exceeded";
    STORE_MAXIMUM_BYTES = 503 10077 "maximum bytes exceeded";
    STORE_MAXIMUM_MESSAGES_PER_SUBJECT = 503 10077 "maximum messages per subject exceeded";
    CONSUMER_DELIVER_TO_WILDCARDS = 400 10079 "consumer deliver subject has wildcards";
    CONSUMER_PUSH_MAX_WAITING = 400 10080 "consumer in push mode can not set max waiting";
    CONSUMER_DELIVER_CYCLE = 400 10081 "consumer deliver subject forms a cycle";
    CONSUMER_MAX_ACK_PENDING_POLICY_REQUIRED = 400 10082 "consumer requires ack policy for max ack pending";
    CONSUMER_SMALL_HEARTBEAT = 400 10083 "consumer idle heartbeat needs to be >= 100ms";
    CONSUMER_PULL_REQUIRES_ACK = 400 10084 "consumer in pull mode requires explicit ack policy on workqueue stream";
    CONSUMER_PULL_WITH_RATE_LIMIT = 400 10086 "consumer in pull mode can not have rate limit set";
    CONSUMER_HEARTBEAT_REQUIRES_PUSH = 400 10088 "consumer idle heartbeat requires a push based consumer";
    CONSUMER_FLOW_CONTROL_REQUIRES_PUSH = 400 10089 "consumer flow control requires a push based consumer";
    CONSUMER_DIRECT_REQUIRES_PUSH = 400 10090 "consumer direct requires a push based consumer";
    STREAM_HEADER_EXCEEDS_MAXIMUM = 400 10097 "header size exceeds maximum allowed of 64k";
    CONSUMER_WQ_REQUIRES_EXPLICIT_ACK = 400 10098 "workqueue stream requires explicit ack";
    CONSUMER_WQ_MULTIPLE_UNFILTERED = 400 10099 "multiple non-filtered consumers not allowed on workqueue stream";
    CONSUMER_WQ_NOT_UNIQUE = 400 10100 "filtered consumer not unique on workqueue stream";
    CONSUMER_WQ_NOT_DELIVER_ALL = 400 10101 "consumer must be deliver all on workqueue stream";
    CONSUMER_NAME_TOO_LONG = 400 10102 "consumer name is too long, maximum allowed is 255";
    CONSUMER_BAD_DURABLE_NAME = 400 10103 "durable name can not contain '.', '*', '>'";
    CONSUMER_EXISTS_ACTIVE = 400 10105 "consumer already exists and is still active";
    CONSUMER_DESCRIPTION_TOO_LONG = 400 10107 "consumer description is too long, maximum allowed is 4096";
    CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS = 400 10108 "consumer with flow control also needs heartbeats";
    STREAM_SEALED = 400 10109 "invalid operation on sealed stream";
    STREAM_PURGE_NOT_PERMITTED = 500 10110 "stream purge not permitted";
    ROLLUP_NOT_PERMITTED = 500 10111 "rollup not permitted";
    CONSUMER_INVALID_DELIVER_SUBJECT = 400 10112 "invalid push consumer deliver subject";
    STREAM_MAX_BYTES_REQUIRED = 400 10113 "account requires a stream config to have max bytes set";
    CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL = 400 10115 "consumer max request expires needs to be >= 1ms";
    CONSUMER_MAX_DELIVER_BACKOFF = 400 10116 "max deliver is required to be > length of backoff values";
    STREAM_MAX_STREAM_BYTES_EXCEEDED = 400 10122 "stream max bytes exceeds account limit max stream bytes";
    CONSUMER_REPLICAS_EXCEEDS_STREAM = 400 10126 "consumer config replica count exceeds parent stream";
    CONSUMER_NAME_PATH_SEPARATORS = 400 10127 "Consumer name can not contain path separators";
    STREAM_NAME_PATH_SEPARATORS = 400 10128 "Stream name can not contain path separators";
    CONSUMER_CREATE_FILTER_MISMATCH = 400 10131 "Consumer create request did not match filtered subject from create subject";
    CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH = 400 10132 "Consumer Durable and Name have to be equal if both are provided";
    REPLICAS_COUNT_NEGATIVE = 400 10133 "replicas count cannot be negative";
    CONSUMER_METADATA_TOO_LONG = 400 10135 "consumer metadata exceeds maximum size of 128KB";
    CONSUMER_DUPLICATE_FILTERS = 400 10136 "consumer cannot have both FilterSubject and FilterSubjects specified";
    CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED = 400 10137 "consumer with multiple subject filters cannot use subject based API";
    CONSUMER_OVERLAPPING_FILTERS = 400 10138 "consumer subject filters cannot overlap";
    CONSUMER_EMPTY_FILTER = 400 10139 "consumer filter in FilterSubjects cannot be empty";
    CONSUMER_ALREADY_EXISTS = 400 10148 "consumer already exists";
    CONSUMER_DOES_NOT_EXIST = 400 10149 "consumer does not exist";
    DUPLICATE_MESSAGE_CONFLICT = 409 10158 "duplicate message id is in process";
    CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP = 400 10159 "Setting PriorityPolicy requires at least one PriorityGroup to be set";
    CONSUMER_INVALID_PRIORITY_GROUP = 400 10160 "Provided priority group does not exist for this consumer";
    CONSUMER_EMPTY_GROUP_NAME = 400 10161 "Group name cannot be an empty string";
    CONSUMER_INVALID_GROUP_NAME = 400 10162 "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters";
    STREAM_WRONG_LAST_SEQUENCE = 400 10164 "wrong last sequence";
    MESSAGE_TTL_INVALID = 400 10165 "invalid per-message TTL";
    MESSAGE_TTL_DISABLED = 400 10166 "per-message TTL is disabled";
    STREAM_TOO_MANY_REQUESTS = 429 10167 "too many requests";
    MESSAGE_COUNTERS_DISABLED = 400 10168 "message counters is disabled";
    ATOMIC_PUBLISH_DISABLED = 400 10174 "atomic publish is disabled";
    ATOMIC_PUBLISH_MISSING_SEQUENCE = 400 10175 "atomic publish sequence is missing";
    ATOMIC_PUBLISH_INCOMPLETE = 400 10176 "atomic publish batch is incomplete";
    CONSUMER_PUSH_WITH_PRIORITY_GROUP = 400 10178 "priority groups can not be used with push consumers";
    ATOMIC_PUBLISH_INVALID_BATCH_ID = 400 10179 "atomic publish batch ID is invalid";
    CONSUMER_ACK_POLICY_INVALID = 400 10181 "consumer ack policy invalid";
    CONSUMER_REPLAY_POLICY_INVALID = 400 10182 "consumer replay policy invalid";
    CONSUMER_ACK_WAIT_NEGATIVE = 400 10183 "consumer ack wait needs to be positive";
    CONSUMER_BACKOFF_NEGATIVE = 400 10184 "consumer backoff needs to be positive";
    REQUIRED_API_LEVEL = 412 10185 "JetStream minimum api level required";
    MESSAGE_SCHEDULES_DISABLED = 400 10188 "message schedules is disabled";
    EXPECTED_LAST_SUBJECT_SEQUENCE_MISSING = 400 10193 "missing sequence for expected last sequence per subject";
    CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE = 400 10196 "consumer can not have priority groups when policy is none";
    CONSUMER_PINNED_TTL_WITHOUT_POLICY = 400 10197 "PinnedTTL cannot be set when PriorityPolicy is none";
    ATOMIC_PUBLISH_INVALID_COMMIT = 400 10200 "atomic publish batch commit is invalid";
    ATOMIC_PUBLISH_DUPLICATE_ID = 400 10201 "atomic publish batch contains duplicate message id";
    BATCH_PUBLISH_DISABLED = 400 10205 "batch publish is disabled";
    BATCH_PUBLISH_INVALID_PATTERN = 400 10206 "batch publish pattern is invalid";
    BATCH_PUBLISH_INVALID_ID = 400 10207 "batch publish ID is invalid";
    BATCH_PUBLISH_UNKNOWN_ID = 400 10208 "batch publish ID unknown";
    ATOMIC_PUBLISH_TOO_MANY_INFLIGHT = 429 10210 "atomic publish too many inflight";
    BATCH_PUBLISH_TOO_MANY_INFLIGHT = 429 10211 "batch publish too many inflight";
    STREAM_SOURCE_HEADER_NOT_ALLOWED = 400 10227 "message stream source header is not allowed";
}

/// `10008`: leadership moved while the request was carried out, which may or may not have been.
pub fn outcome_unknown() -> ApiError {
    ApiError::with(503, 10008, "JetStream system temporarily unavailable: the outcome is unknown".to_owned())
}

/// `10012`: a consumer could not be created or changed, in words.
pub fn consumer_create(why: impl Display) -> ApiError {
    ApiError::with(500, 10012, why.to_string())
}

/// `10025`: the body is not what it should be.
pub fn invalid_json(why: &impl Display) -> ApiError {
    ApiError::with(400, 10025, format!("invalid JSON: {why}"))
}

/// `10043`: no message has this sequence.
pub fn sequence_not_found(seq: u64) -> ApiError {
    ApiError::with(400, 10043, format!("sequence {seq} not found"))
}

/// `10051`: something about the stream failed, in words.
pub fn stream_general(why: impl Display) -> ApiError {
    ApiError::with(500, 10051, why.to_string())
}

/// `10052`: the stream configuration is refused, in words.
pub fn stream_invalid_config(why: impl Display) -> ApiError {
    ApiError::with(500, 10052, why.to_string())
}

/// `10057`: a message could not be deleted, in words.
pub fn stream_msg_delete_failed(why: impl Display) -> ApiError {
    ApiError::with(500, 10057, why.to_string())
}

/// `10071`: the last sequence is another one.
pub fn stream_wrong_last_sequence(actual: u64) -> ApiError {
    ApiError::with(400, 10071, format!("wrong last sequence: {actual}"))
}

/// `10094`: deliver policy and start options do not fit.
pub fn consumer_invalid_policy(why: impl Display) -> ApiError {
    ApiError::with(400, 10094, why.to_string())
}

/// `10095`: the sampling frequency is unreadable.
pub fn consumer_invalid_sampling(why: impl Display) -> ApiError {
    ApiError::with(400, 10095, format!("failed to parse consumer sampling configuration: {why}"))
}

/// `10121`: `max_ack_pending` is above the stream's limit.
pub fn consumer_max_ack_pending_excess(limit: i64) -> ApiError {
    ApiError::with(400, 10121, format!("consumer max ack pending exceeds system limit of {limit}"))
}

/// `10153`: `inactive_threshold` is above the stream's limit, in nanoseconds.
pub fn consumer_inactive_threshold_excess(limit_ns: i64) -> ApiError {
    let limit = duration::format(limit_ns);
    ApiError::with(400, 10153, format!("consumer inactive threshold exceeds system limit of {limit}"))
}

/// `10157`: pedantic mode refuses to correct a value silently.
pub fn pedantic(why: impl Display) -> ApiError {
    ApiError::with(400, 10157, format!("pedantic mode: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_texts_are_said_once() {
        for (index, error) in ALL.iter().enumerate() {
            assert!((400..600).contains(&error.code) && (10_001..10_300).contains(&error.err_code), "{error}");
            for other in &ALL[..index] {
                assert!(error.description != other.description, "{error}");
                // 10077 has one text per limit.
                assert!(error.err_code != other.err_code || error.err_code == 10_077, "{error} {other}");
            }
        }
    }

    #[test]
    fn json_form() {
        let json = crate::json::to_string(&STREAM_NOT_FOUND);
        assert_eq!(json, r#"{"code":404,"err_code":10059,"description":"stream not found"}"#);
        assert_eq!(crate::json::from_slice::<ApiError>(json.as_bytes()).unwrap(), STREAM_NOT_FOUND);
        assert_eq!(
            consumer_inactive_threshold_excess(1_000_000_000).description,
            "consumer inactive threshold exceeds system limit of 1s"
        );
    }
}
