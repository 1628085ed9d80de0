//! Answers that wait until the store is as far as they need: `allowAsyncFlush: false`, and streams without a log.

use std::collections::VecDeque;

use bytes::Bytes;
use headwater_core::durability::{Durability, FlushMode, SyncMode};
use headwater_core::frame::FrameKind;
use headwater_core::ids::LogIndex;
use headwater_core::stream::StorageKind;

use super::acks::PendingAck;
use super::leading::{CommandFate, CommandWaiter};

/// How safe an entry must be in the store before its answers go out. Ordered from weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// In the store's memory.
    Applied,
    /// Handed to the kernel.
    Stored,
    /// Synced.
    StoreSynced,
}

impl Need {
    /// What an entry of this kind needs in a stream with such settings in force.
    pub(crate) fn of(replicated: bool, storage: StorageKind, effective: Durability, kind: FrameKind) -> Need {
        if !replicated {
            // R1 has no log behind it. What may remove the last sequence is synced in every mode, before success.
            let removes =
                matches!(kind, FrameKind::Purge | FrameKind::DeleteMessage | FrameKind::Expire | FrameKind::Remove);
            return match effective.sync {
                SyncMode::Always => Need::StoreSynced,
                _ if removes => Need::StoreSynced,
                SyncMode::Interval => Need::Stored,
                SyncMode::NoWait => Need::Applied,
            };
        }
        match (effective.flush, effective.sync) {
            _ if storage == StorageKind::Memory => Need::Applied,
            (FlushMode::Async, _) => Need::Applied,
            (FlushMode::Sync, SyncMode::Always) => Need::StoreSynced,
            (FlushMode::Sync, _) => Need::Stored,
        }
    }
}

/// What is answered when an entry is safe enough.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) acks: Vec<PendingAck>,
    pub(crate) command: Option<(CommandWaiter, CommandFate)>,
    /// Inboxes of clients that want their consumer ack confirmed.
    pub(crate) confirmed_acks: Vec<Bytes>,
}

/// Answers in log order.
#[derive(Default)]
pub(crate) struct Gate(VecDeque<(LogIndex, Need, Answers)>);

impl Gate {
    pub(crate) fn push(&mut self, index: LogIndex, need: Need, answers: Answers) {
        self.0.push_back((index, need, answers));
    }

    /// The newest entry that somebody waits for to become this safe.
    pub(crate) fn last_waiting(&self, need: Need) -> Option<LogIndex> {
        self.0.iter().rev().find(|(_, n, _)| *n == need).map(|(index, _, _)| *index)
    }

    /// Takes the answers that may go out now, oldest first. They never overtake each other.
    pub(crate) fn open(&mut self, stored: LogIndex, synced: LogIndex) -> Vec<Answers> {
        let mut out = Vec::new();
        while let Some((index, need, _)) = self.0.front() {
            let reached = match need {
                Need::Applied => true,
                Need::Stored => *index <= stored,
                Need::StoreSynced => *index <= synced,
            };
            if !reached {
                break;
            }
            out.extend(self.0.pop_front().map(|(_, _, answers)| answers));
        }
        out
    }

    /// Whether somebody waits, so that an answer about what is applied must wait behind.
    pub(crate) fn is_shut(&self) -> bool {
        !self.0.is_empty()
    }

    /// Takes everything: the store failed, or the replica closes.
    pub(crate) fn drain(&mut self) -> Vec<Answers> {
        self.0.drain(..).map(|(_, _, answers)| answers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_log_a_removal_is_synced_in_every_mode() {
        use FrameKind as Kind;
        let need = |replicated, storage, sync, flush, kind| {
            Need::of(replicated, storage, Durability { sync, interval_ms: 0, flush }, kind)
        };
        let r1 = |sync, kind| need(false, StorageKind::File, sync, FlushMode::Sync, kind);
        for (sync, publish) in [
            (SyncMode::Always, Need::StoreSynced),
            (SyncMode::Interval, Need::Stored),
            (SyncMode::NoWait, Need::Applied),
        ] {
            assert_eq!(r1(sync, Kind::Messages), publish, "{sync:?}");
            for removal in [Kind::Purge, Kind::DeleteMessage, Kind::Expire, Kind::Remove] {
                assert_eq!(r1(sync, removal), Need::StoreSynced, "{sync:?} {removal:?}");
            }
        }
        let r3 = |sync, flush| need(true, StorageKind::File, sync, flush, Kind::Purge);
        assert_eq!(r3(SyncMode::Always, FlushMode::Async), Need::Applied, "the log has it");
        assert_eq!(r3(SyncMode::Always, FlushMode::Sync), Need::StoreSynced);
        assert_eq!(r3(SyncMode::Interval, FlushMode::Sync), Need::Stored);
        let memory = need(true, StorageKind::Memory, SyncMode::Always, FlushMode::Sync, Kind::Messages);
        assert_eq!(memory, Need::Applied, "its files are nothing that is waited for");
    }

    fn answers() -> Answers {
        Answers::default()
    }

    #[test]
    fn nothing_overtakes_what_needs_more() {
        let mut gate = Gate::default();
        gate.push(LogIndex::new(1), Need::Stored, answers());
        gate.push(LogIndex::new(2), Need::StoreSynced, answers());
        gate.push(LogIndex::new(3), Need::Applied, answers());
        assert_eq!(gate.last_waiting(Need::StoreSynced), Some(LogIndex::new(2)));
        assert_eq!(gate.open(LogIndex::new(0), LogIndex::new(0)).len(), 0);
        assert_eq!(gate.open(LogIndex::new(3), LogIndex::new(1)).len(), 1);
        assert_eq!(gate.open(LogIndex::new(3), LogIndex::new(2)).len(), 2);
    }
}
