//! Opening a log: scan, cut the torn tail by ending its segment, start writing behind it.
//!
//! The newest segment is always ended and a fresh one begun: bytes behind a torn tail could otherwise line
//! up with new records and come back to life.

use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headwater_core::ids::{GroupId, LogPosition};
use parking_lot::{Condvar, Mutex};

use super::failure::WalError;
use super::index::{GroupLog, Lsn, Slot, StateRecord};
use super::options::WalOptions;
use super::record::{Head, RecordType};
use super::scan::{FoundGroup, FoundLog, FoundSegment, ScanEnd, WalScan, scan};
use super::segment::{self, HEADER_PAGE, LiveRefs, Prepared, Segment, SegmentSeq};
use super::shared::{Fill, Salts, Shared};
use super::state::{Spare, State, entry_refs};
use crate::disk::{Disk, read_exact_at};

/// Smallest segment file; below, headers and end records would be most of it.
const SEGMENT_BYTES_MIN: u64 = 16 << 10;

pub(super) fn open(
    disk: Arc<dyn Disk>,
    dir: &Path,
    mut options: WalOptions,
    inline: bool,
) -> Result<(Shared, WalScan), WalError> {
    options.segment_bytes = options.segment_bytes.clamp(SEGMENT_BYTES_MIN, u64::from(u32::MAX)) / 8 * 8;
    options.segments_target = options.segments_target.max(2);
    disk.create_dir_all(dir).map_err(|error| WalError::io("create", dir, error))?;
    let found = scan(disk.as_ref(), dir, options.last_stop)?;
    if let ScanEnd::Corrupt(damage) = &found.end {
        return Err(damage.clone().into());
    }
    if let Some(hole) = found.hole() {
        return Err(hole);
    }
    let report = found.report();
    let shared = Shared {
        state: Mutex::new(State::new(options.clone())),
        work: Condvar::new(),
        sync: Condvar::new(),
        keep: Condvar::new(),
        progress: Condvar::new(),
        disk,
        dir: dir.to_owned(),
        options,
        inline: AtomicBool::new(inline),
        salts: Salts::new(random_seed()),
    };
    start(&shared, found)?;
    Ok((shared, report))
}

/// A seed that differs per process, from the hasher keys of the standard library.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn start(shared: &Shared, found: FoundLog) -> Result<(), WalError> {
    let FoundLog { end: _, groups, mut segments, newest, spares } = found;
    let dir = &shared.dir;
    // Names that a killed process left unsynced must not vanish later, when we build on them.
    shared.disk.sync_dir(dir).map_err(|error| WalError::io("sync", dir, error))?;
    let unused = segments.split_off(newest.map_or(0, |newest| newest + 1));
    if let Some(newest) = segments.last() {
        seal(dir, newest)?;
    }
    let mut unused = unused.into_iter();
    let active = unused.next();
    for surplus in unused {
        // Prepared and never used, nor is any behind it.
        let path = segment::path(dir, surplus.header.seq);
        shared.disk.remove(&path).map_err(|error| WalError::io("remove", &path, error))?;
        shared.disk.sync_dir(dir).map_err(|error| WalError::io("sync", dir, error))?;
    }
    let mut spares: Vec<Spare> = spares.into_iter().map(|seq| Spare { path: segment::spare_path(dir, seq) }).collect();
    while spares.len() > shared.options.spares_max {
        let Some(spare) = spares.pop() else { break };
        shared.disk.remove(&spare.path).map_err(|error| WalError::io("remove", &spare.path, error))?;
    }
    let active = match active {
        Some(active) => Prepared { header: active.header, capacity: active.len, file: active.file },
        None => {
            let seq = segments.last().map_or(SegmentSeq::FIRST, |last| last.header.seq.next());
            shared
                .prepare(seq, spares.pop(), shared.options.segment_bytes, Fill::Reserve)
                .map_err(|error| WalError::io("prepare", &segment::path(dir, seq), error))?
        }
    };
    let mut state = shared.state.lock();
    state.spares = spares;
    for found in segments {
        state.segments.push_back(Segment {
            header: found.header,
            file: found.file,
            capacity: found.len,
            live: hashbrown::HashMap::new(),
            obsoleted_by: 0,
        });
    }
    state.segments.push_back(Segment {
        header: active.header,
        file: active.file,
        capacity: active.capacity,
        live: hashbrown::HashMap::new(),
        obsoleted_by: 0,
    });
    state.active_end = HEADER_PAGE;
    state.active_synced = HEADER_PAGE;
    state.active_stated = HEADER_PAGE;
    for (group, found) in groups {
        state.adopt(group, found);
    }
    Ok(())
}

/// Ends the newest segment behind its last valid record, and makes all of it durable.
///
/// An earlier process may have ended because a sync failed. The kernel counts as clean what that sync left out, and no
/// later sync writes it: so whatever is not known to be synced is written again.
fn seal(dir: &Path, newest: &FoundSegment) -> Result<(), WalError> {
    let path = segment::path(dir, newest.header.seq);
    let from = newest.synced.clamp(HEADER_PAGE, newest.end);
    let mut unsynced = vec![0; usize::try_from(newest.end - from).unwrap_or(usize::MAX)];
    read_exact_at(newest.file.as_ref(), from, &mut unsynced).map_err(|error| WalError::io("read", &path, error))?;
    unsynced.extend(Head::plain(RecordType::End, GroupId::new(0)).encode(newest.header.salt, newest.synced, &[]));
    newest.file.write_at(from, &unsynced).map_err(|error| WalError::io("write", &path, error))?;
    newest.file.sync_data().map_err(|error| WalError::io("sync", &path, error))
}

impl State {
    /// Takes over what the scan found of a group.
    fn adopt(&mut self, group: GroupId, found: FoundGroup) {
        let FoundGroup { vote, committed, purged, entries } = found;
        let mut log = GroupLog::default();
        log.purged = purged.map(|(purged, _)| purged);
        log.purge_record = StateRecord { lsn: Lsn(0), segment: purged.map(|(_, segment)| segment) };
        log.vote_record = StateRecord { lsn: Lsn(0), segment: vote.as_ref().map(|(_, segment)| *segment) };
        log.vote = vote.map(|(vote, _)| vote);
        log.committed = committed.map(|(committed, _)| committed);
        log.committed_segment = committed.map(|(_, segment)| segment);
        let states = LiveRefs { states: 1, ..LiveRefs::default() };
        for segment in [log.vote_record.segment, log.purge_record.segment].into_iter().flatten() {
            self.retain(group, segment, states);
        }
        for (index, entry) in entries {
            self.retain(group, entry.place.segment, entry_refs(entry.len));
            log.push(
                index,
                Slot {
                    term: entry.term,
                    kind: entry.kind,
                    len: entry.len,
                    lsn: Lsn(0),
                    place: Some(entry.place),
                    payload: None,
                },
            );
        }
        self.groups.insert(group, log);
    }

    fn retain(&mut self, group: GroupId, segment: SegmentSeq, refs: LiveRefs) {
        if let Some(segment) = self.segments.iter_mut().find(|found| found.header.seq == segment) {
            segment.retain(group, refs);
        }
    }
}

/// Position of the last live entry, or of the purge marker if there is none.
pub(super) fn last_position(log: &GroupLog) -> Option<LogPosition> {
    log.last().or(log.purged)
}
