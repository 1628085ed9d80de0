//! The few headers that decide about a publish, found in one pass over the block.
//!
//! Names and values are read as nats-server reads them, to the blank. The block is kept as it came.

use headwater_protocol::headers::HeaderBlock;

use super::ttl::Ttl;
use crate::frame::{Record, RecordFlags};
use crate::ids::Timestamp;

/// A header of ours that is present with a value that is not what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    LastSequence,
    LastSubjectSequence,
    Ttl,
}

/// What a publish's headers ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PublishHeaders<'a> {
    /// `Nats-Msg-Id`.
    pub(super) msg_id: Option<&'a [u8]>,
    /// `Nats-Expected-Stream`.
    pub(super) expected_stream: Option<&'a [u8]>,
    /// `Nats-Expected-Last-Sequence`.
    pub(super) expected_last_seq: Option<u64>,
    /// `Nats-Expected-Last-Subject-Sequence`.
    pub(super) expected_last_subject_seq: Option<u64>,
    /// `Nats-Expected-Last-Subject-Sequence-Subject`.
    pub(super) expected_last_subject: Option<&'a [u8]>,
    /// `Nats-Expected-Last-Msg-Id`.
    pub(super) expected_last_msg_id: Option<&'a [u8]>,
    /// `Nats-Rollup`.
    pub(super) rollup: Option<&'a [u8]>,
    /// `Nats-TTL`.
    pub(super) ttl: Option<Ttl>,
    /// `Nats-Batch-Id`: an atomic batch's message must not pass as a plain one.
    pub(super) batch_id: Option<&'a [u8]>,
    /// `Nats-Stream-Source`: where a message came from, which only a server that copies streams may say.
    pub(super) has_source: bool,
    pub(super) bad: Option<BadHeader>,
}

impl<'a> PublishHeaders<'a> {
    /// Scans a block. The first occurrence of a name counts.
    pub(super) fn scan(block: &'a [u8]) -> Self {
        let mut found = Self::default();
        if block.is_empty() {
            return found;
        }
        for (name, value) in HeaderBlock(block).iter() {
            let Some(name) = name.strip_prefix(b"Nats-") else {
                continue;
            };
            // An empty value counts as absent, as it does for nats-server.
            if value.is_empty() {
                continue;
            }
            match name {
                b"Msg-Id" => found.msg_id = found.msg_id.or(Some(value)),
                b"Expected-Stream" => {
                    found.expected_stream = found.expected_stream.or(Some(value));
                }
                b"Expected-Last-Sequence" if found.expected_last_seq.is_none() => {
                    found.expected_last_seq = number(value);
                    if found.expected_last_seq.is_none() {
                        found.bad = Some(BadHeader::LastSequence);
                    }
                }
                b"Expected-Last-Subject-Sequence" if found.expected_last_subject_seq.is_none() => {
                    found.expected_last_subject_seq = number(value);
                    if found.expected_last_subject_seq.is_none() {
                        found.bad = Some(BadHeader::LastSubjectSequence);
                    }
                }
                b"Expected-Last-Subject-Sequence-Subject" => {
                    found.expected_last_subject = found.expected_last_subject.or(Some(value));
                }
                b"Expected-Last-Msg-Id" => {
                    found.expected_last_msg_id = found.expected_last_msg_id.or(Some(value));
                }
                b"Rollup" => found.rollup = found.rollup.or(Some(value)),
                b"TTL" if found.ttl.is_none() => {
                    found.ttl = Ttl::parse(value);
                    if found.ttl.is_none() {
                        found.bad = Some(BadHeader::Ttl);
                    }
                }
                b"Batch-Id" => found.batch_id = found.batch_id.or(Some(value)),
                b"Stream-Source" => found.has_source = true,
                _ => {}
            }
        }
        found
    }
}

fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The value of `Nats-Msg-Id`, for `apply` and rebuild.
pub(super) fn msg_id(block: &[u8]) -> Option<&[u8]> {
    HeaderBlock(block).iter().find(|(name, value)| *name == b"Nats-Msg-Id" && !value.is_empty()).map(|(_, value)| value)
}

/// The value of `Nats-TTL`, for `apply` and rebuild.
pub(super) fn ttl(block: &[u8]) -> Option<Ttl> {
    HeaderBlock(block)
        .iter()
        .find(|(name, value)| *name == b"Nats-TTL" && !value.is_empty())
        .and_then(|(_, v)| Ttl::parse(v))
}

/// When a message's TTL is over, if it has one.
pub(super) fn deadline(record: &Record<'_>) -> Option<Timestamp> {
    if !record.flags.has(RecordFlags::HAS_TTL) {
        return None;
    }
    ttl(record.headers())?.deadline(record.ts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(lines: &[(&str, &str)]) -> Vec<u8> {
        let mut block = "NATS/1.0\r\n".to_owned();
        for (name, value) in lines {
            block.push_str(&format!("{name}: {value}\r\n"));
        }
        (block + "\r\n").into_bytes()
    }

    #[test]
    fn everything_is_found_in_one_pass() {
        let block = block(&[
            ("Foo", "bar"),
            ("Nats-Msg-Id", "  id 1"),
            ("Nats-Expected-Stream", "S"),
            ("Nats-Expected-Last-Sequence", "0"),
            ("Nats-Expected-Last-Subject-Sequence", "17"),
            ("Nats-Expected-Last-Subject-Sequence-Subject", "kv.>"),
            ("Nats-Expected-Last-Msg-Id", "id-0"),
            ("Nats-Rollup", "sub"),
            ("Nats-TTL", "1m30s"),
            ("Nats-Batch-Id", "b"),
            ("Nats-Stream-Source", "S 1 > >"),
            ("Nats-Msg-Id", "too late"),
        ]);
        let expected = PublishHeaders {
            msg_id: Some(b"id 1"),
            expected_stream: Some(b"S"),
            expected_last_seq: Some(0),
            expected_last_subject_seq: Some(17),
            expected_last_subject: Some(b"kv.>"),
            expected_last_msg_id: Some(b"id-0"),
            rollup: Some(b"sub"),
            ttl: Some(Ttl::After(90_000_000_000)),
            batch_id: Some(b"b"),
            has_source: true,
            bad: None,
        };
        assert_eq!(PublishHeaders::scan(&block), expected);
        assert_eq!(msg_id(&block), expected.msg_id);
        assert_eq!(ttl(&block), expected.ttl);
    }

    #[test]
    fn other_names_and_empty_values_mean_nothing() {
        for (name, value) in [
            ("nats-expected-stream", "S"),
            ("Nats-Expected-Streams", "S"),
            ("Expected-Stream", "S"),
            ("Nats-Expected-Stream", ""),
            ("Nats-Expected-Last-Sequence", ""),
            ("Nats-TTL", ""),
            ("Nats-Expected-Stream ", "S"),
            (" Nats-Expected-Stream", "S"),
            ("Nats-Expected-Stream\t", "S"),
            ("A", "x\nNats-Expected-Stream: S"),
        ] {
            assert_eq!(PublishHeaders::scan(&block(&[(name, value)])), PublishHeaders::default(), "{name}: {value}");
        }
    }

    #[test]
    fn blanks_at_a_values_end_belong_to_it() {
        let block = block(&[("Nats-Msg-Id", "x "), ("Nats-Expected-Last-Sequence", "2 ")]);
        let found = PublishHeaders::scan(&block);
        assert_eq!((found.msg_id, found.bad), (Some(&b"x "[..]), Some(BadHeader::LastSequence)));
        assert_eq!(msg_id(&block), found.msg_id);
    }

    #[test]
    fn apply_reads_what_admission_read() {
        let block = block(&[("Nats-TTL", ""), ("Nats-TTL", "5"), ("Nats-Msg-Id", ""), ("Nats-Msg-Id", "x")]);
        let found = PublishHeaders::scan(&block);
        assert_eq!((found.ttl, found.msg_id), (Some(Ttl::After(5_000_000_000)), Some(&b"x"[..])));
        assert_eq!((ttl(&block), msg_id(&block)), (found.ttl, found.msg_id));
    }

    #[test]
    fn a_number_that_is_none_is_noted() {
        for value in ["-1", "+1", "x", "1 2", "1.0", "99999999999999999999"] {
            let found = |name| PublishHeaders::scan(&block(&[(name, value)])).bad;
            assert_eq!(found("Nats-Expected-Last-Sequence"), Some(BadHeader::LastSequence), "{value}");
            assert_eq!(found("Nats-Expected-Last-Subject-Sequence"), Some(BadHeader::LastSubjectSequence), "{value}");
        }
    }

    #[test]
    fn odd_blocks_yield_nothing() {
        for block in [&b""[..], b"NATS/1.0", b"NATS/1.0\r\n\r\n", b"\n:\n::\n", b"Nats-Msg-Id: x"] {
            assert_eq!(PublishHeaders::scan(block), PublishHeaders::default());
        }
    }
}
