//! What callers give to the log and get from it.

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Term};

use super::failure::{Damage, WalFailure};
use super::segment::SegmentSeq;
use super::state::Done;

/// One log entry. The payload is opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalEntry {
    /// Its index; entries of a group are contiguous.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// The caller's kind of entry.
    pub kind: u8,
    /// The payload; up to 1 GiB.
    pub payload: Bytes,
}

/// When an append counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// At once, while the queue is below its bound; as `Written` beyond. A later failure is told through the
    /// `on_failure` callback.
    Memory,
    /// When the kernel has it: it survives a process crash.
    Written,
    /// When the device has it: it survives a power loss.
    Synced,
}

/// Entries of one group.
pub struct AppendBatch {
    /// The group.
    pub group: GroupId,
    /// Contiguous, following what the group has.
    pub entries: Vec<WalEntry>,
    /// What `done` waits for.
    pub need: Need,
    /// Called once.
    pub done: Done,
}

/// How far a group's entries got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalWatermarks {
    /// Last index in memory.
    pub accepted: Option<LogIndex>,
    /// Last index the kernel has.
    pub written: Option<LogIndex>,
    /// Last index the device has.
    pub synced: Option<LogIndex>,
}

/// What the log holds of a group right now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupState {
    /// Last vote given.
    pub vote: Option<Bytes>,
    /// Last committed position given.
    pub committed: Option<LogPosition>,
    /// Entries up to here are purged.
    pub purged: Option<LogPosition>,
    /// First live entry.
    pub first: Option<LogIndex>,
    /// Last live entry, or the purge marker if there is none.
    pub last: Option<LogPosition>,
}

/// A group that keeps old segments from being recycled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedGroup {
    /// The group.
    pub group: GroupId,
    /// Its live bytes in segments beyond the target.
    pub bytes: u64,
    /// The oldest segment it needs.
    pub segment: SegmentSeq,
    /// Purge up to here (after persisting) to let go.
    pub release_index: Option<LogIndex>,
}

/// Numbers for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalStats {
    /// Segment files that hold records.
    pub segment_count: usize,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Bytes waiting for the writer.
    pub queued_bytes: usize,
    /// Records written but not yet synced.
    pub unsynced_records: u64,
    /// Vectored writes so far.
    pub write_count: u64,
    /// Bytes written so far.
    pub written_bytes: u64,
    /// Syncs so far.
    pub sync_count: u64,
    /// Records rewritten forward so far.
    pub rewritten_record_count: u64,
    /// Why the log takes nothing more.
    pub failure: Option<WalFailure>,
    /// A damaged record found while rewriting; its segment stays until its groups are dropped or purged.
    pub damage: Option<Damage>,
}
