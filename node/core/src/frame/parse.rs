//! Reading a frame: every length and CRC is checked before a record is handed out.

use bytes::Bytes;

use super::record::{OwnedRecord, Record};
use super::{FRAME_LEN_MAX, FrameCrc, FrameHeader, FrameKind, HEADER_LEN, VERSION, u32_at, u64_at};
use crate::ids::{Ordinal, StreamId, StreamSeq, Term, Timestamp};

/// What is wrong with the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than a header, or than the length it states.
    #[error("the frame is cut short: {have} of {want} bytes")]
    Truncated {
        /// Bytes present.
        have: usize,
        /// Bytes needed.
        want: usize,
    },
    /// The stated length is impossible or differs from the bytes given.
    #[error("the frame states a length of {0} bytes, which cannot be")]
    Length(usize),
    /// Written by a version this one does not know.
    #[error("frame version {0} is not known")]
    Version(u8),
    /// Not a kind this version knows.
    #[error("frame kind {0} is not known")]
    Kind(u8),
    /// Compressed or encrypted in a way this version does not know.
    #[error("frame codec {codec} with key {key_id} is not known")]
    Codec {
        /// Codec byte.
        codec: u8,
        /// Key id.
        key_id: u32,
    },
    /// Offset table and records do not fit together.
    #[error("the frame's table of records does not fit its records")]
    Table,
    /// The frame's own CRC does not match.
    #[error("frame crc mismatch: stored {stored:08x}, computed {found:08x}")]
    Crc {
        /// CRC in the header.
        stored: u32,
        /// CRC of the bytes.
        found: u32,
    },
    /// No counting leads to such a sequence or ordinal.
    #[error("the frame states a sequence or ordinal that no stream reaches")]
    Numbers,
    /// A record is shorter than its header.
    #[error("a record is cut short")]
    RecordTruncated,
    /// A record's lengths contradict each other.
    #[error("a record's lengths contradict each other")]
    RecordLengths,
    /// A record's sequence is not the one its place demands.
    #[error("a record carries sequence {found} where {expected} belongs")]
    RecordSequence {
        /// Sequence that belongs there.
        expected: StreamSeq,
        /// Sequence found.
        found: StreamSeq,
    },
    /// A record's CRC does not match.
    #[error("crc mismatch of message {seq}: stored {stored:08x}, computed {found:08x}")]
    RecordCrc {
        /// Sequence of the message.
        seq: StreamSeq,
        /// CRC in the record.
        stored: u32,
        /// CRC of the bytes.
        found: u32,
    },
}

/// A frame in memory; clones share the bytes.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Bytes,
    header: FrameHeader,
}

/// Reads and sanity-checks a header, without looking at records. `bytes` may be longer or shorter than
/// the frame; the length must be possible.
pub(super) fn header(bytes: &[u8]) -> Result<FrameHeader, FrameError> {
    if bytes.len() < HEADER_LEN {
        return Err(FrameError::Truncated { have: bytes.len(), want: HEADER_LEN });
    }
    let len = u32_at(bytes, 0) as usize;
    if !(HEADER_LEN..=FRAME_LEN_MAX).contains(&len) {
        return Err(FrameError::Length(len));
    }
    if bytes[8] != VERSION {
        return Err(FrameError::Version(bytes[8]));
    }
    let kind = FrameKind::from_u8(bytes[10]).ok_or(FrameError::Kind(bytes[10]))?;
    let (codec, key_id) = (bytes[11], u32_at(bytes, 12));
    if codec != 0 || key_id != 0 {
        return Err(FrameError::Codec { codec, key_id });
    }
    let (count, table) = (u32_at(bytes, 56), u32_at(bytes, 60));
    let table_len = (len as u64).checked_sub(u64::from(table)).ok_or(FrameError::Table)?;
    if (table as usize) < HEADER_LEN || table_len != u64::from(count) * 4 {
        return Err(FrameError::Table);
    }
    let (ordinal, base_seq) = (Ordinal::new(u64_at(bytes, 32)), StreamSeq::new(u64_at(bytes, 40)));
    // Counting goes on from both.
    if !ordinal.is_countable() || !base_seq.is_countable() {
        return Err(FrameError::Numbers);
    }
    Ok(FrameHeader {
        kind,
        stream: StreamId::new(u64_at(bytes, 16)),
        term: Term::new(u64_at(bytes, 24)),
        ordinal,
        base_seq,
        base_ts: Timestamp::new(u64_at(bytes, 48)),
        count,
        len: len as u32,
        table,
    })
}

impl Frame {
    /// Takes exactly one frame and checks all of it: lengths, table, sequences, every CRC.
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let frame = Self::parse_trusted(bytes)?;
        let header = frame.header;
        let mut crc = FrameCrc::new(&frame.bytes[8..HEADER_LEN]);
        let mut at = HEADER_LEN;
        for i in 0..header.count {
            if frame.offset(i) != at {
                return Err(FrameError::Table);
            }
            let record = Record::parse(&frame.bytes[at..header.table as usize], header.base_seq, header.base_ts)?;
            let expected = StreamSeq::new(header.base_seq.get().wrapping_add(u64::from(i)));
            if record.seq != expected {
                return Err(FrameError::RecordSequence { expected, found: record.seq });
            }
            record.check_crc()?;
            crc.record(record.crc.to_le_bytes());
            at += record.bytes().len();
        }
        if at != header.table as usize {
            return Err(FrameError::Table);
        }
        let found = crc.finish(&frame.bytes[at..]);
        let stored = u32_at(&frame.bytes, 4);
        if found != stored {
            return Err(FrameError::Crc { stored, found });
        }
        Ok(frame)
    }

    /// Takes bytes that this process framed or checked before: only the header is read.
    pub fn parse_trusted(bytes: Bytes) -> Result<Self, FrameError> {
        let header = header(&bytes)?;
        if header.len as usize != bytes.len() {
            return Err(if (header.len as usize) > bytes.len() {
                FrameError::Truncated { have: bytes.len(), want: header.len as usize }
            } else {
                FrameError::Length(header.len as usize)
            });
        }
        Ok(Self { bytes, header })
    }

    /// The header.
    pub fn header(&self) -> FrameHeader {
        self.header
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn offset(&self, i: u32) -> usize {
        u32_at(&self.bytes, self.header.table as usize + 4 * i as usize) as usize
    }

    /// Record `i`, or `None` if there are not that many or (in a frame that was never checked) the
    /// bytes there are no record.
    pub fn get(&self, i: u32) -> Option<Record<'_>> {
        if i >= self.header.count {
            return None;
        }
        let bytes = self.bytes.get(self.offset(i)..self.header.table as usize)?;
        Record::parse(bytes, self.header.base_seq, self.header.base_ts).ok()
    }

    /// Record `i` of a checked frame.
    ///
    /// # Panics
    /// If `i` is not below the header's `count`, or the frame was never checked and is damaged.
    pub fn record(&self, i: u32) -> Record<'_> {
        self.get(i).unwrap_or_else(|| panic!("record {i} of {} in a checked frame", self.header.count))
    }

    /// Record `i`, keeping the frame's memory alive.
    pub fn owned_record(&self, i: u32) -> Option<OwnedRecord> {
        let record = self.get(i)?;
        Some(OwnedRecord::of_checked(self.bytes.slice_ref(record.bytes()), self.header.base_seq, self.header.base_ts))
    }

    /// The record with this sequence, if the frame holds it.
    pub fn by_seq(&self, seq: StreamSeq) -> Option<Record<'_>> {
        let delta = seq.get().checked_sub(self.header.base_seq.get())?;
        self.get(u32::try_from(delta).ok()?)
    }

    /// All records in order. Stops early only in a damaged frame that was never checked.
    pub fn records(&self) -> Records<'_> {
        Records { frame: self, at: HEADER_LEN, left: self.header.count }
    }

    /// The body of a non-message frame: the payload of its only record.
    pub fn body(&self) -> Option<&[u8]> {
        if self.header.count == 1 { self.get(0).map(|record| record.payload()) } else { None }
    }
}

/// Iterator over a frame's records, by their lengths (they lie back to back).
#[derive(Debug)]
pub struct Records<'a> {
    frame: &'a Frame,
    at: usize,
    left: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if self.left == 0 {
            return None;
        }
        let header = &self.frame.header;
        let bytes = self.frame.bytes.get(self.at..header.table as usize)?;
        let record = Record::parse(bytes, header.base_seq, header.base_ts).ok()?;
        self.left -= 1;
        self.at += record.bytes().len();
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}
