//! When a status is worth a write.

use headwater_crds::{FlushMode, ReplicaPhase, StreamStatus};

/// Longest time between two writes of index numbers while a replica recovers or drains (ms).
pub const INDEX_WRITE_BUSY_MS: i64 = 10_000;
/// The same when all is steady (ms).
pub const INDEX_WRITE_STEADY_MS: i64 = 60_000;

/// Whether a new status is worth a write, `since_ms` after the last one.
///
/// Words are written at once; index numbers alone only every so often, because every write goes to
/// all watchers of the object.
pub fn write_due(old: &StreamStatus, new: &StreamStatus, since_ms: i64) -> bool {
    if quiet(old) != quiet(new) {
        return true;
    }
    if old == new {
        return false;
    }
    let busy = new.operation.is_some()
        || new.replicas.iter().any(|replica| replica.phase != ReplicaPhase::Recovered)
        || new.flush.as_ref().is_some_and(|flush| flush.mode == FlushMode::Draining);
    since_ms >= if busy { INDEX_WRITE_BUSY_MS } else { INDEX_WRITE_STEADY_MS }
}

/// The status without what changes all the time.
fn quiet(status: &StreamStatus) -> StreamStatus {
    let mut status = status.clone();
    status.commit_index = None;
    status.max_persist_lag = None;
    for replica in &mut status.replicas {
        replica.applied_index = None;
        replica.persisted_index = None;
        replica.synced_index = None;
        replica.observed_at = None;
        // Under load a snapshot turns async and back with every flush.
        replica.snapshot = None;
    }
    for condition in &mut status.conditions {
        // Messages of waits carry indexes and ages; a change of reason or answer is what counts.
        condition.message.retain(|c| !c.is_ascii_digit());
    }
    status
}
