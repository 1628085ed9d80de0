//! The work of the log, step by step: write, sync, keep. Each step runs on its own thread, or, in an inline
//! log, wherever `drive` is called, so that tests decide the order.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_core::hash::mix64;
use headwater_core::ids::GroupId;
use parking_lot::{Condvar, Mutex};

use super::failure::{Damage, WalFailure};
use super::index::{Lsn, Place};
use super::options::WalOptions;
use super::record::{HEADER_LEN, Head, Parsed, RecordType, parse};
use super::segment::{self, END_RESERVE, HEADER_PAGE, Prepared, Segment, SegmentHeader, SegmentSeq, capacity_for};
use super::state::{Queued, Seal, Spare, State};
use crate::disk::{Disk, DiskFile};

/// Payloads up to this many bytes are copied next to their header: a copy costs less than another slice.
const COPY_BYTES_MAX: usize = 2048;
/// Zeros to pad with.
const PADDING: [u8; 8] = [0; 8];

/// Everything the threads share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// Something is queued.
    pub(crate) work: Condvar,
    /// Something is to be synced.
    pub(crate) sync: Condvar,
    /// Segments are to be prepared, retired or rewritten.
    pub(crate) keep: Condvar,
    /// A sync or a preparation ended; the writer may wait for it.
    pub(crate) progress: Condvar,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) options: WalOptions,
    /// Steps the writer waits for are done by itself.
    pub(crate) inline: AtomicBool,
    pub(crate) salts: Salts,
}

/// Draws a salt for every life of a segment file.
pub(crate) struct Salts {
    seed: u64,
    drawn: AtomicU64,
}

impl Salts {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, drawn: AtomicU64::new(0) }
    }

    pub(crate) fn draw(&self, seq: SegmentSeq) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let salt = mix64(self.seed.wrapping_add(drawn), seq.get());
        // The low half is compared with what may be zeros.
        if salt as u32 == 0 { salt | 1 } else { salt }
    }
}

/// The segment being written, as the writer sees it.
struct Active {
    seq: SegmentSeq,
    salt: u64,
    file: Arc<dyn DiskFile>,
    capacity: u64,
    end: u64,
    synced: u64,
}

impl Shared {
    fn fail(&self, failure: WalFailure) {
        let ready = self.state.lock().fail(failure);
        self.wake_all();
        ready.run();
    }

    pub(crate) fn wake_all(&self) {
        self.work.notify_all();
        self.sync.notify_all();
        self.keep.notify_all();
        self.progress.notify_all();
    }

    fn nudge_keeper(&self, state: &mut State) {
        state.keep_wanted = true;
        self.keep.notify_one();
    }

    fn path(&self, seq: SegmentSeq) -> PathBuf {
        segment::path(&self.dir, seq)
    }

    // ---- write ----

    /// Writes everything queued. Returns whether there was anything.
    pub(crate) fn write_step(&self, scratch: &mut Vec<u8>) -> bool {
        let mut batch = {
            let mut state = self.state.lock();
            if state.failure.is_some() || state.queue.is_empty() {
                return false;
            }
            state.enqueue_committed();
            std::mem::take(&mut state.queue)
        };
        while let Some(next) = batch.front() {
            let next_len = next.padded_len() as u64;
            let Some(active) = self.active() else {
                return true;
            };
            let mut run = Vec::new();
            let mut end = active.end;
            while let Some(queued) =
                batch.pop_front_if(|queued| end + queued.padded_len() as u64 + END_RESERVE <= active.capacity)
            {
                end += queued.padded_len() as u64;
                run.push(queued);
            }
            let result =
                if run.is_empty() { self.roll(&active, next_len) } else { self.write_run(&active, &run, scratch) };
            if let Err(failure) = result {
                self.fail(failure);
                return true;
            }
        }
        true
    }

    fn active(&self) -> Option<Active> {
        let state = self.state.lock();
        let active = state.active()?;
        Some(Active {
            seq: active.header.seq,
            salt: active.header.salt,
            file: Arc::clone(&active.file),
            capacity: active.capacity,
            end: state.active_end,
            synced: state.active_synced,
        })
    }

    fn write_run(&self, active: &Active, run: &[Queued], scratch: &mut Vec<u8>) -> Result<(), WalFailure> {
        scratch.clear();
        // (end of the scratch part, payload that follows it)
        let mut cuts: Vec<(usize, &Bytes)> = Vec::new();
        let mut at = active.end;
        let mut bytes = 0;
        for queued in run {
            let header = queued.head.encode(active.salt, active.synced, &queued.payload);
            scratch.extend_from_slice(&header);
            if queued.payload.len() <= COPY_BYTES_MAX {
                scratch.extend_from_slice(&queued.payload);
            } else {
                cuts.push((scratch.len(), &queued.payload));
            }
            let padded = queued.padded_len();
            scratch.extend_from_slice(&PADDING[..padded - HEADER_LEN - queued.payload.len()]);
            bytes += padded;
        }
        let mut slices = Vec::with_capacity(2 * cuts.len() + 1);
        let mut from = 0;
        for (to, payload) in cuts {
            slices.push(IoSlice::new(&scratch[from..to]));
            slices.push(IoSlice::new(payload));
            from = to;
        }
        if from < scratch.len() {
            slices.push(IoSlice::new(&scratch[from..]));
        }
        active
            .file
            .write_vectored_at(active.end, &slices)
            .map_err(|error| WalFailure::io("write", &self.path(active.seq), &error))?;

        let mut state = self.state.lock();
        let mut delay: Option<Duration> = None;
        for queued in run {
            state.place(
                queued.lsn,
                &queued.head,
                queued.payload.len() as u32,
                Place { segment: active.seq, offset: at },
            );
            at += queued.padded_len() as u64;
            if let Some(interval) = state.groups.get(&queued.head.group).and_then(|log| log.interval) {
                delay = Some(delay.map_or(interval, |delay| delay.min(interval)));
            }
        }
        state.active_end = at;
        state.active_stated = active.synced;
        state.counters.writes += 1;
        state.counters.written_bytes += bytes as u64;
        let last = run.last().map_or(state.written, |queued| queued.lsn);
        let ready = state.note_written(last, bytes, delay.map(|_| Instant::now()), delay);
        if state.wants_sync() || delay.is_some() {
            self.sync.notify_one();
        }
        if state.segments.len() > self.options.segments_target {
            self.nudge_keeper(&mut state);
        }
        drop(state);
        ready.run();
        Ok(())
    }

    /// Ends the active segment and moves on to the prepared one.
    fn roll(&self, active: &Active, next_len: u64) -> Result<(), WalFailure> {
        let end = Head::plain(RecordType::End, GroupId::new(0)).encode(active.salt, active.synced, &[]);
        active
            .file
            .write_at(active.end, &end)
            .map_err(|error| WalFailure::io("write", &self.path(active.seq), &error))?;
        {
            let mut state = self.state.lock();
            state.seal = Seal::Written;
            state.active_end = active.end + end.len() as u64;
            state.capacity_wanted = self.options.segment_bytes.max(capacity_for(next_len));
        }
        // All of this segment is synced before the next one takes a record: only the newest can end torn.
        self.wait(|state| state.seal == Seal::Synced)?;
        let wanted = self.options.segment_bytes.max(capacity_for(next_len));
        let mut retried = false;
        self.wait(|state| {
            if !retried && state.prepare_error.is_some() {
                // Space may have come back since; ask once more before giving up.
                retried = true;
                state.prepare_error = None;
            }
            state.prepare_error.is_some() || state.prepared.as_ref().is_some_and(|next| next.capacity >= wanted)
        })?;
        let mut state = self.state.lock();
        if let Some(error) = state.prepare_error.clone() {
            return Err(error);
        }
        let Some(Prepared { header, file, capacity }) = state.prepared.take() else {
            return Err(WalFailure::ShutDown);
        };
        state.segments.push_back(Segment { header, file, capacity, live: hashbrown::HashMap::new(), obsoleted_by: 0 });
        state.seal = Seal::Open;
        state.active_end = HEADER_PAGE;
        state.active_synced = HEADER_PAGE;
        state.active_stated = HEADER_PAGE;
        state.capacity_wanted = self.options.segment_bytes;
        self.nudge_keeper(&mut state);
        Ok(())
    }

    /// Waits until `ready`, doing the other threads' steps if there are none.
    fn wait(&self, mut ready: impl FnMut(&mut State) -> bool) -> Result<(), WalFailure> {
        loop {
            {
                let mut state = self.state.lock();
                loop {
                    if let Some(failure) = &state.failure {
                        return Err(failure.clone());
                    }
                    if ready(&mut state) {
                        return Ok(());
                    }
                    self.sync.notify_one();
                    self.nudge_keeper(&mut state);
                    if self.inline.load(Ordering::Relaxed) {
                        break;
                    }
                    self.progress.wait(&mut state);
                }
            }
            self.sync_step(false);
            self.prepare_step();
        }
    }

    // ---- sync ----

    /// Syncs what is written, if somebody wants that or `force` says so. Returns whether it did.
    pub(crate) fn sync_step(&self, force: bool) -> bool {
        let (seq, file, target, end, sealing) = {
            let mut state = self.state.lock();
            let forced = force && state.failure.is_none() && state.written > state.synced;
            if !forced && !state.wants_sync() {
                return false;
            }
            state.interval_deadline = None;
            let Some((seq, file)) = state.active_file() else {
                return false;
            };
            (seq, file, state.written, state.active_end, state.seal == Seal::Written)
        };
        if let Err(error) = file.sync_data() {
            self.fail(WalFailure::io("sync", &self.path(seq), &error));
            return true;
        }
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return true;
        }
        state.counters.syncs += 1;
        // The writer cannot have moved on to the next segment before a sealing sync was reported.
        state.active_synced = state.active_synced.max(end);
        if sealing {
            state.seal = Seal::Synced;
        }
        let ready = state.note_synced(target);
        if state.segments.len() > 1 {
            self.nudge_keeper(&mut state);
        }
        drop(state);
        self.progress.notify_all();
        ready.run();
        true
    }

    // ---- keep ----

    /// One piece of housekeeping. Returns whether there was any.
    pub(crate) fn keep_step(&self) -> bool {
        self.prepare_step() || self.retire_step() || self.rewrite_step()
    }

    /// Makes the next segment ready: header, zeros, name, all synced.
    pub(crate) fn prepare_step(&self) -> bool {
        let (next, prepared, spare, wanted) = {
            let mut state = self.state.lock();
            let enough = state.prepared.as_ref().is_some_and(|next| next.capacity >= state.capacity_wanted);
            if enough || state.failure.is_some() || state.prepare_error.is_some() {
                return false;
            }
            let Some(active) = state.active() else {
                return false;
            };
            let next = active.header.seq.next();
            let prepared = state.prepared.take();
            let spare = if prepared.is_none() { state.spares.pop() } else { None };
            (next, prepared, spare, state.capacity_wanted)
        };
        let result = match prepared {
            Some(small) => enlarge(small, wanted),
            None => self.prepare(next, spare, wanted, Fill::Zeros),
        };
        let mut state = self.state.lock();
        match result {
            Ok(prepared) => state.prepared = Some(prepared),
            Err(error) => {
                state.prepare_error = Some(WalFailure::io("prepare", &self.path(next), &error));
            }
        }
        drop(state);
        self.progress.notify_all();
        true
    }

    pub(crate) fn prepare(
        &self,
        seq: SegmentSeq,
        spare: Option<Spare>,
        capacity: u64,
        fill: Fill,
    ) -> io::Result<Prepared> {
        let len = u32::try_from(capacity).unwrap_or(u32::MAX);
        let header = SegmentHeader { seq, salt: self.salts.draw(seq), len };
        let path = self.path(seq);
        let (from, file) = match spare {
            Some(spare) => {
                let file = self.disk.open(&spare.path)?;
                (spare.path, file)
            }
            None => {
                let from = segment::spare_path(&self.dir, seq);
                (from.clone(), create_or_open(self.disk.as_ref(), &from)?)
            }
        };
        let result = (|| {
            let len = file.len()?;
            if len < capacity {
                match fill {
                    Fill::Zeros => file.fill_zero(len, capacity)?,
                    Fill::Reserve => file.reserve(capacity)?,
                }
            }
            file.write_at(0, &header.encode())?;
            // The header of the new life is durable before the name that makes it count.
            file.sync_data()?;
            self.disk.rename(&from, &path)?;
            self.disk.sync_dir(&self.dir)?;
            Ok(len.max(capacity))
        })();
        match result {
            Ok(capacity) => Ok(Prepared { header, file, capacity }),
            Err(error) => {
                // Give half-filled space back. That this fails too is no news.
                let _ = self.disk.remove(&from);
                Err(error)
            }
        }
    }

    /// Takes the oldest segment away if nobody needs it. In order, each made durable before the next:
    /// what a newer segment says about an older one must never go first.
    fn retire_step(&self) -> bool {
        let (segment, recycle) = {
            let mut state = self.state.lock();
            if state.failure.is_some() || state.closing {
                return false;
            }
            let Some(segment) = state.retire_oldest() else {
                return false;
            };
            let recycle =
                state.spares.len() < self.options.spares_max && segment.capacity == self.options.segment_bytes;
            (segment, recycle)
        };
        let path = self.path(segment.header.seq);
        let spare = segment::spare_path(&self.dir, segment.header.seq);
        let result = if recycle { self.disk.rename(&path, &spare) } else { self.disk.remove(&path) };
        match result.and_then(|()| self.disk.sync_dir(&self.dir)) {
            Ok(()) => {
                if recycle {
                    self.state.lock().spares.push(Spare { path: spare });
                }
            }
            Err(error) => self.fail(WalFailure::io("retire", &path, &error)),
        }
        true
    }

    /// Moves the few live records of idle groups out of the oldest segment.
    fn rewrite_step(&self) -> bool {
        let Some(picked) = self.pick_rewrites() else {
            return false;
        };
        let mut payloads = Vec::with_capacity(picked.len());
        for pick in &picked {
            match &pick.payload {
                Some(payload) => payloads.push(payload.clone()),
                None => match self.read_payload(&pick.source, pick.len) {
                    Ok(payload) => payloads.push(payload),
                    Err(damage) => {
                        // Leave it where it is: the segment stays pinned, and `stats` says why.
                        self.state.lock().damage = Some(damage);
                        return false;
                    }
                },
            }
        }
        let mut state = self.state.lock();
        for (pick, payload) in picked.into_iter().zip(payloads) {
            state.rewrite(&pick.head, pick.source.place, payload);
        }
        state.rewriting_until = state.enqueued;
        self.work.notify_one();
        true
    }

    fn pick_rewrites(&self) -> Option<Vec<Pick>> {
        let mut state = self.state.lock();
        let busy = state.failure.is_some() || state.closing || state.damage.is_some();
        if busy || state.written < state.rewriting_until || state.segments.len() <= self.options.segments_target {
            return None;
        }
        let oldest = state.segments.front()?;
        let obsoleted_by = Lsn(oldest.obsoleted_by);
        if oldest.live.is_empty() && obsoleted_by > state.synced {
            // Nothing holds it but a record that nobody else wants synced.
            state.sync_floor = state.sync_floor.max(obsoleted_by);
            self.sync.notify_one();
            return None;
        }
        let small: Vec<GroupId> = oldest
            .live
            .iter()
            .filter(|(_, live)| live.entry_bytes <= self.options.rewrite_group_bytes_max)
            .map(|(group, _)| *group)
            .collect();
        let total: u64 = small.iter().filter_map(|group| oldest.live.get(group)).map(|live| live.entry_bytes).sum();
        // Rewriting a well-filled segment would only move the problem; its groups need a checkpoint.
        if small.is_empty() || total > self.options.segment_bytes / 4 {
            return None;
        }
        let picks = state.picks(oldest, &small);
        (!picks.is_empty()).then_some(picks)
    }

    // ---- read ----

    /// Reads and checks the payload of one entry.
    pub(crate) fn read_payload(&self, source: &Source, len: u32) -> Result<Bytes, Damage> {
        let damage = |found: String| Damage {
            segment: source.place.segment,
            path: self.path(source.place.segment),
            offset: source.place.offset,
            expected: format!("record with a payload of {len} bytes"),
            found,
        };
        let mut bytes = vec![0; HEADER_LEN + len as usize];
        match source.file.read_at(source.place.offset, &mut bytes) {
            Ok(got) if got == bytes.len() => {}
            Ok(got) => return Err(damage(format!("{got} bytes"))),
            Err(error) => return Err(damage(error.to_string())),
        }
        match parse(&bytes, source.salt) {
            Parsed::Record(found) if found.payload.len() == len as usize => Ok(Bytes::from(bytes).slice(HEADER_LEN..)),
            Parsed::Record(found) => Err(damage(format!("payload of {} bytes", found.payload.len()))),
            Parsed::Nothing => Err(damage("no record".into())),
            Parsed::Bad { expected, found } => Err(damage(format!("crc {expected:08x} over bytes with {found:08x}"))),
        }
    }
}

/// How fresh space is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Written with zeros: later syncs carry no metadata. Takes as long as writing it does.
    Zeros,
    /// Reserved only: quick, for the segment an open waits for.
    Reserve,
}

/// Where to read a record from.
pub(crate) struct Source {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) salt: u64,
    pub(crate) place: Place,
}

/// A record to rewrite.
pub(crate) struct Pick {
    pub(crate) head: Head,
    pub(crate) source: Source,
    pub(crate) len: u32,
    /// There if no read is needed.
    pub(crate) payload: Option<Bytes>,
}

fn enlarge(small: Prepared, capacity: u64) -> io::Result<Prepared> {
    small.file.fill_zero(small.capacity, capacity)?;
    small.file.sync_data()?;
    Ok(Prepared { capacity, ..small })
}

fn create_or_open(disk: &dyn Disk, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
    match disk.create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => disk.open(path),
        other => other,
    }
}

impl State {
    /// The live records of these groups in `segment`.
    fn picks(&self, segment: &Segment, groups: &[GroupId]) -> Vec<Pick> {
        let seq = segment.header.seq;
        let source = |offset| Source {
            file: Arc::clone(&segment.file),
            salt: segment.header.salt,
            place: Place { segment: seq, offset },
        };
        let mut picks = Vec::new();
        for group in groups {
            let Some(log) = self.groups.get(group) else {
                continue;
            };
            if log.vote_record.segment == Some(seq)
                && let Some(vote) = &log.vote
            {
                let head = Head { rewritten: true, ..Head::plain(RecordType::Vote, *group) };
                picks.push(Pick { head, source: source(0), len: 0, payload: Some(vote.clone()) });
            }
            if log.purge_record.segment == Some(seq)
                && let Some(purged) = log.purged
            {
                let plain = Head::plain(RecordType::PurgeUpto, *group);
                let head = Head { rewritten: true, term: purged.term, index: Some(purged.index), ..plain };
                picks.push(Pick { head, source: source(0), len: 0, payload: Some(Bytes::new()) });
            }
            for (index, slot) in log.entries() {
                let Some(place) = slot.place.filter(|place| place.segment == seq) else {
                    continue;
                };
                let head = Head {
                    record: RecordType::Append,
                    rewritten: true,
                    kind: slot.kind,
                    group: *group,
                    term: slot.term,
                    index: Some(index),
                };
                picks.push(Pick { head, source: source(place.offset), len: slot.len, payload: slot.payload.clone() });
            }
        }
        picks
    }

    /// Enqueues a record again, if it is still the live one.
    fn rewrite(&mut self, head: &Head, from: Place, payload: Bytes) {
        let Some(log) = self.groups.get(&head.group) else {
            return;
        };
        match head.record {
            RecordType::Vote => {
                let Some(vote) = log.vote.clone().filter(|_| log.vote_record.segment == Some(from.segment)) else {
                    return;
                };
                let lsn = self.enqueue(*head, vote);
                self.group(head.group).vote_record.lsn = lsn;
            }
            RecordType::PurgeUpto => {
                let Some(purged) = log.purged.filter(|_| log.purge_record.segment == Some(from.segment)) else {
                    return;
                };
                let head = Head { index: Some(purged.index), term: purged.term, ..*head };
                let lsn = self.enqueue(head, payload);
                self.group(head.group).purge_record.lsn = lsn;
            }
            _ => {
                let slot = head.index.and_then(|index| log.slot(index));
                if slot.and_then(|slot| slot.place) != Some(from) {
                    return;
                }
                self.enqueue(*head, payload);
            }
        }
        self.counters.rewritten_records += 1;
    }
}
