//! Reading a log directory: which records count, and how its end looks.
//!
//! ```text
//!   sealed segment      records … End            nothing behind End counts
//!   newest segment      records … ?              Clean, TornTail or Corrupt
//!   prepared segment    (no record yet)
//! ```
//!
//! Only the newest segment may end torn; any other bad record is corruption and is never skipped (I-8).
//! Nothing here writes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Term};

use super::failure::{Damage, WalError};
use super::index::Place;
use super::options::LastStop;
use super::record::{ALIGN, Found, HEADER_LEN, Head, Parsed, RecordType, parse};
use super::segment::{self, FileName, HEADER_PAGE, SegmentHeader, SegmentSeq};
use crate::disk::{Disk, DiskFile, read_exact_at};

/// How the log ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEnd {
    /// After a whole record.
    Clean,
    /// Inside a record that was not yet known to be synced. It and everything behind it is cut.
    TornTail {
        /// The newest segment.
        segment: SegmentSeq,
        /// Offset of the first byte that does not count.
        offset: u64,
        /// Whether valid records lie behind it: several unsynced writes, kept in part.
        later_records: bool,
    },
    /// At a record that should be there.
    Corrupt(Damage),
}

/// What the log holds of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupScan {
    /// The group.
    pub group: GroupId,
    /// Last vote saved, as given.
    pub vote: Option<Bytes>,
    /// Last committed position carried by the log; it may lag behind what was known.
    pub committed: Option<LogPosition>,
    /// Entries up to here are purged.
    pub purged: Option<LogPosition>,
    /// First live entry.
    pub first: Option<LogPosition>,
    /// Last live entry.
    pub last: Option<LogPosition>,
    /// Payload bytes of the live entries.
    pub entry_bytes: u64,
}

/// One segment as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentScan {
    /// Its number.
    pub segment: SegmentSeq,
    /// File length in bytes.
    pub len: u64,
    /// Where its valid records end.
    pub end: u64,
    /// Whether it was ended by its writer.
    pub sealed: bool,
    /// Valid records.
    pub records: u64,
}

/// What a log directory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalScan {
    /// How it ended.
    pub end: ScanEnd,
    /// Its groups, by id.
    pub groups: Vec<GroupScan>,
    /// Its segments, oldest first.
    pub segments: Vec<SegmentScan>,
}

/// A place in the log, over all segments. What is synced only ever grows, over restarts too: segment numbers rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogEnd {
    /// Number of the segment.
    pub segment: u64,
    /// Bytes of it; `u64::MAX` if it is complete.
    pub offset: u64,
}

/// A live entry as found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundEntry {
    pub(crate) term: Term,
    pub(crate) kind: u8,
    pub(crate) len: u32,
    pub(crate) place: Place,
}

/// A group as found.
#[derive(Debug, Default)]
pub(crate) struct FoundGroup {
    pub(crate) vote: Option<(Bytes, SegmentSeq)>,
    pub(crate) committed: Option<(LogPosition, SegmentSeq)>,
    pub(crate) purged: Option<(LogPosition, SegmentSeq)>,
    pub(crate) entries: BTreeMap<LogIndex, FoundEntry>,
}

/// A segment as found, with its open file.
pub(crate) struct FoundSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) len: u64,
    pub(crate) end: u64,
    pub(crate) sealed: bool,
    /// Its records say that everything before this was synced.
    pub(crate) synced: u64,
    records: u64,
    stop: Option<Stop>,
}

/// Why the walk through a segment ended without an end record.
struct Stop {
    bad: Option<(u32, u32)>,
    later_records: bool,
    synced: u64,
}

impl FoundSegment {
    /// Whether a record of this life was ever written here.
    fn has_trace(&self) -> bool {
        let stopped = self.stop.as_ref().is_some_and(|stop| stop.bad.is_some() || stop.later_records);
        self.records > 0 || self.sealed || stopped
    }
}

/// Everything found.
pub(crate) struct FoundLog {
    pub(crate) end: ScanEnd,
    pub(crate) groups: BTreeMap<GroupId, FoundGroup>,
    pub(crate) segments: Vec<FoundSegment>,
    /// Position in `segments` of the newest with a record.
    pub(crate) newest: Option<usize>,
    pub(crate) spares: Vec<SegmentSeq>,
}

impl WalScan {
    /// Where the newest record ends; `None` for a log without any.
    #[must_use]
    pub fn end_of_records(&self) -> Option<LogEnd> {
        let newest = self.segments.iter().rev().find(|found| found.sealed || found.records > 0)?;
        let offset = if newest.sealed { u64::MAX } else { newest.end };
        Some(LogEnd { segment: newest.segment.get(), offset })
    }
}

impl FoundLog {
    pub(crate) fn report(&self) -> WalScan {
        let groups = self.groups.iter().map(|(group, found)| found.report(*group)).collect();
        let segments = self
            .segments
            .iter()
            .map(|found| SegmentScan {
                segment: found.header.seq,
                len: found.len,
                end: found.end,
                sealed: found.sealed,
                records: found.records,
            })
            .collect();
        WalScan { end: self.end.clone(), groups, segments }
    }

    /// The first hole in a group's entries.
    pub(crate) fn hole(&self) -> Option<WalError> {
        for (group, found) in &self.groups {
            let mut expected = found.purged.map(|(purged, _)| purged.index.next());
            for index in found.entries.keys() {
                if let Some(expected) = expected.filter(|expected| expected != index) {
                    return Some(WalError::Hole { group: *group, expected, found: *index });
                }
                expected = Some(index.next());
            }
        }
        None
    }
}

impl FoundGroup {
    fn report(&self, group: GroupId) -> GroupScan {
        let position = |(index, entry): (&LogIndex, &FoundEntry)| LogPosition { index: *index, term: entry.term };
        GroupScan {
            group,
            vote: self.vote.as_ref().map(|(vote, _)| vote.clone()),
            committed: self.committed.map(|(committed, _)| committed),
            purged: self.purged.map(|(purged, _)| purged),
            first: self.entries.first_key_value().map(position),
            last: self.entries.last_key_value().map(position),
            entry_bytes: self.entries.values().map(|entry| u64::from(entry.len)).sum(),
        }
    }

    fn append(&mut self, head: &Head, index: LogIndex, entry: FoundEntry) {
        if self.purged.is_some_and(|(purged, _)| index <= purged.index) {
            return;
        }
        match self.entries.get(&index) {
            Some(old) if head.rewritten && old.term != entry.term => {}
            Some(_) if !head.rewritten => {
                // Without a truncation in between this is an overwrite, which implies one.
                self.entries.split_off(&index);
                self.entries.insert(index, entry);
            }
            _ => {
                self.entries.insert(index, entry);
            }
        }
    }
}

fn apply(groups: &mut BTreeMap<GroupId, FoundGroup>, found: &Found<'_>, place: Place) {
    let head = &found.head;
    let position = head.index.map(|index| LogPosition { index, term: head.term });
    match head.record {
        RecordType::Append => {
            let Some(index) = head.index else { return };
            let entry = FoundEntry { term: head.term, kind: head.kind, len: found.payload.len() as u32, place };
            groups.entry(head.group).or_default().append(head, index, entry);
        }
        RecordType::Vote => {
            let vote = Bytes::copy_from_slice(found.payload);
            groups.entry(head.group).or_default().vote = Some((vote, place.segment));
        }
        RecordType::Committed => {
            groups.entry(head.group).or_default().committed = position.map(|position| (position, place.segment));
        }
        RecordType::TruncateAfter => {
            let entries = &mut groups.entry(head.group).or_default().entries;
            match head.index {
                Some(index) => drop(entries.split_off(&index.next())),
                None => entries.clear(),
            }
        }
        RecordType::PurgeUpto => {
            let group = groups.entry(head.group).or_default();
            let Some(upto) = position else { return };
            if group.purged.is_none_or(|(purged, _)| purged.index <= upto.index) {
                group.purged = Some((upto, place.segment));
                group.entries = group.entries.split_off(&upto.index.next());
            }
        }
        RecordType::GroupDrop => {
            groups.remove(&head.group);
        }
        RecordType::Mark | RecordType::End => {}
    }
}

/// Walks the records of a segment's bytes. `visit` gets every valid record and its offset, the end record
/// included; the walk ends after that one, or where no valid record starts.
pub(crate) fn walk(bytes: &[u8], salt: u64, mut visit: impl FnMut(u64, &Found<'_>)) -> Walked {
    let mut at = HEADER_PAGE as usize;
    loop {
        match parse(bytes.get(at..).unwrap_or_default(), salt) {
            Parsed::Record(found) => {
                visit(at as u64, &found);
                if found.head.record == RecordType::End {
                    return Walked { end: at as u64, sealed: true, bad: None };
                }
                at += found.padded_len;
            }
            Parsed::Nothing => {
                return Walked { end: at as u64, sealed: false, bad: None };
            }
            Parsed::Bad { expected, found } => {
                return Walked { end: at as u64, sealed: false, bad: Some((expected, found)) };
            }
        }
    }
}

/// Where a walk ended.
pub(crate) struct Walked {
    pub(crate) end: u64,
    pub(crate) sealed: bool,
    pub(crate) bad: Option<(u32, u32)>,
}

/// Looks for valid records behind the place where the walk ended.
fn look_behind(bytes: &[u8], salt: u64, walked: &Walked, synced: u64) -> Stop {
    let mut stop = Stop { bad: walked.bad, later_records: false, synced };
    let mut at = walked.end as usize + ALIGN;
    while at + HEADER_LEN <= bytes.len() {
        match parse(&bytes[at..], salt) {
            Parsed::Record(found) => {
                stop.later_records = true;
                stop.synced = stop.synced.max(found.synced_bytes);
                at += found.padded_len;
            }
            Parsed::Nothing | Parsed::Bad { .. } => at += ALIGN,
        }
    }
    stop
}

fn read_segment(disk: &dyn Disk, path: &Path) -> io::Result<(Arc<dyn DiskFile>, Vec<u8>)> {
    // Read-only first: an inspection must work on a read-only mount.
    let file = disk.open(path).or_else(|_| disk.open_read(path))?;
    let len = usize::try_from(file.len()?).map_err(|_| io::Error::other("segment is larger than memory"))?;
    let mut bytes = vec![0; len];
    read_exact_at(file.as_ref(), 0, &mut bytes)?;
    Ok((file, bytes))
}

/// The numbers of the live and the spare segment files, ascending.
pub(crate) fn list(disk: &dyn Disk, dir: &Path) -> io::Result<(Vec<SegmentSeq>, Vec<SegmentSeq>)> {
    let mut live = Vec::new();
    let mut spares = Vec::new();
    for entry in disk.list(dir)? {
        match segment::parse_name(&entry.name) {
            Some(FileName::Live(seq)) => live.push(seq),
            Some(FileName::Spare(seq)) => spares.push(seq),
            None => {}
        }
    }
    live.sort_unstable();
    spares.sort_unstable();
    Ok((live, spares))
}

/// Reads the whole directory.
pub(crate) fn scan(disk: &dyn Disk, dir: &Path, last_stop: LastStop) -> Result<FoundLog, WalError> {
    let (live, spares) = list(disk, dir).map_err(|error| WalError::io("list", dir, error))?;
    let mut log = FoundLog { end: ScanEnd::Clean, groups: BTreeMap::new(), segments: Vec::new(), newest: None, spares };
    let mut damage: Option<Damage> = None;
    // The first segment without an end record; records behind it do not count until we know it is the newest.
    let mut open_ended: Option<usize> = None;
    for (nth, seq) in live.iter().enumerate() {
        let path = segment::path(dir, *seq);
        let damaged = |offset: u64, expected: &str, found: String| Damage {
            segment: *seq,
            path: path.clone(),
            offset,
            expected: expected.into(),
            found,
        };
        let previous = nth.checked_sub(1).and_then(|before| live.get(before));
        if let Some(previous) = previous.filter(|previous| previous.next() != *seq) {
            let missing = previous.next();
            damage = damage.or(Some(Damage {
                segment: missing,
                path: segment::path(dir, missing),
                offset: 0,
                expected: "a segment".into(),
                found: "no file".into(),
            }));
            break;
        }
        let (file, bytes) = read_segment(disk, &path).map_err(|error| WalError::io("read", &path, error))?;
        let header = match SegmentHeader::decode(&bytes) {
            Ok(header) if header.seq == *seq => header,
            Ok(header) => {
                damage = damage.or(Some(damaged(24, &format!("segment {seq}"), format!("segment {}", header.seq))));
                break;
            }
            Err(what) => {
                damage = damage.or(Some(damaged(0, "a segment header", what)));
                break;
            }
        };
        if (bytes.len() as u64) < u64::from(header.len) {
            // Made this long, and synced, before its name: no crash cuts it.
            let (expected, found) = (format!("a file of {} bytes", header.len), format!("{} bytes", bytes.len()));
            damage = damage.or(Some(damaged(bytes.len() as u64, &expected, found)));
            break;
        }
        let mut synced = 0;
        let mut records = 0;
        let counts = open_ended.is_none();
        let groups = &mut log.groups;
        let walked = walk(&bytes, header.salt, |offset, found| {
            synced = synced.max(found.synced_bytes);
            records += u64::from(found.head.record != RecordType::End);
            if counts {
                apply(groups, found, Place { segment: *seq, offset });
            }
        });
        let stop = (!walked.sealed).then(|| look_behind(&bytes, header.salt, &walked, synced));
        if !walked.sealed && open_ended.is_none() {
            open_ended = Some(nth);
        }
        log.segments.push(FoundSegment {
            header,
            file,
            len: bytes.len() as u64,
            end: walked.end,
            sealed: walked.sealed,
            synced,
            records,
            stop,
        });
    }
    log.newest = log.segments.iter().rposition(FoundSegment::has_trace);
    let judged = log.newest.and_then(|newest| judge(dir, &log.segments, newest, last_stop));
    log.end = match (judged, damage) {
        // The earlier one in the log wins.
        (Some(ScanEnd::Corrupt(first)), _) | (_, Some(first)) => ScanEnd::Corrupt(first),
        (Some(end), None) => end,
        (None, None) => ScanEnd::Clean,
    };
    Ok(log)
}

/// Torn tail or corruption? `None` if the log ends clean.
fn judge(dir: &Path, segments: &[FoundSegment], newest: usize, last_stop: LastStop) -> Option<ScanEnd> {
    let (found, stop) = segments[..=newest].iter().find_map(|found| found.stop.as_ref().map(|stop| (found, stop)))?;
    let seq = found.header.seq;
    let is_newest = seq == segments[newest].header.seq;
    let corrupt = if !is_newest {
        Some("a record or the end of the segment (a newer segment follows)".to_owned())
    } else if found.end < stop.synced {
        Some(format!("a record (synced up to {})", stop.synced))
    } else if stop.later_records && last_stop == LastStop::PageCacheKept {
        Some("a record (valid ones follow and the page cache was not lost)".to_owned())
    } else {
        None
    };
    if let Some(expected) = corrupt {
        let what = stop.bad.map_or("no record".to_owned(), |(stored, computed)| {
            format!("crc {stored:08x} over bytes with {computed:08x}")
        });
        let path = segment::path(dir, seq);
        return Some(ScanEnd::Corrupt(Damage { segment: seq, path, offset: found.end, expected, found: what }));
    }
    (stop.bad.is_some() || stop.later_records).then_some(ScanEnd::TornTail {
        segment: seq,
        offset: found.end,
        later_records: stop.later_records,
    })
}
