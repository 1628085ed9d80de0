//! From a [`StreamSpec`] to a JetStream stream configuration (JSON, as `STREAM.CREATE` takes it).
//!
//! Two readings of an unset field: on a stream this object created it means the default, so that a
//! field can be taken back by removing it; on an adopted stream it means "as it is".
//! Keys of the server's configuration that `StreamSpec` has no field for are never touched.

use serde_json::{Map, Value, json};

use crate::duration::{DurationError, GoDuration};
use crate::stream::{StreamSpec, SyncMode};

/// Stream metadata key of `allowAsyncFlush`; `true` or `false`.
pub const META_ALLOW_ASYNC_FLUSH: &str = "headwater.allow_async_flush";
/// Stream metadata key of `syncMode`; `always`, `interval` or `noWait`.
pub const META_SYNC_MODE: &str = "headwater.sync_mode";
/// Stream metadata key of `syncInterval`; a Go duration.
pub const META_SYNC_INTERVAL: &str = "headwater.sync_interval";

const DEFAULT_DUPLICATE_WINDOW_NS: i64 = 120_000_000_000;

/// A duration field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDuration {
    /// The field, as in the manifest.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: DurationError,
}

impl std::fmt::Display for BadDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.field, self.why)
    }
}

impl std::error::Error for BadDuration {}

/// One key that differs between the server and the wish.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldChange {
    /// Key in the JetStream configuration; metadata keys as `metadata.<key>`.
    pub field: String,
    /// The server's value; null if absent.
    pub from: Value,
    /// The wanted value; null to remove.
    pub to: Value,
}

/// The default duplicate window for a `maxAge`: 2 minutes, or the age if that is shorter.
pub fn default_duplicate_window(max_age: &str) -> String {
    let age = max_age.parse().map_or(0, GoDuration::as_nanos);
    GoDuration::from_nanos(default_window_nanos(age)).to_string()
}

fn default_window_nanos(max_age: i64) -> i64 {
    if max_age > 0 { max_age.min(DEFAULT_DUPLICATE_WINDOW_NS) } else { DEFAULT_DUPLICATE_WINDOW_NS }
}

/// The whole configuration of a stream that this spec creates: every managed key, defaults included.
pub fn stream_config(metadata_name: &str, spec: &StreamSpec) -> Result<Value, BadDuration> {
    let mut config = set_keys(&spec.defaults(metadata_name))?;
    config.insert("name".into(), spec.defaults(metadata_name).name.into());
    Ok(Value::Object(config))
}

/// The configuration an own stream should have, given what the server has: managed keys from the
/// spec, the others as they are.
pub fn own_config(metadata_name: &str, spec: &StreamSpec, server: &Value) -> Result<Value, BadDuration> {
    let Value::Object(wish) = stream_config(metadata_name, spec)? else {
        return Ok(server.clone());
    };
    Ok(overlay(server, wish, Unset::Removes))
}

/// The configuration an adopted stream should have: keys the spec sets, the others as they are.
pub fn adopted_config(spec: &StreamSpec, server: &Value) -> Result<Value, BadDuration> {
    Ok(overlay(server, set_keys(spec)?, Unset::Keeps))
}

/// What a metadata key that the spec does not name means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unset {
    Removes,
    Keeps,
}

fn overlay(server: &Value, wish: Map<String, Value>, unset: Unset) -> Value {
    let mut config = server.as_object().cloned().unwrap_or_default();
    let kept: Map<String, Value> = config
        .get("metadata")
        .and_then(Value::as_object)
        .map(|metadata| {
            metadata
                .iter()
                .filter(|(key, _)| unset == Unset::Keeps || reserved(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        })
        .unwrap_or_default();
    for (key, value) in wish {
        if let ("metadata", Value::Object(wanted)) = (key.as_str(), &value) {
            let mut merged = kept.clone();
            merged.extend(wanted.clone());
            config.insert(key, Value::Object(merged));
        } else {
            config.insert(key, value);
        }
    }
    config.entry("metadata").or_insert_with(|| Value::Object(kept));
    let mut config = Value::Object(config);
    if sync_mode(&config) != SyncMode::Interval
        && let Some(Value::Object(metadata)) = config.get_mut("metadata")
    {
        // The server refuses an interval in a mode that has none; it leaves together with the mode.
        metadata.remove(META_SYNC_INTERVAL);
    }
    config
}

fn reserved(key: &str) -> bool {
    key.starts_with("headwater.") || key.starts_with("_nats.")
}

/// The keys this spec sets, in JetStream's spelling; an unset field yields no key.
fn set_keys(spec: &StreamSpec) -> Result<Map<String, Value>, BadDuration> {
    let mut config = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            config.insert(key.to_owned(), value);
        }
    };
    put("description", spec.description.clone().map(Value::from));
    put("subjects", spec.subjects.clone().map(Value::from));
    put("storage", spec.storage.map(|v| json!(v)));
    put("retention", spec.retention.map(|v| json!(v)));
    put("num_replicas", spec.replicas.map(Value::from));
    put("max_msgs", spec.max_msgs.map(unlimited));
    put("max_bytes", spec.max_bytes.map(unlimited));
    put("max_msg_size", spec.max_msg_size.map(unlimited));
    put("max_msgs_per_subject", spec.max_msgs_per_subject.map(unlimited));
    put("max_age", nanos("maxAge", spec.max_age.as_deref())?);
    put("discard", spec.discard.map(|v| json!(v)));
    put("discard_new_per_subject", spec.discard_per_subject.map(Value::from));
    put("duplicate_window", nanos("duplicateWindow", spec.duplicate_window.as_deref())?);
    put("deny_delete", spec.deny_delete.map(Value::from));
    put("deny_purge", spec.deny_purge.map(Value::from));
    put("allow_rollup_hdrs", spec.allow_rollup.map(Value::from));
    put("allow_direct", spec.allow_direct.map(Value::from));

    let mut metadata: Map<String, Value> =
        spec.metadata.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    if let Some(flag) = spec.allow_async_flush {
        metadata.insert(META_ALLOW_ASYNC_FLUSH.into(), flag.to_string().into());
    }
    if let Some(mode) = spec.sync_mode {
        metadata.insert(META_SYNC_MODE.into(), mode.as_str().into());
    }
    if let Some(text) = spec.sync_interval.as_deref() {
        let interval = parse("syncInterval", text)?;
        metadata.insert(META_SYNC_INTERVAL.into(), interval.to_string().into());
    }
    if !metadata.is_empty() || spec.metadata.is_some() {
        config.insert("metadata".into(), Value::Object(metadata));
    }
    Ok(config)
}

fn parse(field: &'static str, text: &str) -> Result<GoDuration, BadDuration> {
    text.parse().map_err(|why| BadDuration { field, why })
}

fn nanos(field: &'static str, text: Option<&str>) -> Result<Option<Value>, BadDuration> {
    text.map(|text| parse(field, text).map(|d| Value::from(d.as_nanos()))).transpose()
}

/// JetStream reads 0 as unlimited and reports -1.
fn unlimited(limit: i64) -> Value {
    Value::from(if limit <= 0 { -1 } else { limit })
}

/// What the server means by an absent or zero value of a managed key.
fn canonical(key: &str, config: &Value) -> Value {
    let value = config.get(key).cloned().unwrap_or(Value::Null);
    match key {
        "description" => Value::from(value.as_str().unwrap_or_default()),
        "storage" => Value::from(value.as_str().unwrap_or("file")),
        "retention" => Value::from(value.as_str().unwrap_or("limits")),
        "discard" => Value::from(value.as_str().unwrap_or("old")),
        "num_replicas" => Value::from(value.as_i64().unwrap_or(0).max(1)),
        "max_msgs" | "max_bytes" | "max_msg_size" | "max_msgs_per_subject" => unlimited(value.as_i64().unwrap_or(-1)),
        "max_age" => Value::from(value.as_i64().unwrap_or(0)),
        "duplicate_window" => {
            let age = config.get("max_age").and_then(Value::as_i64).unwrap_or(0);
            match value.as_i64() {
                Some(window) if window > 0 => Value::from(window),
                _ => Value::from(default_window_nanos(age)),
            }
        }
        "discard_new_per_subject" | "deny_delete" | "deny_purge" | "allow_rollup_hdrs" | "allow_direct" => {
            Value::from(value.as_bool().unwrap_or(false))
        }
        "subjects" => {
            // Order carries no meaning; comparing it would make an update of every reordering.
            let mut subjects: Vec<String> =
                value.as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_owned)).collect();
            if subjects.is_empty() {
                subjects.extend(config.get("name").and_then(Value::as_str).map(str::to_owned));
            }
            subjects.sort();
            Value::from(subjects)
        }
        _ => value,
    }
}

const COMPARED: [&str; 17] = [
    "description",
    "subjects",
    "storage",
    "retention",
    "num_replicas",
    "max_msgs",
    "max_bytes",
    "max_msg_size",
    "max_msgs_per_subject",
    "max_age",
    "discard",
    "discard_new_per_subject",
    "duplicate_window",
    "deny_delete",
    "deny_purge",
    "allow_rollup_hdrs",
    "allow_direct",
];

/// What differs in meaning between the server's configuration and the wanted one.
///
/// Spelling does not count: absent and default values, the order of subjects, and different
/// texts of one duration are the same. `_nats.` metadata belongs to the server.
pub fn differences(server: &Value, wanted: &Value) -> Vec<FieldChange> {
    let mut changes: Vec<FieldChange> = COMPARED
        .iter()
        .filter_map(|key| {
            let (from, to) = (canonical(key, server), canonical(key, wanted));
            (from != to).then(|| FieldChange { field: (*key).to_owned(), from, to })
        })
        .collect();

    let empty = Map::new();
    let metadata = |config: &'_ Value| -> Map<String, Value> {
        config.get("metadata").and_then(Value::as_object).unwrap_or(&empty).clone()
    };
    let (have, want) = (metadata(server), metadata(wanted));
    let keys: std::collections::BTreeSet<&String> = have.keys().chain(want.keys()).collect();
    let interval_counts = sync_mode(wanted) == SyncMode::Interval;
    for key in keys {
        let (from, to) = (have.get(key), want.get(key));
        let same = match key.as_str() {
            META_SYNC_INTERVAL if !interval_counts => true,
            META_SYNC_INTERVAL => duration_of(from) == duration_of(to),
            // An absent durability key means "unchanged".
            META_SYNC_MODE | META_ALLOW_ASYNC_FLUSH if to.is_none() => true,
            key if key.starts_with("_nats.") => true,
            _ => from == to,
        };
        if !same {
            changes.push(FieldChange {
                field: format!("metadata.{key}"),
                from: from.cloned().unwrap_or(Value::Null),
                to: to.cloned().unwrap_or(Value::Null),
            });
        }
    }
    changes
}

fn duration_of(value: Option<&Value>) -> Option<GoDuration> {
    value.and_then(Value::as_str).and_then(|text| text.parse().ok())
}

/// `syncMode` of a JetStream configuration; `always` where the key is absent or not understood.
pub fn sync_mode(config: &Value) -> SyncMode {
    match metadata_text(config, META_SYNC_MODE) {
        Some("interval") => SyncMode::Interval,
        Some("noWait") => SyncMode::NoWait,
        _ => SyncMode::Always,
    }
}

/// `syncInterval` of a JetStream configuration, in milliseconds.
pub fn sync_interval_ms(config: &Value) -> Option<u64> {
    metadata_text(config, META_SYNC_INTERVAL)
        .and_then(|text| text.parse::<GoDuration>().ok())
        .map(GoDuration::as_millis)
}

/// `allowAsyncFlush` of a JetStream configuration; true where the key is absent.
pub fn allow_async_flush(config: &Value) -> bool {
    metadata_text(config, META_ALLOW_ASYNC_FLUSH) != Some("false")
}

fn metadata_text<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    config.get("metadata")?.get(key)?.as_str()
}

#[cfg(test)]
#[path = "jetstream_tests.rs"]
mod tests;
