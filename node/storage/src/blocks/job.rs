//! A flush job: what the data thread hands over, and how it is carried out step by step.
//!
//! ```text
//!   stage 1  write extents ──▶ sync blocks ──▶ Stored
//!   stage 2  log synced up to applied ──▶ checkpoint published ──▶ dead blocks removed, closed ones indexed ──▶ Persisted
//! ```
//!
//! A block is synced before the next one is created, so only the newest can end torn.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, StreamId};

use super::format::{header, index_path, mark, path};
use crate::checkpoint::{BlockExtent, BlockNumber, Checkpoint};
use crate::disk::{Disk, DiskFile};
use crate::wal::WalFailure;

/// What a flush is to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushWant {
    /// The kernel has the bytes.
    Write,
    /// The device has them.
    Sync,
    /// A checkpoint covers them.
    Checkpoint,
}

/// Why a flush failed. Final for its store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// The disk failed.
    #[error("{op} of {} failed: {message}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// Whether the same may work later; see [`passes`].
        passes: bool,
        /// The error in words.
        message: String,
    },
    /// The log that must be synced before a checkpoint is not.
    #[error("the log could not be synced before the checkpoint")]
    Log(#[source] WalFailure),
}

/// Whether the same may work later, on the same disk: there was no room, it could not be written to, or the process or
/// the machine was out of file descriptors or memory.
#[must_use]
pub fn passes(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let out_of_files = matches!(error.raw_os_error(), Some(ENFILE | EMFILE));
    out_of_files || matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem | OutOfMemory)
}

// As every Linux numbers them; the standard library has no kinds for them.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

impl FlushError {
    /// Whether the same may work later, after opening the store anew; see [`passes`]. Not after a failed sync: the kernel
    /// may have dropped what it could not write.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self, Self::Io { passes: true, .. })
    }

    pub(crate) fn io(op: &'static str, path: &Path, error: &io::Error) -> Self {
        let passes = op != "sync" && passes(error);
        Self::Io { op, path: path.to_owned(), passes, message: error.to_string() }
    }
}

/// What became of a job; give it to [`StreamStore::complete`](super::StreamStore::complete).
#[derive(Debug)]
pub struct FlushDone {
    /// The stream.
    pub stream: StreamId,
    /// The stage that ended. A job with a checkpoint reports twice, unless it fails.
    pub stage: FlushStage,
}

/// The end of a stage.
pub enum FlushStage {
    /// Everything up to `stored` is in the block files.
    Stored {
        /// Last operation covered; `None` if there was none yet.
        stored: Option<LogIndex>,
        /// Whether it is synced.
        synced: bool,
        /// The open newest block, kept for the next job.
        file: Option<OpenBlock>,
    },
    /// A checkpoint covers everything up to `persisted`.
    Persisted {
        /// Last operation covered.
        persisted: LogIndex,
        /// Blocks that are gone.
        removed: Vec<BlockNumber>,
    },
    /// Final for the store.
    Failed(FlushError),
}

impl std::fmt::Debug for FlushStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stored { stored, synced, .. } => {
                write!(f, "Stored {{ stored: {stored:?}, synced: {synced} }}")
            }
            Self::Persisted { persisted, removed } => {
                write!(f, "Persisted {{ {persisted}, removed: {removed:?} }}")
            }
            Self::Failed(error) => write!(f, "Failed({error})"),
        }
    }
}

/// An open block file.
#[derive(Clone)]
pub struct OpenBlock {
    pub(crate) block: BlockNumber,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// Frames that lie behind each other in one block.
pub(crate) struct Extent {
    pub(crate) block: BlockNumber,
    pub(crate) offset: u64,
    /// The block's file is not there yet.
    pub(crate) create: bool,
    pub(crate) parts: Vec<Bytes>,
}

/// Work for the flusher; see the module.
pub struct FlushJob {
    pub(crate) stream: StreamId,
    pub(crate) blocks_dir: PathBuf,
    pub(crate) stream_dir: PathBuf,
    pub(crate) extents: Vec<Extent>,
    /// The newest block, which may have unsynced bytes from earlier jobs.
    pub(crate) newest: Option<BlockNumber>,
    pub(crate) file: Option<OpenBlock>,
    pub(crate) sync: bool,
    /// For streams without a log: what earlier jobs are known to have synced of the newest block.
    pub(crate) mark: Option<SyncMark>,
    pub(crate) upto: Option<LogIndex>,
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Blocks that the checkpoint covers, take no more frames, and have no index yet.
    pub(crate) closed: Vec<BlockExtent>,
    pub(crate) dead: Vec<BlockNumber>,
    /// The group whose log must be synced first; `None` for streams without a log.
    pub(crate) log: Option<GroupId>,
    /// Nobody waits for stage 1.
    pub(crate) background: bool,
}

/// A sync mark to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncMark {
    pub(crate) block: BlockNumber,
    pub(crate) synced_bytes: u64,
    pub(crate) ticket: u64,
}

/// Makes the log durable up to an index before a checkpoint relies on it.
pub type LogBarrier<'a> = dyn Fn(GroupId, LogIndex) -> Result<(), WalFailure> + 'a;

impl FlushJob {
    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Bytes of the extents.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.extents.iter().flat_map(|extent| &extent.parts).map(|part| part.len() as u64).sum()
    }

    /// Runs the whole job where it is called, reporting each stage.
    pub fn run(mut self, disk: &dyn Disk, barrier: &LogBarrier<'_>, done: &mut dyn FnMut(FlushDone)) {
        let stream = self.stream;
        let stored = self.write(disk).and_then(|()| self.sync(disk));
        match stored {
            Ok(()) => done(self.stored()),
            Err(error) => {
                return done(FlushDone { stream, stage: FlushStage::Failed(error) });
            }
        }
        if let Some(second) = self.checkpoint(disk, barrier) {
            done(second);
        }
    }

    /// Stage 1, first half: hands the bytes to the kernel.
    pub(crate) fn write(&mut self, disk: &dyn Disk) -> Result<(), FlushError> {
        for extent in std::mem::take(&mut self.extents) {
            let path = path(&self.blocks_dir, extent.block);
            if extent.create {
                self.create(disk, extent.block, &path)?;
            }
            let file = self.open(disk, extent.block, &path)?;
            let slices: Vec<IoSlice<'_>> = extent.parts.iter().map(|part| IoSlice::new(part)).collect();
            file.write_vectored_at(extent.offset, &slices).map_err(|error| FlushError::io("write", &path, &error))?;
        }
        if let Some(SyncMark { block, synced_bytes, ticket }) = self.mark.take()
            && let Some(open) = self.file.as_ref().filter(|open| open.block == block)
        {
            let (at, bytes) = mark(block, synced_bytes, ticket);
            let result = open.file.write_at(at, &bytes);
            result.map_err(|error| FlushError::io("write", &path(&self.blocks_dir, block), &error))?;
        }
        Ok(())
    }

    /// Starts a block: the one before it is synced first, its name is durable before it is used.
    fn create(&mut self, disk: &dyn Disk, block: BlockNumber, path: &Path) -> Result<(), FlushError> {
        if let Some(before) = self.newest.filter(|newest| *newest < block) {
            let before_path = super::format::path(&self.blocks_dir, before);
            let file = self.open(disk, before, &before_path)?;
            file.sync_data().map_err(|error| FlushError::io("sync", &before_path, &error))?;
        }
        let create = || {
            let file = disk.create(path)?;
            file.write_at(0, &header(self.stream, block))?;
            // Synced by itself: a bad header in front of frames is damage, not a torn write.
            file.sync_data()?;
            disk.sync_dir(&self.blocks_dir)?;
            Ok(file)
        };
        let file = create().map_err(|error| FlushError::io("create", path, &error))?;
        self.newest = Some(block);
        self.file = Some(OpenBlock { block, file });
        Ok(())
    }

    fn open(&mut self, disk: &dyn Disk, block: BlockNumber, path: &Path) -> Result<Arc<dyn DiskFile>, FlushError> {
        if let Some(open) = self.file.as_ref().filter(|open| open.block == block) {
            return Ok(Arc::clone(&open.file));
        }
        let file = disk.open(path).map_err(|error| FlushError::io("open", path, &error))?;
        self.file = Some(OpenBlock { block, file: Arc::clone(&file) });
        Ok(file)
    }

    /// Stage 1, second half: the newest block (older ones were synced when it was created).
    pub(crate) fn sync(&mut self, disk: &dyn Disk) -> Result<(), FlushError> {
        let Some(newest) = self.newest.filter(|_| self.sync) else {
            return Ok(());
        };
        let path = path(&self.blocks_dir, newest);
        let file = self.open(disk, newest, &path)?;
        file.sync_data().map_err(|error| FlushError::io("sync", &path, &error))
    }

    /// The report of stage 1.
    pub(crate) fn stored(&self) -> FlushDone {
        let stage = FlushStage::Stored { stored: self.upto, synced: self.sync, file: self.file.clone() };
        FlushDone { stream: self.stream, stage }
    }

    /// Stage 2; `None` if the job has none.
    pub(crate) fn checkpoint(&mut self, disk: &dyn Disk, barrier: &LogBarrier<'_>) -> Option<FlushDone> {
        let checkpoint = self.checkpoint.take()?;
        let persisted = checkpoint.state.applied.index;
        let stage = match self.publish(disk, barrier, &checkpoint) {
            Ok(()) => FlushStage::Persisted { persisted, removed: std::mem::take(&mut self.dead) },
            Err(error) => FlushStage::Failed(error),
        };
        Some(FlushDone { stream: self.stream, stage })
    }

    fn publish(&self, disk: &dyn Disk, barrier: &LogBarrier<'_>, checkpoint: &Checkpoint) -> Result<(), FlushError> {
        if let Some(group) = self.log {
            barrier(group, checkpoint.state.applied.index).map_err(FlushError::Log)?;
        }
        let file = Checkpoint::path(&self.stream_dir);
        checkpoint.publish(disk, &self.stream_dir).map_err(|error| FlushError::io("publish", &file, &error))?;
        for block in &self.dead {
            for path in [index_path(&self.blocks_dir, *block), path(&self.blocks_dir, *block)] {
                // It may be missing: removed before a crash that lost only our memory of it.
                super::index::remove(disk, &path).map_err(|error| FlushError::io("remove", &path, &error))?;
            }
        }
        for extent in &self.closed {
            // The next start reads the block instead.
            let _derived = super::index::build(disk, &self.blocks_dir, self.stream, *extent);
        }
        Ok(())
    }
}
