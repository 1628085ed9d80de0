//! Blocks, snapshot marks and the hard state.

use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use headwater_core::frame::{Frame, FrameKind};
use headwater_core::ids::StreamId;
use headwater_core::stream::BlockIndex;

use super::{Page, chain};
use crate::blocks::format;
use crate::checkpoint::{BlockNumber, Checkpoint};
use crate::hard_state::HardState;
use crate::replica_file::ReplicaFile;
use crate::wal::record::{u32_at, u64_at};

/// One block. Up to where it counts is said by its stream's checkpoint, if there is one, and by its own marks.
pub(super) fn block(path: &Path, checkpoint: Option<&Checkpoint>, bytes: Vec<u8>, page: &mut Page) {
    let bytes = Bytes::from(bytes);
    if bytes.len() < format::HEADER_PAGE as usize {
        return page.damage(&format!("at 0: expected a header page, found {} bytes", bytes.len()));
    }
    let stream = StreamId::new(u64_at(&bytes, 24));
    let block = BlockNumber::new(u64_at(&bytes, 32));
    if let Err((at, expected, found)) = format::check_header(&bytes, stream, block) {
        return page.damage(&format!("at {at}: expected {expected}, found {found}"));
    }
    let named = path.file_name().and_then(|name| format::parse_name(&name.to_string_lossy()));
    if let Some(named) = named.filter(|named| *named != block) {
        page.damage(&format!("at 32: expected block {named}, found {block}"));
    }
    let (synced, ticket) = format::marked(&bytes, block);
    let mark = if ticket > 0 { format!(", synced up to {synced}") } else { String::new() };
    page.line(&format!("  block {block} of stream {stream}{mark}"));
    let counts = checkpoint.map_or(0, |found| listed(found, stream, block)).max(synced);
    let mut at = format::HEADER_PAGE as usize;
    while at < bytes.len() {
        match crate::blocks::frame_at(&bytes, at, stream) {
            Ok(frame) => {
                page.line(&format!("  {at:>10} {}", frame_line(&frame)));
                at += frame.bytes().len();
            }
            Err(what) => {
                let left = bytes.len() - at;
                if (at as u64) < counts {
                    return page.damage(&format!("at {at}: {what}; {left} bytes not read, up to {counts} all counts"));
                }
                return page.line(&format!("  {at:>10} BAD frame: {what}; {left} bytes not read"));
            }
        }
    }
    if (at as u64) < counts {
        return page.damage(&format!("at {at}: expected {counts} bytes"));
    }
    page.line(&format!("  {at:>10} nothing more"));
}

/// The index of a block. One that a crash has torn is no damage: the block is read in its stead.
pub(super) fn block_index(path: &Path, bytes: &[u8], page: &mut Page) {
    let index = match BlockIndex::decode(bytes) {
        Ok(index) => index,
        Err(error) => return page.line(&format!("  not used: {error}; the next start reads the block")),
    };
    let (stream, block) = index.block();
    page.line(&format!(
        "  of {} bytes of block {block} of stream {stream}: {} messages in {} frames, {} subjects",
        index.valid_bytes(),
        index.message_count(),
        index.frames().len(),
        index.subject_count()
    ));
    let named = path.file_name().and_then(|name| format::parse_index_name(&name.to_string_lossy()));
    if named.is_some_and(|named| named.get() != block) {
        page.line("  not used: it is of another block");
    }
}

/// Bytes of a block that count by a checkpoint.
fn listed(checkpoint: &Checkpoint, stream: StreamId, block: BlockNumber) -> u64 {
    let mut blocks = checkpoint.blocks.iter().filter(|extent| checkpoint.stream == stream && extent.block == block);
    blocks.next().map_or(0, |extent| extent.valid_bytes)
}

fn frame_line(frame: &Frame) -> String {
    let header = frame.header();
    let mut text = format!("{:?} term {} ordinal {}", header.kind, header.term, header.ordinal);
    if header.kind == FrameKind::Messages && header.count > 0 {
        let last = header.base_seq.get().saturating_add(u64::from(header.count) - 1);
        // Writing to a String cannot fail.
        let _ = write!(text, " seq {}..={last}", header.base_seq);
    }
    let _ = write!(text, ", {} bytes", header.len);
    text
}

/// A snapshot mark, as `docs/formats/snapshot.md` has it.
pub(super) fn mark(bytes: &[u8], page: &mut Page) {
    let is_whole = bytes.len() == 44
        && bytes.starts_with(b"HWSM")
        && u32_at(bytes, 4) == 1
        && u32_at(bytes, 40) == crc32c::crc32c(&bytes[..40]);
    if !is_whole {
        // It is written without a sync, so this is what a crash may leave.
        return page.line("  not whole: proves nothing, and costs nothing");
    }
    let (term, index, persisted) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
    let from_log = match index.saturating_sub(persisted) {
        0 => String::new(),
        entries => format!(", async: needs {entries} entries of the log"),
    };
    page.line(&format!("  state at {index}@{term}, digest {:016x}", u64_at(bytes, 32)));
    page.line(&format!("  persisted {persisted} when taken{from_log}"));
}

/// Which member of its group a replica is.
pub(super) fn replica(path: &Path, bytes: &[u8], page: &mut Page) {
    match ReplicaFile::decode(path, bytes) {
        Ok(ReplicaFile { raft_id, weakest, may_have_lost }) => {
            page.line(&format!("  member {raft_id}, weakest promise since the last orderly stop {}", weakest.as_str()));
            if may_have_lost {
                page.line("  it may have lost what it confirmed, and is kept out of its group");
            }
        }
        Err(error) => page.damage(&chain(&error)),
    }
}

/// The hard state.
pub(super) fn hard_state(path: &Path, bytes: &[u8], page: &mut Page) {
    let state = match HardState::decode(path, bytes) {
        Ok(state) => state,
        Err(error) => return page.damage(&chain(&error)),
    };
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
        lost,
    } = state;
    let cluster = cluster_id.as_deref().unwrap_or("-");
    page.line(&format!("  cluster {cluster} node {node_name} incarnation {node_incarnation}"));
    let weak = weak_since.map_or("-".to_owned(), |since| since.get().to_string());
    page.line(&format!("  boot epoch {boot_epoch}, OS boot {os_boot_id}, mount {mount_id}"));
    page.line(&format!("  clean stop {clean_stop}, weak since {weak}, log segment {log_segment}"));
    if !lost.is_empty() {
        let lost: Vec<String> = lost.iter().map(u64::to_string).collect();
        page.line(&format!("  declared lost: incarnations {}", lost.join(" ")));
    }
    if let Some(why) = refused {
        page.line(&format!("  REFUSED by the cluster: {why}"));
    }
}
