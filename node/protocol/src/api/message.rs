//! Reading and deleting single messages through the API.

use serde::{Deserialize, Serialize};

use crate::api::error::{self, ApiError};
use crate::api::parse_body;
use crate::direct::Pick;
use crate::json;
use crate::rfc3339::ApiTime;

/// The fields that pick messages, as direct get and `STREAM.MSG.GET` share them. Unknown fields are ignored here: only
/// the latter is strict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MsgSelector {
    /// This sequence, or the first one considered.
    #[serde(deserialize_with = "json::nullable")]
    pub seq: u64,
    /// The last message of this subject.
    #[serde(deserialize_with = "json::nullable")]
    pub last_by_subj: String,
    /// The next message of this subject or filter.
    #[serde(deserialize_with = "json::nullable")]
    pub next_by_subj: String,
    /// The first message stored at or after this time.
    pub start_time: Option<ApiTime>,
    /// Several messages.
    #[serde(deserialize_with = "json::nullable")]
    pub batch: i64,
    /// Bytes of several messages.
    #[serde(deserialize_with = "json::nullable")]
    pub max_bytes: i64,
    /// The last message of each of these subjects or filters.
    #[serde(deserialize_with = "json::nullable")]
    pub multi_last: Vec<String>,
    /// As of this sequence.
    #[serde(deserialize_with = "json::nullable")]
    pub up_to_seq: u64,
    /// As of this time.
    pub up_to_time: Option<ApiTime>,
    /// Leave the `Nats-Stream` and similar headers out.
    #[serde(deserialize_with = "json::nullable")]
    pub no_hdr: bool,
}

const FIELDS: [&str; 10] = [
    "seq",
    "last_by_subj",
    "next_by_subj",
    "start_time",
    "batch",
    "max_bytes",
    "multi_last",
    "up_to_seq",
    "up_to_time",
    "no_hdr",
];

/// What `STREAM.MSG.GET` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MsgGet {
    /// Which message.
    pub pick: Pick,
    /// Leave its headers out.
    pub no_hdr: bool,
}

/// Reads the body of `STREAM.MSG.GET`.
///
/// # Errors
/// `10025` on malformed JSON, `10003` unless exactly one message is picked.
pub fn parse_msg_get(body: &[u8]) -> Result<MsgGet, ApiError> {
    if json::is_empty_request(body) {
        return Err(error::BAD_REQUEST);
    }
    let value: serde_json::Map<String, serde_json::Value> = parse_body(body)?;
    if let Some(unknown) = value.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        return Err(error::invalid_json(&format!("json: unknown field {unknown:?}")));
    }
    let selector: MsgSelector = parse_body(body)?;
    if selector.batch > 0 || selector.max_bytes != 0 || !selector.multi_last.is_empty() {
        return Err(error::BAD_REQUEST);
    }
    let MsgSelector { seq, last_by_subj, next_by_subj, start_time, no_hdr, .. } = selector;
    let since = start_time.map(|time| time.ns().unwrap_or(0));
    let pick = Pick::parse(seq, last_by_subj, next_by_subj, since).map_err(|_| error::BAD_REQUEST)?;
    Ok(MsgGet { pick, no_hdr })
}

/// Response of `STREAM.MSG.GET`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsgGetResponse {
    /// The message.
    pub message: StoredMessage,
}

/// A stored message in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMessage {
    /// Its subject.
    pub subject: String,
    /// Its sequence.
    pub seq: u64,
    /// Its header block.
    #[serde(rename = "hdrs", default, with = "json::base64_bytes", skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<u8>,
    /// Its body.
    #[serde(rename = "data", default, with = "json::base64_bytes", skip_serializing_if = "Vec::is_empty")]
    pub payload: Vec<u8>,
    /// When it was stored.
    pub time: ApiTime,
}

/// Body of `STREAM.MSG.DELETE`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MsgDeleteRequest {
    /// Which message.
    #[serde(deserialize_with = "json::nullable")]
    pub seq: u64,
    /// Leave the bytes on disk until they are compacted away.
    #[serde(deserialize_with = "json::nullable")]
    pub no_erase: bool,
}

impl MsgDeleteRequest {
    /// Reads the body.
    ///
    /// # Errors
    /// `10025` on malformed JSON, `10003` without a sequence.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if json::is_empty_request(body) {
            return Err(error::BAD_REQUEST);
        }
        let request: Self = parse_body(body)?;
        if request.seq == 0 { Err(error::BAD_REQUEST) } else { Ok(request) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_message_is_picked() {
        let get = |body: &str| parse_msg_get(body.as_bytes());
        let pick = |body: &str| get(body).map(|get| get.pick);
        assert_eq!(pick(r#"{"seq":6}"#), Ok(Pick::Seq(6)));
        assert_eq!(pick(r#"{"last_by_subj":"a"}"#), Ok(Pick::LastBySubject("a".into())));
        assert_eq!(pick(r#"{"next_by_subj":"a"}"#), Ok(Pick::NextBySubject { seq: 1, subject: "a".into() }));
        assert_eq!(pick(r#"{"start_time":"2020-01-01T00:00:00Z"}"#), Ok(Pick::Since(1_577_836_800_000_000_000)));
        assert_eq!(
            pick(r#"{"start_time":"1970-01-01T00:00:01Z","next_by_subj":"a"}"#),
            Ok(Pick::NextSince { ns: 1_000_000_000, subject: "a".into() })
        );
        assert_eq!(get(r#"{"seq":2,"no_hdr":true}"#), Ok(MsgGet { pick: Pick::Seq(2), no_hdr: true }));
        assert_eq!(pick(r#"{"seq":2,"batch":-1}"#), Ok(Pick::Seq(2)));
        assert_eq!(get("[]").unwrap_err().err_code, 10025);
        for bad in [
            "",
            r#"{"no_hdr":true}"#,
            r#"{"seq":1,"max_bytes":5}"#,
            r#"{"start_time":"2020-01-01T00:00:00Z","next_by_subj":"a","seq":1}"#,
            r#"{"start_time":"2020-01-01T00:00:00Z","last_by_subj":"a"}"#,
            "{}",
            r#"{"seq":1,"last_by_subj":"a"}"#,
            r#"{"last_by_subj":"a","next_by_subj":"a"}"#,
            r#"{"multi_last":["a"]}"#,
            r#"{"batch":3,"seq":1}"#,
            r#"{"start_time":"2020-01-01T00:00:00Z","seq":1}"#,
        ] {
            assert_eq!(pick(bad), Err(error::BAD_REQUEST), "{bad}");
        }
        assert_eq!(pick(r#"{"bogus":1}"#).unwrap_err().description, "invalid JSON: json: unknown field \"bogus\"");
        assert_eq!(pick(r#"{"start_time":"x"}"#).unwrap_err().err_code, 10025);
    }

    #[test]
    fn message_json() {
        let message = StoredMessage {
            subject: "a.x".into(),
            seq: 6,
            headers: b"NATS/1.0\r\nFoo: bar\r\n\r\n".to_vec(),
            payload: b"p".to_vec(),
            time: ApiTime::from_ns(1_500_000_000),
        };
        assert_eq!(
            json::to_string(&MsgGetResponse { message }),
            r#"{"message":{"subject":"a.x","seq":6,"hdrs":"TkFUUy8xLjANCkZvbzogYmFyDQoNCg==","data":"cA==","time":"1970-01-01T00:00:01.5Z"}}"#
        );
    }

    #[test]
    fn deletes_need_a_sequence() {
        assert_eq!(MsgDeleteRequest::parse(b"{}"), Err(error::BAD_REQUEST));
        assert_eq!(MsgDeleteRequest::parse(br#"{"no_erase":true}"#), Err(error::BAD_REQUEST));
        assert_eq!(MsgDeleteRequest::parse(br#"{"seq":2}"#), Ok(MsgDeleteRequest { seq: 2, no_erase: false }));
    }
}
