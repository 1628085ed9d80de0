//! Pull requests (`CONSUMER.MSG.NEXT`). The statuses that end them are `consumer/status.rs` of the core crate.

use serde::Deserialize;

use crate::api::level;
use crate::json;
use crate::status::Status;

/// The time of a request is over.
const REQUEST_TIMEOUT: Status = Status::new(408, "Request Timeout");

/// The request needs a newer server.
const REQUIRED_API_LEVEL: Status = Status::new(412, "Required Api Level");

/// `400 Bad Request - <why>`.
fn bad_request(why: &str) -> Status {
    Status { code: 400, text: format!("Bad Request - {why}").into() }
}

/// A pull request. Durations in nanoseconds; zero means "not set". Unknown fields are ignored, unlike in API requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PullRequest {
    /// Messages wanted, at least 1 after parsing. Zero and below ask for one.
    #[serde(deserialize_with = "json::nullable")]
    pub batch: i64,
    /// How long to wait, ns; negative is over at once.
    #[serde(deserialize_with = "json::nullable")]
    pub expires: i64,
    /// Answer with what there is at once.
    #[serde(deserialize_with = "json::nullable")]
    pub no_wait: bool,
    /// Bytes wanted at most.
    #[serde(deserialize_with = "json::nullable")]
    pub max_bytes: i64,
    /// Heartbeat while idle, ns.
    #[serde(deserialize_with = "json::nullable")]
    pub idle_heartbeat: i64,
    /// Priority group.
    #[serde(deserialize_with = "json::nullable")]
    pub group: String,
    /// Overflow: serve only with this many pending.
    #[serde(deserialize_with = "json::nullable")]
    pub min_pending: i64,
    /// Overflow: serve only with this many unacknowledged.
    #[serde(deserialize_with = "json::nullable")]
    pub min_ack_pending: i64,
    /// Pinned client id.
    #[serde(deserialize_with = "json::nullable")]
    pub id: String,
    /// 0 (first) to 9.
    #[serde(deserialize_with = "json::nullable")]
    pub priority: i64,
    /// `batch` as it was sent, zero if it was not.
    #[serde(skip)]
    asked: i64,
}

impl PullRequest {
    /// Parses a body: empty, a number of messages, or a JSON object. Anything that is no object and no number counts
    /// as one message, as in nats-server.
    ///
    /// # Errors
    /// The `400 Bad Request` status to answer with.
    pub fn parse(body: &[u8]) -> Result<Self, Status> {
        let body = body.trim_ascii();
        let mut request = if body.starts_with(b"{") {
            json::from_slice::<Self>(body).map_err(|error| match error.to_string().as_str() {
                // Pull requests are read by another decoder than API requests, with words of its own.
                "unexpected EOF" => bad_request("unexpected end of JSON input"),
                other => bad_request(other),
            })?
        } else {
            let batch = std::str::from_utf8(body).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(1);
            Self { batch, ..Self::default() }
        };
        request.asked = request.batch;
        request.batch = request.batch.max(1);
        // A heartbeat is only useful if two fit before the request ends.
        if request.idle_heartbeat > 0 && (request.expires <= 0 || request.idle_heartbeat > request.expires / 2) {
            return Err(bad_request("heartbeat value too large"));
        }
        if !(0..=9).contains(&request.priority) {
            return Err(bad_request("Priority must be between 0 and 9"));
        }
        request.check_policy()?;
        Ok(request)
    }

    /// Parses a message to `CONSUMER.MSG.NEXT`, whose headers may say that it needs a newer server.
    ///
    /// # Errors
    /// The status to answer with: `412`, or a `400` as from [`Self::parse`].
    pub fn parse_message(headers: &[u8], body: &[u8]) -> Result<Self, Status> {
        if level::is_supported(headers) { Self::parse(body) } else { Err(REQUIRED_API_LEVEL) }
    }

    /// What only a priority policy gives a meaning to. Consumers have none here ([`crate::api::unsupported`]), so
    /// whoever asks for it would be served in a way that was not asked for. A `group` or `priority` alone asks for
    /// nothing.
    fn check_policy(&self) -> Result<(), Status> {
        if self.min_pending > 0 || self.min_ack_pending > 0 {
            return Err(bad_request("Not a Overflow Priority consumer"));
        }
        if !self.id.is_empty() {
            return Err(bad_request("Not a Pinned Client Priority consumer"));
        }
        Ok(())
    }

    /// The header block that answers a request whose end lay in the past when it came: it gets nothing else, whatever
    /// there is. The numbers are those of the request as it was sent.
    pub fn over_before_it_began(&self) -> Option<Vec<u8>> {
        if self.expires >= 0 {
            return None;
        }
        let mut builder = REQUEST_TIMEOUT.builder();
        builder
            .add("Nats-Pending-Messages", self.asked.to_string())
            .add("Nats-Pending-Bytes", self.max_bytes.to_string());
        Some(builder.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{HeaderBuilder, name};

    fn parse(body: &str) -> PullRequest {
        PullRequest::parse(body.as_bytes()).unwrap()
    }

    fn refused(body: &str) -> String {
        PullRequest::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn bodies() {
        assert_eq!(parse(""), PullRequest { batch: 1, asked: 1, ..PullRequest::default() });
        assert_eq!(parse("20").batch, 20);
        assert_eq!(parse("0").batch, 1);
        assert_eq!(parse("-1").batch, 1);
        assert_eq!(parse("x").batch, 1);
        assert_eq!(parse("[]").batch, 1);
        assert_eq!(parse(r#"{"bogus":1}"#), PullRequest { batch: 1, ..PullRequest::default() });
        let full =
            parse(r#"{"batch":5,"expires":2000000000,"idle_heartbeat":1000000000,"max_bytes":9,"no_wait":true}"#);
        assert_eq!((full.batch, full.expires, full.idle_heartbeat), (5, 2_000_000_000, 1_000_000_000));
        assert!(full.no_wait && full.max_bytes == 9);
    }

    #[test]
    fn a_request_that_ended_before_it_came_gets_only_its_end() {
        for (body, messages, bytes) in [
            (r#"{"expires":-1}"#, 0, 0),
            (r#"{"expires":-5,"batch":2,"no_wait":true,"max_bytes":100}"#, 2, 100),
            (r#"{"expires":-1,"batch":-3,"max_bytes":-4}"#, -3, -4),
        ] {
            let block = parse(body).over_before_it_began().unwrap();
            let want = format!(
                "NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: {messages}\r\nNats-Pending-Bytes: {bytes}\r\n\r\n"
            );
            assert_eq!(String::from_utf8(block).unwrap(), want);
        }
        for lives in ["", "5", r#"{"expires":0}"#, r#"{"expires":1}"#] {
            assert_eq!(parse(lives).over_before_it_began(), None);
        }
    }

    #[test]
    fn refusals() {
        assert_eq!(refused(r#"{"idle_heartbeat":1}"#), "400 Bad Request - heartbeat value too large");
        assert_eq!(
            refused(r#"{"idle_heartbeat":1000000000,"expires":1000000000}"#),
            "400 Bad Request - heartbeat value too large"
        );
        assert_eq!(refused(r#"{"priority":20}"#), "400 Bad Request - Priority must be between 0 and 9");
        assert!(refused("{").starts_with("400 Bad Request - "));
    }

    #[test]
    fn what_needs_a_priority_policy_is_refused() {
        let pinned = "400 Bad Request - Not a Pinned Client Priority consumer";
        let overflow = "400 Bad Request - Not a Overflow Priority consumer";
        assert_eq!(refused(r#"{"id":"x"}"#), pinned);
        assert_eq!(refused(r#"{"min_pending":3}"#), overflow);
        assert_eq!(refused(r#"{"min_ack_pending":1,"group":"g"}"#), overflow);
        for served in [r#"{"group":"g"}"#, r#"{"priority":3}"#, r#"{"id":"","min_pending":0,"min_ack_pending":null}"#] {
            assert_eq!(parse(served).batch, 1, "{served}");
        }
    }

    #[test]
    fn a_request_for_a_newer_server_is_refused_whatever_it_says() {
        let with = |level: &str| {
            let mut builder = HeaderBuilder::new();
            builder.add(name::REQUIRED_API_LEVEL, level);
            PullRequest::parse_message(&builder.finish(), b"{")
        };
        assert_eq!(with("99").unwrap_err().to_string(), "412 Required Api Level");
        assert_eq!(with("0").unwrap_err().code, 400);
        assert_eq!(PullRequest::parse_message(b"", b"2").unwrap().batch, 2);
    }
}
