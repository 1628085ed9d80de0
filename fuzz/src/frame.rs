//! Frames, and the scan for the next one.

use bytes::Bytes;
use headwater_core::frame::{
    Frame, FrameBuilder, FrameKind, FrameScan, HEADER_LEN, OwnedRecord, RECORD_HEADER_LEN, RecordFlags, scan,
};
use headwater_core::ids::{Ordinal, StreamId, StreamSeq, Term, Timestamp};

use crate::input::Input;
use crate::sample;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    sample::frames()
        .iter()
        .flat_map(|frame| [[&[0][..], &frame[..]].concat(), [&[1][..], &frame[..]].concat()])
        .collect()
}

/// The bytes with the checksums, and the length, that a frame of these records would have; as far as it has any.
pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    if frame.len() < HEADER_LEN {
        return frame;
    }
    let u32_at =
        |frame: &[u8], at: usize| frame.get(at..at + 4).map(|raw| u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]));
    let len = frame.len() as u32;
    frame[0..4].copy_from_slice(&len.to_le_bytes());
    frame[8] = 1;
    (frame[11], frame[12], frame[13], frame[14], frame[15]) = (0, 0, 0, 0, 0);
    let count = u32_at(&frame, 56).unwrap_or(0).min(len / 4);
    let table = (len - count * 4).max(HEADER_LEN as u32) as usize;
    frame[60..64].copy_from_slice(&(table as u32).to_le_bytes());
    let (mut at, mut crcs) = (HEADER_LEN, Vec::new());
    for nth in 0..count as usize {
        let Some(record_len) = u32_at(&frame, at + 4).map(|len| len as usize) else { break };
        let fits = record_len >= RECORD_HEADER_LEN && at.checked_add(record_len).is_some_and(|end| end <= table);
        if !fits {
            break;
        }
        let entry = table + 4 * nth;
        if entry + 4 <= frame.len() {
            frame[entry..entry + 4].copy_from_slice(&(at as u32).to_le_bytes());
        }
        let crc = crc32c::crc32c(&frame[at + 4..at + record_len]).to_le_bytes();
        frame[at..at + 4].copy_from_slice(&crc);
        crcs.extend_from_slice(&crc);
        at += record_len;
    }
    let crc = crc32c::crc32c(&frame[8..HEADER_LEN]);
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &crcs), &frame[table.min(frame.len())..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// A frame that a builder makes of an input: valid in form, whatever it says.
pub(crate) fn built(input: &mut Input<'_>, stream: StreamId) -> Bytes {
    let kind = FrameKind::from_u8(input.u8() % 10).unwrap_or(FrameKind::Messages);
    let (term, ordinal) = (Term::new(input.number()), Ordinal::new(input.number()));
    let base_seq = StreamSeq::new(input.number().min(u64::MAX - 64));
    let base_ts = Timestamp::new(input.number());
    let mut builder = FrameBuilder::new(kind, stream, term, ordinal, base_seq, base_ts);
    for _ in 0..input.u8() % 6 {
        let ts = base_ts.plus_ns(u64::from(input.u16()));
        let (flags, subject, headers, payload) = (input.u8(), input.part(), input.part(), input.part());
        let _ = builder.push_message(ts, subject, headers, payload, RecordFlags::from_bits(flags));
    }
    builder.finish()
}

fn check(bytes: Bytes) {
    let scanned = scan(&bytes);
    let parsed = Frame::parse(bytes.clone());
    let Ok(frame) = parsed else {
        assert!(scanned != FrameScan::Complete(bytes.len()), "the scan and the parser disagree");
        // What is only taken on trust must not panic either: blocks are read so.
        if let Ok(trusted) = Frame::parse_trusted(bytes) {
            walk(&trusted);
        }
        return;
    };
    assert_eq!(scanned, FrameScan::Complete(bytes.len()));
    let header = frame.header();
    assert_eq!(walk(&frame), header.count);
    let mut rebuilt =
        FrameBuilder::new(header.kind, header.stream, header.term, header.ordinal, header.base_seq, header.base_ts);
    for (i, record) in (0..).zip(frame.records()) {
        let (subject, headers, payload) = (record.subject(), record.headers(), record.payload());
        rebuilt.push_message(record.ts, subject, headers, payload, record.flags).expect("it fitted before");
        let owned = frame.owned_record(i).expect("every record of a checked frame");
        assert_eq!((owned.seq(), owned.ts(), owned.subject()), (record.seq, record.ts, subject));
        assert_eq!(owned.body_with_crlf(), record.body_with_crlf());
        let alone = OwnedRecord::from_parts(owned.bytes().clone(), header.base_seq, header.base_ts).expect("checked");
        assert_eq!(alone.payload(), payload);
        assert!(frame.by_seq(record.seq).is_some());
    }
    let rebuilt = Frame::parse(rebuilt.finish()).expect("built");
    assert!(frame.records().map(|r| (r.seq, r.ts)).eq(rebuilt.records().map(|r| (r.seq, r.ts))));
}

fn walk(frame: &Frame) -> u32 {
    let mut count = 0;
    for record in frame.records() {
        let len = record.subject().len() + record.headers().len() + record.payload().len();
        assert!(len <= frame.bytes().len());
        let _ = (record.check_crc(), record.body_with_crlf().len(), frame.by_seq(record.seq).is_some());
        count += 1;
    }
    for i in 0..frame.header().count.min(64) {
        let _ = frame.get(i).map(|record| record.seq);
    }
    let _ = frame.body().map(<[u8]>::len);
    count
}

pub(crate) fn run(data: &[u8]) {
    let Some((seal, bytes)) = data.split_first() else { return };
    if seal & 1 == 0 {
        check(Bytes::copy_from_slice(bytes));
    } else {
        check(sealed(bytes).into());
    }
}
