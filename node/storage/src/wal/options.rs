//! How a log is set up.

use std::sync::Arc;

use super::failure::WalFailure;

/// What is known about the end of the process that wrote the log last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LastStop {
    /// The page cache survived: same OS boot and mount. Writes of a killed process arrive as a prefix, so a
    /// bad record with valid ones behind it is corruption.
    PageCacheKept,
    /// Power may have been lost: unsynced writes may be missing in any combination, so beyond what is known
    /// to be synced a bad record is a torn tail, whatever follows it.
    #[default]
    PowerLost,
}

/// Called once, on a background thread, when a write or sync failed.
pub type FailureCallback = Arc<dyn Fn(&WalFailure) + Send + Sync>;

/// Options of a log.
#[derive(Clone)]
pub struct WalOptions {
    /// Size of a segment file in bytes. Default 64 MiB, at least 16 KiB. A larger record gets a larger file.
    pub segment_bytes: u64,
    /// Bytes that may wait for the writer before [`Wal::has_room`](super::Wal::has_room) says no. Default 64 MiB.
    pub queue_bytes_max: usize,
    /// Payload bytes of written entries kept in memory for reads, all groups together. Default 64 MiB.
    pub cache_bytes_max: usize,
    /// Up to this many segments idle groups may pin old ones; beyond, their few live records are rewritten
    /// forward, and [`Wal::pinned_groups`](super::Wal::pinned_groups) names the others. Default 8.
    pub segments_target: usize,
    /// A group with at most this many live bytes in the oldest segment is rewritten rather than reported.
    /// Default 256 KiB.
    pub rewrite_group_bytes_max: u64,
    /// Recycled files kept for later use. Default 2.
    pub spares_max: usize,
    /// What is known about the last stop.
    pub last_stop: LastStop,
    /// Told once when the log fails; the only way to hear of it for entries confirmed from memory.
    pub on_failure: Option<FailureCallback>,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            queue_bytes_max: 64 << 20,
            cache_bytes_max: 64 << 20,
            segments_target: 8,
            rewrite_group_bytes_max: 256 << 10,
            spares_max: 2,
            last_stop: LastStop::default(),
            on_failure: None,
        }
    }
}
