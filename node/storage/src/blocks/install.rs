//! Replacing a replicated stream's data by a peer's: frames go to new blocks, and one checkpoint makes them,
//! and only them, count.
//!
//! A crash before that checkpoint leaves the old data; the new blocks are then cut at the next open. After
//! it, the old blocks are not listed any more and are removed at the next open.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_core::frame::{Frame, FrameKind};
use headwater_core::ids::StreamId;

use super::format::HEADER_PAGE;
use super::job::{Extent, FlushError, FlushJob};
use super::open::list;
use crate::checkpoint::{BlockExtent, BlockNumber, Checkpoint, CheckpointImage};
use crate::disk::Disk;
use crate::envelope::FileError;

/// Frames gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// Writes a stream's data anew. Blocks on the disk: use it off the data thread.
pub struct BlockInstaller {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    stream: StreamId,
    block_bytes_max: u64,
    next_block: BlockNumber,
    blocks: Vec<BlockExtent>,
    gathered: Vec<Extent>,
    gathered_bytes: usize,
    job: FlushJob,
}

impl BlockInstaller {
    /// Starts in the stream's directory. The open store of this stream, if any, must have no job outstanding,
    /// must not be used any more, and must be opened anew after [`finish`](Self::finish).
    ///
    /// # Errors
    /// If the disk fails.
    pub fn begin(disk: Arc<dyn Disk>, dir: &Path, stream: StreamId, block_bytes_max: u64) -> Result<Self, FileError> {
        let blocks_dir = dir.join("blocks");
        disk.create_dir_all(&blocks_dir).map_err(|error| FileError::io("create", &blocks_dir, error))?;
        let next_block = list(disk.as_ref(), &blocks_dir)?.last().map_or(BlockNumber::FIRST, |last| last.next());
        let job = FlushJob {
            stream,
            blocks_dir,
            stream_dir: dir.to_owned(),
            extents: Vec::new(),
            newest: None,
            file: None,
            sync: true,
            mark: None,
            upto: None,
            checkpoint: None,
            dead: Vec::new(),
            log: None,
            background: true,
        };
        let dir = dir.to_owned();
        Ok(Self {
            disk,
            dir,
            stream,
            block_bytes_max,
            next_block,
            blocks: Vec::new(),
            gathered: Vec::new(),
            gathered_bytes: 0,
            job,
        })
    }

    /// Adds the next frame, which must be checked ([`Frame::parse`]) and of this stream. Frames without
    /// messages are ignored, as a replicated store does.
    ///
    /// # Errors
    /// If the disk fails; then give up and begin anew.
    pub fn push(&mut self, frame: &Frame) -> Result<(), FlushError> {
        let header = frame.header();
        assert_eq!(header.stream, self.stream, "a frame of another stream");
        if header.kind != FrameKind::Messages {
            return Ok(());
        }
        let len = u64::from(header.len);
        let limit = self.block_bytes_max;
        let fits = self
            .blocks
            .last()
            .is_some_and(|block| block.valid_bytes + len <= limit || block.valid_bytes == HEADER_PAGE);
        if !fits {
            self.blocks.push(BlockExtent { block: self.next_block, valid_bytes: HEADER_PAGE });
            self.next_block = self.next_block.next();
        }
        let Some(block) = self.blocks.last_mut() else {
            return Ok(());
        };
        let bytes = frame.bytes().clone();
        self.gathered_bytes += bytes.len();
        match self.gathered.last_mut().filter(|extent| extent.block == block.block) {
            Some(extent) => extent.parts.push(bytes),
            None => self.gathered.push(Extent {
                block: block.block,
                offset: block.valid_bytes,
                create: block.valid_bytes == HEADER_PAGE,
                parts: vec![bytes],
            }),
        }
        block.valid_bytes += len;
        if self.gathered_bytes >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), FlushError> {
        self.job.extents = std::mem::take(&mut self.gathered);
        self.gathered_bytes = 0;
        self.job.write(self.disk.as_ref())
    }

    /// Makes the new data count, and nothing else. Durable on return. If the log of the group does not reach
    /// up to `state.applied`, purge it up to there afterwards.
    ///
    /// # Errors
    /// If the disk fails; then either data may be the one found at the next open.
    pub fn finish(mut self, state: CheckpointImage) -> Result<Checkpoint, FlushError> {
        self.write()?;
        self.job.sync(self.disk.as_ref())?;
        let checkpoint = Checkpoint { stream: self.stream, state, blocks: self.blocks };
        let path = Checkpoint::path(&self.dir);
        checkpoint.publish(self.disk.as_ref(), &self.dir).map_err(|error| FlushError::io("publish", &path, &error))?;
        Ok(checkpoint)
    }
}

/// Removes everything a stream has on disk, durably. Only after a confirmed removal record.
///
/// # Errors
/// If the disk fails; what is left is then partial, and removing again finishes it.
pub fn remove_stream(disk: &dyn Disk, dir: &Path) -> Result<(), FileError> {
    // The checkpoint first: blocks without one are cut, a checkpoint without its blocks would be damage.
    let checkpoint = Checkpoint::path(dir);
    match disk.remove(&checkpoint) {
        Ok(()) => disk.sync_dir(dir).map_err(|error| FileError::io("sync", dir, error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::io("remove", &checkpoint, error)),
    }
    disk.remove_dir_all(dir).map_err(|error| FileError::io("remove", dir, error))?;
    match dir.parent() {
        Some(parent) => disk.sync_dir(parent).map_err(|error| FileError::io("sync", parent, error)),
        None => Ok(()),
    }
}
