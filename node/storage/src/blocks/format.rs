//! A block file: a header page, then frames back to back.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `HWSBLOCK` |
//! | 8 | 4 | `version` = 1 |
//! | 12 | 4 | `codec` = 0 (reserved) |
//! | 16 | 4 | `key_id` = 0 (reserved) |
//! | 20 | 4 | reserved = 0 |
//! | 24 | 8 | `stream` |
//! | 32 | 8 | `block`, as in the file name, never reused |
//! | 40 | 4 | `crc`: CRC32C of bytes 0..40 |
//! | 512 | 20 | sync mark A: bytes of the file known to be synced, ticket, CRC32C of both and `block` |
//! | 1024 | 20 | sync mark B, written in turn with A |
//! | 4096 | … | frames, verbatim |
//!
//! Sync marks exist only for streams without a log (R1): below the newest mark a bad frame is corruption,
//! above it the end of the newest block may be torn. Each mark has its own sector, so a torn mark leaves
//! the other. Files are `NNNNNNNNNN.blk`.

use std::path::{Path, PathBuf};

use headwater_core::ids::StreamId;

use crate::checkpoint::BlockNumber;
use crate::wal::record::{u32_at, u64_at};

/// Bytes before the first frame.
pub(crate) const HEADER_PAGE: u64 = 4096;
const MAGIC: &[u8; 8] = b"HWSBLOCK";
const VERSION: u32 = 1;
const CRC_AT: usize = 40;
const MARKS_AT: [u64; 2] = [512, 1024];
const MARK_LEN: usize = 20;

/// Name of a block file.
pub(crate) fn path(blocks: &Path, block: BlockNumber) -> PathBuf {
    blocks.join(format!("{:010}.blk", block.get()))
}

/// Of the file that is the index of a block, beside it.
pub const INDEX_EXTENSION: &str = "idx";

/// Name of the index of a block that takes no more frames.
pub(crate) fn index_path(blocks: &Path, block: BlockNumber) -> PathBuf {
    blocks.join(format!("{:010}.{INDEX_EXTENSION}", block.get()))
}

/// Reads a file name; `None` for a file that is not ours.
pub(crate) fn parse_name(name: &str) -> Option<BlockNumber> {
    number(name, ".blk")
}

/// As [`parse_name`], for an index.
pub(crate) fn parse_index_name(name: &str) -> Option<BlockNumber> {
    number(name, ".idx")
}

fn number(name: &str, suffix: &str) -> Option<BlockNumber> {
    let stem = name.strip_suffix(suffix)?;
    if stem.len() < 10 || !stem.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let block = BlockNumber::new(stem.parse().ok()?);
    // One block has one name, and always a next one.
    (block <= BlockNumber::LAST && format!("{:010}", block.get()) == stem).then_some(block)
}

/// The header page of a block.
pub(crate) fn header(stream: StreamId, block: BlockNumber) -> Vec<u8> {
    let mut page = vec![0; HEADER_PAGE as usize];
    page[0..8].copy_from_slice(MAGIC);
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    page[24..32].copy_from_slice(&stream.get().to_le_bytes());
    page[32..40].copy_from_slice(&block.get().to_le_bytes());
    let crc = crc32c::crc32c(&page[..CRC_AT]);
    page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    page
}

/// Checks a header page. The error names offset, expected and found.
pub(crate) fn check_header(page: &[u8], stream: StreamId, block: BlockNumber) -> Result<(), (u64, String, String)> {
    if page.len() < HEADER_PAGE as usize {
        return Err((0, format!("a header page of {HEADER_PAGE} bytes"), format!("{} bytes", page.len())));
    }
    let expected = header(stream, block);
    let fields = [
        (0, 8, "magic"),
        (8, 4, "version"),
        (12, 12, "codec and key"),
        (24, 8, "stream"),
        (32, 8, "block"),
        (40, 4, "crc"),
    ];
    for (at, len, what) in fields {
        if page[at..at + len] != expected[at..at + len] {
            let (expected, found) = (&expected[at..at + len], &page[at..at + len]);
            return Err((at as u64, format!("{what} {expected:02x?}"), format!("{found:02x?}")));
        }
    }
    Ok(())
}

/// A sync mark: where to write it, and its bytes.
pub(crate) fn mark(block: BlockNumber, synced_bytes: u64, ticket: u64) -> (u64, [u8; MARK_LEN]) {
    let mut bytes = [0; MARK_LEN];
    bytes[0..8].copy_from_slice(&synced_bytes.to_le_bytes());
    bytes[8..16].copy_from_slice(&ticket.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &block.get().to_le_bytes());
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    (MARKS_AT[(ticket % 2) as usize], bytes)
}

/// Bytes of the block that were synced, as far as its marks tell, and the highest ticket.
pub(crate) fn marked(page: &[u8], block: BlockNumber) -> (u64, u64) {
    let mut best = (0, 0);
    for at in MARKS_AT {
        let Some(bytes) = page.get(at as usize..at as usize + MARK_LEN) else {
            continue;
        };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &block.get().to_le_bytes());
        let (synced, ticket) = (u64_at(bytes, 0), u64_at(bytes, 8));
        // No counting leads to a ticket beyond, and there must be a next one.
        if u32_at(bytes, 16) == crc && ticket > best.1 && ticket <= u64::MAX / 2 {
            best = (synced, ticket);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header() {
        let page = header(StreamId::new(7), BlockNumber::new(3));
        assert_eq!(page.len(), 4096);
        assert_eq!(&page[..40], b"HWSBLOCK\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(u32_at(&page, 40), crc32c::crc32c(&page[..40]));
        assert!(page[44..].iter().all(|byte| *byte == 0));
        let (at, mark) = mark(BlockNumber::new(3), 0x1234, 5);
        assert_eq!(at, 1024);
        assert_eq!(&mark[..16], b"\x34\x12\0\0\0\0\0\0\x05\0\0\0\0\0\0\0");
    }

    #[test]
    fn the_newer_whole_mark_counts() {
        let block = BlockNumber::new(3);
        let mut page = header(StreamId::new(7), block);
        assert_eq!(marked(&page, block), (0, 0));
        for (synced, ticket) in [(5000, 1), (6000, 2), (7000, 3)] {
            let (at, bytes) = mark(block, synced, ticket);
            page[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(marked(&page, block), (synced, ticket));
        }
        page[1024 + 3] ^= 1;
        assert_eq!(marked(&page, block), (6000, 2), "a torn mark leaves the other");
    }

    /// Found by fuzzing: what comes after a block or a ticket is asked for when a store opens.
    #[test]
    fn the_largest_numbers_are_none() {
        assert_eq!(parse_name("0000000003.blk"), Some(BlockNumber::new(3)));
        assert_eq!(parse_name("2147483647.blk"), Some(BlockNumber::LAST));
        for none in ["2147483648.blk", "18446744073709551615.blk", "00000000003.blk", "3.blk"] {
            assert_eq!(parse_name(none), None, "{none}");
        }
        let block = BlockNumber::new(3);
        let mut page = header(StreamId::new(7), block);
        for ticket in [1, u64::MAX] {
            let (at, bytes) = mark(block, 5000, ticket);
            page[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(marked(&page, block), (0, 0), "both have the same place");
    }

    #[test]
    fn every_flipped_header_bit_is_named() {
        let mut page = header(StreamId::new(7), BlockNumber::new(3));
        for at in 0..44 {
            page[at] ^= 2;
            check_header(&page, StreamId::new(7), BlockNumber::new(3)).unwrap_err();
            page[at] ^= 2;
        }
        check_header(&page, StreamId::new(7), BlockNumber::new(3)).unwrap();
    }
}
