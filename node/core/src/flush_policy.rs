//! When the flusher writes and when it checkpoints: by dirty bytes, log pressure or a barrier, never by a
//! short timer, so that a thousand slow streams do not mean a thousand syncs a second.

use crate::ids::LogIndex;

/// A store writes extents once it has this many unwritten bytes.
pub const WRITE_BYTES: u64 = 256 << 10;
/// A store checkpoints once this many bytes were written or dirtied since the last checkpoint.
pub const CHECKPOINT_BYTES: u64 = 8 << 20;
/// A store with anything unpersisted checkpoints after this long, so that an idle stream does not pin the
/// log or replay at every start for ever. Five minutes.
pub const CHECKPOINT_AGE_NS: u64 = 300_000_000_000;
/// The same with flush mode `Sync`, whose files are to follow the log closely. Ten seconds.
pub const CHECKPOINT_AGE_SYNC_NS: u64 = 10_000_000_000;

/// What the flusher knows about one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushFacts {
    /// Bytes applied and not written.
    pub unwritten_bytes: u64,
    /// Bytes applied since the last checkpoint (written or not).
    pub since_checkpoint_bytes: u64,
    /// Applied index.
    pub applied: LogIndex,
    /// Stored index.
    pub stored: LogIndex,
    /// Persisted index.
    pub persisted: LogIndex,
    /// Someone waits until `persisted` reaches this (a durability change, a snapshot, a shutdown).
    pub barrier: Option<LogIndex>,
    /// Someone waits until `stored` reaches this (a confirmation with flush mode `Sync`).
    pub wait_stored: Option<LogIndex>,
    /// Someone waits until bytes up to here are stored *and* synced (`Sync` flush with sync `Always`).
    pub wait_stored_synced: Option<LogIndex>,
    /// The flush mode is `Sync`: what is applied is written at once, at a follower too.
    pub flush_sync: bool,
    /// The log wants to recycle segments that this group pins.
    pub log_pressure: bool,
    /// Time since the oldest unpersisted entry was applied.
    pub oldest_unpersisted_ns: u64,
    /// A job of this store is running.
    pub busy: bool,
}

/// What the flusher should do with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlushWant {
    /// Nothing now.
    Nothing,
    /// Write dirty extents.
    Write,
    /// Write them and sync the files, without a checkpoint.
    Sync,
    /// Write, sync, then a checkpoint, which advances `persisted`.
    Checkpoint,
}

/// Decides. Only one job of a store runs at a time.
pub fn decide(facts: &FlushFacts) -> FlushWant {
    if facts.busy || facts.applied == facts.persisted {
        return FlushWant::Nothing;
    }
    let waits_for = |wanted: Option<LogIndex>, reached: LogIndex| {
        wanted.is_some_and(|wanted| wanted > reached && wanted <= facts.applied)
    };
    let age = if facts.flush_sync { CHECKPOINT_AGE_SYNC_NS } else { CHECKPOINT_AGE_NS };
    let checkpoint = facts.log_pressure
        || facts.since_checkpoint_bytes >= CHECKPOINT_BYTES
        || facts.oldest_unpersisted_ns >= age
        || facts.barrier.is_some_and(|barrier| barrier > facts.persisted);
    if checkpoint {
        return FlushWant::Checkpoint;
    }
    if waits_for(facts.wait_stored_synced, facts.persisted) {
        return FlushWant::Sync;
    }
    let at_once = facts.flush_sync && facts.unwritten_bytes > 0;
    if at_once || facts.unwritten_bytes >= WRITE_BYTES || waits_for(facts.wait_stored, facts.stored) {
        return FlushWant::Write;
    }
    FlushWant::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let at = LogIndex::new;
        let idle = FlushFacts { applied: at(9), stored: at(5), persisted: at(3), ..FlushFacts::default() };
        let cases = [
            ("a little is left alone", idle, FlushWant::Nothing),
            (
                "everything is persisted",
                FlushFacts { persisted: at(9), log_pressure: true, ..idle },
                FlushWant::Nothing,
            ),
            ("an extent is full", FlushFacts { unwritten_bytes: WRITE_BYTES, ..idle }, FlushWant::Write),
            ("a confirmation waits", FlushFacts { wait_stored: Some(at(6)), ..idle }, FlushWant::Write),
            ("its bytes are there", FlushFacts { wait_stored: Some(at(5)), ..idle }, FlushWant::Nothing),
            ("it waits for more than is applied", FlushFacts { wait_stored: Some(at(10)), ..idle }, FlushWant::Nothing),
            (
                "a confirmation waits for a sync",
                FlushFacts { wait_stored_synced: Some(at(4)), ..idle },
                FlushWant::Sync,
            ),
            (
                "much since the checkpoint",
                FlushFacts { since_checkpoint_bytes: CHECKPOINT_BYTES, ..idle },
                FlushWant::Checkpoint,
            ),
            ("the log wants space", FlushFacts { log_pressure: true, ..idle }, FlushWant::Checkpoint),
            ("a barrier is ahead", FlushFacts { barrier: Some(at(4)), ..idle }, FlushWant::Checkpoint),
            ("a barrier is behind", FlushFacts { barrier: Some(at(3)), ..idle }, FlushWant::Nothing),
            ("old enough", FlushFacts { oldest_unpersisted_ns: CHECKPOINT_AGE_NS, ..idle }, FlushWant::Checkpoint),
            (
                "a synchronous store writes at once",
                FlushFacts { flush_sync: true, unwritten_bytes: 1, ..idle },
                FlushWant::Write,
            ),
            (
                "and checkpoints soon",
                FlushFacts { flush_sync: true, oldest_unpersisted_ns: CHECKPOINT_AGE_SYNC_NS, ..idle },
                FlushWant::Checkpoint,
            ),
            ("one job at a time", FlushFacts { log_pressure: true, busy: true, ..idle }, FlushWant::Nothing),
        ];
        for (name, facts, want) in cases {
            assert_eq!(decide(&facts), want, "{name}");
        }
    }
}
