//! A WAL segment: a header page, then records.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `HWWALSEG` |
//! | 8 | 4 | `version` = 1 |
//! | 12 | 4 | `codec` = 0 (reserved) |
//! | 16 | 4 | `key_id` = 0 (reserved) |
//! | 20 | 4 | `len`: bytes the file had when it got this header; it is never shorter. 0 if not said |
//! | 24 | 8 | `seq`: number of the segment, as in its file name, never reused |
//! | 32 | 8 | `salt`: drawn anew for every life of the file |
//! | 40 | 4 | `crc`: CRC32C of bytes 0..40 |
//! | 44 | … | zeros up to 4096, where the first record starts |
//!
//! Files are `NNNNNNNNNN.wal`, and `NNNNNNNNNN.spare` while they wait for their next life. A file gets its
//! `.wal` name only after its new header was synced; a `.spare` is never read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_core::ids::GroupId;

use super::record::{ALIGN, HEADER_LEN, u32_at, u64_at};
use crate::disk::DiskFile;

/// Bytes before the first record; a page, so that no record write touches the header's sector.
pub(crate) const HEADER_PAGE: u64 = 4096;
/// Bytes kept free at the end for the [`End`](super::record::RecordType::End) record.
pub(crate) const END_RESERVE: u64 = HEADER_LEN as u64;

const MAGIC: &[u8; 8] = b"HWWALSEG";
const VERSION: u32 = 1;
const CRC_AT: usize = 40;
/// Bytes of the header that carry meaning.
pub(crate) const HEADER_BYTES: usize = 44;

/// Number of a segment. One more for every segment a WAL ever had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentSeq(u64);

impl SegmentSeq {
    /// The first segment of a fresh WAL.
    pub const FIRST: Self = Self(1);
    /// The last that is taken for one: no counting leads beyond.
    pub const LAST: Self = Self(u64::MAX / 2);

    /// Wraps a raw number.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for SegmentSeq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// Name of a live segment.
pub(crate) fn path(dir: &Path, seq: SegmentSeq) -> PathBuf {
    dir.join(format!("{:010}.wal", seq.get()))
}

/// Name of a segment between two lives.
pub(crate) fn spare_path(dir: &Path, seq: SegmentSeq) -> PathBuf {
    dir.join(format!("{:010}.spare", seq.get()))
}

/// What a file name in the WAL directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileName {
    Live(SegmentSeq),
    Spare(SegmentSeq),
}

/// Reads a file name; `None` for a file that is not ours.
pub(crate) fn parse_name(name: &str) -> Option<FileName> {
    let (stem, extension) = name.split_once('.')?;
    if stem.len() < 10 || !stem.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seq = SegmentSeq(stem.parse().ok()?);
    // One segment has one name, and always a next one.
    if seq > SegmentSeq::LAST || format!("{:010}", seq.0) != stem {
        return None;
    }
    match extension {
        "wal" => Some(FileName::Live(seq)),
        "spare" => Some(FileName::Spare(seq)),
        _ => None,
    }
}

/// The header page of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) seq: SegmentSeq,
    pub(crate) salt: u64,
    /// Length of the file in bytes when it got this header.
    pub(crate) len: u32,
}

impl SegmentHeader {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut page = vec![0; HEADER_PAGE as usize];
        page[0..8].copy_from_slice(MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[20..24].copy_from_slice(&self.len.to_le_bytes());
        page[24..32].copy_from_slice(&self.seq.get().to_le_bytes());
        page[32..40].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&page[..CRC_AT]);
        page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Reads a header page.
    ///
    /// # Errors
    /// What is wrong, with expected and found.
    pub(crate) fn decode(page: &[u8]) -> Result<Self, String> {
        if page.len() < HEADER_BYTES {
            return Err(format!("segment header: expected {HEADER_BYTES} bytes, found {}", page.len()));
        }
        if &page[0..8] != MAGIC {
            return Err(format!("segment magic: expected {MAGIC:02x?}, found {:02x?}", &page[0..8]));
        }
        let stored = u32_at(page, CRC_AT);
        let found = crc32c::crc32c(&page[..CRC_AT]);
        if stored != found {
            return Err(format!("segment header crc: expected {stored:08x}, found {found:08x}"));
        }
        let version = u32_at(page, 8);
        if version != VERSION {
            return Err(format!("segment version: expected {VERSION}, found {version}"));
        }
        let (codec, key_id) = (u32_at(page, 12), u32_at(page, 16));
        if codec != 0 || key_id != 0 {
            return Err(format!("segment codec and key: expected 0 and 0, found {codec} and {key_id}"));
        }
        Ok(Self { seq: SegmentSeq(u64_at(page, 24)), salt: u64_at(page, 32), len: u32_at(page, 20) })
    }
}

/// What one group still needs of one segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LiveRefs {
    /// Live entries.
    pub(crate) entries: u64,
    /// Their bytes, headers and padding included.
    pub(crate) entry_bytes: u64,
    /// Live vote and purge records.
    pub(crate) states: u32,
}

/// A segment that holds records.
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) capacity: u64,
    /// Who still needs it. Empty: it can go, once it is the oldest.
    pub(crate) live: hashbrown::HashMap<GroupId, LiveRefs>,
    /// Queue position of the newest record that made something here obsolete: it must be synced before
    /// this segment goes.
    pub(crate) obsoleted_by: u64,
}

impl Segment {
    /// Drops one reference; `by` is the position of the record that made it obsolete.
    pub(crate) fn release(&mut self, group: GroupId, refs: LiveRefs, by: u64) {
        self.obsoleted_by = self.obsoleted_by.max(by);
        if let Some(live) = self.live.get_mut(&group) {
            live.entries = live.entries.saturating_sub(refs.entries);
            live.entry_bytes = live.entry_bytes.saturating_sub(refs.entry_bytes);
            live.states = live.states.saturating_sub(refs.states);
            if live.entries == 0 && live.states == 0 {
                self.live.remove(&group);
            }
        }
    }

    /// Adds references.
    pub(crate) fn retain(&mut self, group: GroupId, refs: LiveRefs) {
        let live = self.live.entry(group).or_default();
        live.entries += refs.entries;
        live.entry_bytes += refs.entry_bytes;
        live.states += refs.states;
    }
}

/// A segment with header and name, waiting for its first record.
pub(crate) struct Prepared {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) capacity: u64,
}

/// Smallest capacity that holds a record of this padded length.
pub(crate) const fn capacity_for(padded_len: u64) -> u64 {
    (HEADER_PAGE + padded_len + END_RESERVE).div_ceil(ALIGN as u64) * ALIGN as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header() {
        let page = SegmentHeader { seq: SegmentSeq(7), salt: 0x0102_0304_0506_0708, len: 0 }.encode();
        assert_eq!(page.len(), 4096);
        assert_eq!(
            &page[..40],
            b"HWWALSEG\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01"
        );
        assert_eq!(u32_at(&page, 40), crc32c::crc32c(&page[..40]));
        assert!(page[44..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_flipped_header_bit_is_named() {
        let good = SegmentHeader { seq: SegmentSeq(7), salt: 1, len: 65536 };
        let mut page = good.encode();
        assert_eq!(SegmentHeader::decode(&page), Ok(good));
        for at in 0..HEADER_BYTES {
            page[at] ^= 4;
            let error = SegmentHeader::decode(&page).unwrap_err();
            assert!(error.contains("expected"), "{error}");
            page[at] ^= 4;
        }
    }

    #[test]
    fn only_our_names_are_read() {
        assert_eq!(parse_name("0000000012.wal"), Some(FileName::Live(SegmentSeq(12))));
        assert_eq!(parse_name("0000000012.spare"), Some(FileName::Spare(SegmentSeq(12))));
        assert_eq!(parse_name("12.wal"), None);
        assert_eq!(parse_name("00000000012.wal"), None);
        assert_eq!(parse_name("18446744073709551615.wal"), None);
        assert_eq!(parse_name("9223372036854775808.wal"), None);
        assert_eq!(parse_name("9223372036854775807.wal"), Some(FileName::Live(SegmentSeq::LAST)));
        assert_eq!(parse_name("0000000012.wal.tmp"), None);
        assert_eq!(parse_name("lost+found"), None);
    }
}
