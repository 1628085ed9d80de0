//! The common form of every API response: a `type`, then the payload's fields or an `error`.

use serde::Serialize;

use crate::api::error::ApiError;
use crate::json;

const SCHEMA_PREFIX: &str = "io.nats.jetstream.api.v1.";

/// The name of a response schema, without its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResponseType(pub &'static str);

impl ResponseType {
    /// The whole `type` string.
    pub fn schema(self) -> String {
        format!("{SCHEMA_PREFIX}{}", self.0)
    }
}

/// A response with `payload`, which must serialize as a JSON object.
pub fn success<T: Serialize>(kind: ResponseType, payload: &T) -> String {
    let body = json::to_string(payload);
    let fields = body.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    let comma = if fields.is_empty() { "" } else { "," };
    format!("{{\"type\":\"{SCHEMA_PREFIX}{}\"{comma}{fields}}}", kind.0)
}

/// A response that refuses.
pub fn failure(kind: ResponseType, error: &ApiError) -> String {
    format!(
        "{{\"type\":\"{SCHEMA_PREFIX}{}\",\"error\":{}{}}}",
        kind.0,
        json::to_string(error),
        fields_of_failure(kind)
    )
}

/// Fields that a response shows even when it refuses: clients may decode them without a look at `error`.
fn fields_of_failure(kind: ResponseType) -> &'static str {
    match kind.0 {
        "stream_info_response" => ",\"total\":0,\"offset\":0,\"limit\":0",
        "stream_names_response" => ",\"total\":0,\"offset\":0,\"limit\":0,\"streams\":null",
        "stream_list_response" => ",\"total\":0,\"offset\":0,\"limit\":0,\"streams\":[]",
        "consumer_names_response" | "consumer_list_response" => {
            ",\"total\":0,\"offset\":0,\"limit\":0,\"consumers\":[]"
        }
        "stream_purge_response" => ",\"purged\":0",
        _ => "",
    }
}

/// Either of the two.
pub fn respond<T: Serialize>(kind: ResponseType, result: &Result<T, ApiError>) -> String {
    match result {
        Ok(payload) => success(kind, payload),
        Err(error) => failure(kind, error),
    }
}

/// Payload of the many responses that only say `success`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Success {
    success: bool,
}

impl Success {
    /// It worked.
    pub const YES: Self = Self { success: true };
}

/// Payload of responses without fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error;

    #[test]
    fn forms() {
        let kind = ResponseType("stream_delete_response");
        assert_eq!(
            success(kind, &Success::YES),
            r#"{"type":"io.nats.jetstream.api.v1.stream_delete_response","success":true}"#
        );
        assert_eq!(success(kind, &Nothing {}), r#"{"type":"io.nats.jetstream.api.v1.stream_delete_response"}"#);
        assert_eq!(
            respond::<Success>(kind, &Err(error::STREAM_NOT_FOUND)),
            r#"{"type":"io.nats.jetstream.api.v1.stream_delete_response","error":{"code":404,"err_code":10059,"description":"stream not found"}}"#
        );
        assert_eq!(
            failure(ResponseType("stream_purge_response"), &error::STREAM_NOT_FOUND),
            r#"{"type":"io.nats.jetstream.api.v1.stream_purge_response","error":{"code":404,"err_code":10059,"description":"stream not found"},"purged":0}"#
        );
        assert_eq!(kind.schema(), "io.nats.jetstream.api.v1.stream_delete_response");
    }
}
