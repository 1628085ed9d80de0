//! Descriptions of streams and the bodies of stream requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::error::{self, ApiError};
use crate::api::stream_config::{Placement, StreamConfig};
use crate::api::{parse_body, parse_optional_body};
use crate::json::{self, is_default};
use crate::rfc3339::ApiTime;

/// Counters of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// Live messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// First live sequence.
    pub first_seq: u64,
    /// When it was stored.
    pub first_ts: ApiTime,
    /// Last sequence given out.
    pub last_seq: u64,
    /// When it was stored.
    pub last_ts: ApiTime,
    /// Distinct subjects.
    #[serde(default, skip_serializing_if = "is_default")]
    pub num_subjects: u64,
    /// Messages per subject, if asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subjects: BTreeMap<String, u64>,
    /// Gaps between first and last.
    #[serde(default, skip_serializing_if = "is_default")]
    pub num_deleted: u64,
    /// Which, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<u64>,
    /// Consumers.
    pub consumer_count: u64,
}

/// Replicas of a stream or consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// Cluster name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Raft group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub raft_group: String,
    /// Node that leads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub leader: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_since: Option<ApiTime>,
    /// The other replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<PeerInfo>,
}

/// One replica, as its leader sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Node name.
    pub name: String,
    /// Whether it is caught up.
    pub current: bool,
    /// Whether it is unreachable.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offline: bool,
    /// Nanoseconds since it was last heard of.
    pub active: i64,
    /// Entries it lacks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lag: u64,
    /// Raft peer id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer: String,
}

/// Description of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInfo {
    /// Its configuration; see [`StreamConfig::for_response`].
    pub config: StreamConfig,
    /// When it was created.
    pub created: ApiTime,
    /// Its counters.
    pub state: StreamState,
    /// JetStream domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Its replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// When this was written.
    pub ts: ApiTime,
}

/// Response of `STREAM.CREATE` and `STREAM.UPDATE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamCreateResponse {
    /// The stream.
    #[serde(flatten)]
    pub info: StreamInfo,
    /// Whether a create made a new stream.
    #[serde(skip_serializing_if = "is_default")]
    pub did_create: bool,
}

/// Response of `STREAM.INFO`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamInfoResponse {
    /// Which part of `state.subjects` is shown.
    #[serde(flatten)]
    pub page: crate::api::page::Page,
    /// The stream.
    #[serde(flatten)]
    pub info: StreamInfo,
}

/// Body of `STREAM.INFO`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamInfoRequest {
    /// Subjects to skip.
    #[serde(deserialize_with = "json::nullable")]
    pub offset: i64,
    /// List deleted sequences.
    #[serde(deserialize_with = "json::nullable")]
    pub deleted_details: bool,
    /// List subjects that match, with their counts.
    #[serde(deserialize_with = "json::nullable")]
    pub subjects_filter: String,
}

impl StreamInfoRequest {
    /// Reads an optional body.
    ///
    /// # Errors
    /// `10025 invalid JSON: …`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        parse_optional_body(body)
    }
}

/// Body of `STREAM.PURGE`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PurgeRequest {
    /// Only these subjects.
    #[serde(deserialize_with = "json::nullable", skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Only sequences below this one; zero means all.
    #[serde(deserialize_with = "json::nullable", skip_serializing_if = "is_default")]
    pub seq: u64,
    /// Keep this many.
    #[serde(deserialize_with = "json::nullable", skip_serializing_if = "is_default")]
    pub keep: u64,
}

impl PurgeRequest {
    /// Reads an optional body.
    ///
    /// # Errors
    /// `10025 invalid JSON: …`, or `10003` when both `seq` and `keep` are given.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let request: Self = parse_optional_body(body)?;
        if request.seq > 0 && request.keep > 0 { Err(error::BAD_REQUEST) } else { Ok(request) }
    }
}

/// Response of `STREAM.PURGE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PurgeResponse {
    /// Always true.
    pub success: bool,
    /// Messages removed.
    pub purged: u64,
}

/// Body of the step-down requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepdownRequest {
    /// Who should lead next.
    pub placement: Option<Placement>,
}

impl StepdownRequest {
    /// Reads an optional body.
    ///
    /// # Errors
    /// `10025 invalid JSON: …`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        parse_optional_body(body)
    }

    /// The preferred next leader, by node name.
    pub fn preferred(&self) -> Option<&str> {
        self.placement.as_ref().map(|placement| placement.preferred.as_str()).filter(|name| !name.is_empty())
    }
}

/// Body of `STREAM.PEER.REMOVE` and `SERVER.REMOVE`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerRequest {
    /// Node name or id.
    #[serde(deserialize_with = "json::nullable")]
    pub peer: String,
    /// Raft peer id.
    #[serde(deserialize_with = "json::nullable")]
    pub peer_id: String,
}

impl PeerRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// `10025` on malformed JSON, `10003` without a peer.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if json::is_empty_request(body) {
            return Err(error::BAD_REQUEST);
        }
        let request: Self = parse_body(body)?;
        if request.peer.is_empty() && request.peer_id.is_empty() { Err(error::BAD_REQUEST) } else { Ok(request) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_stream_in_json() {
        let info = StreamInfo { config: StreamConfig { name: "s".into(), ..Default::default() }, ..Default::default() };
        let text = json::to_string(&StreamCreateResponse { info, did_create: true });
        assert!(
            text.ends_with(concat!(
                r#""created":"0001-01-01T00:00:00Z","state":{"messages":0,"bytes":0,"first_seq":0,"#,
                r#""first_ts":"0001-01-01T00:00:00Z","last_seq":0,"last_ts":"0001-01-01T00:00:00Z","consumer_count":0},"#,
                r#""ts":"0001-01-01T00:00:00Z","did_create":true}"#
            )),
            "{text}"
        );
    }

    #[test]
    fn purge_bodies() {
        assert_eq!(PurgeRequest::parse(b""), Ok(PurgeRequest::default()));
        assert_eq!(
            PurgeRequest::parse(br#"{"filter":"a","keep":2}"#),
            Ok(PurgeRequest { filter: "a".into(), seq: 0, keep: 2 })
        );
        assert_eq!(PurgeRequest::parse(br#"{"seq":2,"keep":1}"#), Err(error::BAD_REQUEST));
    }

    #[test]
    fn other_bodies() {
        let request = StreamInfoRequest::parse(br#"{"deleted_details":true,"subjects_filter":">"}"#).unwrap();
        assert!(request.deleted_details && request.subjects_filter == ">");
        assert_eq!(StreamInfoRequest::parse(br#"{"bogus":1}"#).unwrap_err().err_code, 10025);
        let stepdown = StepdownRequest::parse(br#"{"placement":{"preferred":"n2"}}"#).unwrap();
        assert_eq!(stepdown.preferred(), Some("n2"));
        assert_eq!(StepdownRequest::parse(b"").unwrap().preferred(), None);
        assert_eq!(PeerRequest::parse(b"{}"), Err(error::BAD_REQUEST));
    }
}
