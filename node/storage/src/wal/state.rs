//! The log's shared state: the queue, the watermarks, the groups and the segments.
//!
//! ```text
//!   enqueue          writer             sync             (positions in one queue of all groups)
//!      │  queue        │  unsynced       │
//!      ▼───────────────▼─────────────────▼
//!   enqueued    ≥    written      ≥    synced
//! ```
//!
//! Plain data under one mutex; nothing here does IO or calls a callback. Methods hand out what the caller
//! has to do after unlocking.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hashbrown::HashMap;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Term};

use super::failure::{Damage, WalFailure};
use super::index::{GroupLog, Lsn, Place, Slot};
use super::options::WalOptions;
use super::record::{HEADER_LEN, Head, RecordType, padded};
use super::segment::{LiveRefs, Prepared, Segment, SegmentSeq};
use crate::disk::DiskFile;

/// Told what became of a record.
pub type Done = Box<dyn FnOnce(Result<(), WalFailure>) + Send>;
/// Told that there is room in the queue again.
pub(crate) type RoomCallback = Box<dyn FnOnce() + Send>;

/// A record that waits for the writer.
pub(crate) struct Queued {
    pub(crate) lsn: Lsn,
    pub(crate) head: Head,
    pub(crate) payload: Bytes,
}

impl Queued {
    pub(crate) fn padded_len(&self) -> usize {
        padded(HEADER_LEN + self.payload.len())
    }
}

/// A retired segment file, ready for its next life.
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
}

/// A written payload that stays readable without the disk.
struct Cached {
    group: GroupId,
    index: LogIndex,
    lsn: Lsn,
}

/// How far the active segment is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    /// It takes records.
    Open,
    /// Its end record is written; a sync is due.
    Written,
    /// All of it is synced.
    Synced,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) rewritten_records: u64,
}

pub(crate) struct State {
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queued_bytes: usize,
    pub(crate) enqueued: Lsn,
    pub(crate) written: Lsn,
    pub(crate) synced: Lsn,
    /// Wait for `written`, in queue order.
    on_written: VecDeque<(Lsn, Done)>,
    /// Wait for `synced`; the number keeps equal positions in call order.
    on_synced: BTreeMap<(Lsn, u64), Done>,
    synced_ticket: u64,
    on_room: Vec<RoomCallback>,
    /// A sync is wanted up to here though no callback waits for it.
    pub(crate) sync_floor: Lsn,
    /// When interval groups want what is written synced.
    pub(crate) interval_deadline: Option<Instant>,
    pub(crate) groups: HashMap<GroupId, GroupLog>,
    dirty_committed: Vec<GroupId>,
    /// Oldest first, contiguous numbers, the last one is written to. Empty only after a failure.
    pub(crate) segments: VecDeque<Segment>,
    /// Bytes of the last segment handed to the kernel.
    pub(crate) active_end: u64,
    /// Bytes of the last segment known to be synced.
    pub(crate) active_synced: u64,
    /// The highest `synced` a written record of the last segment states.
    pub(crate) active_stated: u64,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) prepare_error: Option<WalFailure>,
    pub(crate) capacity_wanted: u64,
    pub(crate) spares: Vec<Spare>,
    pub(crate) failure: Option<WalFailure>,
    pub(crate) closing: bool,
    pub(crate) writer_done: bool,
    /// There may be housekeeping to do; kept here so that no wake-up is lost.
    pub(crate) keep_wanted: bool,
    pub(crate) damage: Option<Damage>,
    pub(crate) counters: Counters,
    cache: VecDeque<Cached>,
    cached_bytes: usize,
    cached_count: usize,
    /// A sealed segment's end record: must be synced before the next segment takes records.
    pub(crate) seal: Seal,
    /// No new rewrite before what the last one enqueued is written.
    pub(crate) rewriting_until: Lsn,
    options: WalOptions,
}

impl State {
    pub(crate) fn new(options: WalOptions) -> Self {
        Self {
            queue: VecDeque::new(),
            queued_bytes: 0,
            enqueued: Lsn(0),
            written: Lsn(0),
            synced: Lsn(0),
            on_written: VecDeque::new(),
            on_synced: BTreeMap::new(),
            synced_ticket: 0,
            on_room: Vec::new(),
            sync_floor: Lsn(0),
            interval_deadline: None,
            groups: HashMap::new(),
            dirty_committed: Vec::new(),
            segments: VecDeque::new(),
            active_end: 0,
            active_synced: 0,
            active_stated: 0,
            prepared: None,
            prepare_error: None,
            capacity_wanted: options.segment_bytes,
            spares: Vec::new(),
            failure: None,
            closing: false,
            writer_done: false,
            keep_wanted: true,
            damage: None,
            counters: Counters::default(),
            cache: VecDeque::new(),
            cached_bytes: 0,
            cached_count: 0,
            seal: Seal::Open,
            rewriting_until: Lsn(0),
            options,
        }
    }

    /// Why nothing more is taken, if so.
    pub(crate) fn refusal(&self) -> Option<WalFailure> {
        if self.closing && self.failure.is_none() {
            return Some(WalFailure::ShutDown);
        }
        self.failure.clone()
    }

    pub(crate) fn group(&mut self, group: GroupId) -> &mut GroupLog {
        self.groups.entry(group).or_default()
    }

    /// Puts a record into the queue.
    pub(crate) fn enqueue(&mut self, head: Head, payload: Bytes) -> Lsn {
        self.enqueued = Lsn(self.enqueued.0 + 1);
        let lsn = self.enqueued;
        let queued = Queued { lsn, head, payload };
        self.queued_bytes += queued.padded_len();
        self.queue.push_back(queued);
        if let Some(log) = self.groups.get_mut(&head.group) {
            log.newest = lsn;
        }
        lsn
    }

    /// Index check for a batch that starts at `first`.
    pub(crate) fn check_order(&self, group: GroupId, first: LogIndex) -> Result<(), WalFailure> {
        let expected = self.groups.get(&group).and_then(GroupLog::expected_next);
        match expected {
            Some(expected) if expected != first => Err(WalFailure::OutOfOrder { group, expected, found: first }),
            _ => Ok(()),
        }
    }

    pub(crate) fn append(&mut self, group: GroupId, index: LogIndex, term: Term, kind: u8, payload: Bytes) -> Lsn {
        self.groups.entry(group).or_default();
        let head = Head { record: RecordType::Append, rewritten: false, kind, group, term, index: Some(index) };
        let lsn = self.enqueue(head, payload.clone());
        let slot = Slot { term, kind, len: payload.len() as u32, lsn, place: None, payload: Some(payload) };
        self.group(group).push(index, slot);
        lsn
    }

    pub(crate) fn vote(&mut self, group: GroupId, vote: Bytes) -> Lsn {
        self.groups.entry(group).or_default();
        let lsn = self.enqueue(Head::plain(RecordType::Vote, group), vote.clone());
        let log = self.group(group);
        log.vote = Some(vote);
        log.vote_record.lsn = lsn;
        lsn
    }

    pub(crate) fn truncate_after(&mut self, group: GroupId, index: Option<LogIndex>) -> Lsn {
        self.groups.entry(group).or_default();
        let lsn = self.enqueue(Head { index, ..Head::plain(RecordType::TruncateAfter, group) }, Bytes::new());
        let gone = self.group(group).truncate_after(index);
        self.release_slots(group, &gone, lsn);
        lsn
    }

    pub(crate) fn purge(&mut self, group: GroupId, upto: LogPosition) -> Lsn {
        let log = self.groups.entry(group).or_default();
        if log.purged.is_some_and(|purged| purged.index >= upto.index) {
            return log.purge_record.lsn;
        }
        let head = Head { index: Some(upto.index), term: upto.term, ..Head::plain(RecordType::PurgeUpto, group) };
        let lsn = self.enqueue(head, Bytes::new());
        let log = self.group(group);
        log.purged = Some(upto);
        log.purge_record.lsn = lsn;
        let gone = log.purge(upto.index);
        self.release_slots(group, &gone, lsn);
        lsn
    }

    /// Remembers a committed index for the next write.
    pub(crate) fn committed(&mut self, group: GroupId, committed: LogPosition) {
        let log = self.groups.entry(group).or_default();
        log.committed = Some(committed);
        self.dirty(group);
    }

    fn dirty(&mut self, group: GroupId) {
        if let Some(log) = self.groups.get_mut(&group)
            && !std::mem::replace(&mut log.committed_dirty, true)
        {
            self.dirty_committed.push(group);
        }
    }

    pub(crate) fn has_dirty_committed(&self) -> bool {
        !self.dirty_committed.is_empty()
    }

    /// Puts the remembered committed indexes behind what is queued.
    pub(crate) fn enqueue_committed(&mut self) {
        for group in std::mem::take(&mut self.dirty_committed) {
            let Some(log) = self.groups.get_mut(&group) else {
                continue;
            };
            log.committed_dirty = false;
            let Some(committed) = log.committed else {
                continue;
            };
            let head = Head {
                index: Some(committed.index),
                term: committed.term,
                ..Head::plain(RecordType::Committed, group)
            };
            self.enqueue(head, Bytes::new());
        }
    }

    pub(crate) fn drop_group(&mut self, group: GroupId) -> Lsn {
        let lsn = self.enqueue(Head::plain(RecordType::GroupDrop, group), Bytes::new());
        if let Some(mut log) = self.groups.remove(&group) {
            let gone = log.truncate_after(None);
            self.release_slots(group, &gone, lsn);
            for segment in [log.vote_record.segment, log.purge_record.segment] {
                self.release_state(group, segment, lsn);
            }
        }
        lsn
    }

    fn segment_mut(&mut self, seq: SegmentSeq) -> Option<&mut Segment> {
        let first = self.segments.front()?.header.seq.get();
        let nth = usize::try_from(seq.get().checked_sub(first)?).ok()?;
        self.segments.get_mut(nth)
    }

    pub(crate) fn segment(&self, seq: SegmentSeq) -> Option<&Segment> {
        let first = self.segments.front()?.header.seq.get();
        let nth = usize::try_from(seq.get().checked_sub(first)?).ok()?;
        self.segments.get(nth)
    }

    fn release_slots(&mut self, group: GroupId, slots: &[Slot], by: Lsn) {
        for slot in slots {
            let Some(place) = slot.place else { continue };
            if slot.payload.is_some() {
                self.cached_bytes -= slot.len as usize;
                self.cached_count -= 1;
            }
            let refs = entry_refs(slot.len);
            if let Some(segment) = self.segment_mut(place.segment) {
                segment.release(group, refs, by.0);
            }
        }
    }

    fn release_state(&mut self, group: GroupId, segment: Option<SegmentSeq>, by: Lsn) {
        if let Some(segment) = segment.and_then(|seq| self.segment_mut(seq)) {
            segment.release(group, LiveRefs { states: 1, ..LiveRefs::default() }, by.0);
        }
    }

    /// Registers where a written record lies. `lsn` is zero for records found at open.
    pub(crate) fn place(&mut self, lsn: Lsn, head: &Head, payload_len: u32, place: Place) {
        let group = head.group;
        let Some(log) = self.groups.get_mut(&group) else {
            return;
        };
        match head.record {
            RecordType::Append => {
                let Some(slot) = head.index.and_then(|index| log.slot_mut(index)) else {
                    return;
                };
                let old = if head.rewritten {
                    if slot.term != head.term || slot.place.is_none() {
                        return;
                    }
                    slot.place.replace(place)
                } else {
                    if slot.lsn != lsn {
                        return;
                    }
                    slot.place.replace(place)
                };
                let refs = entry_refs(payload_len);
                let first_time = old.is_none();
                if let Some(segment) = old.and_then(|old| self.segment_mut(old.segment)) {
                    segment.release(group, refs, lsn.0);
                }
                if let Some(segment) = self.segment_mut(place.segment) {
                    segment.retain(group, refs);
                }
                if first_time {
                    self.cache(group, head.index.unwrap_or_default(), lsn, payload_len as usize);
                }
            }
            RecordType::Vote | RecordType::PurgeUpto => {
                let record = if head.record == RecordType::Vote { &mut log.vote_record } else { &mut log.purge_record };
                if record.lsn != lsn {
                    return;
                }
                let old = record.segment.replace(place.segment);
                self.release_state(group, old, lsn);
                if let Some(segment) = self.segment_mut(place.segment) {
                    segment.retain(group, LiveRefs { states: 1, ..LiveRefs::default() });
                }
            }
            RecordType::Committed => log.committed_segment = Some(place.segment),
            RecordType::TruncateAfter | RecordType::GroupDrop | RecordType::Mark | RecordType::End => {}
        }
    }

    /// Counts a payload as cached, and lets the oldest ones go.
    fn cache(&mut self, group: GroupId, index: LogIndex, lsn: Lsn, len: usize) {
        let held = self.groups.get(&group).and_then(|log| log.slot(index)).is_some_and(|slot| slot.payload.is_some());
        if !held {
            return;
        }
        self.cached_bytes += len;
        self.cached_count += 1;
        self.cache.push_back(Cached { group, index, lsn });
        while self.cached_bytes > self.options.cache_bytes_max || self.front_is_stale() {
            let Some(oldest) = self.cache.pop_front() else {
                break;
            };
            let slot = self.groups.get_mut(&oldest.group).and_then(|log| log.slot_mut(oldest.index));
            if let Some(slot) = slot.filter(|slot| slot.lsn == oldest.lsn) {
                slot.payload = None;
                self.cached_bytes -= slot.len as usize;
                self.cached_count -= 1;
            }
        }
        // An idle group at the front may hide any number of purged entries behind it.
        if self.cache.len() > 1024 && self.cache.len() > 2 * self.cached_count {
            let groups = &self.groups;
            self.cache.retain(|cached| is_cached(groups, cached));
        }
    }

    fn front_is_stale(&self) -> bool {
        self.cache.front().is_some_and(|cached| !is_cached(&self.groups, cached))
    }

    /// The writer finished everything up to `upto`.
    pub(crate) fn note_written(
        &mut self,
        upto: Lsn,
        bytes: usize,
        now: Option<Instant>,
        delay: Option<Duration>,
    ) -> Ready {
        self.written = upto;
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        if let (Some(now), Some(delay)) = (now, delay) {
            let deadline = now + delay;
            self.interval_deadline = Some(self.interval_deadline.map_or(deadline, |at| at.min(deadline)));
        }
        let mut ready = Ready::default();
        while self.on_written.front().is_some_and(|(lsn, _)| *lsn <= upto) {
            ready.ok.extend(self.on_written.pop_front().map(|(_, done)| done));
        }
        if !self.on_room.is_empty() && self.has_room() {
            ready.room = std::mem::take(&mut self.on_room);
        }
        ready
    }

    /// The device has everything up to `upto`.
    pub(crate) fn note_synced(&mut self, upto: Lsn) -> Ready {
        self.synced = self.synced.max(upto);
        let later = self.on_synced.split_off(&(Lsn(self.synced.0 + 1), 0));
        let now = std::mem::replace(&mut self.on_synced, later);
        Ready { ok: now.into_values().collect(), ..Ready::default() }
    }

    /// Whether the sync thread has a reason to sync now.
    pub(crate) fn wants_sync(&self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if self.seal == Seal::Written {
            return true;
        }
        if self.written <= self.synced {
            return false;
        }
        let waits = self.on_synced.keys().next().is_some_and(|(lsn, _)| *lsn <= self.written);
        waits || (self.sync_floor > self.synced && self.sync_floor <= self.written)
    }

    pub(crate) fn when_written(&mut self, lsn: Lsn, done: Done) {
        self.on_written.push_back((lsn, done));
    }

    pub(crate) fn when_synced(&mut self, lsn: Lsn, done: Done) {
        self.synced_ticket += 1;
        self.on_synced.insert((lsn, self.synced_ticket), done);
    }

    pub(crate) fn when_room(&mut self, room: RoomCallback) {
        self.on_room.push(room);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued_bytes < self.options.queue_bytes_max
    }

    /// Ends the log. Everybody who waits hears of it; the first failure stays.
    pub(crate) fn fail(&mut self, failure: WalFailure) -> Ready {
        let first = self.failure.is_none();
        let failure = self.failure.get_or_insert(failure).clone();
        self.queue.clear();
        self.queued_bytes = 0;
        let mut err: Vec<Done> = self.on_written.drain(..).map(|(_, done)| done).collect();
        err.extend(std::mem::take(&mut self.on_synced).into_values());
        let room = std::mem::take(&mut self.on_room);
        let report = if first { self.options.on_failure.clone() } else { None };
        Ready { ok: Vec::new(), err, room, failure: Some(failure), report }
    }

    /// Whether the oldest segment is needed by nobody, and what made it so is synced.
    pub(crate) fn oldest_is_dead(&self) -> bool {
        self.segments.len() > 1
            && self
                .segments
                .front()
                .is_some_and(|oldest| oldest.live.is_empty() && Lsn(oldest.obsoleted_by) <= self.synced)
    }

    /// Takes the oldest segment out; its committed records are repeated with the next write.
    pub(crate) fn retire_oldest(&mut self) -> Option<Segment> {
        if !self.oldest_is_dead() {
            return None;
        }
        let oldest = self.segments.pop_front()?;
        let lost: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(_, log)| log.committed_segment == Some(oldest.header.seq))
            .map(|(group, _)| *group)
            .collect();
        for group in lost {
            self.group(group).committed_segment = None;
            self.dirty(group);
        }
        Some(oldest)
    }

    pub(crate) fn active(&self) -> Option<&Segment> {
        self.segments.back()
    }

    pub(crate) fn active_file(&self) -> Option<(SegmentSeq, Arc<dyn DiskFile>)> {
        self.active().map(|active| (active.header.seq, Arc::clone(&active.file)))
    }
}

fn is_cached(groups: &HashMap<GroupId, GroupLog>, cached: &Cached) -> bool {
    groups
        .get(&cached.group)
        .and_then(|log| log.slot(cached.index))
        .is_some_and(|slot| slot.lsn == cached.lsn && slot.payload.is_some())
}

/// What an entry of this payload length occupies.
pub(crate) fn entry_refs(payload_len: u32) -> LiveRefs {
    LiveRefs { entries: 1, entry_bytes: padded(HEADER_LEN + payload_len as usize) as u64, states: 0 }
}

/// Callbacks to run after unlocking.
#[derive(Default)]
pub(crate) struct Ready {
    pub(crate) ok: Vec<Done>,
    pub(crate) err: Vec<Done>,
    pub(crate) room: Vec<RoomCallback>,
    pub(crate) failure: Option<WalFailure>,
    pub(crate) report: Option<super::options::FailureCallback>,
}

impl Ready {
    pub(crate) fn run(self) {
        let Self { ok, err, room, failure, report } = self;
        for done in ok {
            done(Ok(()));
        }
        if let Some(failure) = failure {
            if let Some(report) = report {
                report(&failure);
            }
            for done in err {
                done(Err(failure.clone()));
            }
        }
        for room in room {
            room();
        }
    }
}
