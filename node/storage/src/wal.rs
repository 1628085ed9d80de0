//! The write-ahead log: one per node, shared by all groups, append only.
//!
//! ```text
//!   data threads ──append──▶ queue ──▶ writer ──pwritev──▶ segment ──▶ sync thread ──fdatasync──▶ done
//!                              Need::Memory ▲     Need::Written ▲                Need::Synced ▲
//! ```
//!
//! * The writer takes everything queued and writes it at once; the sync thread has exactly one `fdatasync`
//!   outstanding, which covers everything written so far, for all groups. No timers in front of either: the
//!   batch is what arrived meanwhile.
//! * Records of one group reach the disk in the order of the calls. A vote is always synced, and everything
//!   the group appended before with it.
//! * A failed write or sync is final: see [`WalFailure`].
//! * Segments are recycled oldest first, once no group needs them and what made them obsolete is synced.
//!
//! A [`Wal`] is a handle; clones share the log. No method waits for the disk except [`Wal::read`] and
//! [`Wal::shutdown`]. Callbacks run on the log's threads, or within the call if the answer is known.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Term};

mod failure;
mod index;
mod open;
mod options;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod segment;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod threads;
mod types;

pub use failure::{Damage, WalError, WalFailure, WalReadError};
pub use options::{FailureCallback, LastStop, WalOptions};
pub use scan::{GroupScan, LogEnd, ScanEnd, SegmentScan, WalScan};
pub use segment::SegmentSeq;
pub use state::Done;
pub(crate) use threads::wait_for;
pub use types::{AppendBatch, GroupState, Need, PinnedGroup, WalEntry, WalStats, WalWatermarks};

use self::index::{GroupLog, Lsn};
use self::record::{Head, RecordType};
use self::shared::{Shared, Source};
use self::threads::Threads;
use crate::disk::Disk;

/// The log.
#[derive(Clone)]
pub struct Wal {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
}

impl Wal {
    /// Opens or creates the log in `dir` and starts its threads.
    ///
    /// A torn tail is cut. The caller must hold the store's lock.
    ///
    /// # Errors
    /// [`WalError::Corrupt`] and [`WalError::Hole`] if entries that should be there are not; then nothing on
    /// disk has been changed, and [`Wal::scan`] tells more.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: WalOptions) -> Result<(Self, WalScan), WalError> {
        let (shared, scan) = open::open(disk, dir, options, false)?;
        let shared = Arc::new(shared);
        let threads = Threads::start(&shared).map_err(|error| WalError::io("start threads for", dir, error))?;
        let threads = Arc::new(threads);
        Ok((Self { shared, threads }, scan))
    }

    /// As [`open`](Self::open), but without threads: work is done where [`drive`](Self::drive) and its
    /// parts are called. For deterministic tests and for tools.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_inline(disk: Arc<dyn Disk>, dir: &Path, options: WalOptions) -> Result<(Self, WalScan), WalError> {
        let (shared, scan) = open::open(disk, dir, options, true)?;
        let shared = Arc::new(shared);
        let threads = Arc::new(Threads::none(&shared));
        Ok((Self { shared, threads }, scan))
    }

    /// Reads a log without changing it. Damage is in the result, with everything before it.
    ///
    /// # Errors
    /// Only if the disk fails.
    pub fn scan(disk: &dyn Disk, dir: &Path, last_stop: LastStop) -> Result<WalScan, WalError> {
        Ok(scan::scan(disk, dir, last_stop)?.report())
    }

    /// Appends entries. They can be read as soon as this returns. Never waits; ask
    /// [`has_room`](Self::has_room) first.
    pub fn append(&self, batch: AppendBatch) {
        let AppendBatch { group, entries, need, done } = batch;
        let mut state = self.shared.state.lock();
        let refused = state.refusal().or_else(|| {
            let mut expected = entries.first()?.index;
            if let Err(failure) = state.check_order(group, expected) {
                return Some(failure);
            }
            for entry in &entries {
                if entry.index != expected {
                    return Some(WalFailure::OutOfOrder { group, expected, found: entry.index });
                }
                expected = expected.next();
            }
            None
        });
        if let Some(failure) = refused {
            drop(state);
            return done(Err(failure));
        }
        // What is confirmed from memory is not waited for by anybody: the bound is what makes the next one wait (I-14).
        let need = if need == Need::Memory && !state.has_room() { Need::Written } else { need };
        for entry in entries {
            state.append(group, entry.index, entry.term, entry.kind, entry.payload);
        }
        let lsn = state.groups.get(&group).map_or(Lsn(0), |log| log.newest);
        self.hand_over(state, lsn, need, done);
    }

    /// Completes `done` when `lsn` has what is needed.
    fn hand_over(&self, mut state: parking_lot::MutexGuard<'_, state::State>, lsn: Lsn, need: Need, done: Done) {
        let reached = match need {
            Need::Memory => true,
            Need::Written => lsn <= state.written,
            Need::Synced => lsn <= state.synced,
        };
        if reached {
            self.shared.work.notify_one();
            drop(state);
            return done(Ok(()));
        }
        match need {
            Need::Synced => state.when_synced(lsn, done),
            Need::Memory | Need::Written => state.when_written(lsn, done),
        }
        if state.wants_sync() {
            self.shared.sync.notify_one();
        }
        self.shared.work.notify_one();
    }

    /// Saves the group's vote; `done` when it, and all the group appended before, is synced. In every mode.
    pub fn vote(&self, group: GroupId, vote: Bytes, done: Done) {
        let mut state = self.shared.state.lock();
        if let Some(failure) = state.refusal() {
            drop(state);
            return done(Err(failure));
        }
        let lsn = state.vote(group, vote);
        self.hand_over(state, lsn, Need::Synced, done);
    }

    /// Remembers how far the group is committed. Carried by the next write; never a write of its own.
    pub fn committed(&self, group: GroupId, committed: LogPosition) {
        let mut state = self.shared.state.lock();
        if state.refusal().is_none() {
            state.committed(group, committed);
        }
    }

    /// Removes the entries after `index`; `None` removes all.
    ///
    /// # Errors
    /// If the log takes nothing more.
    pub fn truncate_after(&self, group: GroupId, index: Option<LogIndex>) -> Result<(), WalFailure> {
        self.change(|state| state.truncate_after(group, index))
    }

    /// Removes the entries up to and including `upto`. The marker is durable before their space is reused.
    /// `upto` may lie beyond the last entry: then the log continues behind it.
    ///
    /// # Errors
    /// If the log takes nothing more.
    pub fn purge(&self, group: GroupId, upto: LogPosition) -> Result<(), WalFailure> {
        self.change(|state| state.purge(group, upto))
    }

    /// Forgets the group and all it has.
    ///
    /// # Errors
    /// If the log takes nothing more.
    pub fn drop_group(&self, group: GroupId) -> Result<(), WalFailure> {
        self.change(|state| state.drop_group(group))
    }

    fn change(&self, change: impl FnOnce(&mut state::State) -> Lsn) -> Result<(), WalFailure> {
        let mut state = self.shared.state.lock();
        if let Some(failure) = state.refusal() {
            return Err(failure);
        }
        change(&mut state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Syncs what the group has written at latest this long after it was written. `None`: no timer.
    pub fn set_interval(&self, group: GroupId, interval: Option<Duration>) {
        let mut state = self.shared.state.lock();
        state.group(group).interval = interval;
        if let Some(interval) = interval.filter(|_| state.written > state.synced) {
            let deadline = Instant::now() + interval;
            state.interval_deadline = Some(state.interval_deadline.map_or(deadline, |at| at.min(deadline)));
            self.shared.sync.notify_one();
        }
    }

    /// Completes `done` when everything the group was given, up to `index`, is synced; at once if it is.
    /// Asks for a sync.
    pub fn sync_barrier(&self, group: GroupId, index: LogIndex, done: Done) {
        let state = self.shared.state.lock();
        if let Some(failure) = state.failure.clone() {
            drop(state);
            return done(Err(failure));
        }
        let lsn = state.groups.get(&group).map_or(Lsn(0), |log| log.slot(index).map_or(log.newest, |slot| slot.lsn));
        self.hand_over(state, lsn, Need::Synced, done);
    }

    /// Completes `done` when everything given so far, by all groups, is synced.
    pub fn sync_all(&self, done: Done) {
        let state = self.shared.state.lock();
        if let Some(failure) = state.failure.clone() {
            drop(state);
            return done(Err(failure));
        }
        let lsn = state.enqueued;
        self.hand_over(state, lsn, Need::Synced, done);
    }

    /// How far the group's entries got.
    #[must_use]
    pub fn watermarks(&self, group: GroupId) -> WalWatermarks {
        let state = self.shared.state.lock();
        let Some(log) = state.groups.get(&group) else {
            return WalWatermarks::default();
        };
        WalWatermarks {
            accepted: open::last_position(log).map(|last| last.index),
            written: log.reached(state.written),
            synced: log.reached(state.synced),
        }
    }

    /// What the log holds of the group; `None` if it never heard of it.
    #[must_use]
    pub fn group(&self, group: GroupId) -> Option<GroupState> {
        let state = self.shared.state.lock();
        let log = state.groups.get(&group)?;
        Some(GroupState {
            vote: log.vote.clone(),
            committed: log.committed,
            purged: log.purged,
            first: log.first(),
            last: open::last_position(log),
        })
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.shared.state.lock().groups.keys().copied().collect();
        groups.sort_unstable();
        groups
    }

    /// Term and index of one entry.
    #[must_use]
    pub fn position(&self, group: GroupId, index: LogIndex) -> Option<LogPosition> {
        let state = self.shared.state.lock();
        let log = state.groups.get(&group)?;
        if let Some(purged) = log.purged.filter(|purged| purged.index == index) {
            return Some(purged);
        }
        log.slot(index).map(|slot| LogPosition { index, term: slot.term })
    }

    /// The entries of `range`, as far as they exist, stopping once `bytes_max` payload bytes are exceeded
    /// (but never before one entry). From memory if recent, else from disk.
    ///
    /// # Errors
    /// If the range starts below the first entry, or the disk or the record is bad.
    pub fn read(
        &self,
        group: GroupId,
        range: Range<LogIndex>,
        bytes_max: usize,
    ) -> Result<Vec<WalEntry>, WalReadError> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut from = range.start;
        while from < range.end && (entries.is_empty() || bytes < bytes_max) {
            // Without the lock while reading from disk; a record may be rewritten meanwhile, so ask again.
            let cold = match self.read_warm(group, from, range.end, bytes_max, &mut bytes, &mut entries)? {
                Some(cold) => cold,
                None => break,
            };
            let Cold { index, term, kind, len, source } = cold;
            let payload = match self.shared.read_payload(&source, len) {
                Ok(payload) => payload,
                Err(damage) => {
                    let state = self.shared.state.lock();
                    let moved = state.groups.get(&group).and_then(|log| log.slot(index)).and_then(|slot| slot.place);
                    if moved == Some(source.place) {
                        return Err(damage.into());
                    }
                    from = index;
                    continue;
                }
            };
            bytes += payload.len();
            entries.push(WalEntry { index, term, kind, payload });
            from = index.next();
        }
        Ok(entries)
    }

    /// Takes entries from memory; returns the first that is only on disk, `None` if the range is done.
    fn read_warm(
        &self,
        group: GroupId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
        bytes: &mut usize,
        entries: &mut Vec<WalEntry>,
    ) -> Result<Option<Cold>, WalReadError> {
        let state = self.shared.state.lock();
        let Some(log) = state.groups.get(&group) else {
            return Ok(None);
        };
        let first = log.first().or(log.purged.map(|purged| purged.index.next()));
        if let Some(first) = first.filter(|first| from < *first) {
            return Err(WalReadError::Purged { group, wanted: from, first });
        }
        for (index, slot) in log.entries_from(from).take_while(|(index, _)| *index < to) {
            if !entries.is_empty() && *bytes >= bytes_max {
                return Ok(None);
            }
            let Some(payload) = &slot.payload else {
                let Some(place) = slot.place else {
                    return Ok(None);
                };
                let Some(segment) = state.segment(place.segment) else {
                    return Ok(None);
                };
                let source = Source { file: Arc::clone(&segment.file), salt: segment.header.salt, place };
                return Ok(Some(Cold { index, term: slot.term, kind: slot.kind, len: slot.len, source }));
            };
            *bytes += payload.len();
            entries.push(WalEntry { index, term: slot.term, kind: slot.kind, payload: payload.clone() });
        }
        Ok(None)
    }

    /// Bytes that wait for the writer.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.shared.state.lock().queued_bytes
    }

    /// Whether the queue is below its bound. Push back on publishers while it is not.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.state.lock().has_room()
    }

    /// Calls `room` once the queue is below its bound; at once if it is, or if the log failed.
    pub fn when_room(&self, room: Box<dyn FnOnce() + Send>) {
        let mut state = self.shared.state.lock();
        if state.has_room() || state.failure.is_some() {
            drop(state);
            return room();
        }
        state.when_room(room);
    }

    /// Groups that keep more than the target number of segments alive, largest first.
    #[must_use]
    pub fn pinned_groups(&self) -> Vec<PinnedGroup> {
        let state = self.shared.state.lock();
        let beyond = state.segments.len().saturating_sub(self.shared.options.segments_target);
        let mut pinned: Vec<PinnedGroup> = Vec::new();
        for segment in state.segments.iter().take(beyond) {
            for (group, live) in &segment.live {
                match pinned.iter_mut().find(|pinned| pinned.group == *group) {
                    Some(pinned) => pinned.bytes += live.entry_bytes,
                    None => {
                        pinned.push(PinnedGroup {
                            group: *group,
                            bytes: live.entry_bytes,
                            segment: segment.header.seq,
                            release_index: None,
                        });
                    }
                }
            }
        }
        let cut = state.segments.get(beyond).map(|segment| segment.header.seq);
        for pinned in &mut pinned {
            let in_old = |place: &index::Place| cut.is_some_and(|cut| place.segment < cut);
            pinned.release_index = state.groups.get(&pinned.group).and_then(|log: &GroupLog| {
                log.entries().filter(|(_, slot)| slot.place.as_ref().is_some_and(in_old)).map(|(index, _)| index).last()
            });
        }
        pinned.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.group.cmp(&b.group)));
        pinned
    }

    /// The highest segment number in `dir`, by names only; `None` if it holds no segment or is not there.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn newest_on_disk(disk: &dyn Disk, dir: &Path) -> std::io::Result<Option<SegmentSeq>> {
        match scan::list(disk, dir) {
            Ok((live, _)) => Ok(live.last().copied()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Number of the segment that is written to; only ever rises, over restarts too.
    #[must_use]
    pub fn newest_segment(&self) -> SegmentSeq {
        self.shared.state.lock().segments.back().map_or(SegmentSeq::new(0), |segment| segment.header.seq)
    }

    /// Up to where everything is synced; `None` until a record of the newest segment is.
    #[must_use]
    pub fn synced_end(&self) -> Option<LogEnd> {
        let state = self.shared.state.lock();
        let segment = state.segments.back()?.header.seq.get();
        let offset = state.active_synced;
        (offset > segment::HEADER_PAGE).then_some(LogEnd { segment, offset })
    }

    /// Numbers for metrics.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        let state = self.shared.state.lock();
        WalStats {
            segment_count: state.segments.len(),
            segment_bytes: state.segments.iter().map(|segment| segment.capacity).sum(),
            queued_bytes: state.queued_bytes,
            unsynced_records: state.written.0.saturating_sub(state.synced.0),
            write_count: state.counters.writes,
            written_bytes: state.counters.written_bytes,
            sync_count: state.counters.syncs,
            rewritten_record_count: state.counters.rewritten_records,
            failure: state.failure.clone(),
            damage: state.damage.clone(),
        }
    }

    /// Why the log takes nothing more, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<WalFailure> {
        self.shared.state.lock().failure.clone()
    }

    /// Takes no more, writes and syncs everything, and ends the threads. After this, any damage found later
    /// is corruption, not a torn tail.
    ///
    /// # Errors
    /// The failure, if the log had one.
    pub fn shutdown(&self) -> Result<(), WalFailure> {
        self.threads.stop();
        let shared = &self.shared;
        shared.inline.store(true, Ordering::Relaxed);
        let mut scratch = Vec::new();
        if shared.state.lock().has_dirty_committed() {
            shared.state.lock().enqueue_committed();
        }
        while shared.write_step(&mut scratch) {}
        shared.sync_step(true);
        // What is synced now is stated in one more record, itself synced.
        let owed = {
            let mut state = shared.state.lock();
            let owed = state.active_end > state.active_stated;
            if owed && state.failure.is_none() {
                state.enqueue(Head::plain(RecordType::Mark, GroupId::new(0)), Bytes::new());
            }
            owed
        };
        if owed {
            shared.write_step(&mut scratch);
            shared.sync_step(true);
        }
        match self.failure() {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    /// Inline log: does all work there is, in order, until there is none.
    pub fn drive(&self) {
        while self.drive_write() | self.shared.sync_step(false) | self.shared.keep_step() {}
    }

    /// Inline log: writes what is queued. Returns whether there was anything.
    pub fn drive_write(&self) -> bool {
        self.shared.write_step(&mut Vec::new())
    }

    /// Inline log: syncs what is written, whether or not somebody waits: an interval's timer.
    pub fn drive_sync(&self) -> bool {
        self.shared.sync_step(true)
    }
}

/// An entry to be read from disk.
struct Cold {
    index: LogIndex,
    term: Term,
    kind: u8,
    len: u32,
    source: Source,
}
