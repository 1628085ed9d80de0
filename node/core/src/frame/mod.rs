//! The frame: one Raft entry, one block extent, the same bytes from admission to disk.
//!
//! Little endian throughout. A frame is a 64-byte header, `count` records back to back, and the
//! table of their offsets.
//!
//! | offset | size | header field |
//! |---|---|---|
//! | 0 | 4 | `len`: bytes of the whole frame |
//! | 4 | 4 | `crc`: CRC32C of bytes 8..64, then each record's 4 CRC bytes, then the table |
//! | 8 | 1 | `version` = 1 |
//! | 9 | 1 | `flags` = 0 |
//! | 10 | 1 | `kind`, see [`FrameKind`] |
//! | 11 | 1 | `codec` = 0 (reserved for compression) |
//! | 12 | 4 | `key_id` = 0 (reserved for encryption at rest) |
//! | 16 | 8 | `stream` |
//! | 24 | 8 | `term` under which the leader framed it |
//! | 32 | 8 | `ordinal` the leader gave it |
//! | 40 | 8 | `base_seq` |
//! | 48 | 8 | `base_ts`, ns since the epoch |
//! | 56 | 4 | `count` of records |
//! | 60 | 4 | `table`: offset of the record-offset table (`count` × u32) |
//!
//! | offset | size | record field |
//! |---|---|---|
//! | 0 | 4 | `crc`: CRC32C of the record's bytes from 4 on |
//! | 4 | 4 | `len`: bytes of the whole record |
//! | 8 | 4 | `seq_delta` to `base_seq` |
//! | 12 | 4 | `ts_delta` to `base_ts`, ns |
//! | 16 | 2 | `subject_len` |
//! | 18 | 1 | `flags`, see [`RecordFlags`] |
//! | 19 | 1 | reserved = 0 |
//! | 20 | 4 | `hdr_len` |
//! | 24 | … | subject, header block (with its final blank line) or nothing, payload, CRLF |
//!
//! Because every record has its own CRC and the frame's CRC covers only those, one message can be
//! read, erased or compacted alone. A torn write shows as a length beyond the file ([`FrameScan::Torn`])
//! or as a CRC mismatch ([`FrameScan::Corrupt`]); only the place in the file tells which it was.

mod builder;
mod parse;
mod record;
mod scan;

pub use builder::{FrameBuilder, FrameFull};
pub use parse::{Frame, FrameError, Records};
pub use record::{OwnedRecord, Record, RecordFlags};
pub use scan::{FrameScan, scan};

use crate::ids::{Ordinal, StreamId, StreamSeq, Term, Timestamp};

/// Bytes of the frame header.
pub const HEADER_LEN: usize = 64;
/// Bytes of a record before its subject.
pub const RECORD_HEADER_LEN: usize = 24;
/// The only version written today.
pub const VERSION: u8 = 1;
/// No frame is longer than this; a length above it is damage, not data.
pub const FRAME_LEN_MAX: usize = 128 << 20;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Messages: one record each.
    Messages = 1,
    /// A leader's sequencer starts or restarts; see the void rule.
    Begin = 2,
    /// Time has passed: remove what is too old.
    Expire = 3,
    /// Remove many messages.
    Purge = 4,
    /// Remove one message.
    DeleteMessage = 5,
    /// A new configuration.
    Config = 6,
    /// Consumer changes.
    Consumers = 7,
    /// Durability change, grant or completion.
    Durability = 8,
    /// The stream is removed.
    Remove = 9,
}

impl FrameKind {
    /// The kind with this number, if there is one.
    pub const fn from_u8(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Messages,
            2 => Self::Begin,
            3 => Self::Expire,
            4 => Self::Purge,
            5 => Self::DeleteMessage,
            6 => Self::Config,
            7 => Self::Consumers,
            8 => Self::Durability,
            9 => Self::Remove,
            _ => return None,
        })
    }
}

/// The fields of a frame header that carry meaning (lengths are the parser's business).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame carries.
    pub kind: FrameKind,
    /// Stream it belongs to.
    pub stream: StreamId,
    /// Term under which it was framed.
    pub term: Term,
    /// Its ordinal within that term.
    pub ordinal: Ordinal,
    /// Sequence of the first record (messages), or one past the leader's last sequence (other kinds).
    pub base_seq: StreamSeq,
    /// Time of the first record.
    pub base_ts: Timestamp,
    /// Number of records.
    pub count: u32,
    /// Bytes of the whole frame.
    pub len: u32,
    /// Offset of the record-offset table.
    pub table: u32,
}

/// CRC32C of the parts a frame's CRC covers, gathering record CRCs so that it runs over long slices.
struct FrameCrc {
    crc: u32,
    pending: [u8; 256],
    used: usize,
}

impl FrameCrc {
    fn new(header_tail: &[u8]) -> Self {
        Self { crc: crc32c::crc32c(header_tail), pending: [0; 256], used: 0 }
    }

    fn record(&mut self, crc_bytes: [u8; 4]) {
        if self.used == self.pending.len() {
            self.crc = crc32c::crc32c_append(self.crc, &self.pending);
            self.used = 0;
        }
        self.pending[self.used..self.used + 4].copy_from_slice(&crc_bytes);
        self.used += 4;
    }

    fn finish(self, table: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(self.crc, &self.pending[..self.used]);
        crc32c::crc32c_append(crc, table)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests;
