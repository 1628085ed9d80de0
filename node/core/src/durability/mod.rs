//! What a stream promises about confirmed messages, and how the promise changes while it runs.

mod change;
mod metadata;

pub use change::{DurabilityCommand, DurabilityOutcome, DurabilityState, ReplicaDurability};
pub use metadata::{ALLOW_ASYNC_FLUSH_KEY, MetadataError, SYNC_INTERVAL_KEY, SYNC_MODE_KEY};

use serde::{Deserialize, Serialize};

use crate::stream::StorageKind;

/// When a publish may be confirmed. Ordered from strongest to weakest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SyncMode {
    /// When a quorum has synced its log record.
    #[default]
    Always,
    /// When a quorum has written it; synced on a timer.
    Interval,
    /// When a quorum has it in memory.
    NoWait,
}

impl SyncMode {
    /// As it stands in manifests, metadata and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Interval => "interval",
            Self::NoWait => "noWait",
        }
    }
}

impl std::fmt::Display for SyncMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the store may lag behind the log. Ordered from strongest to weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FlushMode {
    /// A confirmation also waits for the leader's store.
    Sync,
    /// A flusher writes behind the log.
    Async,
}

/// Shortest sync interval accepted, in ms.
pub const SYNC_INTERVAL_MS_MIN: u32 = 10;
/// Longest sync interval accepted, in ms (5 minutes).
pub const SYNC_INTERVAL_MS_MAX: u32 = 300_000;

/// A stream's durability settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Durability {
    /// When a publish may be confirmed.
    pub sync: SyncMode,
    /// Time between syncs in ms with [`SyncMode::Interval`]; zero otherwise.
    pub interval_ms: u32,
    /// Whether the store may lag behind the log.
    pub flush: FlushMode,
}

impl Default for Durability {
    fn default() -> Self {
        Self { sync: SyncMode::Always, interval_ms: 0, flush: FlushMode::Async }
    }
}

/// Why a wished flush mode has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEffect {
    /// One replica has no log behind its store.
    SingleReplica,
    /// A memory stream has no files.
    MemoryStorage,
    /// `noWait` confirms before anything is written, so waiting for the store means nothing.
    NoWaitImpliesAsync,
}

impl NoEffect {
    /// Sentence for status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SingleReplica => {
                "no effect: a stream with one replica has no log behind its store, so confirmations follow syncMode straight from the store"
            }
            Self::MemoryStorage => "no effect: a memory stream has no files to flush",
            Self::NoWaitImpliesAsync => {
                "no effect: syncMode noWait confirms before anything is written, which implies asynchronous flush"
            }
        }
    }
}

impl std::fmt::Display for NoEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What settings come to on a given stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Settings as they act.
    pub durability: Durability,
    /// Why the wished flush mode does not act, if it does not.
    pub flush_without_effect: Option<NoEffect>,
}

impl Durability {
    /// What these settings come to with so many replicas on such storage.
    pub fn effective(self, replica_count: u32, storage: StorageKind) -> Effective {
        let acts_as = |flush, why| Effective { durability: Self { flush, ..self }, flush_without_effect: Some(why) };
        if storage == StorageKind::Memory {
            // Nothing is ever stored behind the log; the state in memory is the stream.
            return acts_as(FlushMode::Sync, NoEffect::MemoryStorage);
        }
        if replica_count <= 1 {
            return acts_as(FlushMode::Sync, NoEffect::SingleReplica);
        }
        if self.sync == SyncMode::NoWait && self.flush == FlushMode::Sync {
            return acts_as(FlushMode::Async, NoEffect::NoWaitImpliesAsync);
        }
        Effective { durability: self, flush_without_effect: None }
    }

    /// The weaker of both, field by field: what holds while a replica moves from one to the other.
    #[must_use]
    pub fn weakest(self, other: Self) -> Self {
        Self {
            sync: self.sync.max(other.sync),
            interval_ms: self.interval_ms.max(other.interval_ms),
            flush: self.flush.max(other.flush),
        }
    }

    /// Whether these settings promise at least what `other` does.
    pub fn at_least(self, other: Self) -> bool {
        self.weakest(other) == other.weakest(other)
    }

    /// Whether the settings are coherent: an interval exactly with [`SyncMode::Interval`], in range.
    pub fn validate(self) -> Result<(), MetadataError> {
        match self.sync {
            SyncMode::Interval if self.interval_ms == 0 => Err(MetadataError::IntervalMissing),
            SyncMode::Interval if !(SYNC_INTERVAL_MS_MIN..=SYNC_INTERVAL_MS_MAX).contains(&self.interval_ms) => {
                Err(MetadataError::IntervalRange(self.interval_ms))
            }
            SyncMode::Always | SyncMode::NoWait if self.interval_ms != 0 => {
                Err(MetadataError::IntervalUnused(self.sync))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_wish_without_effect_says_why() {
        let wish = Durability::default();
        assert_eq!(wish.effective(3, StorageKind::File).flush_without_effect, None);
        let single = wish.effective(1, StorageKind::File);
        assert_eq!(single.flush_without_effect, Some(NoEffect::SingleReplica));
        assert_eq!(single.durability.flush, FlushMode::Sync);
        let memory = wish.effective(3, StorageKind::Memory);
        assert_eq!(memory.flush_without_effect, Some(NoEffect::MemoryStorage));
        let no_wait = Durability { sync: SyncMode::NoWait, interval_ms: 0, flush: FlushMode::Sync };
        let no_wait = no_wait.effective(3, StorageKind::File);
        assert_eq!(no_wait.flush_without_effect, Some(NoEffect::NoWaitImpliesAsync));
        assert_eq!(no_wait.durability.flush, FlushMode::Async);
    }

    #[test]
    fn weakest_goes_field_by_field() {
        let a = Durability { sync: SyncMode::Always, interval_ms: 0, flush: FlushMode::Async };
        let b = Durability { sync: SyncMode::Interval, interval_ms: 50, flush: FlushMode::Sync };
        let both = a.weakest(b);
        assert_eq!(both, Durability { sync: SyncMode::Interval, interval_ms: 50, flush: FlushMode::Async });
        assert!(a.at_least(both) && b.at_least(both) && both.at_least(both));
        assert!(!both.at_least(a) && !a.at_least(b) && !b.at_least(a));
    }
}
