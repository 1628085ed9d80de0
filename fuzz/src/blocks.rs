//! A stream's block files and the checkpoint that lists them: what an open makes of any of them.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::frame::{Frame, FrameBuilder, FrameKind, RecordFlags};
use headwater_core::ids::{LogIndex, LogPosition, Ordinal, StreamSeq, Term, Timestamp};
use headwater_core::stream::{BlockIndex, BlockIndexBuilder, Rebuild, Records};
use headwater_storage::blocks::{FlushWant, StoreLog, StoreOptions, StreamStore};
use headwater_storage::checkpoint::{BlockExtent, BlockNumber, Checkpoint, CheckpointImage};
use headwater_storage::disk::{Disk, SimDisk};
use headwater_storage::wal::LastStop;

use crate::files::put;
use crate::frame::{built, sealed};
use crate::input::{Input, put_number, put_part};
use crate::sample;

const DIR: &str = "/store/streams/7";
const HEADER_PAGE: usize = 4096;

fn header(stream: u64, block: u64) -> Vec<u8> {
    let mut page = vec![0; HEADER_PAGE];
    page[0..8].copy_from_slice(b"HWSBLOCK");
    page[8..12].copy_from_slice(&1u32.to_le_bytes());
    page[24..32].copy_from_slice(&stream.to_le_bytes());
    page[32..40].copy_from_slice(&block.to_le_bytes());
    let crc = crc32c::crc32c(&page[..40]);
    page[40..44].copy_from_slice(&crc.to_le_bytes());
    page
}

fn mark(page: &mut [u8], block: u64, synced: u64, ticket: u64) {
    let at = if ticket.is_multiple_of(2) { 512 } else { 1024 };
    page[at..at + 8].copy_from_slice(&synced.to_le_bytes());
    page[at + 8..at + 16].copy_from_slice(&ticket.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&page[at..at + 16]), &block.to_le_bytes());
    page[at + 16..at + 20].copy_from_slice(&crc.to_le_bytes());
}

const FRAME: u8 = 0;
const SEALED: u8 = 4;
const RAW: u8 = 5;
const MARK: u8 = 6;
const NEXT_BLOCK: u8 = 7;

/// Block files: `[number][step]…`. Steps 0 to 3 are a frame, 4 raw bytes with a frame's checksums, 5 raw bytes, 6 a
/// sync mark, 7 the next block. With each, where its frames end.
fn files(input: &mut Input<'_>) -> Vec<(u64, Vec<u8>, Vec<u64>)> {
    let mut found = Vec::new();
    let mut number = input.number();
    let mut file = header(7, number);
    let mut ends = vec![HEADER_PAGE as u64];
    loop {
        let end = input.is_empty();
        match if end { NEXT_BLOCK } else { input.u8() % 8 } {
            NEXT_BLOCK => {
                found.push((number, std::mem::take(&mut file), std::mem::take(&mut ends)));
                if end || found.len() == 4 {
                    return found;
                }
                number = match input.u8() {
                    0xff => input.number(),
                    _ => number.wrapping_add(1),
                };
                file = header(7, number);
                ends = vec![HEADER_PAGE as u64];
            }
            SEALED => file.extend_from_slice(&sealed(input.part())),
            RAW => file.extend_from_slice(input.part()),
            MARK => {
                let (synced, ticket) = (input.number(), input.number());
                let synced = if synced < 64 { ends[synced as usize % ends.len()] } else { synced };
                mark(&mut file, number, synced, ticket);
            }
            _ => {
                let frame = built(input, sample::STREAM);
                file.extend_from_slice(&frame);
            }
        }
        ends.push(file.len() as u64);
    }
}

fn checkpoint(input: &mut Input<'_>, files: &[(u64, Vec<u8>, Vec<u64>)]) -> Checkpoint {
    let mut blocks = Vec::new();
    for (number, _, ends) in files {
        let valid_bytes = match input.u8() {
            0xff => continue,
            0xfe => input.number(),
            pick => ends[usize::from(pick) % ends.len()],
        };
        blocks.push(BlockExtent { block: BlockNumber::new(*number), valid_bytes });
    }
    blocks.sort_by_key(|extent| extent.block);
    blocks.dedup_by_key(|extent| extent.block);
    let index = LogIndex::new(input.number());
    Checkpoint {
        stream: sample::STREAM,
        state: CheckpointImage {
            group: sample::GROUP,
            applied: LogPosition { index, term: Term::new(1) },
            membership: Bytes::new(),
            snapshot: Bytes::new(),
            image: Bytes::new(),
            digest: 0,
        },
        blocks,
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let frame = |out: &mut Vec<u8>, ordinal: u64, base_seq: u64| {
        out.extend_from_slice(&[FRAME, FrameKind::Messages as u8]);
        for number in [1, ordinal, base_seq, 50] {
            put_number(out, number);
        }
        out.push(2);
        for _ in 0..2 {
            out.extend_from_slice(&[1, 0, 0]);
            put_part(out, b"orders.1");
            put_part(out, b"");
            put_part(out, b"hello");
        }
    };
    let mut seeds = Vec::new();
    for options in 0..8u8 {
        // The checkpoint's choices come first: up to two blocks, and the index it is at.
        let mut seed = vec![options, 8];
        seed.extend_from_slice(&[2, 1, 4, 0, 0, 0, 0, 0]);
        put_number(&mut seed, 1);
        frame(&mut seed, 1, 1);
        frame(&mut seed, 2, 3);
        seed.extend_from_slice(&[MARK, 2, 5]);
        seed.extend_from_slice(&[NEXT_BLOCK, 0]);
        frame(&mut seed, 3, 5);
        seeds.push(seed.clone());
        seed.push(RAW);
        put_part(&mut seed, &[9; 30]);
        seeds.push(seed.clone());
        seed.push(SEALED);
        put_part(&mut seed, &sample::frames()[2]);
        seeds.push(seed);
    }
    let mut index = BlockIndexBuilder::new(sample::STREAM, 1);
    for (nth, frame) in sample::frames().iter().enumerate() {
        if let Ok(frame) = Frame::parse(frame.clone()) {
            index.add(4096 + 1000 * nth as u32, &frame);
        }
    }
    seeds.extend(index.finish(100_000).map(|index| index.encode()));
    seeds
}

pub(crate) fn run(data: &[u8]) {
    index(data);
    let mut input = Input::new(data);
    let choices = input.u8();
    let listed = usize::from(input.u8() % 16);
    let mut listed = Input::new(input.bytes(listed));
    let disk = SimDisk::new();
    let files = files(&mut input);
    for (number, bytes, _) in &files {
        put(&disk, &Path::new(DIR).join(BlockNumber::new(*number).file_name()), bytes);
    }
    let checkpoint = (choices & 1 == 0).then(|| checkpoint(&mut listed, &files));
    // Whatever is read from a disk went through here.
    let checkpoint = checkpoint.and_then(|listed| Checkpoint::decode(Path::new("checkpoint"), listed.encode()).ok());
    let log = if choices & 2 == 0 { StoreLog::Own } else { StoreLog::Wal };
    let last_stop = if choices & 4 == 0 { LastStop::PowerLost } else { LastStop::PageCacheKept };
    let options = StoreOptions { last_stop, ..StoreOptions::new(log) };
    let found = open(&disk, &options, checkpoint.as_ref());
    let Some((mut store, seen)) = found else { return };
    // A second start, after a stop that left nothing behind, finds the same.
    let (_, again) = open(&disk.fork(), &options, checkpoint.as_ref()).expect("it opened before");
    assert_eq!(again, seen);
    for seq in [0, 1, 3, 6, u64::MAX] {
        let _ = store.record(StreamSeq::new(seq)).map(|record| record.map(|record| record.payload().len()));
    }
    for frame in &seen {
        let header = frame_of(frame).header();
        let _ = store.record(header.base_seq);
    }
    use_it(&mut store, &disk);
}

/// Reads every block, whatever its index says.
#[derive(Default)]
pub(crate) struct Seen(Vec<Bytes>);

impl Rebuild for Seen {
    fn frame(&mut self, frame: &Frame) {
        self.0.push(frame.bytes().clone());
    }

    fn block(&mut self, _index: &BlockIndex, _readable: bool) -> bool {
        false
    }

    fn hole(&mut self) {}
}

/// An index of a block, and the same bytes under a right checksum.
fn index(data: &[u8]) {
    let mut sealed = data.to_vec();
    sealed.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
    for bytes in [data, &sealed] {
        if let Ok(index) = BlockIndex::decode(bytes) {
            assert_eq!(BlockIndex::decode(&index.encode()), Ok(index));
        }
    }
}

fn frame_of(bytes: &Bytes) -> Frame {
    Frame::parse(bytes.clone()).expect("the store checked it")
}

fn open(disk: &SimDisk, options: &StoreOptions, checkpoint: Option<&Checkpoint>) -> Option<(StreamStore, Vec<Bytes>)> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut visit = Seen::default();
    let opened = StreamStore::open(shared, Path::new(DIR), sample::STREAM, options.clone(), checkpoint, &mut visit);
    let (store, scan) = opened.ok()?;
    let Seen(mut seen) = visit;
    seen.extend(scan.replay.iter().map(|replay| replay.frame.bytes().clone()));
    Some((store, seen))
}

/// What a replica does next: a frame, and a checkpoint that leaves blocks out.
fn use_it(store: &mut StreamStore, disk: &SimDisk) {
    let Some(next) = store.accepted().map_or(Some(1), |last| last.get().checked_add(1)) else { return };
    let next = LogIndex::new(next);
    let mut frame = FrameBuilder::new(
        FrameKind::Messages,
        sample::STREAM,
        Term::new(1),
        Ordinal::new(9),
        StreamSeq::new(1_000),
        Timestamp::new(60),
    );
    frame.push_message(Timestamp::new(60), b"orders.1", b"", b"more", RecordFlags::NONE).expect("it is small");
    store.push(next, Frame::parse(frame.finish()).expect("a frame that was built"));
    store.sweep(|range| range.start().get() % 2 == 0);
    let image = CheckpointImage {
        group: sample::GROUP,
        applied: LogPosition { index: next, term: Term::new(1) },
        membership: Bytes::new(),
        snapshot: Bytes::new(),
        image: Bytes::new(),
        digest: 0,
    };
    if let Some(job) = store.take_job(FlushWant::Checkpoint, Some(image)) {
        job.run(disk, &|_, _| Ok(()), &mut |done| store.complete(done));
    }
    let _ = store.failure().map(ToString::to_string);
}
