//! One record of a frame, borrowed from it or standing alone.

use bytes::Bytes;

use super::parse::FrameError;
use super::{RECORD_HEADER_LEN, u32_at};
use crate::ids::{StreamSeq, Timestamp};

/// What a record's message asks of `apply`, noted once by the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordFlags(u8);

impl RecordFlags {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// The header block has a `Nats-Msg-Id`.
    pub const HAS_MSG_ID: Self = Self(1);
    /// Remove every older message of this subject.
    pub const ROLLUP_SUBJECT: Self = Self(2);
    /// Remove every older message.
    pub const ROLLUP_ALL: Self = Self(4);
    /// The header block has a `Nats-TTL` that applies.
    pub const HAS_TTL: Self = Self(8);

    /// As stored.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From storage; unknown bits are kept.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Whether every flag of `other` is set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A record, borrowed from its frame.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Sequence of the message.
    pub seq: StreamSeq,
    /// When the leader accepted it.
    pub ts: Timestamp,
    /// CRC32C of the record, as stored.
    pub crc: u32,
    /// What the message asks of `apply`.
    pub flags: RecordFlags,
    bytes: &'a [u8],
    subject_len: u16,
    hdr_len: u32,
}

impl<'a> Record<'a> {
    /// Reads a record that starts at `bytes`, which may run on beyond its end. Lengths are checked
    /// against each other and `bytes`; the CRC is not (see [`Record::check_crc`]).
    pub(super) fn parse(bytes: &'a [u8], base_seq: StreamSeq, base_ts: Timestamp) -> Result<Self, FrameError> {
        if bytes.len() < RECORD_HEADER_LEN {
            return Err(FrameError::RecordTruncated);
        }
        let len = u32_at(bytes, 4) as usize;
        let subject_len = u16::from_le_bytes([bytes[16], bytes[17]]);
        let hdr_len = u32_at(bytes, 20);
        let fixed = RECORD_HEADER_LEN + usize::from(subject_len) + 2;
        if len > bytes.len() || len < fixed || len - fixed < hdr_len as usize {
            return Err(FrameError::RecordLengths);
        }
        let bytes = &bytes[..len];
        Ok(Self {
            seq: StreamSeq::new(base_seq.get().wrapping_add(u64::from(u32_at(bytes, 8)))),
            ts: base_ts.plus_ns(u64::from(u32_at(bytes, 12))),
            crc: u32_at(bytes, 0),
            flags: RecordFlags::from_bits(bytes[18]),
            bytes,
            subject_len,
            hdr_len,
        })
    }

    /// Compares the stored CRC with the bytes.
    pub fn check_crc(&self) -> Result<(), FrameError> {
        let found = crc32c::crc32c(&self.bytes[4..]);
        if found == self.crc { Ok(()) } else { Err(FrameError::RecordCrc { seq: self.seq, stored: self.crc, found }) }
    }

    fn body_at(&self) -> usize {
        RECORD_HEADER_LEN + usize::from(self.subject_len)
    }

    /// The subject it was published to.
    pub fn subject(&self) -> &'a [u8] {
        &self.bytes[RECORD_HEADER_LEN..self.body_at()]
    }

    /// The header block with its final blank line, or nothing.
    pub fn headers(&self) -> &'a [u8] {
        &self.bytes[self.body_at()..self.body_at() + self.hdr_len as usize]
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.body_at() + self.hdr_len as usize..self.bytes.len() - 2]
    }

    /// Header block, payload and CRLF as one slice: what a delivery sends after its command line.
    pub fn body_with_crlf(&self) -> &'a [u8] {
        &self.bytes[self.body_at()..]
    }

    /// The whole record as stored.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// A record that keeps its bytes alive: a slice of its frame, or read alone from disk.
#[derive(Clone, Debug)]
pub struct OwnedRecord {
    bytes: Bytes,
    base_seq: StreamSeq,
    base_ts: Timestamp,
}

impl OwnedRecord {
    /// Takes a record read alone, and checks its lengths and CRC. `bytes` holds exactly the record;
    /// `base_seq` and `base_ts` come from its frame's header.
    pub fn from_parts(bytes: Bytes, base_seq: StreamSeq, base_ts: Timestamp) -> Result<Self, FrameError> {
        let record = Record::parse(&bytes, base_seq, base_ts)?;
        if record.bytes.len() != bytes.len() {
            return Err(FrameError::RecordLengths);
        }
        record.check_crc()?;
        Ok(Self { bytes, base_seq, base_ts })
    }

    /// From a frame that was checked already.
    pub(super) fn of_checked(bytes: Bytes, base_seq: StreamSeq, base_ts: Timestamp) -> Self {
        Self { bytes, base_seq, base_ts }
    }

    /// The borrowed view.
    pub fn as_record(&self) -> Record<'_> {
        Record::parse(&self.bytes, self.base_seq, self.base_ts).expect("lengths were checked when this record was made")
    }

    /// Sequence of the message.
    pub fn seq(&self) -> StreamSeq {
        self.as_record().seq
    }

    /// When the leader accepted it.
    pub fn ts(&self) -> Timestamp {
        self.as_record().ts
    }

    /// CRC32C of the record, as stored.
    pub fn crc(&self) -> u32 {
        self.as_record().crc
    }

    /// What the message asked of `apply`.
    pub fn flags(&self) -> RecordFlags {
        self.as_record().flags
    }

    /// The subject it was published to.
    pub fn subject(&self) -> &[u8] {
        self.as_record().subject()
    }

    /// The header block with its final blank line, or nothing.
    pub fn headers(&self) -> &[u8] {
        self.as_record().headers()
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.as_record().payload()
    }

    /// Header block, payload and CRLF as one slice that shares the frame's memory.
    pub fn body_with_crlf(&self) -> Bytes {
        let from = self.as_record().body_at();
        self.bytes.slice(from..)
    }

    /// The whole record as stored.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
