//! What can go wrong with the log, while it runs and when it is opened.

use std::io;
use std::path::{Path, PathBuf};

use headwater_core::ids::{GroupId, LogIndex};

use super::segment::SegmentSeq;

/// Why a record did not reach the promised state.
///
/// An [`Io`](Self::Io) failure is final: the log takes nothing more until the node restarts, and every later
/// caller gets the same failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalFailure {
    /// A write, a sync or the creation of a segment failed.
    #[error("{op} of {} failed: {message}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// The kind of error.
        kind: io::ErrorKind,
        /// The error in words.
        message: String,
    },
    /// The entry does not follow the last one of its group; only this batch is refused.
    #[error("group {group}: entry {found} where {expected} belongs")]
    OutOfOrder {
        /// The group.
        group: GroupId,
        /// Index that belongs there.
        expected: LogIndex,
        /// Index given.
        found: LogIndex,
    },
    /// The log was shut down.
    #[error("the log is shut down")]
    ShutDown,
}

impl WalFailure {
    pub(crate) fn io(op: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io { op, path: path.to_owned(), kind: error.kind(), message: error.to_string() }
    }
}

/// A bad place in a segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at offset {offset}: expected {expected}, found {found}", path.display())]
pub struct Damage {
    /// The segment.
    pub segment: SegmentSeq,
    /// Its file.
    pub path: PathBuf,
    /// Byte offset of the bad record.
    pub offset: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The disk failed.
    #[error("{op} of {} failed", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// Damage that is not a torn tail. Nothing was changed on disk.
    #[error(transparent)]
    Corrupt(#[from] Damage),
    /// A group's entries are not contiguous. Nothing was changed on disk.
    #[error("group {group} has a hole: entry {expected} is missing, the next is {found}")]
    Hole {
        /// The group.
        group: GroupId,
        /// First missing index.
        expected: LogIndex,
        /// The index that follows the hole.
        found: LogIndex,
    },
}

impl WalError {
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { op, path: path.to_owned(), source }
    }
}

/// Why entries cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WalReadError {
    /// The range starts before the first entry that is still there.
    #[error("group {group}: entry {wanted} is purged, the log starts at {first}")]
    Purged {
        /// The group.
        group: GroupId,
        /// First index wanted.
        wanted: LogIndex,
        /// First index that exists.
        first: LogIndex,
    },
    /// The disk failed.
    #[error("reading {} at offset {offset} failed", path.display())]
    Io {
        /// The segment file.
        path: PathBuf,
        /// Byte offset of the record.
        offset: u64,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// The record on disk is not the one that was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
}
