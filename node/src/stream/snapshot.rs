//! A replica's own snapshot mark: the state at S, by its digest, and how far the files were at that moment.
//!
//! The mark is *async* when `persisted < S`: it is ahead of the data on disk, and a restart reaches S by replaying
//! `persisted+1 ..= S` from the log, which is never purged past `persisted`. The digest proves the result.
//! The mark is derived and advisory, so it is written without a sync: one that is torn or lost proves nothing, and
//! costs nothing. Format: `docs/formats/snapshot.md`.

use std::io;
use std::path::Path;

use headwater_core::ids::{LogIndex, LogPosition, Term};
use headwater_storage::disk::{Disk, read_file};

/// File name below the stream's folder.
pub(crate) const FILE: &str = "snapshot";
const MAGIC: &[u8; 4] = b"HWSM";
const VERSION: u32 = 1;
const LEN: usize = 44;

/// See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotMark {
    /// S: at most what was applied and synced in the log.
    pub(crate) at: LogPosition,
    /// `persisted` when the mark was taken.
    pub(crate) persisted: LogIndex,
    /// Digest of the state at S.
    pub(crate) digest: u64,
}

impl SnapshotMark {
    /// Ahead of the data on disk, as `persisted` stands now.
    pub(crate) fn is_async(&self, persisted: LogIndex) -> bool {
        persisted < self.at.index
    }

    /// Entries between the data on disk and S.
    pub(crate) fn missing(&self, persisted: LogIndex) -> u64 {
        self.at.index.get().saturating_sub(persisted.get())
    }

    fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[0..4].copy_from_slice(MAGIC);
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        for (at, n) in
            [(8, self.at.term.get()), (16, self.at.index.get()), (24, self.persisted.get()), (32, self.digest)]
        {
            out[at..at + 8].copy_from_slice(&n.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out[..40]);
        out[40..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != LEN || bytes[0..4] != *MAGIC || bytes[4..8] != VERSION.to_le_bytes() {
            return None;
        }
        let crc = u32::from_le_bytes(bytes[40..44].try_into().ok()?);
        if crc != crc32c::crc32c(&bytes[..40]) {
            return None;
        }
        let n = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let mark = Self {
            at: LogPosition { term: Term::new(n(8)?), index: LogIndex::new(n(16)?) },
            persisted: LogIndex::new(n(24)?),
            digest: n(32)?,
        };
        (mark.at.is_countable() && mark.persisted.is_countable()).then_some(mark)
    }

    /// Any bytes as a mark, with and without the checksum they would have: see [`crate::decoders`].
    fn decode_any(bytes: &[u8]) {
        let mut sealed = [0; LEN];
        let kept = bytes.len().min(40);
        sealed[..kept].copy_from_slice(&bytes[..kept]);
        let crc = crc32c::crc32c(&sealed[..40]);
        sealed[40..].copy_from_slice(&crc.to_le_bytes());
        for bytes in [bytes, &sealed] {
            if let Some(mark) = Self::decode(bytes) {
                assert_eq!(mark.encode(), bytes);
                let _ = (mark.is_async(mark.persisted), mark.missing(mark.persisted));
            }
        }
    }

    /// The mark in `dir`; `None` if there is none that can be read.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Option<Self> {
        Self::decode(&read_file(disk, &dir.join(FILE)).ok()?)
    }

    /// Replaces the mark in `dir`. Not synced: see the module's description. Blocking.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let temp = dir.join("snapshot.new");
        // A kill between these calls leaves the temporary file behind.
        match disk.remove(&temp) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        disk.create(&temp)?.write_at(0, &self.encode())?;
        disk.rename(&temp, &dir.join(FILE))
    }
}

/// Any bytes as a mark: see [`crate::decoders`].
///
/// # Panics
/// If the decoder contradicts itself.
pub(super) fn decode_any(bytes: &[u8]) {
    SnapshotMark::decode_any(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_and_a_damaged_one_proves_nothing() {
        let mark = SnapshotMark {
            at: LogPosition { term: Term::new(3), index: LogIndex::new(90) },
            persisted: LogIndex::new(70),
            digest: 0x1234_5678_9abc_def0,
        };
        let bytes = mark.encode();
        assert_eq!(SnapshotMark::decode(&bytes), Some(mark));
        for i in 0..LEN {
            let mut bad = bytes;
            bad[i] ^= 0x10;
            assert_eq!(SnapshotMark::decode(&bad), None, "byte {i}");
        }
        assert!(mark.is_async(LogIndex::new(89)) && !mark.is_async(LogIndex::new(90)));
        assert_eq!((mark.missing(LogIndex::new(70)), mark.missing(LogIndex::new(95))), (20, 0));
    }

    #[test]
    fn golden_bytes() {
        let mark = SnapshotMark {
            at: LogPosition { term: Term::new(1), index: LogIndex::new(7) },
            persisted: LogIndex::new(5),
            digest: 0x1234_5678_9abc_def0,
        };
        let expected = [
            "48 57 53 4d", // HWSM
            "01 00 00 00", // version
            "01 00 00 00 00 00 00 00",
            "07 00 00 00 00 00 00 00",
            "05 00 00 00 00 00 00 00",
            "f0 de bc 9a 78 56 34 12",
            "b4 21 86 da", // crc
        ];
        let hex: Vec<String> = mark.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex.join(" "), expected.join(" "));
        let page = include_str!("../../../docs/formats/snapshot.md");
        let (_, example) = page.split_once("```text\n").unwrap();
        let shown = example.lines().map(|line| line.split("  ").next().unwrap_or_default());
        assert!(shown.take(expected.len()).eq(expected), "the page shows these bytes");
    }
}
