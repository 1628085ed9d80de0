//! Any store directory as text: for the `inspect` command, and as an oracle in tests.
//!
//! Works on damaged files too, read-only: it says what is wrong where, and goes on with the next file.

use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use headwater_core::frame::Frame;
use headwater_core::ids::StreamId;

use crate::blocks::format as block_format;
use crate::checkpoint::{CHECKPOINT_FILE, Checkpoint, MetaCheckpoint};
use crate::disk::{Disk, read_file};
use crate::hard_state::{HARD_STATE_FILE, HardState};
use crate::wal::record::{RecordType, u64_at};
use crate::wal::segment::{self, FileName, SegmentHeader};
use crate::wal::{LastStop, ScanEnd, Wal, scan};

/// Renders a store directory, or any part of one: `wal`, `meta`, `streams`, a stream's directory.
#[must_use]
pub fn inspect(disk: &dyn Disk, dir: &Path) -> String {
    let mut out = String::new();
    inspect_dir(disk, dir, "", &mut out);
    out
}

fn inspect_dir(disk: &dyn Disk, dir: &Path, prefix: &str, out: &mut String) {
    let entries = match disk.list(dir) {
        Ok(entries) => entries,
        Err(error) => return line(out, &format!("{prefix}: cannot be listed: {error}")),
    };
    let is_wal = entries.iter().any(|entry| segment::parse_name(&entry.name).is_some());
    if is_wal {
        summary(disk, dir, out);
    }
    for entry in entries {
        let path = dir.join(&entry.name);
        let name = if prefix.is_empty() { entry.name.clone() } else { format!("{prefix}/{}", entry.name) };
        if entry.is_dir {
            inspect_dir(disk, &path, &name, out);
            continue;
        }
        line(out, &format!("{name} ({} bytes)", entry.len));
        let rendered = match (segment::parse_name(&entry.name), block_format::parse_name(&entry.name)) {
            (Some(FileName::Live(_)), _) => read_file(disk, &path).map(|bytes| render_segment(&bytes, out)),
            (Some(FileName::Spare(_)), _) => {
                line(out, "  waits for its next life; not read");
                Ok(())
            }
            (None, Some(_)) => read_file(disk, &path).map(|bytes| render_block(bytes, out)),
            (None, None) if entry.name == CHECKPOINT_FILE => {
                read_file(disk, &path).map(|bytes| render_checkpoint(&path, bytes, out))
            }
            (None, None) if entry.name == HARD_STATE_FILE => {
                read_file(disk, &path).map(|bytes| render_hard_state(&path, &bytes, out))
            }
            (None, None) => Ok(()),
        };
        if let Err(error) = rendered {
            line(out, &format!("  DAMAGED: cannot be read: {error}"));
        }
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// What the log as a whole amounts to.
fn summary(disk: &dyn Disk, dir: &Path, out: &mut String) {
    let scan = match Wal::scan(disk, dir, LastStop::PowerLost) {
        Ok(scan) => scan,
        Err(error) => return line(out, &format!("log cannot be read: {}", chain(&error))),
    };
    let end = match &scan.end {
        ScanEnd::Clean => "clean".to_owned(),
        ScanEnd::TornTail { segment, offset, later_records } => {
            format!(
                "torn in segment {segment} at {offset}{}",
                if *later_records { ", whole records follow" } else { "" }
            )
        }
        ScanEnd::Corrupt(damage) => format!("DAMAGED: {damage}"),
    };
    line(out, &format!("log of {} segments, end {end}", scan.segments.len()));
    for group in scan.groups {
        let position = |position: Option<headwater_core::ids::LogPosition>| {
            position.map_or("-".to_owned(), |position| format!("{}@{}", position.index, position.term))
        };
        let vote = group.vote.as_ref().map_or("-".to_owned(), |vote| format!("{} bytes", vote.len()));
        line(
            out,
            &format!(
                "  group {}: entries {}..={}, purged {}, committed {}, vote {vote}",
                group.group,
                position(group.first),
                position(group.last),
                position(group.purged),
                position(group.committed),
            ),
        );
    }
}

fn render_segment(bytes: &[u8], out: &mut String) {
    let header = match SegmentHeader::decode(bytes) {
        Ok(header) => header,
        Err(what) => return line(out, &format!("  DAMAGED at 0: {what}")),
    };
    line(out, &format!("  segment {}", header.seq));
    let walked = scan::walk(bytes, header.salt, |offset, found| {
        let head = &found.head;
        let index = head.index.map_or("-".to_owned(), |index| index.to_string());
        let rewritten = if head.rewritten { " rewritten" } else { "" };
        let text = match head.record {
            RecordType::Append => {
                let (term, kind, len) = (head.term, head.kind, found.payload.len());
                format!("append group {} index {index} term {term} kind {kind}, {len} bytes{rewritten}", head.group)
            }
            RecordType::Vote => format!("vote group {}, {} bytes{rewritten}", head.group, found.payload.len()),
            RecordType::Committed => format!("committed group {} index {index} term {}", head.group, head.term),
            RecordType::TruncateAfter => format!("truncate group {} after {index}", head.group),
            RecordType::PurgeUpto => format!("purge group {} upto {index} term {}{rewritten}", head.group, head.term),
            RecordType::GroupDrop => format!("drop group {}", head.group),
            RecordType::Mark => format!("mark synced {}", found.synced_bytes),
            RecordType::End => "end".to_owned(),
        };
        line(out, &format!("  {offset:>10} {text}"));
    });
    if let Some((expected, found)) = walked.bad {
        line(out, &format!("  {:>10} BAD record: expected crc {expected:08x}, found {found:08x}", walked.end));
    } else if !walked.sealed {
        line(out, &format!("  {:>10} nothing more", walked.end));
    }
}

fn render_block(bytes: Vec<u8>, out: &mut String) {
    let bytes = Bytes::from(bytes);
    if bytes.len() < block_format::HEADER_PAGE as usize {
        return line(out, &format!("  DAMAGED at 0: expected a header page, found {} bytes", bytes.len()));
    }
    let stream = StreamId::new(u64_at(&bytes, 24));
    let block = crate::checkpoint::BlockNumber::new(u64_at(&bytes, 32));
    if let Err((at, expected, found)) = block_format::check_header(&bytes, stream, block) {
        return line(out, &format!("  DAMAGED at {at}: expected {expected}, found {found}"));
    }
    let (synced, ticket) = block_format::marked(&bytes, block);
    let mark = if ticket > 0 { format!(", synced up to {synced}") } else { String::new() };
    line(out, &format!("  block {block} of stream {stream}{mark}"));
    let mut at = block_format::HEADER_PAGE as usize;
    while at < bytes.len() {
        match crate::blocks::frame_at(&bytes, at, stream) {
            Ok(frame) => {
                line(out, &format!("  {at:>10} {}", frame_line(&frame)));
                at += frame.bytes().len();
            }
            Err(what) => {
                return line(out, &format!("  {at:>10} BAD frame: {what}; {} bytes not read", bytes.len() - at));
            }
        }
    }
    line(out, &format!("  {at:>10} nothing more"));
}

fn frame_line(frame: &Frame) -> String {
    let header = frame.header();
    let mut text = format!("{:?} term {} ordinal {}", header.kind, header.term, header.ordinal);
    if header.kind == headwater_core::frame::FrameKind::Messages && header.count > 0 {
        let last = header.base_seq.get() + u64::from(header.count) - 1;
        // Writing to a String cannot fail.
        let _ = write!(text, " seq {}..={last}", header.base_seq);
    }
    let _ = write!(text, ", {} bytes", header.len);
    text
}

fn render_checkpoint(path: &Path, bytes: Vec<u8>, out: &mut String) {
    match Checkpoint::decode(path, bytes.clone()) {
        Ok(Checkpoint { stream, state, blocks }) => {
            let at = state.applied;
            line(out, &format!("  stream {stream} group {} applied {}@{}", state.group, at.index, at.term));
            let (image, members, snapshot) = (state.image.len(), state.membership.len(), state.snapshot.len());
            line(
                out,
                &format!(
                    "  digest {:016x}, image {image}, membership {members}, snapshot {snapshot} bytes",
                    state.digest
                ),
            );
            for extent in blocks {
                line(out, &format!("  block {} up to {}", extent.block, extent.valid_bytes));
            }
        }
        Err(stream_error) => match MetaCheckpoint::decode(path, bytes) {
            Ok(MetaCheckpoint { applied, membership, snapshot, image }) => {
                line(out, &format!("  catalogue applied {}@{}", applied.index, applied.term));
                let (image, members, snapshot) = (image.len(), membership.len(), snapshot.len());
                line(out, &format!("  image {image}, membership {members}, snapshot {snapshot} bytes"));
            }
            Err(meta_error) => {
                // Show the error of the kind it claims to be.
                let other_kind = stream_error.to_string().contains("magic");
                let error = if other_kind { meta_error } else { stream_error };
                line(out, &format!("  DAMAGED: {}", chain(&error)));
            }
        },
    }
}

fn render_hard_state(path: &Path, bytes: &[u8], out: &mut String) {
    match HardState::decode(path, bytes) {
        Ok(state) => {
            let HardState {
                cluster_id,
                node_name,
                node_incarnation,
                boot_epoch,
                os_boot_id,
                mount_id,
                clean_stop,
                weak_since,
                log_segment,
                refused,
            } = state;
            line(
                out,
                &format!(
                    "  cluster {} node {node_name} incarnation {node_incarnation}",
                    cluster_id.as_deref().unwrap_or("-")
                ),
            );
            let weak = weak_since.map_or("-".to_owned(), |since| since.get().to_string());
            line(out, &format!("  boot epoch {boot_epoch}, OS boot {os_boot_id}, mount {mount_id}"));
            line(out, &format!("  clean stop {clean_stop}, weak since {weak}, log segment {log_segment}"));
            if let Some(why) = refused {
                line(out, &format!("  REFUSED by the cluster: {why}"));
            }
        }
        Err(error) => line(out, &format!("  DAMAGED: {}", chain(&error))),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
