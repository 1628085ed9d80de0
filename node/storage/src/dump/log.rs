//! The log: what it amounts to, and its segments record by record.

use std::path::Path;

use headwater_core::ids::LogPosition;

use super::{Page, chain};
use crate::disk::Disk;
use crate::wal::record::{ALIGN, Found, HEADER_LEN, Parsed, RecordType, parse, u64_at};
use crate::wal::segment::SegmentHeader;
use crate::wal::{LastStop, ScanEnd, Wal, scan};

/// What the log as a whole amounts to.
pub(super) fn summary(disk: &dyn Disk, dir: &Path, page: &mut Page) {
    let scan = match Wal::scan(disk, dir, LastStop::PowerLost) {
        Ok(scan) => scan,
        Err(error) => return page.damage(&format!("the log cannot be read: {}", chain(&error))),
    };
    let end = match &scan.end {
        ScanEnd::Clean => "clean".to_owned(),
        ScanEnd::TornTail { segment, offset, later_records } => {
            let later = if *later_records { ", whole records follow" } else { "" };
            format!("torn in segment {segment} at {offset}{later}")
        }
        ScanEnd::Corrupt(damage) => {
            page.is_damaged = true;
            format!("DAMAGED: {damage}")
        }
    };
    page.line(&format!("log of {} segments, end {end}", scan.segments.len()));
    for group in scan.groups {
        let position = |position: Option<LogPosition>| {
            position.map_or("-".to_owned(), |position| format!("{}@{}", position.index, position.term))
        };
        page.line(&format!(
            "  group {}: entries {}..={}, purged {}, committed {}, vote {}",
            group.group,
            position(group.first),
            position(group.last),
            position(group.purged),
            position(group.committed),
            group.vote.as_deref().map_or("-".to_owned(), vote),
        ));
    }
}

/// One segment.
pub(super) fn segment(bytes: &[u8], page: &mut Page) {
    let header = match SegmentHeader::decode(bytes) {
        Ok(header) => header,
        Err(what) => return page.damage(&format!("at 0: {what}")),
    };
    page.line(&format!("  segment {}", header.seq));
    if (bytes.len() as u64) < u64::from(header.len) {
        page.damage(&format!("at {}: expected a file of {} bytes", bytes.len(), header.len));
    }
    let mut synced = 0;
    let walked = scan::walk(bytes, header.salt, |offset, found| {
        synced = synced.max(found.synced_bytes);
        page.line(&format!("  {offset:>10} {}", record(found)));
    });
    if walked.sealed {
        return;
    }
    let later = look_behind(bytes, header.salt, walked.end, &mut synced);
    let at = walked.end;
    let what = walked.bad.map(|(expected, found)| format!("expected crc {expected:08x}, found {found:08x}"));
    if at < synced {
        let what = what.unwrap_or_else(|| "no record".to_owned());
        page.damage(&format!("at {at}: {what}; synced up to {synced}, {later} whole records follow"));
    } else if let Some(what) = what {
        page.line(&format!("  {at:>10} BAD record: {what}; the log as a whole says whether it is torn or damaged"));
    } else if later > 0 {
        page.line(&format!("  {at:>10} no record; {later} whole records follow"));
    } else {
        page.line(&format!("  {at:>10} nothing more"));
    }
}

/// Whole records behind the place where a walk ended, and how far they say the segment was synced.
fn look_behind(bytes: &[u8], salt: u64, end: u64, synced: &mut u64) -> u64 {
    let mut count = 0;
    let mut at = end as usize + ALIGN;
    while at + HEADER_LEN <= bytes.len() {
        match parse(&bytes[at..], salt) {
            Parsed::Record(found) => {
                count += 1;
                *synced = found.synced_bytes.max(*synced);
                at += found.padded_len;
            }
            Parsed::Nothing | Parsed::Bad { .. } => at += ALIGN,
        }
    }
    count
}

fn record(found: &Found<'_>) -> String {
    let head = &found.head;
    let index = head.index.map_or("-".to_owned(), |index| index.to_string());
    let rewritten = if head.rewritten { " rewritten" } else { "" };
    match head.record {
        RecordType::Append => {
            let (term, len) = (head.term, found.payload.len());
            let kind = match head.kind {
                0 => "blank".to_owned(),
                1 => "command".to_owned(),
                2 => format!("members {}", String::from_utf8_lossy(found.payload)),
                other => format!("kind {other}"),
            };
            format!("append group {} index {index} term {term} {kind}, {len} bytes{rewritten}", head.group)
        }
        RecordType::Vote => format!("vote group {} {}{rewritten}", head.group, vote(found.payload)),
        RecordType::Committed => format!("committed group {} index {index} term {}", head.group, head.term),
        RecordType::TruncateAfter => format!("truncate group {} after {index}", head.group),
        RecordType::PurgeUpto => format!("purge group {} upto {index} term {}{rewritten}", head.group, head.term),
        RecordType::GroupDrop => format!("drop group {}", head.group),
        RecordType::Mark => format!("mark synced {}", found.synced_bytes),
        RecordType::End => "end".to_owned(),
    }
}

/// A vote, as `docs/formats/raft.md` has it.
fn vote(bytes: &[u8]) -> String {
    match bytes {
        [.., committed @ (0 | 1)] if bytes.len() == 17 => {
            let committed = if *committed == 1 { " committed" } else { "" };
            format!("term {} for {}{committed}", u64_at(bytes, 0), u64_at(bytes, 8))
        }
        _ => format!("{} bytes", bytes.len()),
    }
}
