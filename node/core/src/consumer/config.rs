//! What the state machine needs to know of a consumer's configuration.

use headwater_protocol::subject;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::{StreamSeq, Timestamp};

/// Which deliveries need an acknowledgement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckPolicy {
    /// Delivered is done.
    #[default]
    None,
    /// An ack covers everything delivered up to it.
    All,
    /// Each message on its own.
    Explicit,
}

/// Where a new consumer starts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliverPolicy {
    /// The first stored message.
    #[default]
    All,
    /// The last matching message.
    Last,
    /// Messages stored after the creation.
    New,
    /// This sequence.
    ByStartSequence(StreamSeq),
    /// The first message stored at or after this time.
    ByStartTime(Timestamp),
    /// The last message of every matching subject, then what comes after the creation.
    LastPerSubject,
}

/// The subjects a consumer wants; empty means all of the stream's.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Filters(Vec<String>);

impl Filters {
    /// Filters as given by the client; `>` is the same as none.
    pub fn new(filters: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let filters: Vec<String> = filters.into_iter().map(Into::into).collect();
        if filters.iter().any(|filter| filter == ">") {
            return Self::default();
        }
        Self(filters)
    }

    /// Whether every subject matches.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The filters, none for "all".
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    /// Whether a subject is wanted.
    pub fn matches(&self, subject: &[u8]) -> bool {
        self.is_all() || self.0.iter().any(|filter| subject::matches(filter.as_bytes(), subject))
    }
}

/// A consumer's configuration, defaults filled in. Durations are nanoseconds; `None` is "no limit" or "not set".
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct ConsumerConfig {
    /// Unique in its stream.
    pub name: String,
    /// Survives without clients.
    #[serde(default)]
    pub durable: bool,
    /// Which deliveries need an ack.
    #[serde(default)]
    pub ack_policy: AckPolicy,
    /// Redelivery follows this long after an unacknowledged delivery.
    #[serde(default)]
    pub ack_wait_ns: u64,
    /// Deliveries of one message at most.
    #[serde(default)]
    pub max_deliver: Option<u32>,
    /// Replaces `ack_wait_ns`: the wait after the 1st, 2nd, … delivery; the last one repeats.
    #[serde(default)]
    pub backoff_ns: Vec<u64>,
    /// Wanted subjects.
    #[serde(default)]
    pub filters: Filters,
    /// Where it starts.
    #[serde(default)]
    pub deliver_policy: DeliverPolicy,
    /// Delivered and not yet acknowledged messages at most.
    #[serde(default)]
    pub max_ack_pending: Option<u32>,
    /// Waiting pull requests at most.
    #[serde(default)]
    pub max_waiting: Option<u32>,
    /// `batch` of one pull request at most.
    #[serde(default)]
    pub max_batch: Option<u32>,
    /// `expires` of one pull request at most.
    #[serde(default)]
    pub max_expires_ns: Option<u64>,
    /// `max_bytes` of one pull request at most.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// Bodies are left out (by the shell that sends).
    #[serde(default)]
    pub headers_only: bool,
    /// The consumer is removed after this long without requests or acks.
    #[serde(default)]
    pub inactive_threshold_ns: Option<u64>,
    /// No deliveries before this time.
    #[serde(default)]
    pub pause_until: Option<Timestamp>,
    /// As configured; 0 is the stream's.
    #[serde(default)]
    pub replicas: u8,
    /// State in memory only.
    #[serde(default)]
    pub mem_storage: bool,
}

/// An update names a field that is fixed at creation.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Error)]
#[error("{field} can not be updated")]
pub struct UpdateRefusal {
    /// The field's JSON-like name with spaces, as nats-server says it.
    pub field: &'static str,
}

impl ConsumerConfig {
    /// How long after its `deliveries`-th delivery (≥ 1) a message is due again.
    pub fn wait_after_ns(&self, deliveries: u32) -> u64 {
        let Some(last) = self.backoff_ns.len().checked_sub(1) else {
            return self.ack_wait_ns;
        };
        let at = usize::try_from(deliveries.saturating_sub(1)).unwrap_or(last);
        self.backoff_ns[at.min(last)]
    }

    /// Whether a message delivered `deliveries` times gets no further one.
    pub fn is_exhausted(&self, deliveries: u32) -> bool {
        self.max_deliver.is_some_and(|most| deliveries >= most)
    }

    /// Whether deliveries wait for acks at all.
    pub fn tracks_acks(&self) -> bool {
        self.ack_policy != AckPolicy::None
    }

    /// Whether `next` may replace this configuration.
    pub fn check_update(&self, next: &Self) -> Result<(), UpdateRefusal> {
        let fixed = [
            ("deliver policy", self.deliver_policy == next.deliver_policy),
            ("ack policy", self.ack_policy == next.ack_policy),
            ("max waiting", self.max_waiting == next.max_waiting),
            ("storage", self.mem_storage == next.mem_storage),
            ("durable name", self.durable == next.durable && self.name == next.name),
        ];
        match fixed.into_iter().find(|(_, same)| !same) {
            Some((field, _)) => Err(UpdateRefusal { field }),
            None => Ok(()),
        }
    }
}
