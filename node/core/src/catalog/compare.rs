//! Whether two stream configurations mean the same.

use serde_json::{Map, Value};

/// Metadata keys under this prefix are the server's own notes.
const SERVER_PREFIX: &str = "_nats.";
/// Metadata keys under this prefix mean "unchanged" when absent.
const STICKY_PREFIX: &str = "headwater.";

/// Whether a create with `wanted` asks for what exists: equal but for absent or null fields on either side, the
/// server's metadata, and durability metadata that `wanted` leaves out.
pub fn same_config(existing: &Value, wanted: &Value) -> bool {
    let (Value::Object(existing), Value::Object(wanted)) = (existing, wanted) else {
        return existing == wanted;
    };
    fields(existing).chain(fields(wanted)).all(|field| match field.as_str() {
        "metadata" => same_metadata(existing.get("metadata"), wanted.get("metadata")),
        name => same_value(existing.get(name), wanted.get(name)),
    })
}

fn fields(object: &Map<String, Value>) -> impl Iterator<Item = &String> {
    object.keys()
}

fn same_value(existing: Option<&Value>, wanted: Option<&Value>) -> bool {
    let absent = |value: &&Value| !value.is_null();
    existing.filter(absent) == wanted.filter(absent)
}

fn same_metadata(existing: Option<&Value>, wanted: Option<&Value>) -> bool {
    let empty = Map::new();
    let object = |value: Option<&Value>| match value {
        Some(Value::Object(object)) => Some(object.clone()),
        Some(Value::Null) | None => Some(empty.clone()),
        Some(_) => None,
    };
    let (Some(existing), Some(wanted)) = (object(existing), object(wanted)) else {
        return false;
    };
    let keys = existing.keys().chain(wanted.keys()).filter(|key| !key.starts_with(SERVER_PREFIX));
    keys.into_iter().all(|key| match wanted.get(key) {
        None => key.starts_with(STICKY_PREFIX),
        value => existing.get(key) == value,
    })
}
