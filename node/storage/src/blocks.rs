//! The block store of one stream: its frames in files, an index of them in memory.
//!
//! Lives on the data thread and does no writing there: [`StreamStore::push`] assigns each frame its place,
//! [`StreamStore::take_job`] hands what is pending to the flusher, [`StreamStore::complete`] takes the result.
//! Frames can be read from the moment they are pushed.
//!
//! ```text
//!   push ──▶ accepted ──take_job──▶ flusher ──complete──▶ stored ──▶ (synced) ──▶ persisted
//! ```
//!
//! Whether bytes count after a restart is the checkpoint's decision. A replicated stream
//! ([`StoreLog::Wal`]) cuts everything beyond it and replays from the log; an R1 stream ([`StoreLog::Own`])
//! has no other log than its blocks and gets the frames beyond it back for replay.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::frame::{Frame, FrameKind, OwnedRecord};
use headwater_core::ids::{LogIndex, StreamId, StreamSeq};
use headwater_core::stream::{BlockIndex, Damaged, FrameEntry, Outline, Records};

mod cache;
pub(crate) mod format;
pub(crate) mod index;
mod job;
mod open;
mod remove;
mod scrub;
#[cfg(test)]
mod tests;

pub use format::INDEX_EXTENSION;
pub use index::block_identity;
pub use job::{FlushDone, FlushError, FlushJob, FlushStage, FlushWant, LogBarrier, OpenBlock, passes};
pub(crate) use open::frame_at;
pub use open::{BlockScan, ReplayFrame, TornBlock};
pub use remove::remove_stream;
pub use scrub::{Pace, Scrubbed, check_block, scrub_block};

use self::cache::{FrameCache, FramePlace};
use self::format::HEADER_PAGE;
use self::job::{Extent, SyncMark};
use crate::checkpoint::{BlockExtent, BlockNumber, Checkpoint, CheckpointImage};
use crate::disk::{Disk, DiskFile};
use crate::envelope::FileError;
use crate::wal::LastStop;

/// Bytes read at once from a block.
const READ_AHEAD_BYTES: usize = 256 << 10;
/// Block files kept open for reading.
const OPEN_FILES_MAX: usize = 8;

/// What stands behind the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreLog {
    /// The node's write-ahead log: only frames with messages are stored, the rest is in the checkpoint.
    Wal,
    /// Nothing (R1): every frame is stored, the blocks are the log.
    Own,
}

/// Options of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// What stands behind it.
    pub log: StoreLog,
    /// A block is ended at this size in bytes; a larger frame gets a block of its own. Default 64 MiB.
    pub block_bytes_max: u64,
    /// Bytes of written frames kept in memory. Default 1 MiB.
    pub cache_bytes_max: usize,
    /// What is known about the last stop; matters only for [`StoreLog::Own`].
    pub last_stop: LastStop,
}

impl StoreOptions {
    /// The defaults.
    #[must_use]
    pub fn new(log: StoreLog) -> Self {
        Self { log, block_bytes_max: 64 << 20, cache_bytes_max: 1 << 20, last_stop: LastStop::PowerLost }
    }
}

/// A frame with messages, as the index knows it: 24 bytes.
#[derive(Debug, Clone, Copy)]
struct IndexedFrame {
    base_seq: StreamSeq,
    count: u32,
    len: u32,
    offset: u32,
    block: u32,
}

impl IndexedFrame {
    fn block(&self) -> BlockNumber {
        BlockNumber::new(u64::from(self.block))
    }
}

#[derive(Debug, Clone)]
struct Block {
    number: BlockNumber,
    /// Bytes assigned.
    len: u64,
    /// Bytes the kernel has.
    written: u64,
    /// First and last message ever put there.
    messages: Option<(StreamSeq, StreamSeq)>,
    /// No live message: the next checkpoint leaves it out.
    dead: bool,
    /// Its index was written, or at least tried to.
    indexed: bool,
}

struct Pending {
    place: FramePlace,
    frame: Frame,
}

/// The store.
pub struct StreamStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    blocks_dir: PathBuf,
    stream: StreamId,
    options: StoreOptions,
    blocks: VecDeque<Block>,
    next_block: BlockNumber,
    frames: VecDeque<IndexedFrame>,
    pending: VecDeque<Pending>,
    dirty_bytes: u64,
    /// Of `pending`, how many are in the outstanding job.
    taken: usize,
    storing: bool,
    checkpointing: bool,
    /// Readers that need every block to stay.
    pins: u32,
    accepted: Option<LogIndex>,
    stored: Option<LogIndex>,
    synced: Option<LogIndex>,
    persisted: Option<LogIndex>,
    /// Last synced length of the newest block, and the ticket of its last sync mark.
    mark: Option<SyncMark>,
    taken_end: Option<(BlockNumber, u64)>,
    write_file: Option<OpenBlock>,
    failure: Option<FlushError>,
    cache: RefCell<FrameCache>,
    files: RefCell<VecDeque<(BlockNumber, Arc<dyn DiskFile>)>>,
    damage: RefCell<Option<FileError>>,
    /// The frame that was found damaged last.
    hole: RefCell<Option<(FramePlace, FileError)>>,
    /// The index of the block that has it.
    outlines: RefCell<Option<(BlockNumber, Option<BlockIndex>)>>,
    cold_reads: Cell<u64>,
}

impl StreamStore {
    fn empty(disk: Arc<dyn Disk>, dir: &Path, stream: StreamId, options: StoreOptions) -> Self {
        let cache = RefCell::new(FrameCache::new(options.cache_bytes_max));
        Self {
            disk,
            dir: dir.to_owned(),
            blocks_dir: dir.join("blocks"),
            stream,
            options,
            blocks: VecDeque::new(),
            next_block: BlockNumber::FIRST,
            frames: VecDeque::new(),
            pending: VecDeque::new(),
            dirty_bytes: 0,
            taken: 0,
            storing: false,
            checkpointing: false,
            pins: 0,
            accepted: None,
            stored: None,
            synced: None,
            persisted: None,
            mark: None,
            taken_end: None,
            write_file: None,
            failure: None,
            cache,
            files: RefCell::new(VecDeque::new()),
            damage: RefCell::new(None),
            hole: RefCell::new(None),
            outlines: RefCell::new(None),
            cold_reads: Cell::new(0),
        }
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Takes the frame of operation `index`, which must follow what was pushed or advanced before. A
    /// replicated stream ignores the bytes of frames without messages.
    pub fn push(&mut self, index: LogIndex, frame: Frame) {
        assert!(self.accepted.is_none_or(|accepted| accepted < index), "operation {index} after {:?}", self.accepted);
        self.accepted = Some(index);
        let header = frame.header();
        if self.options.log == StoreLog::Wal && header.kind != FrameKind::Messages {
            return self.settle();
        }
        let len = u64::from(header.len);
        let place = self.assign(len);
        self.dirty_bytes += len;
        self.index(place, &frame);
        self.pending.push_back(Pending { place, frame });
    }

    /// Operation `index` has nothing to store (void, blank, membership).
    pub fn advance(&mut self, index: LogIndex) {
        if self.accepted.is_none_or(|accepted| accepted < index) {
            self.accepted = Some(index);
        }
        self.settle();
    }

    /// Operations without bytes are stored as soon as everything before them is.
    fn settle(&mut self) {
        if self.pending.is_empty() && !self.storing {
            self.stored = self.accepted;
        }
    }

    /// Gives a frame its place: behind the last one, or in a new block.
    fn assign(&mut self, len: u64) -> FramePlace {
        let fits = self.blocks.back().is_some_and(|block| {
            let end = block.len + len;
            (end <= self.options.block_bytes_max || block.len == HEADER_PAGE) && end <= u64::from(u32::MAX)
        });
        if !fits {
            self.add_block(self.next_block, HEADER_PAGE, 0);
        }
        let block = self.blocks.back_mut().expect("a block was added if there was none that fits");
        let place = FramePlace { block: block.number, offset: block.len as u32 };
        block.len += len;
        place
    }

    fn add_block(&mut self, number: BlockNumber, len: u64, written: u64) {
        self.blocks.push_back(Block { number, len, written, messages: None, dead: false, indexed: false });
        self.next_block = number.next();
    }

    /// Enters a frame with messages into the index.
    fn index(&mut self, place: FramePlace, frame: &Frame) {
        let header = frame.header();
        if header.kind == FrameKind::Messages && header.count > 0 {
            let (len, base_seq, count) = (header.len, header.base_seq, header.count);
            self.index_entry(place.block, &FrameEntry { offset: place.offset, len, base_seq, count });
        }
    }

    fn index_entry(&mut self, number: BlockNumber, entry: &FrameEntry) {
        let FrameEntry { offset, len, base_seq, count } = *entry;
        let last = StreamSeq::new(base_seq.get() + u64::from(count) - 1);
        if let Some(block) = self.block_mut(number) {
            let first = block.messages.map_or(base_seq, |(first, _)| first);
            block.messages = Some((first, last));
        }
        self.frames.push_back(IndexedFrame { base_seq, count, len, offset, block: number.get() as u32 });
    }

    fn block_mut(&mut self, number: BlockNumber) -> Option<&mut Block> {
        let nth = self.blocks.binary_search_by_key(&number, |block| block.number).ok()?;
        self.blocks.get_mut(nth)
    }

    fn block(&self, number: BlockNumber) -> Option<&Block> {
        let nth = self.blocks.binary_search_by_key(&number, |block| block.number).ok()?;
        self.blocks.get(nth)
    }

    /// Last operation given.
    #[must_use]
    pub fn accepted(&self) -> Option<LogIndex> {
        self.accepted
    }

    /// Last operation whose bytes, and those of all before it, the kernel has.
    #[must_use]
    pub fn stored(&self) -> Option<LogIndex> {
        self.stored
    }

    /// Last operation whose bytes, and those of all before it, the device has. Only synced jobs move it.
    #[must_use]
    pub fn synced(&self) -> Option<LogIndex> {
        self.synced
    }

    /// Last operation covered by a checkpoint.
    #[must_use]
    pub fn persisted(&self) -> Option<LogIndex> {
        self.persisted
    }

    /// Bytes pushed and not yet stored.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Why the store takes no more jobs, if so. Final.
    #[must_use]
    pub fn failure(&self) -> Option<&FlushError> {
        self.failure.as_ref()
    }

    /// The first damage met while opening or reading, once.
    pub fn take_damage(&self) -> Option<FileError> {
        self.damage.borrow_mut().take()
    }

    /// Reads from block files so far, for metrics.
    #[must_use]
    pub fn cold_reads(&self) -> u64 {
        self.cold_reads.get()
    }

    /// Everything before `seq` is gone: blocks without later messages are left out of the next checkpoint.
    pub fn drop_before(&mut self, seq: StreamSeq) {
        self.sweep(|range| *range.end() >= seq);
    }

    /// Asks of every full block whether any of its messages is live, and leaves the others out of the next
    /// checkpoint. Their files go when that checkpoint is durable.
    pub fn sweep(&mut self, any_live: impl Fn(RangeInclusive<StreamSeq>) -> bool) {
        let full = self.blocks.len().saturating_sub(1);
        for block in self.blocks.iter_mut().take(full).filter(|block| !block.dead) {
            block.dead = block.messages.is_none_or(|(first, last)| !any_live(first..=last));
        }
    }

    /// Takes what is pending as a job for the flusher. `None` if there is nothing to do, the last job is not
    /// completed, or the store failed. With `want` = [`FlushWant::Checkpoint`], `image` must be given, and
    /// must be the state after exactly what was pushed so far.
    pub fn take_job(&mut self, want: FlushWant, image: Option<CheckpointImage>) -> Option<FlushJob> {
        if self.failure.is_some() || self.storing {
            return None;
        }
        let image = image.filter(|_| want == FlushWant::Checkpoint);
        match want {
            FlushWant::Write if self.pending.is_empty() => return None,
            FlushWant::Sync if self.synced == self.accepted => return None,
            FlushWant::Checkpoint if self.checkpointing => return None,
            _ => {}
        }
        if let Some(image) = &image {
            self.advance(image.applied.index);
            assert_eq!(self.accepted, Some(image.applied.index), "the image is the state after the last push");
        } else if want == FlushWant::Checkpoint {
            return None;
        }
        let remove = image.is_some() && self.pins == 0;
        let dead = self.blocks.iter().filter(|block| remove && block.dead).map(|block| block.number).collect();
        let log = image.as_ref().filter(|_| self.options.log == StoreLog::Wal).map(|image| image.group);
        let checkpoint = image.map(|state| Checkpoint {
            stream: self.stream,
            state,
            blocks: self
                .blocks
                .iter()
                .filter(|block| !block.dead)
                .map(|block| BlockExtent { block: block.number, valid_bytes: block.len })
                .collect(),
        });
        let mut closed = Vec::new();
        if let Some(Checkpoint { blocks, .. }) = &checkpoint {
            let newest = blocks.last().map(|extent| extent.block);
            for block in self.blocks.iter_mut().filter(|block| !block.dead && !block.indexed) {
                if newest.is_some_and(|newest| block.number < newest) {
                    block.indexed = true;
                    closed.push(BlockExtent { block: block.number, valid_bytes: block.len });
                }
            }
        }
        let sync = want != FlushWant::Write;
        let own = self.options.log == StoreLog::Own;
        let newest = self.blocks.iter().rev().find(|block| block.written > 0).map(|block| block.number);
        let mark = self.mark.filter(|mark| own && sync && Some(mark.block) == newest);
        self.storing = true;
        self.checkpointing |= checkpoint.is_some();
        self.taken = self.pending.len();
        self.taken_end = self.blocks.back().map(|block| (block.number, block.len));
        Some(FlushJob {
            stream: self.stream,
            blocks_dir: self.blocks_dir.clone(),
            stream_dir: self.dir.clone(),
            extents: self.extents(),
            newest,
            file: self.write_file.clone(),
            sync,
            mark,
            upto: self.accepted,
            checkpoint,
            closed,
            dead,
            log,
            background: !own && want == FlushWant::Checkpoint,
        })
    }

    fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for Pending { place, frame } in &self.pending {
            let bytes: Bytes = frame.bytes().clone();
            match extents.last_mut().filter(|extent| extent.block == place.block) {
                Some(extent) => extent.parts.push(bytes),
                None => extents.push(Extent {
                    block: place.block,
                    offset: u64::from(place.offset),
                    create: self.block(place.block).is_some_and(|block| block.written == 0),
                    parts: vec![bytes],
                }),
            }
        }
        extents
    }

    /// Takes the result of a job's stage.
    pub fn complete(&mut self, done: FlushDone) {
        match done.stage {
            FlushStage::Stored { stored, synced, file } => self.complete_stored(stored, synced, file),
            FlushStage::Persisted { persisted, removed } => {
                self.checkpointing = false;
                self.persisted = Some(persisted);
                self.forget(&removed);
            }
            FlushStage::Failed(error) => {
                self.storing = false;
                self.checkpointing = false;
                self.failure.get_or_insert(error);
            }
        }
    }

    fn complete_stored(&mut self, stored: Option<LogIndex>, synced: bool, file: Option<OpenBlock>) {
        self.storing = false;
        self.write_file = file;
        self.stored = stored;
        if synced {
            self.synced = stored;
        }
        let mut cache = self.cache.borrow_mut();
        for Pending { place, frame } in self.pending.drain(..self.taken) {
            self.dirty_bytes -= frame.bytes().len() as u64;
            cache.insert(place, frame);
        }
        drop(cache);
        self.taken = 0;
        if let Some((number, end)) = self.taken_end.take() {
            for block in self.blocks.iter_mut().filter(|block| block.number <= number) {
                block.written = if block.number < number { block.len } else { end };
            }
            if synced {
                let ticket = self.mark.filter(|mark| mark.block == number).map_or(1, |mark| mark.ticket + 1);
                self.mark = Some(SyncMark { block: number, synced_bytes: end, ticket });
            }
        }
        self.settle();
    }

    /// Forgets blocks whose removal a checkpoint covers.
    fn forget(&mut self, removed: &[BlockNumber]) {
        if removed.is_empty() {
            return;
        }
        let gone = |block: BlockNumber| removed.contains(&block);
        self.blocks.retain(|block| !gone(block.number));
        self.frames.retain(|frame| !gone(frame.block()));
        self.cache.borrow_mut().forget(gone);
        self.files.borrow_mut().retain(|(block, _)| !gone(*block));
    }

    /// Keeps every block file until as many [`unpin`](Self::unpin): for a peer or a backup that reads the
    /// stream as of a checkpoint. Dead blocks go with a later checkpoint.
    pub fn pin(&mut self) {
        self.pins += 1;
    }

    /// Ends one [`pin`](Self::pin).
    pub fn unpin(&mut self) {
        self.pins = self.pins.saturating_sub(1);
    }

    /// First position in the index whose frame reaches `seq`.
    fn find(&self, seq: StreamSeq) -> usize {
        self.frames.partition_point(|frame| frame.base_seq.get() + u64::from(frame.count) <= seq.get())
    }

    /// The frame that has a message, and which of its messages it is.
    fn place_of(&self, seq: StreamSeq) -> Option<(&IndexedFrame, u32)> {
        let indexed = self.frames.get(self.find(seq))?;
        let nth = seq.get().checked_sub(indexed.base_seq.get())?;
        Some((indexed, u32::try_from(nth).ok()?))
    }

    /// The bytes of an indexed frame; `None` if they cannot be read.
    fn load(&self, indexed: &IndexedFrame) -> Option<Frame> {
        let place = FramePlace { block: indexed.block(), offset: indexed.offset };
        if let Ok(nth) = self.pending.binary_search_by_key(&place, |pending| pending.place) {
            return Some(self.pending[nth].frame.clone());
        }
        if let Some(frame) = self.cache.borrow().get(place) {
            return Some(frame);
        }
        let mut hole = self.hole.borrow_mut();
        // A frame of thousands of messages is not read again for each of them.
        let known = hole.as_ref().filter(|(known, _)| *known == place).and_then(|(_, error)| error.again());
        let error = match known {
            Some(error) => error,
            None => match self.read(place, indexed.len) {
                Ok(frame) => return Some(frame),
                Err(error) => error,
            },
        };
        *hole = error.again().map(|error| (place, error));
        self.damage.borrow_mut().get_or_insert(error);
        None
    }

    /// Reads a frame from its block, and those behind it while at it.
    fn read(&self, place: FramePlace, len: u32) -> Result<Frame, FileError> {
        self.cold_reads.set(self.cold_reads.get() + 1);
        let path = format::path(&self.blocks_dir, place.block);
        let written = self.block(place.block).map_or(0, |block| block.written);
        let left = written.saturating_sub(u64::from(place.offset));
        let want = (len as usize).max(READ_AHEAD_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX)));
        let file = self.file(place.block, &path)?;
        let mut bytes = vec![0; want];
        let got =
            file.read_at(u64::from(place.offset), &mut bytes).map_err(|error| FileError::io("read", &path, error))?;
        bytes.truncate(got);
        if got < len as usize {
            let found = format!("{got} bytes");
            return Err(FileError::damaged(&path, u64::from(place.offset), format!("a frame of {len} bytes"), found));
        }
        let mut rest = Bytes::from(bytes);
        let frame = Frame::parse(rest.split_to(len as usize)).map_err(|error| {
            FileError::damaged(&path, u64::from(place.offset), "the frame that was written", error.to_string())
        })?;
        let mut cache = self.cache.borrow_mut();
        cache.insert(place, frame.clone());
        // What does not parse here will be reported when it is asked for.
        let mut offset = place.offset + len;
        while let Some(next) = next_frame(&mut rest) {
            let next_len = next.bytes().len() as u32;
            cache.insert(FramePlace { block: place.block, offset }, next);
            offset += next_len;
        }
        Ok(frame)
    }

    fn file(&self, block: BlockNumber, path: &Path) -> Result<Arc<dyn DiskFile>, FileError> {
        let mut files = self.files.borrow_mut();
        if let Some((_, file)) = files.iter().find(|(number, _)| *number == block) {
            return Ok(Arc::clone(file));
        }
        let file = self.disk.open_read(path).map_err(|error| FileError::io("open", path, error))?;
        files.push_back((block, Arc::clone(&file)));
        if files.len() > OPEN_FILES_MAX {
            files.pop_front();
        }
        Ok(file)
    }
}

/// Cuts the next whole, valid frame off `rest`.
fn next_frame(rest: &mut Bytes) -> Option<Frame> {
    let len = rest.get(..4).map(|len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize)?;
    if len < headwater_core::frame::HEADER_LEN || len > rest.len() {
        return None;
    }
    let frame = Frame::parse(rest.slice(..len)).ok()?;
    *rest = rest.slice(len..);
    Some(frame)
}

impl Records for StreamStore {
    fn record(&self, seq: StreamSeq) -> Result<Option<OwnedRecord>, Damaged> {
        let Some((indexed, nth)) = self.place_of(seq) else { return Ok(None) };
        let frame = self.load(indexed).ok_or(Damaged { seq })?;
        Ok(frame.owned_record(nth))
    }

    fn readable_up_to(&self, seq: StreamSeq) -> Result<StreamSeq, Damaged> {
        let Some((indexed, _)) = self.place_of(seq) else { return Ok(seq) };
        self.load(indexed).ok_or(Damaged { seq })?;
        Ok(StreamSeq::new(indexed.base_seq.get() + u64::from(indexed.count) - 1))
    }

    fn outline(&self, seq: StreamSeq) -> Option<Outline> {
        let (indexed, _) = self.place_of(seq)?;
        let mut outlines = self.outlines.borrow_mut();
        if outlines.as_ref().is_none_or(|(block, _)| *block != indexed.block()) {
            let index = index::load_any(self.disk.as_ref(), &self.blocks_dir, self.stream, indexed.block());
            *outlines = Some((indexed.block(), index));
        }
        outlines.as_ref()?.1.as_ref()?.outline(seq)
    }
}
