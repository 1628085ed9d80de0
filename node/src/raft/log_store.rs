//! openraft's log storage on the node's shared WAL.
//!
//! `append` enqueues and returns; the WAL calls back once the records are in memory, written or synced, as the
//! replica's *effective* sync mode asks. Votes are synced in every mode, after every earlier record of the group (I-2, I-3).

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use headwater_core::durability::SyncMode;
use headwater_core::ids::{GroupId, LogIndex};
use headwater_storage::wal::{AppendBatch, GroupState as GroupLog, Need, Wal, WalEntry, WalFailure};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::codec;
use super::types::*;

/// One read answers at most this many payload bytes (at least one entry): bounds what is in flight to a follower.
const READ_BYTES_MAX: usize = 1 << 20;

/// How soon an append counts, switchable while running: a replica's effective mode is a function of its log.
#[derive(Debug)]
pub(crate) struct EffectiveSync(AtomicU8);

impl EffectiveSync {
    pub(crate) fn new(mode: SyncMode) -> Arc<Self> {
        let this = Arc::new(Self(AtomicU8::new(0)));
        this.set(mode);
        this
    }

    pub(crate) fn set(&self, mode: SyncMode) {
        let value = match mode {
            SyncMode::Always => 0,
            SyncMode::Interval => 1,
            SyncMode::NoWait => 2,
        };
        self.0.store(value, Ordering::Release);
    }

    fn need(&self) -> Need {
        match self.0.load(Ordering::Acquire) {
            1 => Need::Written,
            2 => Need::Memory,
            _ => Need::Synced,
        }
    }
}

#[derive(Debug)]
struct Shared {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
}

/// The log of one group.
#[derive(Clone)]
pub(super) struct LogStore {
    wal: Wal,
    group: GroupId,
    sync: Arc<EffectiveSync>,
    shared: Arc<Mutex<Shared>>,
    persisted: Persisted,
}

/// How far the replica behind a log is in its synced files.
pub(super) type Persisted = Arc<dyn Fn() -> LogIndex + Send + Sync>;

impl LogStore {
    /// Takes over what the WAL scan found for `group`; `None` for a group that never wrote.
    pub(super) fn open(
        wal: Wal,
        group: GroupId,
        found: Option<&GroupLog>,
        sync: Arc<EffectiveSync>,
        persisted: Persisted,
    ) -> io::Result<Self> {
        let vote = match found.and_then(|f| f.vote.clone()) {
            Some(bytes) => Some(codec::Reader(bytes).vote().map_err(io::Error::other)?),
            None => None,
        };
        let purged = found.and_then(|f| f.purged.map(to_log_id));
        let last = found.and_then(|f| f.last.map(to_log_id)).or(purged);
        let committed = found.and_then(|f| f.committed.map(to_log_id));
        Ok(Self { wal, group, sync, shared: Arc::new(Mutex::new(Shared { vote, committed, purged, last })), persisted })
    }

    fn read(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let found =
            self.wal.read(self.group, LogIndex::new(start)..LogIndex::new(end), bytes_max).map_err(io::Error::other)?;
        found
            .into_iter()
            .map(|e| codec::entry_from(e.term.get(), e.index.get(), e.kind, e.payload).map_err(io::Error::other))
            .collect()
    }

    fn bounds(&self, range: &impl RangeBounds<u64>) -> (u64, u64) {
        let shared = self.shared.lock();
        let first = shared.purged.as_ref().map_or(0, |p| p.index() + 1);
        let past_last = shared.last.as_ref().map_or(0, |l| l.index() + 1);
        let start = match range.start_bound() {
            Bound::Included(s) => *s,
            Bound::Excluded(s) => s + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(e) => e + 1,
            Bound::Excluded(e) => *e,
            Bound::Unbounded => u64::MAX,
        };
        (start.max(first), end.min(past_last))
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let (start, end) = self.bounds(&range);
        // A log need not start at 0: what was never in it is not there to be read, which is not an error here.
        let first = self.wal.group(self.group).and_then(|g| g.first).map_or(start, LogIndex::get);
        let start = start.max(first);
        if start >= end { Ok(Vec::new()) } else { self.read(start, end, usize::MAX) }
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        if start >= end { Ok(Vec::new()) } else { self.read(start, end, READ_BYTES_MAX) }
    }

    async fn leader_bounded_stream<RB>(
        &mut self,
        leader: openraft::alias::LeaderIdOf<TypeConfig>,
        range: RB,
    ) -> impl futures::Stream<Item = openraft::storage::LeaderBoundedStreamResult<TypeConfig>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        use openraft::errors::LeaderChanged;
        use openraft::storage::LeaderBoundedStreamError;
        let vote = self.shared.lock().vote;
        let items: Vec<_> = if vote.is_some_and(|v| v.is_committed() && *v.leader_id() == leader) {
            let (start, end) = self.bounds(&range);
            // One bounded read: openraft asks again for the rest, so a lagging follower never loads its whole backlog.
            match if start >= end { Ok(Vec::new()) } else { self.read(start, end, READ_BYTES_MAX) } {
                Ok(entries) => entries.into_iter().map(Ok).collect(),
                Err(e) => vec![Err(LeaderBoundedStreamError::IoError(e))],
            }
        } else {
            vec![Err(LeaderBoundedStreamError::LeaderChanged(LeaderChanged::new(leader, vote)))]
        };
        futures::stream::iter(items)
    }

    /// Applies read in bounded chunks, so that a long tail is never in memory at once.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl futures::Stream<Item = io::Result<Entry>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let (start, end) = self.bounds(&range);
        let this = self.clone();
        futures::stream::unfold((start, Vec::new().into_iter()), move |(next, mut chunk)| {
            let this = this.clone();
            async move {
                if let Some(entry) = chunk.next() {
                    return Some((Ok(entry), (next, chunk)));
                }
                if next >= end {
                    return None;
                }
                match this.read(next, end, READ_BYTES_MAX) {
                    Ok(entries) => {
                        let Some(last) = entries.last() else {
                            let hole = format!("the log of group {} has no entry {next}", this.group);
                            return Some((Err(io::Error::other(hole)), (end, Vec::new().into_iter())));
                        };
                        let after = from_log_id(&last.log_id()).index.get() + 1;
                        let mut chunk = entries.into_iter();
                        chunk.next().map(|first| (Ok(first), (after, chunk)))
                    }
                    Err(e) => Some((Err(e), (end, Vec::new().into_iter()))),
                }
            }
        })
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let shared = self.shared.lock();
        Ok(LogState { last_purged_log_id: shared.purged, last_log_id: shared.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (tx, rx) = oneshot::channel::<Result<(), WalFailure>>();
        self.shared.lock().vote = Some(*vote);
        self.wal.vote(
            self.group,
            codec::vote_bytes(vote),
            Box::new(move |result| {
                // The receiver is gone only if this group is being dropped.
                let _gone = tx.send(result);
            }),
        );
        rx.await.map_err(|_| io::Error::other("the WAL stopped"))?.map_err(io::Error::other)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(id) = committed {
            self.shared.lock().committed = Some(id);
            self.wal.committed(self.group, from_log_id(&id));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.shared.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<WalEntry> = entries
            .into_iter()
            .map(|entry| {
                let pos = from_log_id(&entry.log_id());
                let (kind, payload): (u8, Bytes) = codec::entry_payload(&entry);
                WalEntry { index: pos.index, term: pos.term, kind, payload }
            })
            .collect();
        if let Some(last) = entries.last() {
            self.shared.lock().last = Some(to_log_id(LogPos { term: last.term, index: last.index }));
        }
        self.wal.append(AppendBatch {
            group: self.group,
            entries,
            need: self.sync.need(),
            done: Box::new(move |result| callback.io_completed(result.map_err(io::Error::other))),
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        {
            let mut shared = self.shared.lock();
            // Cutting beyond the end keeps the end, and what is purged stays purged.
            let (end, purged) = (shared.last, shared.purged);
            shared.last = last.min(end).max(purged);
        }
        let index = last.map_or(LogIndex::new(0), |id| LogIndex::new(id.index()));
        self.wal.truncate_after(self.group, last.map(|_| index)).map_err(io::Error::other)
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        // I-4. An asynchronous snapshot needs the log after `persisted` too, so this keeps that as well.
        let persisted = (self.persisted)();
        assert!(upto.index() <= persisted.get(), "the log of {} purged to {upto} past {persisted}", self.group);
        {
            let mut shared = self.shared.lock();
            shared.purged = Some(upto);
            if shared.last < Some(upto) {
                shared.last = Some(upto);
            }
        }
        self.wal.purge(self.group, from_log_id(&upto)).map_err(io::Error::other)
    }
}
