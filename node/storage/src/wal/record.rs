//! A WAL record as bytes.
//!
//! Little endian; a record starts at a multiple of 8 bytes and is followed by zeros up to the next.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | `len`: header and payload, without the padding |
//! | 4 | 4 | `crc`: CRC32C of the segment's salt (8 bytes), then bytes 8.. of the record |
//! | 8 | 4 | `salt`: low half of the segment's salt |
//! | 12 | 4 | `synced`: bytes of this segment, in units of 8, known to be synced when this was written |
//! | 16 | 1 | `type`, see [`RecordType`] |
//! | 17 | 1 | `flags`: 1 = rewritten forward, 2 = no index (an empty log) |
//! | 18 | 1 | `kind`: the caller's entry kind, opaque here |
//! | 19 | 5 | reserved = 0 |
//! | 24 | 8 | `group` |
//! | 32 | 8 | `term` |
//! | 40 | 8 | `index` |
//! | 48 | … | payload |
//!
//! Segments are recycled, so bytes of an earlier life lie behind the last record. They never parse: the
//! salt differs in the header and is part of the CRC. `synced` tells a torn tail from decay: below the
//! highest `synced` that any valid record states, a bad record is corruption.

use headwater_core::ids::{GroupId, LogIndex, Term};

/// Bytes before the payload.
pub(crate) const HEADER_LEN: usize = 48;
/// Records start at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// Largest record, payload included. A length above it is damage.
pub(crate) const RECORD_LEN_MAX: usize = 1 << 30;

const FLAG_REWRITTEN: u8 = 1;
const FLAG_NO_INDEX: u8 = 2;

/// What a record says. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordType {
    /// One log entry.
    Append = 1,
    /// The group's vote, opaque.
    Vote = 2,
    /// Entries up to `index` are committed.
    Committed = 3,
    /// Entries after `index` are gone.
    TruncateAfter = 4,
    /// Entries up to and including `index` are gone for good.
    PurgeUpto = 5,
    /// The group is gone with everything it had.
    GroupDrop = 6,
    /// Nothing: carries `synced` when no other record comes to do so.
    Mark = 7,
    /// The segment ends here; the next one follows.
    End = 8,
}

impl RecordType {
    pub(crate) const fn from_u8(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Append,
            2 => Self::Vote,
            3 => Self::Committed,
            4 => Self::TruncateAfter,
            5 => Self::PurgeUpto,
            6 => Self::GroupDrop,
            7 => Self::Mark,
            8 => Self::End,
            _ => return None,
        })
    }
}

/// A record header without what the segment adds (salt, synced, crc).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) record: RecordType,
    pub(crate) rewritten: bool,
    pub(crate) kind: u8,
    pub(crate) group: GroupId,
    pub(crate) term: Term,
    /// `None` where "the log before its first entry" is meant.
    pub(crate) index: Option<LogIndex>,
}

impl Head {
    /// A header with nothing but a type and a group.
    pub(crate) const fn plain(record: RecordType, group: GroupId) -> Self {
        Self { record, rewritten: false, kind: 0, group, term: Term::new(0), index: None }
    }

    /// The 48 bytes in front of `payload`.
    pub(crate) fn encode(&self, salt: u64, synced_bytes: u64, payload: &[u8]) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&((HEADER_LEN + payload.len()) as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&(salt as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&((synced_bytes / ALIGN as u64) as u32).to_le_bytes());
        bytes[16] = self.record as u8;
        bytes[17] = if self.rewritten { FLAG_REWRITTEN } else { 0 };
        if self.index.is_none() {
            bytes[17] |= FLAG_NO_INDEX;
        }
        bytes[18] = self.kind;
        bytes[24..32].copy_from_slice(&self.group.get().to_le_bytes());
        bytes[32..40].copy_from_slice(&self.term.get().to_le_bytes());
        bytes[40..48].copy_from_slice(&self.index.map_or(0, LogIndex::get).to_le_bytes());
        let crc = crc(salt, &bytes[8..], payload);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn crc(salt: u64, header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, header), payload)
}

/// A record length with its padding.
pub(crate) const fn padded(len: usize) -> usize {
    len.div_ceil(ALIGN) * ALIGN
}

/// A valid record found in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) head: Head,
    /// Bytes of the segment that were synced when this record was written.
    pub(crate) synced_bytes: u64,
    pub(crate) payload: &'a [u8],
    /// Bytes up to the next record.
    pub(crate) padded_len: usize,
}

/// What lies at a place in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// A valid record.
    Record(Found<'a>),
    /// No trace of a record of this life: zeros, or bytes of an earlier one.
    Nothing,
    /// A record of this life was written here, and these are not all its bytes.
    Bad {
        /// CRC in the header.
        expected: u32,
        /// CRC of what is there.
        found: u32,
    },
}

/// Reads what starts at `bytes[0]` in a segment with this salt.
pub(crate) fn parse(bytes: &[u8], salt: u64) -> Parsed<'_> {
    if bytes.len() < HEADER_LEN || u32_at(bytes, 8) != salt as u32 {
        return Parsed::Nothing;
    }
    let expected = u32_at(bytes, 4);
    let len = u32_at(bytes, 0) as usize;
    if !(HEADER_LEN..=RECORD_LEN_MAX).contains(&len) || len > bytes.len() {
        return Parsed::Bad { expected, found: 0 };
    }
    let payload = &bytes[HEADER_LEN..len];
    let found = crc(salt, &bytes[8..HEADER_LEN], payload);
    if found != expected {
        return Parsed::Bad { expected, found };
    }
    // A valid CRC over an unknown type is a format from the future, which must not be skipped either.
    let Some(record) = RecordType::from_u8(bytes[16]) else {
        return Parsed::Bad { expected, found };
    };
    let head = Head {
        record,
        rewritten: bytes[17] & FLAG_REWRITTEN != 0,
        kind: bytes[18],
        group: GroupId::new(u64_at(bytes, 24)),
        term: Term::new(u64_at(bytes, 32)),
        index: (bytes[17] & FLAG_NO_INDEX == 0).then(|| LogIndex::new(u64_at(bytes, 40))),
    };
    // No log ever gets there, and its next index is asked for in many places.
    if head.index.is_some_and(|index| !index.is_countable()) {
        return Parsed::Bad { expected, found };
    }
    let synced_bytes = u64::from(u32_at(bytes, 12)) * ALIGN as u64;
    Parsed::Record(Found { head, synced_bytes, payload, padded_len: padded(len) })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 0x1122_3344_5566_7788;

    fn append() -> (Head, &'static [u8]) {
        let head = Head {
            record: RecordType::Append,
            rewritten: true,
            kind: 3,
            group: GroupId::new(0x0102),
            term: Term::new(9),
            index: Some(LogIndex::new(0x0304)),
        };
        (head, b"payload")
    }

    #[test]
    fn golden_bytes() {
        let (head, payload) = append();
        let bytes = head.encode(SALT, 4096, payload);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "37000000",         // len 55
            "6da4564a",         // crc
            "88776655",         // salt, low half
            "00020000",         // synced 4096 / 8
            "01",               // Append
            "01",               // rewritten
            "03",               // kind
            "0000000000",       // reserved
            "0201000000000000", // group
            "0900000000000000", // term
            "0403000000000000", // index
        ];
        assert_eq!(hex, expected.concat());
    }

    #[test]
    fn a_record_reads_back_and_only_under_its_own_salt() {
        let (head, payload) = append();
        let mut bytes = head.encode(SALT, 4096, payload).to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(padded(bytes.len()), 0);
        let expected = Found { head, synced_bytes: 4096, payload, padded_len: 56 };
        assert_eq!(parse(&bytes, SALT), Parsed::Record(expected));
        assert_eq!(parse(&bytes, SALT + 1), Parsed::Nothing);
        // Same low half, other life: the CRC still tells.
        assert!(matches!(parse(&bytes, SALT ^ (1 << 40)), Parsed::Bad { .. }));
        assert_eq!(parse(&[0; 64], SALT), Parsed::Nothing);
    }

    /// Found by fuzzing.
    #[test]
    fn an_index_that_no_counting_leads_to_is_no_record() {
        let (head, payload) = append();
        for (index, is_record) in [(u64::MAX / 2, true), (u64::MAX / 2 + 1, false), (u64::MAX, false)] {
            let head = Head { index: Some(LogIndex::new(index)), ..head };
            let mut bytes = head.encode(SALT, 0, payload).to_vec();
            bytes.extend_from_slice(payload);
            assert_eq!(matches!(parse(&bytes, SALT), Parsed::Record(_)), is_record, "{index}");
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (head, payload) = append();
        let mut bytes = head.encode(SALT, 0, payload).to_vec();
        bytes.extend_from_slice(payload);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert!(!matches!(parse(&bytes, SALT), Parsed::Record(_)), "byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
        }
    }
}
