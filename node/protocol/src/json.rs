//! JSON as a Go server takes and gives it. What comes from outside is parsed here and nowhere else: an array in place of
//! an object is an error, at every level.

mod objects;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use objects::Unknown;

/// Why a body was not understood, worded as Go words it where the case is common.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

/// Parses a whole body. Unknown fields are up to the type.
///
/// # Errors
/// [`JsonError`] with a text fit for `invalid JSON: …`.
pub fn from_slice<T: DeserializeOwned>(body: &[u8]) -> Result<T, JsonError> {
    parse(body, Unknown::Ignored)
}

/// Parses a whole body. Unknown fields are an error that names them, at every level.
///
/// # Errors
/// [`JsonError`].
pub fn from_slice_strict<T: DeserializeOwned>(body: &[u8]) -> Result<T, JsonError> {
    parse(body, Unknown::Refused)
}

/// Takes a type out of JSON that was parsed before. Unknown fields are up to the type.
///
/// # Errors
/// [`JsonError`].
pub fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, JsonError> {
    objects::read(value, Unknown::Ignored).map_err(|error: serde_json::Error| JsonError(describe(&error)))
}

fn parse<T: DeserializeOwned>(body: &[u8], unknown: Unknown) -> Result<T, JsonError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    objects::read(&mut json, unknown)
        .and_then(|value| json.end().map(|()| value))
        .map_err(|error| JsonError(describe(&error)))
}

fn describe(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected EOF".to_owned();
    }
    let text = error.to_string();
    // Where in the body is serde's addition.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    // serde: unknown field `bogus`, expected one of …; Go: json: unknown field "bogus".
    match text.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
        Some((field, _)) => format!("json: unknown field \"{field}\""),
        // What a type is called in this code is nothing to whoever wrote the body.
        None => match text.split_once("expected struct ") {
            Some((found, _)) => format!("{found}expected an object"),
            None => text.to_owned(),
        },
    }
}

/// Serializes a type of this crate. They have string keys and no fallible parts, so this cannot fail.
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("types of this crate have string keys and infallible fields")
}

/// For `#[serde(deserialize_with)]`: `null` means the field's type default, as in Go.
///
/// # Errors
/// The deserializer's.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// For `skip_serializing_if`: Go's `omitempty` on numbers and booleans.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether a request body carries nothing: not JSON-shaped at all (as nats-server sees it) or an empty object.
pub fn is_empty_request(body: &[u8]) -> bool {
    let body = body.trim_ascii();
    match body.first() {
        Some(b'{') => body
            .strip_prefix(b"{")
            .and_then(|rest| rest.strip_suffix(b"}"))
            .is_some_and(|inside| inside.trim_ascii().is_empty()),
        Some(b'[') => false,
        _ => true,
    }
}

/// Bytes as standard base64 text.
pub(crate) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Body {
        #[serde(deserialize_with = "nullable")]
        count: i64,
    }

    #[test]
    fn errors_read_like_those_of_go() {
        let error = |body: &str| from_slice::<Body>(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(r#"{"bogus":1}"#), "json: unknown field \"bogus\"");
        assert_eq!(error(r#"{"count":1"#), "unexpected EOF");
        assert!(!error(r#"{"count":"x"}"#).is_empty());
        assert_eq!(from_slice::<Body>(br#"{"count":null}"#), Ok(Body { count: 0 }));
    }

    #[test]
    fn only_an_object_is_one_and_only_one_value_is_a_body() {
        for bad in ["[]", "[1]", "[null]", "\"x\"", "5", "{}x", "{}{}", ""] {
            assert!(from_slice::<Body>(bad.as_bytes()).is_err(), "{bad}");
            assert!(from_slice_strict::<Body>(bad.as_bytes()).is_err(), "{bad}");
        }
        let error = from_value::<Body>(serde_json::json!([1])).unwrap_err();
        assert_eq!(error.to_string(), "invalid type: sequence, expected an object");
        assert_eq!(from_value::<Body>(serde_json::json!({"count": 1})), Ok(Body { count: 1 }));
        assert_eq!(from_slice_strict::<Body>(br#" {"count":1} "#), Ok(Body { count: 1 }));
    }

    #[test]
    fn empty_requests() {
        for empty in ["", "x", "{}", " { } ", "5"] {
            assert!(is_empty_request(empty.as_bytes()), "{empty}");
        }
        for full in ["{\"a\":1}", "[]", "{", "{\"bogus\""] {
            assert!(!is_empty_request(full.as_bytes()), "{full}");
        }
    }
}
