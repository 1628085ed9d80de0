//! What a publish asks for in its headers, found in one pass over the block.

use super::{HeaderBlock, name};
use crate::duration;

/// A sequence that must hold for the publish to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedSequence {
    /// Exactly this one; zero means "none yet".
    Is(u64),
    /// The header could not be read: nothing satisfies it, as in nats-server.
    Unreadable,
}

impl ExpectedSequence {
    /// Whether `actual` is what was expected.
    pub fn holds(self, actual: u64) -> bool {
        self == Self::Is(actual)
    }

    fn parse(value: &[u8]) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        Some(parse_u64(value).map_or(Self::Unreadable, Self::Is))
    }
}

/// A decimal without sign that fits 63 bits.
fn parse_u64(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    let number = value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| number.checked_mul(10)?.checked_add(u64::from(digit)))?
    })?;
    (number <= i64::MAX as u64).then_some(number)
}

/// What a rollup removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rollup<'a> {
    /// Every older message of the subject.
    Subject,
    /// Every older message of the stream.
    All,
    /// No such rollup; refused.
    Unknown(&'a [u8]),
}

/// Time to live of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Kept whatever the stream's age limit.
    Never,
    /// Whole seconds, at least one.
    Seconds(u64),
    /// Zero, below a second, negative or unreadable; refused.
    Invalid,
}

impl Ttl {
    fn parse(value: &[u8]) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        if value.eq_ignore_ascii_case(b"never") {
            return Some(Self::Never);
        }
        let seconds = match parse_u64(value) {
            Some(seconds) => Some(seconds),
            None => std::str::from_utf8(value)
                .ok()
                .and_then(|text| duration::parse(text).ok())
                .and_then(|ns| u64::try_from(ns / duration::SECOND).ok()),
        };
        Some(seconds.filter(|seconds| *seconds > 0).map_or(Self::Invalid, Self::Seconds))
    }
}

/// Headers of an atomic batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeaders<'a> {
    /// The batch this message belongs to.
    pub id: &'a [u8],
    /// Position from 1, if readable.
    pub sequence: Option<u64>,
    /// The commit header's value, if any (`1` or `eob`).
    pub commit: Option<&'a [u8]>,
}

/// Everything in a publish's headers that the server acts on. An empty value counts as absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishHeaders<'a> {
    /// `Nats-Msg-Id`.
    pub msg_id: Option<&'a [u8]>,
    /// `Nats-Expected-Stream`.
    pub expected_stream: Option<&'a [u8]>,
    /// `Nats-Expected-Last-Sequence`.
    pub expected_last_seq: Option<ExpectedSequence>,
    /// `Nats-Expected-Last-Subject-Sequence`.
    pub expected_last_subject_seq: Option<ExpectedSequence>,
    /// `Nats-Expected-Last-Subject-Sequence-Subject`.
    pub expected_last_subject: Option<&'a [u8]>,
    /// `Nats-Expected-Last-Msg-Id`.
    pub expected_last_msg_id: Option<&'a [u8]>,
    /// `Nats-Rollup`.
    pub rollup: Option<Rollup<'a>>,
    /// `Nats-TTL`.
    pub ttl: Option<Ttl>,
    /// `Nats-Incr`.
    pub incr: Option<&'a [u8]>,
    /// `Nats-Schedule`.
    pub schedule: Option<&'a [u8]>,
    /// `Nats-Batch-Id` and its companions.
    pub batch: Option<BatchHeaders<'a>>,
    /// `Nats-Stream-Source`, which a client may not send.
    pub stream_source: Option<&'a [u8]>,
}

impl PublishHeaders<'_> {
    /// Whether the headers ask nothing of the server.
    pub fn is_plain(&self) -> bool {
        *self == PublishHeaders::default()
    }
}

/// Reads a publish's headers. The first of several equal names wins; foreign headers cost one comparison.
pub fn scan_publish_headers(block: &[u8]) -> PublishHeaders<'_> {
    let mut found = PublishHeaders::default();
    if block.is_empty() {
        return found;
    }
    let (mut batch_id, mut batch_sequence, mut batch_commit) = (None, None, None);
    // The first line of a name decides even when its value is empty.
    let mut seen = Seen::default();
    for (header, value) in HeaderBlock(block).iter() {
        let Some(field) = Field::of(header) else {
            continue;
        };
        if !seen.first(field) {
            continue;
        }
        let text = (!value.is_empty()).then_some(value);
        match field {
            Field::MsgId => found.msg_id = text,
            Field::ExpectedStream => found.expected_stream = text,
            Field::ExpectedLastSeq => found.expected_last_seq = ExpectedSequence::parse(value),
            Field::ExpectedLastSubjectSeq => found.expected_last_subject_seq = ExpectedSequence::parse(value),
            Field::ExpectedLastSubject => found.expected_last_subject = text,
            Field::ExpectedLastMsgId => found.expected_last_msg_id = text,
            Field::Rollup => found.rollup = rollup(value),
            Field::Ttl => found.ttl = Ttl::parse(value),
            Field::Incr => found.incr = text,
            Field::Schedule => found.schedule = text,
            Field::StreamSource => found.stream_source = text,
            Field::BatchId => batch_id = text,
            Field::BatchSequence => batch_sequence = parse_u64(value),
            Field::BatchCommit => batch_commit = text,
        }
    }
    found.batch = batch_id.map(|id| BatchHeaders { id, sequence: batch_sequence, commit: batch_commit });
    found
}

fn rollup(value: &[u8]) -> Option<Rollup<'_>> {
    match value {
        [] => None,
        v if v.eq_ignore_ascii_case(b"sub") => Some(Rollup::Subject),
        v if v.eq_ignore_ascii_case(b"all") => Some(Rollup::All),
        v => Some(Rollup::Unknown(v)),
    }
}

#[derive(Debug, Clone, Copy)]
enum Field {
    MsgId,
    ExpectedStream,
    ExpectedLastSeq,
    ExpectedLastSubjectSeq,
    ExpectedLastSubject,
    ExpectedLastMsgId,
    Rollup,
    Ttl,
    Incr,
    Schedule,
    StreamSource,
    BatchId,
    BatchSequence,
    BatchCommit,
}

impl Field {
    fn of(header: &[u8]) -> Option<Self> {
        if !header.starts_with(b"Nats-") {
            return None;
        }
        Some(match std::str::from_utf8(header).ok()? {
            name::MSG_ID => Self::MsgId,
            name::EXPECTED_STREAM => Self::ExpectedStream,
            name::EXPECTED_LAST_SEQUENCE => Self::ExpectedLastSeq,
            name::EXPECTED_LAST_SUBJECT_SEQUENCE => Self::ExpectedLastSubjectSeq,
            name::EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT => Self::ExpectedLastSubject,
            name::EXPECTED_LAST_MSG_ID => Self::ExpectedLastMsgId,
            name::ROLLUP => Self::Rollup,
            name::TTL => Self::Ttl,
            name::INCR => Self::Incr,
            name::SCHEDULE => Self::Schedule,
            name::STREAM_SOURCE => Self::StreamSource,
            name::BATCH_ID => Self::BatchId,
            name::BATCH_SEQUENCE => Self::BatchSequence,
            name::BATCH_COMMIT => Self::BatchCommit,
            _ => return None,
        })
    }
}

/// Which fields have been seen, one bit each.
#[derive(Default)]
struct Seen(u32);

impl Seen {
    fn first(&mut self, field: Field) -> bool {
        let bit = 1 << field as u32;
        let first = self.0 & bit == 0;
        self.0 |= bit;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(lines: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = super::super::HeaderBuilder::new();
        for (name, value) in lines {
            builder.add(name, value);
        }
        builder.finish()
    }

    #[test]
    fn everything_is_found_in_one_pass() {
        let block = block(&[
            ("Foo", "bar"),
            (name::MSG_ID, "id-1"),
            (name::EXPECTED_STREAM, "S"),
            (name::EXPECTED_LAST_SEQUENCE, "0"),
            (name::EXPECTED_LAST_SUBJECT_SEQUENCE, "17"),
            (name::EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, "kv.>"),
            (name::EXPECTED_LAST_MSG_ID, "id-0"),
            (name::ROLLUP, "SUB"),
            (name::TTL, "1m30s"),
            (name::BATCH_ID, "b"),
            (name::BATCH_SEQUENCE, "3"),
            (name::BATCH_COMMIT, "eob"),
            (name::MSG_ID, "too late"),
        ]);
        let found = scan_publish_headers(&block);
        assert_eq!(found.msg_id, Some(&b"id-1"[..]));
        assert_eq!(found.expected_stream, Some(&b"S"[..]));
        assert_eq!(found.expected_last_seq, Some(ExpectedSequence::Is(0)));
        assert_eq!(found.expected_last_subject_seq, Some(ExpectedSequence::Is(17)));
        assert_eq!(found.expected_last_subject, Some(&b"kv.>"[..]));
        assert_eq!(found.expected_last_msg_id, Some(&b"id-0"[..]));
        assert_eq!(found.rollup, Some(Rollup::Subject));
        assert_eq!(found.ttl, Some(Ttl::Seconds(90)));
        assert_eq!(found.batch, Some(BatchHeaders { id: b"b", sequence: Some(3), commit: Some(b"eob") }));
        assert!(!found.is_plain());
        assert!(scan_publish_headers(b"NATS/1.0\r\nA: b\r\n\r\n").is_plain());
    }

    #[test]
    fn ttl_values() {
        for (value, want) in [
            ("5", Some(Ttl::Seconds(5))),
            ("5s", Some(Ttl::Seconds(5))),
            ("1500ms", Some(Ttl::Seconds(1))),
            ("never", Some(Ttl::Never)),
            ("NEVER", Some(Ttl::Never)),
            ("2147483648", Some(Ttl::Seconds(2_147_483_648))),
            ("0", Some(Ttl::Invalid)),
            ("-1", Some(Ttl::Invalid)),
            ("999ms", Some(Ttl::Invalid)),
            ("1.5", Some(Ttl::Invalid)),
            ("9223372036854775808", Some(Ttl::Invalid)),
            ("", None),
        ] {
            assert_eq!(scan_publish_headers(&block(&[(name::TTL, value)])).ttl, want, "{value}");
        }
    }

    #[test]
    fn unreadable_expectations_never_hold() {
        for value in ["x", "-1", "+1", "9223372036854775808", "18446744073709551616", "1.0"] {
            let block = block(&[(name::EXPECTED_LAST_SEQUENCE, value)]);
            let expected = scan_publish_headers(&block).expected_last_seq;
            assert_eq!(expected, Some(ExpectedSequence::Unreadable), "{value}");
            assert!(!ExpectedSequence::Unreadable.holds(0));
        }
        assert_eq!(scan_publish_headers(&block(&[(name::EXPECTED_LAST_SEQUENCE, "")])).expected_last_seq, None);
        assert!(ExpectedSequence::Is(4).holds(4));
    }

    #[test]
    fn names_that_differ_in_case_or_blanks_mean_nothing() {
        for header in ["nats-expected-stream", "Nats-Expected-Stream ", "Nats-Expected-Streams"] {
            assert!(scan_publish_headers(&block(&[(header, "zz")])).is_plain(), "{header}");
        }
    }
}
