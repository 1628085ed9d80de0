//! Configuration of a stream.

use serde::{Deserialize, Serialize};

use crate::api::error::ApiError;
use crate::api::level::{self, Metadata};
use crate::api::wire_enum::{can_not_unmarshal, wire_enum};
use crate::api::{error, parse_body};
use crate::json::{is_default, nullable};
use crate::rfc3339::ApiTime;

wire_enum! {
    /// When messages may go.
    Retention, unknown = can_not_unmarshal;
    /// By limits only.
    #[default]
    Limits = "limits";
    /// When every consumer acknowledged.
    Interest = "interest";
    /// When one consumer acknowledged.
    WorkQueue = "workqueue";
}

wire_enum! {
    /// What happens at a limit.
    Discard, unknown = can_not_unmarshal;
    /// The oldest messages go.
    #[default]
    Old = "old";
    /// New messages are refused.
    New = "new";
}

wire_enum! {
    /// Where messages are kept.
    Storage, unknown = can_not_unmarshal;
    /// On disk.
    #[default]
    File = "file";
    /// In memory.
    Memory = "memory";
}

wire_enum! {
    /// How stored bytes are compressed.
    Compression, unknown = unknown_compression;
    /// Not at all.
    #[default]
    None = "none";
    /// S2.
    S2 = "s2";
}

wire_enum! {
    /// When an unreplicated stream confirms.
    PersistMode, unknown = can_not_unmarshal;
    /// As the sync mode says.
    #[default]
    Default = "default" | "";
    /// Before it is written.
    Async = "async";
}

fn unknown_compression(_: &str) -> &'static str {
    "unknown compression algorithm"
}

/// Where replicas should live.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Placement {
    /// Cluster name.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub cluster: String,
    /// Tags that nodes must carry.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub tags: Vec<String>,
    /// Preferred leader; only in step-down requests.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub preferred: String,
}

/// A subject mapping.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubjectTransform {
    /// Subjects it applies to.
    pub src: String,
    /// What they become.
    pub dest: String,
}

/// A stream in another account or domain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExternalStream {
    /// API prefix.
    pub api: String,
    /// Delivery prefix.
    pub deliver: String,
}

/// The consumer a source uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourceConsumer {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its delivery subject.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deliver_subject: String,
}

/// The origin of a mirrored or sourced stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSource {
    /// Stream name.
    pub name: String,
    /// Start sequence.
    #[serde(skip_serializing_if = "is_default")]
    pub opt_start_seq: u64,
    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<ApiTime>,
    /// Subjects taken over.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter_subject: String,
    /// Subject mappings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subject_transforms: Vec<SubjectTransform>,
    /// Where the stream is, if elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalStream>,
    /// The consumer used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<SourceConsumer>,
}

/// Republish stored messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Republish {
    /// Subjects it applies to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub src: String,
    /// Where they are published.
    pub dest: String,
    /// Without bodies.
    #[serde(skip_serializing_if = "is_default")]
    pub headers_only: bool,
}

/// Limits that a stream sets for its consumers; zero means none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerLimits {
    /// Longest inactivity, ns.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub inactive_threshold: i64,
    /// Most unacknowledged messages.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub max_ack_pending: i64,
}

/// Configuration of a stream, in the field order of the API. Durations are nanoseconds, -1 is "no limit".
///
/// As parsed it may still have zeros and other values that [`crate::api::stream_rules`] puts right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the API's, documented there; units are in the type's comment")]
pub struct StreamConfig {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "nullable")]
    pub description: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub subjects: Vec<String>,
    pub retention: Retention,
    #[serde(deserialize_with = "nullable")]
    pub max_consumers: i64,
    #[serde(deserialize_with = "nullable")]
    pub max_msgs: i64,
    #[serde(deserialize_with = "nullable")]
    pub max_bytes: i64,
    #[serde(deserialize_with = "nullable")]
    pub max_age: i64,
    #[serde(deserialize_with = "nullable")]
    pub max_msgs_per_subject: i64,
    #[serde(deserialize_with = "nullable")]
    pub max_msg_size: i32,
    pub discard: Discard,
    pub storage: Storage,
    #[serde(deserialize_with = "nullable")]
    pub num_replicas: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub no_ack: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub duplicate_window: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<StreamSource>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub sources: Vec<StreamSource>,
    pub compression: Compression,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub first_seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject_transform: Option<SubjectTransform>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub republish: Option<Republish>,
    #[serde(deserialize_with = "nullable")]
    pub allow_direct: bool,
    #[serde(deserialize_with = "nullable")]
    pub mirror_direct: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub discard_new_per_subject: bool,
    #[serde(deserialize_with = "nullable")]
    pub sealed: bool,
    #[serde(deserialize_with = "nullable")]
    pub deny_delete: bool,
    #[serde(deserialize_with = "nullable")]
    pub deny_purge: bool,
    #[serde(deserialize_with = "nullable")]
    pub allow_rollup_hdrs: bool,
    #[serde(deserialize_with = "nullable")]
    pub consumer_limits: ConsumerLimits,
    #[serde(deserialize_with = "nullable")]
    pub allow_msg_ttl: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub subject_delete_marker_ttl: i64,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub allow_msg_counter: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub allow_atomic: bool,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub allow_msg_schedules: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub persist_mode: PersistMode,
    #[serde(skip_serializing_if = "is_default", deserialize_with = "nullable")]
    pub allow_batched: bool,
    #[serde(skip_serializing_if = "Metadata::is_empty", deserialize_with = "nullable")]
    pub metadata: Metadata,
}

/// Prefix of the metadata keys that carry Headwater's own settings. Absent keys mean "unchanged".
pub const HEADWATER_PREFIX: &str = "headwater.";
const SYNC_MODE: &str = "headwater.sync_mode";
const SYNC_INTERVAL: &str = "headwater.sync_interval";
/// Every key there is under [`HEADWATER_PREFIX`]. Any other is refused: it would look like a setting and be none.
pub const HEADWATER_KEYS: [&str; 3] = ["headwater.allow_async_flush", SYNC_INTERVAL, SYNC_MODE];

impl StreamConfig {
    /// Whether a create or update with `self` would change `current`: server-owned metadata does not count, nor do
    /// `headwater.*` keys that `self` does not name.
    pub fn is_same_request(&self, current: &Self) -> bool {
        let bare = |config: &Self| Self { metadata: Metadata::new(), ..config.clone() };
        bare(self) == bare(current) && {
            let mut merged = self.metadata.clone();
            keep_unnamed_settings(&mut merged, &current.metadata);
            level::user_entries(&merged).eq(level::user_entries(&current.metadata))
        }
    }

    /// Lowest API level that knows every field in use.
    pub fn required_level(&self) -> u32 {
        if self.allow_batched {
            return 4;
        }
        let second = self.allow_msg_counter
            || self.allow_atomic
            || self.allow_msg_schedules
            || self.persist_mode == PersistMode::Async;
        let first = self.allow_msg_ttl || self.subject_delete_marker_ttl > 0;
        if second { 2 } else { u32::from(first) }
    }

    /// A copy with the metadata that only responses show.
    pub fn for_response(&self) -> Self {
        let mut config = self.clone();
        level::stamp_response(&mut config.metadata);
        config
    }
}

/// The first key that claims to be a setting of Headwater's, in whatever case, and is none of `known`.
pub(crate) fn unknown_setting<'a>(metadata: &'a Metadata, known: &[&str]) -> Option<&'a str> {
    let ours =
        |key: &str| key.get(..HEADWATER_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(HEADWATER_PREFIX));
    metadata.keys().map(String::as_str).find(|key| ours(key) && !known.contains(key))
}

/// Copies the `headwater.*` keys of `current` that `wanted` does not name. The interval belongs to its sync mode, so it
/// goes with it.
pub(crate) fn keep_unnamed_settings(wanted: &mut Metadata, current: &Metadata) {
    let other_mode = wanted.get(SYNC_MODE).is_some_and(|mode| current.get(SYNC_MODE) != Some(mode));
    for (key, value) in current
        .iter()
        .filter(|(key, _)| HEADWATER_KEYS.contains(&key.as_str()))
        .filter(|(key, _)| !(other_mode && key.as_str() == SYNC_INTERVAL))
    {
        wanted.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// Body of `STREAM.CREATE` and `STREAM.UPDATE`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamConfigRequest {
    /// The configuration as sent.
    pub config: StreamConfig,
    /// Refuse instead of correcting silently.
    pub pedantic: bool,
}

impl StreamConfigRequest {
    /// Reads a body strictly. An empty one gives an empty configuration, which fails later by its name.
    ///
    /// # Errors
    /// `10025 invalid JSON: …`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        // `pedantic` stands among the configuration's fields, so it is taken out before those are read strictly.
        let mut fields: serde_json::Map<String, serde_json::Value> = parse_body(body)?;
        let pedantic = match fields.remove("pedantic") {
            None | Some(serde_json::Value::Null) => false,
            Some(serde_json::Value::Bool(pedantic)) => pedantic,
            Some(_) => return Err(error::invalid_json(&"pedantic is not a boolean")),
        };
        let config = parse_body(serde_json::Value::Object(fields).to_string().as_bytes())?;
        Ok(Self { config, pedantic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use proptest::prelude::*;

    fn refused(body: &str) -> String {
        let error = StreamConfigRequest::parse(body.as_bytes()).unwrap_err();
        assert_eq!(error.err_code, 10025);
        error.description.into_owned()
    }

    #[test]
    fn parsing_is_strict() {
        assert_eq!(refused(r#"{"name":"s1","bogus":1}"#), "invalid JSON: json: unknown field \"bogus\"");
        assert_eq!(refused(r#"{"name":"x","placement":{"foo":1}}"#), "invalid JSON: json: unknown field \"foo\"");
        assert_eq!(refused(r#"{"name":"x","retention":"foo"}"#), r#"invalid JSON: can not unmarshal "\"foo\"""#);
        assert_eq!(refused(r#"{"name":"x","compression":"foo"}"#), "invalid JSON: unknown compression algorithm");
        assert_eq!(refused(r#"{"name":"x""#), "invalid JSON: unexpected EOF");
        refused("[]");
        refused("nope");
        refused(r#"{"name":"x","max_msgs":"x"}"#);
        refused(r#"{"name":"x","max_msg_size":2147483648}"#);
        refused(r#"{"name":"x","first_seq":-1}"#);
        refused(r#"{"name":"x","pedantic":1}"#);
    }

    #[test]
    fn nulls_and_pedantic() {
        let request = StreamConfigRequest::parse(
            br#"{"name":"x","max_msgs":null,"subjects":null,"pedantic":true,"persist_mode":""}"#,
        )
        .unwrap();
        assert!(request.pedantic);
        assert_eq!(request.config, StreamConfig { name: "x".into(), ..StreamConfig::default() });
        assert_eq!(StreamConfigRequest::parse(b"").unwrap(), StreamConfigRequest::default());
    }

    #[test]
    fn json_has_the_field_order_of_nats_server() {
        let config = StreamConfig {
            name: "s1".into(),
            subjects: vec!["a.>".into()],
            max_consumers: -1,
            max_msgs: -1,
            max_bytes: -1,
            max_msgs_per_subject: -1,
            max_msg_size: -1,
            num_replicas: 1,
            duplicate_window: 120_000_000_000,
            allow_atomic: true,
            allow_batched: true,
            ..StreamConfig::default()
        };
        assert_eq!(
            json::to_string(&config),
            concat!(
                r#"{"name":"s1","subjects":["a.>"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"#,
                r#""max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","#,
                r#""num_replicas":1,"duplicate_window":120000000000,"compression":"none","allow_direct":false,"#,
                r#""mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,"#,
                r#""allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false,"allow_atomic":true,"allow_batched":true}"#
            )
        );
    }

    #[test]
    fn comparison_ignores_what_was_not_asked() {
        let with = |pairs: &[(&str, &str)]| StreamConfig {
            name: "S".into(),
            metadata: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..StreamConfig::default()
        };
        let current = with(&[("_nats.req.level", "0"), ("headwater.sync_mode", "always"), ("team", "a")]);
        assert!(with(&[("team", "a")]).is_same_request(&current));
        assert!(
            with(&[("team", "a"), ("_nats.ver", "1"), ("headwater.sync_mode", "always")]).is_same_request(&current)
        );
        assert!(!with(&[("team", "a"), ("headwater.sync_mode", "noWait")]).is_same_request(&current));
        assert!(!with(&[("team", "b")]).is_same_request(&current));
        assert!(!with(&[]).is_same_request(&current));
        assert!(!StreamConfig { max_msgs: 5, ..current.clone() }.is_same_request(&current));
    }

    #[test]
    fn levels() {
        assert_eq!(StreamConfig::default().required_level(), 0);
        assert_eq!(StreamConfig { allow_msg_ttl: true, ..Default::default() }.required_level(), 1);
        assert_eq!(StreamConfig { allow_atomic: true, ..Default::default() }.required_level(), 2);
        assert_eq!(StreamConfig { allow_batched: true, ..Default::default() }.required_level(), 4);
        let shown = StreamConfig::default().for_response();
        assert_eq!(shown.metadata.get("_nats.level").map(String::as_str), Some("4"));
    }

    prop_compose! {
        fn any_config()(
            name in "[a-zA-Z_]{1,8}",
            subjects in proptest::collection::vec("[a-z.*>]{1,8}", 0..3),
            numbers in any::<[i64; 5]>(),
            size in any::<i32>(),
            flags in any::<[bool; 8]>(),
            words in (0usize..3, 0usize..2, 0usize..2, 0usize..2),
            metadata in proptest::collection::btree_map("[a-z.]{1,5}", ".{0,6}", 0..3),
            seq in any::<u64>(),
            time in any::<u64>(),
        ) -> StreamConfig {
            let [max_msgs, max_bytes, max_age, num_replicas, duplicate_window] = numbers;
            let [no_ack, allow_direct, sealed, allow_atomic, allow_batched, deny_delete, mirrored, placed] = flags;
            StreamConfig {
                name, subjects, max_msgs, max_bytes, max_age, num_replicas, duplicate_window, max_msg_size: size,
                no_ack, allow_direct, sealed, allow_atomic, allow_batched, deny_delete,
                retention: [Retention::Limits, Retention::Interest, Retention::WorkQueue][words.0],
                discard: [Discard::Old, Discard::New][words.1],
                storage: [Storage::File, Storage::Memory][words.2],
                persist_mode: [PersistMode::Default, PersistMode::Async][words.3],
                mirror: mirrored.then(|| StreamSource { name: "m".into(), opt_start_time: Some(ApiTime::from_ns(time)), ..Default::default() }),
                placement: placed.then(|| Placement { tags: vec!["t".into()], ..Default::default() }),
                first_seq: seq,
                metadata,
                ..StreamConfig::default()
            }
        }
    }

    proptest! {
        #[test]
        fn json_round_trip(config in any_config()) {
            let text = json::to_string(&config);
            let parsed = StreamConfigRequest::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(parsed.config, config);
        }
    }
}
