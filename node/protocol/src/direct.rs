//! Direct gets (`$JS.API.DIRECT.GET`): one raw message, or several, without the API's JSON envelope.

use crate::api::message::MsgSelector;
use crate::headers::{HeaderBuilder, name};
use crate::status::Status;
use crate::{json, rfc3339};

/// No such message.
pub const MESSAGE_NOT_FOUND: Status = Status::new(404, "Message Not Found");
/// No subject matched.
pub const NO_RESULTS: Status = Status::new(404, "No Results");
/// Nothing was asked for.
pub const EMPTY_REQUEST: Status = Status::new(408, "Empty Request");
/// The body is no JSON object.
pub const MALFORMED_REQUEST: Status = Status::new(408, "Malformed Request");
/// Options that exclude each other.
pub const BAD_REQUEST: Status = Status::new(408, "Bad Request");
/// More subjects than one answer may hold.
pub const TOO_MANY_RESULTS: Status = Status::new(413, "Too Many Results");
/// End of a batch.
pub const END_OF_BATCH: Status = Status::new(204, "EOB");

/// Most subjects a multi-subject read answers.
pub const MULTI_LAST_MAX: usize = 1024;

/// What a direct get asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectGet {
    /// One message.
    One {
        /// Which.
        pick: Pick,
        /// Answer with the original headers only.
        no_hdr: bool,
    },
    /// Consecutive messages.
    Batch {
        /// Where to start.
        pick: Pick,
        /// Messages at most. Zero (negative in the request) sends none, only the end of the batch.
        batch: u64,
        /// Bytes after which the batch ends; zero means the server's own bound.
        max_bytes: u64,
        /// Answer with the original headers only.
        no_hdr: bool,
    },
    /// The last message of each matching subject.
    MultiLast {
        /// Subjects or filters.
        subjects: Vec<String>,
        /// As of this sequence.
        up_to_seq: Option<u64>,
        /// As of this time, ns.
        up_to_ns: Option<u64>,
        /// Messages per answer, zero for all.
        batch: u64,
        /// Bytes after which the answer ends; zero means the server's own bound.
        max_bytes: u64,
        /// Start of the page.
        seq: u64,
    },
}

/// How a message is picked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pick {
    /// This sequence (for a batch: this or the next).
    Seq(u64),
    /// The last message of a subject.
    LastBySubject(String),
    /// The first at or after `seq` whose subject matches.
    NextBySubject {
        /// First sequence considered.
        seq: u64,
        /// Subject or filter.
        subject: String,
    },
    /// The first stored at or after this time, ns.
    Since(u64),
    /// The first stored at or after this time whose subject matches.
    NextSince {
        /// The time, ns.
        ns: u64,
        /// Subject or filter.
        subject: String,
    },
}

impl DirectGet {
    /// Reads a request. `subject` is the part of the request subject after the stream name.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn parse(subject: Option<&str>, body: &[u8]) -> Result<Self, Status> {
        let body = body.trim_ascii();
        let selector: MsgSelector = match body {
            [] => MsgSelector::default(),
            body => json::from_slice(body).map_err(|_| MALFORMED_REQUEST)?,
        };
        if let Some(subject) = subject {
            // The subject already says everything; only headers may still be declined.
            let rest = MsgSelector { no_hdr: false, ..selector.clone() };
            if rest != MsgSelector::default() {
                return Err(BAD_REQUEST);
            }
            return Ok(Self::One { pick: Pick::LastBySubject(subject.to_owned()), no_hdr: selector.no_hdr });
        }
        let MsgSelector {
            seq,
            last_by_subj,
            next_by_subj,
            start_time,
            batch,
            max_bytes,
            multi_last,
            up_to_seq,
            up_to_time,
            no_hdr,
        } = selector;
        let since = start_time.and_then(rfc3339::ApiTime::ns);
        if !multi_last.is_empty() {
            let (up_to_seq, up_to_ns) = (Some(up_to_seq).filter(|s| *s > 0), up_to_time.and_then(rfc3339::ApiTime::ns));
            if !last_by_subj.is_empty()
                || !next_by_subj.is_empty()
                || since.is_some()
                || (up_to_seq.is_some() && up_to_ns.is_some())
            {
                return Err(BAD_REQUEST);
            }
            let batch = u64::try_from(batch).unwrap_or(0);
            // `no_hdr` has no meaning here, as in nats-server: the subjects are what tells the messages apart.
            let max_bytes = byte_bound(max_bytes);
            return Ok(Self::MultiLast { subjects: multi_last, up_to_seq, up_to_ns, batch, max_bytes, seq });
        }
        let pick = Pick::parse(seq, last_by_subj, next_by_subj, since)?;
        if batch == 0 {
            return Ok(Self::One { pick, no_hdr });
        }
        if batch > 0 && matches!(pick, Pick::LastBySubject(_)) {
            return Err(BAD_REQUEST);
        }
        let batch = u64::try_from(batch).unwrap_or(0);
        Ok(Self::Batch { pick, batch, max_bytes: byte_bound(max_bytes), no_hdr })
    }
}

/// Any bound below one message lets one message through, a negative one too.
fn byte_bound(max_bytes: i64) -> u64 {
    u64::try_from(max_bytes).unwrap_or(1)
}

impl Pick {
    /// Exactly one way to pick; a sequence or a time may accompany `next_by_subj`.
    pub(crate) fn parse(seq: u64, last: String, next: String, since: Option<u64>) -> Result<Self, Status> {
        match (seq, last.is_empty(), next.is_empty(), since) {
            (0, true, true, None) => Err(EMPTY_REQUEST),
            (seq, true, true, None) => Ok(Self::Seq(seq)),
            (0, false, true, None) => Ok(Self::LastBySubject(last)),
            (seq, true, false, None) => Ok(Self::NextBySubject { seq: seq.max(1), subject: next }),
            (0, true, true, Some(ns)) => Ok(Self::Since(ns)),
            (0, true, false, Some(ns)) => Ok(Self::NextSince { ns, subject: next }),
            _ => Err(BAD_REQUEST),
        }
    }
}

/// Position of a message within a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPosition {
    /// Messages still to come, this one excluded.
    pub num_pending: u64,
    /// Sequence sent before this one in the batch, zero for the first.
    pub last_sequence: u64,
}

/// The header block of a directly read message: its own headers, then where it came from.
pub fn message_headers(
    original: &[u8],
    stream: &str,
    subject: &[u8],
    seq: u64,
    timestamp_ns: u64,
    position: Option<BatchPosition>,
) -> Vec<u8> {
    let mut builder = HeaderBuilder::from_block(original);
    builder
        .add(name::STREAM, stream)
        .add(name::SUBJECT, subject)
        .add_number(name::SEQUENCE, seq)
        .add(name::TIME_STAMP, rfc3339::format(timestamp_ns));
    if let Some(BatchPosition { num_pending, last_sequence }) = position {
        builder.add_number(name::NUM_PENDING, num_pending).add_number(name::LAST_SEQUENCE, last_sequence);
    }
    builder.finish()
}

/// The header block of the empty message that ends a batch.
pub fn end_of_batch(position: BatchPosition, up_to_seq: Option<u64>) -> Vec<u8> {
    let mut builder = END_OF_BATCH.builder();
    builder.add_number(name::NUM_PENDING, position.num_pending).add_number(name::LAST_SEQUENCE, position.last_sequence);
    if let Some(seq) = up_to_seq {
        builder.add_number(name::UP_TO_SEQUENCE, seq);
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<DirectGet, Status> {
        DirectGet::parse(None, body.as_bytes())
    }

    #[test]
    fn single_messages() {
        let one = |pick| Ok(DirectGet::One { pick, no_hdr: false });
        assert_eq!(parse(r#"{"seq":1}"#), one(Pick::Seq(1)));
        assert_eq!(parse(r#"{"last_by_subj":"a"}"#), one(Pick::LastBySubject("a".into())));
        assert_eq!(parse(r#"{"next_by_subj":"a"}"#), one(Pick::NextBySubject { seq: 1, subject: "a".into() }));
        assert_eq!(parse(r#"{"seq":4,"next_by_subj":"a"}"#), one(Pick::NextBySubject { seq: 4, subject: "a".into() }));
        assert_eq!(parse(r#"{"start_time":"1970-01-01T00:00:01Z"}"#), one(Pick::Since(1_000_000_000)));
        assert_eq!(DirectGet::parse(Some("a.b"), b""), one(Pick::LastBySubject("a.b".into())));
    }

    #[test]
    fn batches() {
        assert_eq!(
            parse(r#"{"seq":1,"batch":2,"next_by_subj":">","max_bytes":9}"#),
            Ok(DirectGet::Batch {
                pick: Pick::NextBySubject { seq: 1, subject: ">".into() },
                batch: 2,
                max_bytes: 9,
                no_hdr: false
            })
        );
        assert!(matches!(
            parse(r#"{"multi_last":["a","b.>"],"up_to_seq":4}"#),
            Ok(DirectGet::MultiLast { up_to_seq: Some(4), max_bytes: 0, .. })
        ));
        assert!(matches!(
            parse(r#"{"multi_last":["a"],"max_bytes":9,"seq":2,"no_hdr":true}"#),
            Ok(DirectGet::MultiLast { max_bytes: 9, seq: 2, .. })
        ));
        let none = |pick| Ok(DirectGet::Batch { pick, batch: 0, max_bytes: 0, no_hdr: false });
        assert_eq!(parse(r#"{"seq":1,"batch":-1}"#), none(Pick::Seq(1)));
        assert_eq!(parse(r#"{"last_by_subj":"a","batch":-1}"#), none(Pick::LastBySubject("a".into())));
        assert!(matches!(
            parse(r#"{"seq":1,"batch":2,"max_bytes":-1}"#),
            Ok(DirectGet::Batch { batch: 2, max_bytes: 1, .. })
        ));
        let next = Pick::NextSince { ns: 1_000_000_000, subject: "a".into() };
        let body = r#"{"start_time":"1970-01-01T00:00:01Z","next_by_subj":"a","batch":-1}"#;
        assert_eq!(parse(body), none(next));
    }

    #[test]
    fn refusals() {
        for (body, want) in [
            ("", EMPTY_REQUEST),
            ("{}", EMPTY_REQUEST),
            (r#"{"bogus":1}"#, EMPTY_REQUEST),
            ("x", MALFORMED_REQUEST),
            ("[]", MALFORMED_REQUEST),
            (r#"{"batch":-1}"#, EMPTY_REQUEST),
            (r#"{"multi_last":["a"],"start_time":"1970-01-01T00:00:01Z"}"#, BAD_REQUEST),
            (r#"{"seq":1,"last_by_subj":"a"}"#, BAD_REQUEST),
            (r#"{"multi_last":["a"],"next_by_subj":"b"}"#, BAD_REQUEST),
            (r#"{"batch":3,"last_by_subj":"a"}"#, BAD_REQUEST),
        ] {
            assert_eq!(parse(body), Err(want), "{body}");
        }
        assert_eq!(DirectGet::parse(Some("a"), b"x"), Err(MALFORMED_REQUEST));
        assert_eq!(DirectGet::parse(Some("a"), br#"{"seq":1}"#), Err(BAD_REQUEST));
    }

    #[test]
    fn header_blocks() {
        let position = BatchPosition { num_pending: 2, last_sequence: 0 };
        assert_eq!(
            String::from_utf8(message_headers(
                b"NATS/1.0\r\nA: b\r\n\r\n",
                "dg",
                b"dg.1",
                1,
                1_500_000_000,
                Some(position)
            ))
            .unwrap(),
            "NATS/1.0\r\nA: b\r\nNats-Stream: dg\r\nNats-Subject: dg.1\r\nNats-Sequence: 1\r\n\
             Nats-Time-Stamp: 1970-01-01T00:00:01.5Z\r\nNats-Num-Pending: 2\r\nNats-Last-Sequence: 0\r\n\r\n"
        );
        assert_eq!(
            end_of_batch(BatchPosition { num_pending: 1, last_sequence: 2 }, None),
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 2\r\n\r\n"
        );
    }
}
