//! Configuration of a consumer.

use serde::{Deserialize, Serialize};

use crate::api::level::{self, Metadata};
use crate::api::wire_enum::{can_not_unmarshal, wire_enum};
use crate::json::{is_default, nullable};
use crate::rfc3339::ApiTime;

wire_enum! {
    /// Where delivery starts.
    DeliverPolicy, unknown = can_not_unmarshal;
    /// At the first message.
    #[default]
    All = "all";
    /// At the last message.
    Last = "last";
    /// After the last message.
    New = "new";
    /// At a sequence.
    ByStartSequence = "by_start_sequence";
    /// At a time.
    ByStartTime = "by_start_time";
    /// With the last message of each subject.
    LastPerSubject = "last_per_subject";
}

wire_enum! {
    /// How messages are acknowledged.
    AckPolicy, unknown = can_not_unmarshal;
    /// Not.
    #[default]
    None = "none";
    /// One acknowledgement covers everything before it.
    All = "all";
    /// Each message.
    Explicit = "explicit";
    /// By flow control.
    FlowControl = "flow_control";
}

wire_enum! {
    /// How fast messages are delivered.
    ReplayPolicy, unknown = can_not_unmarshal;
    /// As fast as possible.
    #[default]
    Instant = "instant";
    /// As fast as they were stored.
    Original = "original";
}

wire_enum! {
    /// How pull requests of groups are served.
    PriorityPolicy, unknown = unknown_priority_policy;
    /// All alike.
    #[default]
    None = "none" | "";
    /// Some only when much is pending.
    Overflow = "overflow";
    /// One client at a time.
    PinnedClient = "pinned_client";
    /// By the priority in the request.
    Prioritized = "prioritized";
}

fn unknown_priority_policy(word: &str) -> String {
    format!("unknown priority policy: {word:?}")
}

/// Configuration of a consumer, in the field order of the API. Durations are nanoseconds, -1 is "no limit".
///
/// As parsed it may still have zeros and other values that [`crate::api::consumer_rules`] puts right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the API's, documented there; units are in the type's comment")]
pub struct ConsumerConfig {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub durable_name: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub description: String,
    pub deliver_policy: DeliverPolicy,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub opt_start_seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<ApiTime>,
    pub ack_policy: AckPolicy,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub ack_wait: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_deliver: i64,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub backoff: Vec<i64>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub filter_subject: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub filter_subjects: Vec<String>,
    pub replay_policy: ReplayPolicy,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub rate_limit_bps: u64,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub sample_freq: String,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_waiting: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_ack_pending: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub flow_control: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub headers_only: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_batch: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_expires: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_bytes: i64,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub deliver_subject: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub deliver_group: String,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub idle_heartbeat: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub inactive_threshold: i64,
    #[serde(deserialize_with = "nullable")]
    pub num_replicas: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub mem_storage: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub direct: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub sourcing: bool,
    #[serde(skip_serializing_if = "Metadata::is_empty", deserialize_with = "nullable")]
    pub metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_until: Option<ApiTime>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub priority_groups: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub priority_policy: PriorityPolicy,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub priority_timeout: i64,
}

impl ConsumerConfig {
    /// Whether delivery is pushed to a subject.
    pub fn is_push(&self) -> bool {
        !self.deliver_subject.is_empty()
    }

    /// Whether the consumer outlives inactivity by default.
    pub fn is_durable(&self) -> bool {
        !self.durable_name.is_empty()
    }

    /// The filters, whichever field they came in; empty means everything.
    pub fn filters(&self) -> Vec<&str> {
        if self.filter_subject.is_empty() {
            self.filter_subjects.iter().map(String::as_str).collect()
        } else {
            vec![self.filter_subject.as_str()]
        }
    }

    /// Lowest API level that knows every field in use.
    pub fn required_level(&self) -> u32 {
        let first = self.pause_until.is_some_and(|time| !time.is_zero())
            || self.priority_policy != PriorityPolicy::None
            || !self.priority_groups.is_empty();
        u32::from(first)
    }

    /// Whether two configurations ask for the same, server-owned metadata aside.
    pub fn is_same_request(&self, current: &Self) -> bool {
        let bare = |config: &Self| Self { metadata: Metadata::new(), ..config.clone() };
        bare(self) == bare(current) && level::user_entries(&self.metadata).eq(level::user_entries(&current.metadata))
    }

    /// A copy with the metadata that only responses show.
    pub fn for_response(&self) -> Self {
        let mut config = self.clone();
        level::stamp_response(&mut config.metadata);
        config
    }
}
