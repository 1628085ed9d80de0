//! Reading and deleting single messages through the API.

use serde::{Deserialize, Serialize};

use crate::api::error::{self, ApiError};
use crate::api::{is_missing_body, parse_body};
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
    if is_missing_body(body) {
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
    /// `10025` on malformed JSON, `10003` without any.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if is_missing_body(body) { Err(error::BAD_REQUEST) } else { parse_body(body) }
    }

    /// Why a message cannot be deleted that a stream of these sequences does not have, in nats-server's words: one
    /// error for a gap, another for what was never there or is no more.
    pub fn not_there(&self, first_seq: u64, last_seq: u64) -> ApiError {
        if self.seq == 0 || self.seq < first_seq.min(last_seq.saturating_add(1)) {
            error::stream_msg_delete_failed("no message found")
        } else if self.seq > last_seq {
            error::stream_msg_delete_failed("stream store EOF")
        } else {
            error::sequence_not_found(self.seq)
        }
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
        for no_object in ["[]", "x", "1"] {
            assert_eq!(get(no_object).unwrap_err().err_code, 10025, "{no_object}");
        }
        for bad in [
            "",
            "null",
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
    fn deletes_need_a_body() {
        for empty in ["", " ", "{}", "{ }"] {
            assert_eq!(MsgDeleteRequest::parse(empty.as_bytes()), Err(error::BAD_REQUEST), "{empty:?}");
        }
        for no_object in ["x", "1", "[]", r#"{"seq":-1}"#] {
            assert_eq!(MsgDeleteRequest::parse(no_object.as_bytes()).unwrap_err().err_code, 10025, "{no_object}");
        }
        assert_eq!(MsgDeleteRequest::parse(br#"{"seq":2}"#), Ok(MsgDeleteRequest { seq: 2, no_erase: false }));
    }

    #[test]
    fn what_is_not_there_is_told_by_where_it_is_not() {
        let told = |seq, first, last| {
            let error = MsgDeleteRequest { seq, no_erase: false }.not_there(first, last);
            (error.code, error.err_code, error.description.into_owned())
        };
        let before = (500, 10057, "no message found".to_owned());
        let beyond = (500, 10057, "stream store EOF".to_owned());
        for (seq, first, last, want) in [
            (0, 1, 9, &before),
            (0, 1, 0, &before),
            (3, 4, 9, &before),
            (9, 10, 9, &before),
            (10, 4, 9, &beyond),
            (1, 1, 0, &beyond),
            (u64::MAX, 10, 9, &beyond),
        ] {
            assert_eq!(&told(seq, first, last), want, "{seq} of {first}..={last}");
        }
        assert_eq!(told(5, 4, 9), (400, 10043, "sequence 5 not found".to_owned()));
    }
}
