//! What the block store promises, on the simulated disk; with the flusher's threads on the real one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::frame::{Frame, FrameBuilder, FrameKind, RecordFlags};
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Ordinal, StreamId, StreamSeq, Term, Timestamp};
use headwater_core::stream::{BlockIndex, Rebuild, Records};

use super::*;
use crate::disk::{Fault, SimDisk};

mod behaviour;
mod crash;
mod damage;
mod indexes;
mod model;
mod scrub;
mod threads;

const STREAM: StreamId = StreamId::new(7);

fn dir() -> PathBuf {
    PathBuf::from("/store/streams/7")
}

fn index(raw: u64) -> LogIndex {
    LogIndex::new(raw)
}

fn seq(raw: u64) -> StreamSeq {
    StreamSeq::new(raw)
}

fn options(log: StoreLog) -> StoreOptions {
    StoreOptions { block_bytes_max: 12 << 10, cache_bytes_max: 2 << 10, ..StoreOptions::new(log) }
}

fn payload(seq: u64, len: usize) -> Vec<u8> {
    let mut text = format!("message {seq} ").into_bytes();
    text.resize(text.len() + len, seq as u8);
    text
}

/// A frame with `count` messages from `base` on, of this payload size.
fn messages(ordinal: u64, base: u64, count: u64, len: usize) -> Frame {
    let ts = Timestamp::new(1_000_000 + ordinal);
    let mut frame = FrameBuilder::new(FrameKind::Messages, STREAM, Term::new(1), Ordinal::new(ordinal), seq(base), ts);
    for raw in base..base + count {
        frame.push_message(ts, b"orders.new", b"", &payload(raw, len), RecordFlags::NONE).unwrap();
    }
    Frame::parse(frame.finish()).unwrap()
}

/// A frame without messages.
fn purge(ordinal: u64, base: u64) -> Frame {
    let ts = Timestamp::new(1_000_000 + ordinal);
    let mut frame = FrameBuilder::new(FrameKind::Purge, STREAM, Term::new(1), Ordinal::new(ordinal), seq(base), ts);
    frame.push_body(b"{}").unwrap();
    Frame::parse(frame.finish()).unwrap()
}

fn image(applied: u64) -> CheckpointImage {
    CheckpointImage {
        group: GroupId::new(9),
        applied: LogPosition { index: index(applied), term: Term::new(1) },
        membership: Bytes::new(),
        snapshot: Bytes::new(),
        image: Bytes::from(format!("state at {applied}")),
        digest: applied,
    }
}

/// What a store's checkpoint covers.
#[derive(Default)]
struct Covered {
    frames: Vec<Frame>,
    /// Blocks that were taken by their index.
    indexes: Vec<BlockIndex>,
    takes_indexes: bool,
}

impl Rebuild for Covered {
    fn frame(&mut self, frame: &Frame) {
        self.frames.push(frame.clone());
    }

    fn block(&mut self, index: &BlockIndex, readable: bool) -> bool {
        let takes = self.takes_indexes || !readable;
        if takes {
            self.indexes.push(index.clone());
        }
        takes
    }

    fn hole(&mut self) {}
}

/// As [`open`], by the blocks' indexes. Returns how many blocks were taken so.
fn open_by_index(disk: &SimDisk, options: StoreOptions) -> Result<(StreamStore, usize), FileError> {
    let checkpoint = Checkpoint::load(disk, &dir())?;
    let mut covered = Covered { takes_indexes: true, ..Covered::default() };
    let shared = Arc::new(disk.clone());
    let (store, _) = StreamStore::open(shared, &dir(), STREAM, options, checkpoint.as_ref(), &mut covered)?;
    Ok((store, covered.indexes.len()))
}

/// Opens the store as its checkpoint says. Returns the frames the checkpoint covers, too.
fn open(disk: &SimDisk, options: StoreOptions) -> Result<(StreamStore, BlockScan, Vec<Frame>), FileError> {
    disk.create_dir_all(&dir()).map_err(|error| FileError::io("create", &dir(), error))?;
    let checkpoint = Checkpoint::load(disk, &dir())?;
    let mut covered = Covered::default();
    let shared = Arc::new(disk.clone());
    let (store, scan) = StreamStore::open(shared, &dir(), STREAM, options, checkpoint.as_ref(), &mut covered)?;
    Ok((store, scan, covered.frames))
}

/// Runs a job to its end in place. The log barrier is not of interest here.
fn run(store: &mut StreamStore, disk: &SimDisk, want: FlushWant, image: Option<CheckpointImage>) -> bool {
    let Some(job) = store.take_job(want, image) else {
        return false;
    };
    let mut stages = Vec::new();
    job.run(disk, &|_, _| Ok(()), &mut |done| stages.push(done));
    for done in stages {
        store.complete(done);
    }
    true
}

/// Every message of the store up to the first damage: sequence and payload.
fn contents(store: &StreamStore) -> BTreeMap<u64, Vec<u8>> {
    let frames = store.frames.iter().map_while(|indexed| store.load(indexed));
    let mut found = BTreeMap::new();
    for frame in frames {
        found.extend(frame.records().map(|record| (record.seq.get(), record.payload().to_vec())));
    }
    found
}

fn expected(range: RangeInclusive<u64>, len: usize) -> BTreeMap<u64, Vec<u8>> {
    range.map(|raw| (raw, payload(raw, len))).collect()
}
