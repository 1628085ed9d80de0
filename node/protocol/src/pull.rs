//! Pull requests (`CONSUMER.MSG.NEXT`) and the statuses that answer or end them.

use serde::Deserialize;

use crate::duration;
use crate::headers::{HeaderBuilder, name};
use crate::json;
use crate::status::Status;

/// Nothing pending and `no_wait` asked.
pub const NO_MESSAGES: Status = Status::new(404, "No Messages");
/// The request's time is over.
pub const REQUEST_TIMEOUT: Status = Status::new(408, "Request Timeout");
/// `no_wait` while other requests are queued.
pub const REQUESTS_PENDING: Status = Status::new(408, "Requests Pending");
/// The requester's subscription is gone.
pub const INTEREST_EXPIRED: Status = Status::new(408, "Interest Expired");
/// Too many requests wait; told only to requests without a heartbeat.
pub const EXCEEDED_MAX_WAITING: Status = Status::new(409, "Exceeded MaxWaiting");
/// The next message does not fit the request's `max_bytes`.
pub const MESSAGE_SIZE_EXCEEDS_MAX_BYTES: Status = Status::new(409, "Message Size Exceeds MaxBytes");
/// The request is served in full while bytes or time were left.
pub const BATCH_COMPLETED: Status = Status::new(409, "Batch Completed");
/// The consumer was deleted.
pub const CONSUMER_DELETED: Status = Status::new(409, "Consumer Deleted");
/// The consumer's leader moved.
pub const LEADERSHIP_CHANGE: Status = Status::new(409, "Leadership Change");
/// The node stops.
pub const SERVER_SHUTDOWN: Status = Status::new(409, "Server Shutdown");
/// Pull from a push consumer.
pub const CONSUMER_IS_PUSH_BASED: Status = Status::new(409, "Consumer is push based");
/// The request needs a newer server.
pub const REQUIRED_API_LEVEL: Status = Status::new(412, "Required Api Level");
/// Keeps an idle request or subscription alive.
pub const IDLE_HEARTBEAT: Status = Status::new(100, "Idle Heartbeat");
/// Push flow control; answered to the reply subject.
pub const FLOW_CONTROL_REQUEST: Status = Status::new(100, "FlowControl Request");

/// `409 Exceeded MaxRequestBatch of N`.
pub fn exceeded_max_batch(max: i64) -> Status {
    Status { code: 409, text: format!("Exceeded MaxRequestBatch of {max}").into() }
}

/// `409 Exceeded MaxRequestExpires of D`, with a Go duration.
pub fn exceeded_max_expires(max_ns: i64) -> Status {
    Status { code: 409, text: format!("Exceeded MaxRequestExpires of {}", duration::format(max_ns)).into() }
}

/// `409 Exceeded MaxRequestMaxBytes of N`.
pub fn exceeded_max_bytes(max: i64) -> Status {
    Status { code: 409, text: format!("Exceeded MaxRequestMaxBytes of {max}").into() }
}

/// `400 Bad Request - <why>`.
pub fn bad_request(why: &str) -> Status {
    Status { code: 400, text: format!("Bad Request - {why}").into() }
}

/// Adds what an ended request had left.
pub fn with_pending(status: &Status, messages: u64, bytes: u64) -> Vec<u8> {
    let mut builder = status.builder();
    builder.add_number(name::PENDING_MESSAGES, messages).add_number(name::PENDING_BYTES, bytes);
    builder.finish()
}

/// The block of an idle heartbeat of a push consumer: last delivered sequences and, if stalled, the flow control subject.
pub fn push_heartbeat(last_consumer_seq: u64, last_stream_seq: u64, stalled: Option<&str>) -> Vec<u8> {
    let mut builder: HeaderBuilder = IDLE_HEARTBEAT.builder();
    builder.add_number(name::LAST_CONSUMER, last_consumer_seq).add_number(name::LAST_STREAM, last_stream_seq);
    if let Some(subject) = stalled {
        builder.add(name::CONSUMER_STALLED, subject);
    }
    builder.finish()
}

/// A pull request. Durations in nanoseconds; zero means "not set". Unknown fields are ignored, unlike in API requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PullRequest {
    /// Messages wanted, at least 1 after parsing.
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
}

impl Default for PullRequest {
    fn default() -> Self {
        Self {
            batch: 1,
            expires: 0,
            no_wait: false,
            max_bytes: 0,
            idle_heartbeat: 0,
            group: String::new(),
            min_pending: 0,
            min_ack_pending: 0,
            id: String::new(),
            priority: 0,
        }
    }
}

/// What a consumer allows; zero or less means "no limit".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullLimits {
    /// Largest `batch`.
    pub max_batch: i64,
    /// Longest `expires`, ns.
    pub max_expires: i64,
    /// Largest `max_bytes`.
    pub max_bytes: i64,
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
        request.batch = request.batch.max(1);
        // A heartbeat is only useful if two fit before the request ends.
        if request.idle_heartbeat > 0 && (request.expires <= 0 || request.idle_heartbeat > request.expires / 2) {
            return Err(bad_request("heartbeat value too large"));
        }
        if !(0..=9).contains(&request.priority) {
            return Err(bad_request("Priority must be between 0 and 9"));
        }
        Ok(request)
    }

    /// Checks the request against a consumer without priority groups.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn check(&self, limits: &PullLimits) -> Result<(), Status> {
        if limits.max_batch > 0 && self.batch > limits.max_batch {
            return Err(exceeded_max_batch(limits.max_batch));
        }
        if limits.max_expires > 0 && self.expires > limits.max_expires {
            return Err(exceeded_max_expires(limits.max_expires));
        }
        if limits.max_bytes > 0 && self.max_bytes > limits.max_bytes {
            return Err(exceeded_max_bytes(limits.max_bytes));
        }
        if self.min_pending > 0 || self.min_ack_pending > 0 {
            return Err(bad_request("Not a Overflow Priority consumer"));
        }
        if !self.id.is_empty() {
            return Err(bad_request("Not a Pinned Client Priority consumer"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> PullRequest {
        PullRequest::parse(body.as_bytes()).unwrap()
    }

    fn refused(body: &str) -> String {
        PullRequest::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn bodies() {
        assert_eq!(parse(""), PullRequest::default());
        assert_eq!(parse("20").batch, 20);
        assert_eq!(parse("0").batch, 1);
        assert_eq!(parse("-1").batch, 1);
        assert_eq!(parse("x").batch, 1);
        assert_eq!(parse("[]").batch, 1);
        assert_eq!(parse(r#"{"bogus":1}"#), PullRequest::default());
        let full =
            parse(r#"{"batch":5,"expires":2000000000,"idle_heartbeat":1000000000,"max_bytes":9,"no_wait":true}"#);
        assert_eq!((full.batch, full.expires, full.idle_heartbeat), (5, 2_000_000_000, 1_000_000_000));
        assert!(full.no_wait && full.max_bytes == 9);
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
        let limits = PullLimits { max_batch: 10, max_expires: 5_000_000_000, max_bytes: 100_000 };
        let status = |body: &str| parse(body).check(&limits).unwrap_err().to_string();
        assert_eq!(status(r#"{"batch":20}"#), "409 Exceeded MaxRequestBatch of 10");
        assert_eq!(status(r#"{"expires":10000000000}"#), "409 Exceeded MaxRequestExpires of 5s");
        assert_eq!(status(r#"{"max_bytes":200000}"#), "409 Exceeded MaxRequestMaxBytes of 100000");
        assert_eq!(status(r#"{"min_pending":5}"#), "400 Bad Request - Not a Overflow Priority consumer");
        assert_eq!(status(r#"{"id":"x"}"#), "400 Bad Request - Not a Pinned Client Priority consumer");
        assert!(parse(r#"{"group":"x"}"#).check(&limits).is_ok());
    }

    #[test]
    fn status_texts_are_those_clients_compare() {
        let texts: Vec<String> = [
            NO_MESSAGES,
            REQUEST_TIMEOUT,
            REQUESTS_PENDING,
            INTEREST_EXPIRED,
            EXCEEDED_MAX_WAITING,
            MESSAGE_SIZE_EXCEEDS_MAX_BYTES,
            BATCH_COMPLETED,
            CONSUMER_DELETED,
            LEADERSHIP_CHANGE,
            SERVER_SHUTDOWN,
            CONSUMER_IS_PUSH_BASED,
            REQUIRED_API_LEVEL,
            IDLE_HEARTBEAT,
            FLOW_CONTROL_REQUEST,
        ]
        .iter()
        .map(ToString::to_string)
        .collect();
        assert_eq!(
            texts.join("|"),
            "404 No Messages|408 Request Timeout|408 Requests Pending|408 Interest Expired|409 Exceeded MaxWaiting|\
             409 Message Size Exceeds MaxBytes|409 Batch Completed|409 Consumer Deleted|409 Leadership Change|\
             409 Server Shutdown|409 Consumer is push based|412 Required Api Level|100 Idle Heartbeat|\
             100 FlowControl Request"
        );
        assert_eq!(
            with_pending(&REQUEST_TIMEOUT, 1, 50),
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\nNats-Pending-Bytes: 50\r\n\r\n"
        );
        assert_eq!(
            push_heartbeat(3, 9, Some("$JS.FC.S.C.x")),
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 9\r\n\
              Nats-Consumer-Stalled: $JS.FC.S.C.x\r\n\r\n"
        );
    }
}
