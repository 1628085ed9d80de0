//! The write-ahead log: segments with any records, and what a scan and an open make of them.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, Term};
use headwater_storage::disk::{Disk, SimDisk};
use headwater_storage::wal::{AppendBatch, LastStop, Need, ScanEnd, SegmentSeq, Wal, WalEntry, WalOptions};

use crate::files::put;
use crate::input::{Input, put_number, put_part};

const DIR: &str = "/store/wal";
const SALT: u64 = 0x1122_3344_5566_7788;
const HEADER_PAGE: usize = 4096;
/// A segment's file has at least this many bytes, so that there is room behind the records.
const SEGMENT_BYTES: usize = 8192;

/// A record as in `docs/formats/wal.md`, with any field at all and the right checksum.
struct Record {
    kind_of: u8,
    flags: u8,
    kind: u8,
    group: u64,
    term: u64,
    index: u64,
    synced: u32,
}

impl Record {
    fn put(&self, salt: u64, payload: &[u8], out: &mut Vec<u8>) {
        let mut head = [0u8; 48];
        head[0..4].copy_from_slice(&(48 + payload.len() as u32).to_le_bytes());
        head[8..12].copy_from_slice(&(salt as u32).to_le_bytes());
        head[12..16].copy_from_slice(&self.synced.to_le_bytes());
        (head[16], head[17], head[18]) = (self.kind_of, self.flags, self.kind);
        head[24..32].copy_from_slice(&self.group.to_le_bytes());
        head[32..40].copy_from_slice(&self.term.to_le_bytes());
        head[40..48].copy_from_slice(&self.index.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &head[8..]);
        let crc = crc32c::crc32c_append(crc, payload);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(payload);
        out.resize(out.len().div_ceil(8) * 8, 0);
    }
}

fn header(seq: u64, salt: u64, len: u32) -> Vec<u8> {
    let mut page = vec![0; HEADER_PAGE];
    page[0..8].copy_from_slice(b"HWWALSEG");
    page[8..12].copy_from_slice(&1u32.to_le_bytes());
    page[20..24].copy_from_slice(&len.to_le_bytes());
    page[24..32].copy_from_slice(&seq.to_le_bytes());
    page[32..40].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32c::crc32c(&page[..40]);
    page[40..44].copy_from_slice(&crc.to_le_bytes());
    page
}

const RECORD: u8 = 0;
const RAW: u8 = 6;
const NEXT_SEGMENT: u8 = 7;

/// One segment after the other: `[step][…]`. Steps 0 to 5 are a record, 6 raw bytes, 7 the next segment.
fn segments(input: &mut Input<'_>) -> Vec<(u64, Vec<u8>)> {
    let mut seq = input.number();
    let mut found = Vec::new();
    let mut records = Vec::new();
    let mut raw_header = None;
    loop {
        let end = input.is_empty();
        let step = if end { NEXT_SEGMENT } else { input.u8() % 8 };
        match step {
            NEXT_SEGMENT => {
                let padded = if input.u8() & 1 == 0 {
                    SEGMENT_BYTES.max(HEADER_PAGE + records.len() + 64)
                } else {
                    HEADER_PAGE + records.len()
                };
                let mut file = raw_header.take().unwrap_or_else(|| header(seq, SALT, padded as u32));
                file.append(&mut records);
                file.resize(file.len().max(padded), 0);
                found.push((seq, file));
                if end || found.len() == 4 {
                    return found;
                }
                seq = match input.u8() {
                    0xff => input.number(),
                    0xfe => {
                        raw_header = Some(input.part().to_vec());
                        seq.wrapping_add(1)
                    }
                    _ => seq.wrapping_add(1),
                };
            }
            RAW => records.extend_from_slice(input.part()),
            _ => {
                let [kind_of, flags, kind] = [input.u8() % 10, input.u8() & 3, input.u8()];
                let (group, term, index) = (input.number(), input.number(), input.number());
                let record = Record { kind_of, flags, kind, group, term, index, synced: u32::from(input.u16()) };
                let payload = input.part();
                let salt = if step == 5 { SALT ^ (1 << 40) } else { SALT };
                record.put(salt, payload, &mut records);
            }
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let record = |out: &mut Vec<u8>, kind_of: u8, flags: u8, index: u64, payload: &[u8]| {
        out.extend_from_slice(&[RECORD, kind_of, flags, 1]);
        for number in [9, 1, index] {
            put_number(out, number);
        }
        out.extend_from_slice(&600u16.to_le_bytes());
        put_part(out, payload);
    };
    let mut whole = vec![0, 1];
    record(&mut whole, 2, 2, 0, &[1; 17]);
    for index in 1..6 {
        record(&mut whole, 1, 0, index, b"an entry");
    }
    record(&mut whole, 3, 0, 4, b"");
    record(&mut whole, 4, 0, 4, b"");
    record(&mut whole, 5, 0, 2, b"");
    record(&mut whole, 7, 2, 0, b"");
    record(&mut whole, 8, 2, 0, b"");
    let mut two = whole.clone();
    two.extend_from_slice(&[NEXT_SEGMENT, 0, 0]);
    record(&mut two, 1, 0, 5, b"again");
    record(&mut two, 6, 2, 0, b"");
    let mut torn = whole.clone();
    torn.truncate(torn.len() - 8);
    torn.push(RAW);
    put_part(&mut torn, &[7; 40]);
    record(&mut torn, 1, 0, 6, b"behind the tear");
    let mut last = vec![1, 0xff, 0];
    record(&mut last, 1, 1, u64::MAX, b"the end of numbers");
    record(&mut last, 4, 0, u64::MAX, b"");
    record(&mut last, 5, 0, u64::MAX - 1, b"");
    vec![whole, two, torn, last, vec![0, 1], vec![]]
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let last_stop = if input.u8() & 1 == 0 { LastStop::PowerLost } else { LastStop::PageCacheKept };
    let disk = SimDisk::new();
    for (seq, bytes) in segments(&mut input) {
        // What comes next has a number, too.
        if (SegmentSeq::LAST.get() - 99..=SegmentSeq::LAST.get()).contains(&seq) {
            return;
        }
        put(&disk, &Path::new(DIR).join(format!("{seq:010}.wal")), &bytes);
    }
    let before = disk.fork();
    let scan = Wal::scan(&disk, Path::new(DIR), last_stop).expect("no disk fails here");
    let _ = (scan.end_of_records(), format!("{scan:?}").len());
    let options = WalOptions { segment_bytes: 16 << 10, last_stop, ..WalOptions::default() };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (wal, opened) = match Wal::open_inline(shared, Path::new(DIR), options.clone()) {
        Ok(open) => open,
        Err(_) => {
            let after = Wal::scan(&disk, Path::new(DIR), last_stop).expect("no disk fails here");
            assert_eq!(format!("{after:?}"), format!("{scan:?}"), "what does not open is left as it is");
            return;
        }
    };
    assert!(!matches!(opened.end, ScanEnd::Corrupt(_)));
    let held = contents(&wal);
    use_it(&wal);
    let held_then = contents(&wal);
    wal.shutdown().expect("a simulated disk");
    drop(wal);
    // A second start finds what the first one had.
    let shared: Arc<dyn Disk> = Arc::new(disk);
    let (again, _) = Wal::open_inline(shared, Path::new(DIR), options.clone()).expect("an orderly stop");
    assert_eq!(contents(&again), held_then);
    // And so does a start from the same files.
    let shared: Arc<dyn Disk> = Arc::new(before);
    let (twin, _) = Wal::open_inline(shared, Path::new(DIR), options).expect("it opened before");
    assert_eq!(contents(&twin), held);
}

/// Everything that can be asked, as text.
fn contents(wal: &Wal) -> Vec<String> {
    let mut found = Vec::new();
    for group in wal.groups() {
        let state = wal.group(group);
        found.push(format!("{group} {state:?}"));
        for from in [state.and_then(|state| state.first).unwrap_or_default(), LogIndex::new(0)] {
            found.push(format!("{:?}", wal.read(group, from..LogIndex::new(u64::MAX), usize::MAX)));
        }
        let _ = (wal.watermarks(group), wal.position(group, LogIndex::new(3)));
    }
    let _ = (wal.pinned_groups().len(), wal.stats());
    found
}

/// What a node does first: it appends to what is there.
fn use_it(wal: &Wal) {
    for group in wal.groups().into_iter().chain([GroupId::new(1_000)]) {
        let next = wal.watermarks(group).accepted.map_or(LogIndex::new(1), LogIndex::next);
        if !next.is_countable() {
            continue;
        }
        let entry = WalEntry { index: next, term: Term::new(9), kind: 1, payload: Bytes::from_static(b"new") };
        wal.append(AppendBatch { group, entries: vec![entry], need: Need::Synced, done: Box::new(|_| {}) });
    }
    wal.drive();
}
