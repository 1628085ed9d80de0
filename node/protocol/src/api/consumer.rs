//! Descriptions of consumers and the bodies of consumer requests.

use serde::{Deserialize, Serialize};

use crate::api::consumer_config::ConsumerConfig;
use crate::api::error::ApiError;
use crate::api::parse_body;
use crate::api::stream::ClusterInfo;
use crate::api::wire_enum::wire_enum;
use crate::json::{self, is_default};
use crate::rfc3339::ApiTime;

wire_enum! {
    /// What a create request may do.
    ConsumerAction, unknown = unknown_action;
    /// Create or change.
    #[default]
    CreateOrUpdate = "";
    /// Only create.
    Create = "create";
    /// Only change.
    Update = "update";
}

fn unknown_action(word: &str) -> String {
    format!("unknown consumer action: {word:?}")
}

/// Body of the consumer create requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreateConsumerRequest {
    /// The stream, as in the subject.
    #[serde(deserialize_with = "json::nullable")]
    pub stream_name: String,
    /// The configuration as sent.
    #[serde(deserialize_with = "json::nullable")]
    pub config: ConsumerConfig,
    /// What the request may do.
    pub action: ConsumerAction,
    /// Refuse instead of correcting silently.
    #[serde(deserialize_with = "json::nullable")]
    pub pedantic: bool,
}

impl CreateConsumerRequest {
    /// Reads a body strictly. An empty one gives an empty request, which fails later by its stream name.
    ///
    /// # Errors
    /// `10025 invalid JSON: …`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.trim_ascii().is_empty() { Ok(Self::default()) } else { parse_body(body) }
    }
}

/// A pair of sequences with the time of the last activity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceInfo {
    /// Delivery sequence.
    pub consumer_seq: u64,
    /// Stream sequence.
    pub stream_seq: u64,
    /// When it last moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_active: Option<ApiTime>,
}

/// Description of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerInfo {
    /// Its stream.
    pub stream_name: String,
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created: ApiTime,
    /// Its configuration; see [`ConsumerConfig::for_response`].
    pub config: ConsumerConfig,
    /// Last delivery.
    pub delivered: SequenceInfo,
    /// Everything up to here is acknowledged.
    pub ack_floor: SequenceInfo,
    /// Deliveries without acknowledgement.
    pub num_ack_pending: u64,
    /// Of which delivered more than once.
    pub num_redelivered: u64,
    /// Pull requests waiting.
    pub num_waiting: u64,
    /// Messages still to be delivered.
    pub num_pending: u64,
    /// Its replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// Whether somebody listens on the delivery subject.
    #[serde(default, skip_serializing_if = "is_default")]
    pub push_bound: bool,
    /// Whether delivery is paused.
    #[serde(default, skip_serializing_if = "is_default")]
    pub paused: bool,
    /// For how much longer, ns.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pause_remaining: i64,
    /// When this was written.
    pub ts: ApiTime,
}

/// Body of `CONSUMER.PAUSE`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PauseRequest {
    /// Until when; absent resumes.
    pub pause_until: Option<ApiTime>,
}

/// Response of `CONSUMER.PAUSE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PauseResponse {
    /// Whether delivery is paused.
    pub paused: bool,
    /// Until when.
    pub pause_until: ApiTime,
    /// For how much longer, ns.
    #[serde(skip_serializing_if = "is_default")]
    pub pause_remaining: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_bodies_are_strict() {
        let parse = |body: &str| CreateConsumerRequest::parse(body.as_bytes());
        let request =
            parse(r#"{"stream_name":"S","config":{"name":"c","ack_policy":"explicit"},"action":"create"}"#).unwrap();
        assert_eq!((request.stream_name.as_str(), request.action), ("S", ConsumerAction::Create));
        let text = |body: &str| parse(body).unwrap_err().description.into_owned();
        assert_eq!(text(r#"{"config":{"bogus":1}}"#), "invalid JSON: json: unknown field \"bogus\"");
        assert_eq!(text(r#"{"action":"foo"}"#), "invalid JSON: unknown consumer action: \"foo\"");
        assert_eq!(text(r#"{"config":{"ack_policy":"foo"}}"#), r#"invalid JSON: can not unmarshal "\"foo\"""#);
        assert_eq!(text(r#"{"config":{"priority_policy":"foo"}}"#), "invalid JSON: unknown priority policy: \"foo\"");
        assert!(parse("").unwrap().stream_name.is_empty());
    }

    #[test]
    fn info_has_the_keys_that_clients_require() {
        let text = json::to_string(&ConsumerInfo { stream_name: "S".into(), name: "c".into(), ..Default::default() });
        assert_eq!(
            text,
            concat!(
                r#"{"stream_name":"S","name":"c","created":"0001-01-01T00:00:00Z","#,
                r#""config":{"deliver_policy":"all","ack_policy":"none","replay_policy":"instant","num_replicas":0},"#,
                r#""delivered":{"consumer_seq":0,"stream_seq":0},"ack_floor":{"consumer_seq":0,"stream_seq":0},"#,
                r#""num_ack_pending":0,"num_redelivered":0,"num_waiting":0,"num_pending":0,"ts":"0001-01-01T00:00:00Z"}"#
            )
        );
    }
}
