//! Opening a store: every frame is read and checked, the index built, and what does not count cut off.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::frame::{Frame, HEADER_LEN, VERSION};
use headwater_core::ids::{LogIndex, StreamId};
use headwater_core::stream::{BlockIndex, BlockIndexBuilder, Rebuild};

use super::cache::FramePlace;
use super::format::{HEADER_PAGE, check_header, index_path, marked, parse_index_name, parse_name, path};
use super::job::SyncMark;
use super::scrub::scrub_block;
use super::{StoreLog, StoreOptions, StreamStore};
use crate::checkpoint::{BlockExtent, BlockNumber, Checkpoint};
use crate::disk::{Disk, read_file};
use crate::envelope::FileError;
use crate::wal::LastStop;
use crate::wal::record::{u32_at, u64_at};

/// A frame beyond the checkpoint of a stream without a log. It is in the store already: apply it, do not push it.
#[derive(Debug, Clone)]
pub struct ReplayFrame {
    /// Its operation: one more than the last, from the checkpoint on.
    pub index: LogIndex,
    /// The frame.
    pub frame: Frame,
}

/// A torn end that was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornBlock {
    /// The file.
    pub path: PathBuf,
    /// Where it was cut.
    pub offset: u64,
    /// Bytes that were cut.
    pub bytes: u64,
    /// Whether whole frames lay behind the bad one: several unsynced writes, kept in part.
    pub later_frames: bool,
}

/// What opening found besides what the checkpoint covers.
#[derive(Debug, Default)]
pub struct BlockScan {
    /// Frames to replay, in order. Empty for a replicated stream.
    pub replay: Vec<ReplayFrame>,
    /// Bytes beyond the checkpoint that were cut because the log has them.
    pub cut_bytes: u64,
    /// The torn end of a stream without a log.
    pub torn: Option<TornBlock>,
}

impl StreamStore {
    /// Opens the store of `stream` in its directory `dir`, which is created if needed. `rebuild` gets everything that
    /// the checkpoint covers, oldest first: blocks by their index where there is one, else frame by frame.
    ///
    /// Frames of the only copy ([`StoreLog::Own`]) that the checkpoint covers and that cannot be read leave a
    /// [hole](Rebuild::hole), or their messages as [damaged](StreamStore::take_damage) where an index names them.
    ///
    /// # Errors
    /// [`FileError::Damaged`] for anything else that should be there and is not; nothing is changed on disk then.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        stream: StreamId,
        options: StoreOptions,
        checkpoint: Option<&Checkpoint>,
        rebuild: &mut dyn Rebuild,
    ) -> Result<(Self, BlockScan), FileError> {
        let mut store = Self::empty(disk, dir, stream, options);
        let blocks_dir = store.blocks_dir.clone();
        store.disk.create_dir_all(&blocks_dir).map_err(|error| FileError::io("create", &blocks_dir, error))?;
        if let Some(other) = checkpoint.filter(|checkpoint| checkpoint.stream != stream) {
            let path = Checkpoint::path(dir);
            return Err(FileError::damaged(&path, 32, format!("stream {stream}"), format!("stream {}", other.stream)));
        }
        let listed = checkpoint.map_or(&[][..], |checkpoint| &checkpoint.blocks);
        let applied = checkpoint.map(|checkpoint| checkpoint.state.applied.index);
        let files = list(store.disk.as_ref(), &blocks_dir)?;
        let mut scan = BlockScan::default();
        // Read everything before changing anything.
        let mut tail = None;
        if let Some((newest, closed)) = listed.split_last() {
            for extent in closed {
                store.adopt_closed(*extent, rebuild)?;
            }
            tail = Some(store.adopt(*newest, &mut |_, met| met.tell(rebuild))?);
        }
        let last = listed.last().map(|extent| extent.block);
        let beyond: Vec<BlockNumber> =
            files.iter().copied().filter(|block| last.is_none_or(|last| *block > last)).collect();
        let forgotten: Vec<BlockNumber> = files
            .iter()
            .copied()
            .filter(|block| {
                last.is_some_and(|last| *block < last) && !listed.iter().any(|extent| extent.block == *block)
            })
            .collect();
        let mut changes = Changes { remove: forgotten, cut: None };
        match store.options.log {
            StoreLog::Wal => store.cut_to_checkpoint(listed, &beyond, tail, &mut changes, &mut scan)?,
            StoreLog::Own => store.find_replay(listed, &beyond, tail, applied, &mut changes, &mut scan)?,
        }
        store.carry_out(&changes)?;
        let reached = scan.replay.last().map(|frame| frame.index).or(applied);
        store.accepted = reached;
        store.stored = reached;
        store.synced = reached;
        store.persisted = applied;
        if store.options.log == StoreLog::Wal {
            // Cut blocks keep their numbers. Without a log the numbers must have no gap, so there a block that
            // never held a frame gives its number back.
            store.next_block = files.last().map_or(store.next_block, |last| last.next().max(store.next_block));
        }
        Ok((store, scan))
    }

    /// Takes over a block that takes no more frames: by its index, or by reading it, and then it gets one.
    fn adopt_closed(&mut self, extent: BlockExtent, rebuild: &mut dyn Rebuild) -> Result<(), FileError> {
        let index = super::index::load(self.disk.as_ref(), &self.blocks_dir, self.stream, extent);
        let has_index = index.is_some();
        match index.filter(|index| rebuild.block(index, true)).or_else(|| self.index_of_damaged(extent, rebuild)) {
            Some(index) => {
                self.add_block(extent.block, extent.valid_bytes, extent.valid_bytes);
                for entry in index.frames() {
                    self.index_entry(extent.block, entry);
                }
            }
            None => {
                let mut index = Some(BlockIndexBuilder::new(self.stream, extent.block.get())).filter(|_| !has_index);
                self.adopt(extent, &mut |offset, met| {
                    match (&met, &mut index) {
                        (Met::Frame(frame), Some(index)) => index.add(offset, frame),
                        // It would say that there never was more.
                        (Met::Hole, index) => *index = None,
                        (Met::Frame(_), None) => {}
                    }
                    met.tell(rebuild);
                })?;
                if let Some(index) = index.and_then(|index| index.finish(extent.valid_bytes)) {
                    // The next start reads the block instead.
                    let _derived = super::index::write(self.disk.as_ref(), &self.blocks_dir, extent, &index);
                }
            }
        }
        if let Some(block) = self.block_mut(extent.block) {
            block.indexed = true;
        }
        Ok(())
    }

    /// Of the only copy of a stream: the index of a block that is damaged itself, so that what it had stays known.
    fn index_of_damaged(&mut self, extent: BlockExtent, rebuild: &mut dyn Rebuild) -> Option<BlockIndex> {
        let BlockExtent { block, valid_bytes } = extent;
        if self.options.log == StoreLog::Wal {
            return None;
        }
        let index = super::index::load_any(self.disk.as_ref(), &self.blocks_dir, self.stream, block);
        let index = index.filter(|index| index.valid_bytes() == valid_bytes)?;
        let read = scrub_block(self.disk.as_ref(), &self.dir, self.stream, extent, &mut |_| true);
        let damage = read.err().filter(|error| matches!(error, FileError::Damaged { .. }))?;
        self.note(damage);
        rebuild.block(&index, false).then_some(index)
    }

    fn note(&mut self, damage: FileError) {
        self.damage.get_mut().get_or_insert(damage);
    }

    /// Takes over a block the checkpoint lists by reading it. Returns what the file holds beyond the valid length.
    fn adopt(&mut self, extent: BlockExtent, visit: &mut dyn FnMut(u32, Met<'_>)) -> Result<Beyond, FileError> {
        let BlockExtent { block, valid_bytes } = extent;
        let path = path(&self.blocks_dir, block);
        let salvages = self.options.log == StoreLog::Own;
        let mut bytes = match read_file(self.disk.as_ref(), &path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FileError::damaged(&path, 0, format!("a block of {valid_bytes} bytes"), "no file"));
            }
            Err(error) => return Err(FileError::io("read", &path, error)),
        };
        let header = check_header(&bytes, self.stream, block)
            .map_err(|(at, expected, found)| FileError::damaged(&path, at, expected, found));
        let len = bytes.len() as u64;
        let short = (len < valid_bytes || valid_bytes < HEADER_PAGE)
            .then(|| FileError::damaged(&path, len, format!("{valid_bytes} bytes"), format!("{len} bytes")));
        match header.err().or(short) {
            None => {}
            Some(damage) if salvages && valid_bytes >= HEADER_PAGE => {
                self.note(damage);
                // What is cut off reads as a hole, and what comes next has its place behind it.
                bytes.resize(bytes.len().max(valid_bytes as usize), 0);
            }
            Some(damage) => return Err(damage),
        }
        let bytes = Bytes::from(bytes);
        self.add_block(block, valid_bytes, valid_bytes);
        let valid = bytes.slice(..valid_bytes as usize);
        let mut at = HEADER_PAGE;
        while let Err(Bad { offset, what }) =
            self.walk(block, &valid, at, &mut |offset, frame| visit(offset, Met::Frame(frame)))
        {
            let damage = FileError::damaged(&path, offset, "a frame the checkpoint covers", what);
            if !salvages {
                return Err(damage);
            }
            self.note(damage);
            visit(offset as u32, Met::Hole);
            match frame_behind(&valid, offset, self.stream) {
                Some(next) => at = next,
                None => break,
            }
        }
        let (synced_bytes, ticket) = marked(&bytes, block);
        self.mark = Some(SyncMark { block, synced_bytes: valid_bytes, ticket: ticket + 1 });
        Ok(Beyond { block, path, valid_bytes, bytes, synced_bytes })
    }

    /// Enters the frames of a block from `at` on into the index.
    fn walk(
        &mut self,
        block: BlockNumber,
        bytes: &Bytes,
        at: u64,
        visit: &mut dyn FnMut(u32, &Frame),
    ) -> Result<(), Bad> {
        let mut at = at as usize;
        while at < bytes.len() {
            let frame = frame_at(bytes, at, self.stream).map_err(|what| Bad { offset: at as u64, what })?;
            self.index(FramePlace { block, offset: at as u32 }, &frame);
            visit(at as u32, &frame);
            at += frame.bytes().len();
        }
        Ok(())
    }

    /// A replicated stream: the log has everything beyond the checkpoint, and replay wants a clean start.
    fn cut_to_checkpoint(
        &self,
        listed: &[BlockExtent],
        beyond: &[BlockNumber],
        tail: Option<Beyond>,
        changes: &mut Changes,
        scan: &mut BlockScan,
    ) -> Result<(), FileError> {
        debug_assert_eq!(listed.is_empty(), tail.is_none());
        for block in beyond {
            let path = path(&self.blocks_dir, *block);
            let file = self.disk.open_read(&path).map_err(|error| FileError::io("open", &path, error))?;
            scan.cut_bytes += file.len().map_err(|error| FileError::io("read", &path, error))?;
        }
        changes.remove.extend_from_slice(beyond);
        if let Some(tail) = tail.filter(|tail| tail.bytes.len() as u64 > tail.valid_bytes) {
            scan.cut_bytes += tail.bytes.len() as u64 - tail.valid_bytes;
            changes.cut = Some(Cut { path: tail.path, len: tail.valid_bytes, again: (tail.valid_bytes, Bytes::new()) });
        }
        Ok(())
    }

    /// A stream without a log: what lies beyond the checkpoint is its log.
    fn find_replay(
        &mut self,
        listed: &[BlockExtent],
        beyond: &[BlockNumber],
        tail: Option<Beyond>,
        applied: Option<LogIndex>,
        changes: &mut Changes,
        scan: &mut BlockScan,
    ) -> Result<(), FileError> {
        let mut next = applied.map_or(LogIndex::new(1), LogIndex::next);
        let mut previous = listed.last().map(|extent| extent.block);
        let mut parts = Vec::from_iter(tail);
        for (nth, block) in beyond.iter().enumerate() {
            let path = path(&self.blocks_dir, *block);
            let newest = nth + 1 == beyond.len();
            let due = previous.map_or(BlockNumber::FIRST, BlockNumber::next);
            if due != *block {
                let missing = super::format::path(&self.blocks_dir, due);
                return Err(FileError::damaged(&missing, 0, "a block", "no file"));
            }
            previous = Some(*block);
            let bytes = read_file(self.disk.as_ref(), &path).map_err(|error| FileError::io("read", &path, error))?;
            let bytes = Bytes::from(bytes);
            match check_header(&bytes, self.stream, *block) {
                Ok(()) => {}
                // A crash while it was being created; no frame was ever confirmed there.
                Err(_) if newest && bytes.len() as u64 <= HEADER_PAGE => {
                    changes.remove.push(*block);
                    continue;
                }
                Err((at, expected, found)) => {
                    return Err(FileError::damaged(&path, at, expected, found));
                }
            }
            self.add_block(*block, HEADER_PAGE, HEADER_PAGE);
            let (synced_bytes, ticket) = marked(&bytes, *block);
            self.mark = Some(SyncMark { block: *block, synced_bytes: HEADER_PAGE, ticket: ticket + 1 });
            parts.push(Beyond { block: *block, path, valid_bytes: HEADER_PAGE, bytes, synced_bytes });
        }
        let count = parts.len();
        for (nth, part) in parts.into_iter().enumerate() {
            let newest = nth + 1 == count;
            let mut found = Vec::new();
            let walked =
                self.walk(part.block, &part.bytes, part.valid_bytes, &mut |_, frame| found.push(frame.clone()));
            for frame in found {
                scan.replay.push(ReplayFrame { index: next, frame });
                next = next.next();
            }
            let mut end = part.bytes.len() as u64;
            if let Err(bad) = walked {
                end = bad.offset;
                scan.torn = Some(self.judge(&part, bad, newest)?);
            }
            if newest {
                // Durable before anything is built on it: it may be in the page cache only. An earlier process may have
                // ended because a sync failed: what that left out the kernel counts as clean, and no later sync writes
                // it, so whatever is not known to be synced is written again.
                let from = part.synced_bytes.clamp(part.valid_bytes, end);
                let again = part.bytes.slice(from as usize..end as usize);
                changes.cut = Some(Cut { path: part.path.clone(), len: end, again: (from, again) });
            }
            if let Some(block) = self.block_mut(part.block) {
                block.len = end;
                block.written = end;
            }
            if let Some(mark) = self.mark.as_mut().filter(|mark| mark.block == part.block) {
                mark.synced_bytes = end;
            }
        }
        Ok(())
    }

    /// Torn or damaged?
    fn judge(&self, part: &Beyond, bad: Bad, newest: bool) -> Result<TornBlock, FileError> {
        let Bad { offset, what } = bad;
        let later_frames = frame_behind(&part.bytes, offset, self.stream).is_some();
        let expected = if !newest {
            Some("a frame (a newer block follows)".to_owned())
        } else if offset < part.synced_bytes {
            Some(format!("a frame (synced up to {})", part.synced_bytes))
        } else if later_frames && self.options.last_stop == LastStop::PageCacheKept {
            Some("a frame (whole ones follow and the page cache was not lost)".to_owned())
        } else {
            None
        };
        match expected {
            Some(expected) => Err(FileError::damaged(&part.path, offset, expected, what)),
            None => {
                Ok(TornBlock { path: part.path.clone(), offset, bytes: part.bytes.len() as u64 - offset, later_frames })
            }
        }
    }

    fn carry_out(&self, changes: &Changes) -> Result<(), FileError> {
        let Changes { remove, cut } = changes;
        for block in remove {
            let path = path(&self.blocks_dir, *block);
            self.disk.remove(&path).map_err(|error| FileError::io("remove", &path, error))?;
        }
        for block in list_indexes(self.disk.as_ref(), &self.blocks_dir)? {
            if self.block(block).is_none_or(|block| !block.indexed) {
                let path = index_path(&self.blocks_dir, block);
                self.disk.remove(&path).map_err(|error| FileError::io("remove", &path, error))?;
            }
        }
        if let Some(Cut { path, len, again: (at, bytes) }) = cut {
            let file = self.disk.open(path).map_err(|error| FileError::io("open", path, error))?;
            let cut = || {
                if file.len()? != *len {
                    file.set_len(*len)?;
                }
                if !bytes.is_empty() {
                    file.write_at(*at, bytes)?;
                }
                file.sync_data()
            };
            cut().map_err(|error| FileError::io("cut", path, error))?;
        }
        // Names found may not be durable yet, and removed ones must not come back.
        self.disk.sync_dir(&self.blocks_dir).map_err(|error| FileError::io("sync", &self.blocks_dir, error))
    }
}

/// What reading a block comes upon.
enum Met<'a> {
    Frame(&'a Frame),
    /// Something that is no frame any more.
    Hole,
}

impl Met<'_> {
    fn tell(&self, rebuild: &mut dyn Rebuild) {
        match self {
            Met::Frame(frame) => rebuild.frame(frame),
            Met::Hole => rebuild.hole(),
        }
    }
}

/// A block's bytes beyond what the checkpoint covers.
struct Beyond {
    block: BlockNumber,
    path: PathBuf,
    valid_bytes: u64,
    bytes: Bytes,
    synced_bytes: u64,
}

/// Where a walk met something that is no frame.
struct Bad {
    offset: u64,
    what: String,
}

struct Cut {
    path: PathBuf,
    len: u64,
    /// What is written once more, and where.
    again: (u64, Bytes),
}

/// What has to change on disk.
struct Changes {
    remove: Vec<BlockNumber>,
    cut: Option<Cut>,
}

/// The numbers of the block files, ascending.
pub(crate) fn list(disk: &dyn Disk, blocks_dir: &Path) -> Result<Vec<BlockNumber>, FileError> {
    list_by(disk, blocks_dir, parse_name)
}

/// The numbers of the blocks that have an index file, ascending.
fn list_indexes(disk: &dyn Disk, blocks_dir: &Path) -> Result<Vec<BlockNumber>, FileError> {
    list_by(disk, blocks_dir, parse_index_name)
}

fn list_by(
    disk: &dyn Disk,
    blocks_dir: &Path,
    number: fn(&str) -> Option<BlockNumber>,
) -> Result<Vec<BlockNumber>, FileError> {
    let entries = disk.list(blocks_dir).map_err(|error| FileError::io("list", blocks_dir, error))?;
    let mut blocks: Vec<BlockNumber> = entries.iter().filter_map(|entry| number(&entry.name)).collect();
    blocks.sort_unstable();
    Ok(blocks)
}

/// The frame at `at`, fully checked.
pub(crate) fn frame_at(bytes: &Bytes, at: usize, stream: StreamId) -> Result<Frame, String> {
    let left = bytes.len() - at;
    if left < HEADER_LEN {
        return Err(format!("{left} bytes"));
    }
    let len = u32_at(bytes, at) as usize;
    if len < HEADER_LEN || len > left {
        return Err(format!("a frame of {len} bytes with {left} left"));
    }
    let frame = Frame::parse(bytes.slice(at..at + len)).map_err(|error| error.to_string())?;
    if frame.header().stream != stream {
        return Err(format!("a frame of stream {}", frame.header().stream));
    }
    Ok(frame)
}

/// Where the next whole frame of this stream starts behind `offset`. Frames are not aligned.
fn frame_behind(bytes: &Bytes, offset: u64, stream: StreamId) -> Option<u64> {
    let starts = (offset as usize + 1)..bytes.len().saturating_sub(HEADER_LEN);
    let is_frame = |at: &usize| {
        bytes[at + 8] == VERSION && u64_at(bytes, at + 16) == stream.get() && frame_at(bytes, *at, stream).is_ok()
    };
    // By its own length first: what lies inside of it may look like a frame.
    let own = bytes.get(offset as usize..offset as usize + 4).map_or(0, |_| u32_at(bytes, offset as usize) as usize);
    let next = offset as usize + own;
    let by_len = Some(next).filter(|at| own >= HEADER_LEN && *at + HEADER_LEN < bytes.len() && is_frame(at));
    by_len.or_else(|| starts.into_iter().find(is_frame)).map(|at| at as u64)
}
