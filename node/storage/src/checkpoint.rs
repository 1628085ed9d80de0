//! Checkpoints: the state of a stream, or of the catalogue, at one log position.
//!
//! A stream's checkpoint is what makes its blocks count: a block that is not listed, and bytes beyond a
//! listed length, are not part of the stream's persisted state. It is published by rename, so installing
//! other blocks is one atomic step too.
//!
//! Body of a stream checkpoint (magic `HWSTRCKP`, version 1; see `envelope.rs` for the wrapping):
//!
//! | size | field |
//! |---|---|
//! | 8 | `group` |
//! | 8 | `stream` |
//! | 8, 8 | `applied`: index, term |
//! | 8 | `digest` of the stream's state |
//! | 8 + … | `membership`, opaque |
//! | 8 + … | `snapshot`, opaque |
//! | 8 + … | `image` of the stream's state, opaque |
//! | 4 | number of blocks |
//! | 8, 8 each | block number, valid length in bytes, header page included |
//!
//! Body of the catalogue's checkpoint (magic `HWMETCKP`, version 1): `applied` (index, term), `membership`,
//! `snapshot`, `image`, each as above.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, StreamId, Term};

use crate::disk::{Disk, publish, read_file};
use crate::envelope::{Fields, FileError, put_bytes, seal, unseal};

const STREAM_MAGIC: &[u8; 8] = b"HWSTRCKP";
const META_MAGIC: &[u8; 8] = b"HWMETCKP";
const VERSION: u32 = 1;
/// Name of the file in the directory of its stream, or of the catalogue.
pub const CHECKPOINT_FILE: &str = "checkpoint";

/// Number of a block file; one more for every block a stream ever had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNumber(u64);

impl BlockNumber {
    /// The first block of a stream.
    pub const FIRST: Self = Self(1);
    /// The last that is taken for one: the index of a store keeps 32 bits, and no counting leads beyond half of them.
    pub const LAST: Self = Self(i32::MAX as u64);

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

    /// Name of its file, relative to the stream's directory.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("blocks/{:010}.blk", self.0)
    }

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for BlockNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// A block as a checkpoint lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExtent {
    /// Its number.
    pub block: BlockNumber,
    /// Bytes that count, header page included.
    pub valid_bytes: u64,
}

/// What the data thread contributes to a checkpoint: the state after exactly the frames pushed so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointImage {
    /// The group whose log led here.
    pub group: GroupId,
    /// Last applied entry.
    pub applied: LogPosition,
    /// Membership at `applied`, opaque.
    pub membership: Bytes,
    /// Facts about the snapshot at `applied`, opaque.
    pub snapshot: Bytes,
    /// `StreamState::image()`.
    pub image: Bytes,
    /// `StreamState::digest()`.
    pub digest: u64,
}

/// A stream's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The stream.
    pub stream: StreamId,
    /// Its state.
    pub state: CheckpointImage,
    /// Its blocks, ascending.
    pub blocks: Vec<BlockExtent>,
}

impl Checkpoint {
    /// Where the checkpoint of the stream in `dir` lies.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(CHECKPOINT_FILE)
    }

    /// As bytes on disk.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { stream, state, blocks } = self;
        let CheckpointImage { group, applied, membership, snapshot, image, digest } = state;
        let mut body = Vec::with_capacity(128 + image.len() + membership.len() + 16 * blocks.len());
        for number in [group.get(), stream.get(), applied.index.get(), applied.term.get(), *digest] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        for bytes in [membership, snapshot, image] {
            put_bytes(&mut body, bytes);
        }
        body.extend_from_slice(&(blocks.len() as u32).to_le_bytes());
        for BlockExtent { block, valid_bytes } in blocks {
            body.extend_from_slice(&block.get().to_le_bytes());
            body.extend_from_slice(&valid_bytes.to_le_bytes());
        }
        seal(STREAM_MAGIC, VERSION, &body)
    }

    /// Reads what [`encode`](Self::encode) wrote; `path` is for error messages.
    ///
    /// # Errors
    /// [`FileError::Damaged`].
    pub fn decode(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        let mut fields = Fields::new(path, unseal(path, STREAM_MAGIC, VERSION, bytes)?);
        let group = GroupId::new(fields.u64("group")?);
        let stream = StreamId::new(fields.u64("stream")?);
        let applied = position(&mut fields)?;
        let digest = fields.u64("digest")?;
        let membership = fields.bytes("membership")?;
        let snapshot = fields.bytes("snapshot")?;
        let image = fields.bytes("image")?;
        let count = fields.u32("block count")?;
        let mut blocks: Vec<BlockExtent> = Vec::new();
        for _ in 0..count {
            let block = BlockNumber(fields.u64("block number")?);
            let valid_bytes = fields.u64("valid length")?;
            if let Some(last) = blocks.last().filter(|last| last.block >= block) {
                let expected = format!("a block above {}", last.block);
                return Err(FileError::damaged(path, 0, expected, format!("block {block}")));
            }
            if block > BlockNumber::LAST {
                let expected = format!("a block of at most {}", BlockNumber::LAST);
                return Err(FileError::damaged(path, 0, expected, format!("block {block}")));
            }
            blocks.push(BlockExtent { block, valid_bytes });
        }
        fields.end()?;
        let state = CheckpointImage { group, applied, membership, snapshot, image, digest };
        Ok(Self { stream, state, blocks })
    }

    /// Reads the checkpoint of the stream in `dir`; `None` if there is none.
    ///
    /// # Errors
    /// If the disk fails or the file is damaged.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, FileError> {
        let path = Self::path(dir);
        load(disk, &path)?.map(|bytes| Self::decode(&path, bytes)).transpose()
    }

    /// Makes this the stream's checkpoint: old or new after a crash, never a mixture.
    ///
    /// # Errors
    /// Whatever the disk reports.
    pub fn publish(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        publish(disk, &Self::path(dir), &self.encode())
    }
}

/// The catalogue's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaCheckpoint {
    /// Last applied entry of the meta group.
    pub applied: LogPosition,
    /// Membership at `applied`, opaque.
    pub membership: Bytes,
    /// Facts about the snapshot, opaque.
    pub snapshot: Bytes,
    /// The catalogue, opaque.
    pub image: Bytes,
}

impl MetaCheckpoint {
    /// As bytes on disk.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { applied, membership, snapshot, image } = self;
        let mut body = Vec::new();
        body.extend_from_slice(&applied.index.get().to_le_bytes());
        body.extend_from_slice(&applied.term.get().to_le_bytes());
        for bytes in [membership, snapshot, image] {
            put_bytes(&mut body, bytes);
        }
        seal(META_MAGIC, VERSION, &body)
    }

    /// Reads what [`encode`](Self::encode) wrote; `path` is for error messages.
    ///
    /// # Errors
    /// [`FileError::Damaged`].
    pub fn decode(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        let mut fields = Fields::new(path, unseal(path, META_MAGIC, VERSION, bytes)?);
        let applied = position(&mut fields)?;
        let membership = fields.bytes("membership")?;
        let snapshot = fields.bytes("snapshot")?;
        let image = fields.bytes("image")?;
        fields.end()?;
        Ok(Self { applied, membership, snapshot, image })
    }

    /// Reads the checkpoint in `dir`; `None` if there is none.
    ///
    /// # Errors
    /// If the disk fails or the file is damaged.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, FileError> {
        let path = dir.join(CHECKPOINT_FILE);
        load(disk, &path)?.map(|bytes| Self::decode(&path, bytes)).transpose()
    }

    /// Makes this the checkpoint in `dir`, which must exist. The meta group's log must be synced up to
    /// `applied` before: see [`Flusher::submit_meta`](crate::flusher::Flusher::submit_meta).
    ///
    /// # Errors
    /// Whatever the disk reports.
    pub fn publish(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        publish(disk, &dir.join(CHECKPOINT_FILE), &self.encode())
    }
}

fn position(fields: &mut Fields<'_>) -> Result<LogPosition, FileError> {
    let index = LogIndex::new(fields.u64("applied index")?);
    let term = Term::new(fields.u64("applied term")?);
    let position = LogPosition { index, term };
    if !position.is_countable() {
        return Err(fields.bad("an applied position that a log can reach", format_args!("{index} of term {term}")));
    }
    Ok(position)
}

fn load(disk: &dyn Disk, path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match read_file(disk, path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::io("read", path, error)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::disk::SimDisk;

    pub(crate) fn sample() -> Checkpoint {
        Checkpoint {
            stream: StreamId::new(7),
            state: CheckpointImage {
                group: GroupId::new(9),
                applied: LogPosition { index: LogIndex::new(42), term: Term::new(3) },
                membership: Bytes::from_static(b"members"),
                snapshot: Bytes::from_static(b"snap"),
                image: Bytes::from_static(b"image"),
                digest: 0x0102_0304_0506_0708,
            },
            blocks: vec![
                BlockExtent { block: BlockNumber(2), valid_bytes: 5000 },
                BlockExtent { block: BlockNumber(5), valid_bytes: 4096 },
            ],
        }
    }

    fn meta() -> MetaCheckpoint {
        MetaCheckpoint {
            applied: LogPosition { index: LogIndex::new(42), term: Term::new(3) },
            membership: Bytes::from_static(b"m"),
            snapshot: Bytes::new(),
            image: Bytes::from_static(b"catalogue"),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn golden_bytes() {
        let stream = [
            "4857535452434b50", // HWSTRCKP
            "01000000",         // version
            "f7879ca6",         // crc
            "7400000000000000", // body length
            "0900000000000000", // group
            "0700000000000000", // stream
            "2a00000000000000", // applied index
            "0300000000000000", // applied term
            "0807060504030201", // digest
            "07000000000000006d656d62657273",
            "0400000000000000736e6170",
            "0500000000000000696d616765",
            "02000000", // blocks
            "02000000000000008813000000000000",
            "05000000000000000010000000000000",
        ];
        assert_eq!(hex(&sample().encode()), stream.concat());
        let meta_bytes = [
            "48574d4554434b50", // HWMETCKP
            "01000000",
            "1d778555",
            "3200000000000000",
            "2a00000000000000",
            "0300000000000000",
            "01000000000000006d",
            "0000000000000000",
            "0900000000000000636174616c6f677565",
        ];
        assert_eq!(hex(&meta().encode()), meta_bytes.concat());
    }

    #[test]
    fn both_read_back() {
        let path = Path::new("checkpoint");
        assert_eq!(Checkpoint::decode(path, sample().encode()).unwrap(), sample());
        assert_eq!(MetaCheckpoint::decode(path, meta().encode()).unwrap(), meta());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let path = Path::new("checkpoint");
        let good = sample().encode();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let error = Checkpoint::decode(path, bad).unwrap_err();
                assert!(matches!(error, FileError::Damaged { .. }), "byte {at} bit {bit}: {error}");
            }
            assert!(Checkpoint::decode(path, good[..at].to_vec()).is_err());
        }
        assert!(MetaCheckpoint::decode(path, good).is_err(), "one kind does not pass for the other");
    }

    #[test]
    fn missing_is_none() {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new("/s")).unwrap();
        assert!(Checkpoint::load(&disk, Path::new("/s")).unwrap().is_none());
        sample().publish(&disk, Path::new("/s")).unwrap();
        assert_eq!(Checkpoint::load(&disk, Path::new("/s")).unwrap(), Some(sample()));
    }
}
