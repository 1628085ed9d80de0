use super::*;
use crate::frame::FrameBuilder;
use crate::ids::{Ordinal, Term};

fn frame(base: u64, messages: &[(&str, &[u8], RecordFlags)]) -> Frame {
    let (stream, seq, ts) = (StreamId::new(7), StreamSeq::new(base), Timestamp::new(1_000));
    let mut frame = FrameBuilder::new(FrameKind::Messages, stream, Term::new(1), Ordinal::new(base), seq, ts);
    for (subject, headers, flags) in messages {
        frame.push_message(ts, subject.as_bytes(), headers, b"payload", *flags).unwrap();
    }
    Frame::parse(frame.finish()).unwrap()
}

/// Messages 1 and 2, and 5 with a TTL of a second and an id.
fn sample() -> BlockIndex {
    let mut index = BlockIndexBuilder::new(StreamId::new(7), 3);
    let first = frame(1, &[("a.x", b"", RecordFlags::NONE), ("a.y", b"", RecordFlags::NONE)]);
    let headers = b"NATS/1.0\r\nNats-TTL: 1s\r\nNats-Msg-Id: m5\r\n\r\n";
    let second = frame(5, &[("a.x", headers, RecordFlags::HAS_TTL.with(RecordFlags::HAS_MSG_ID))]);
    index.add(4096, &first);
    index.add(4096 + first.header().len, &second);
    index.finish(4096 + u64::from(first.header().len + second.header().len)).unwrap()
}

#[test]
fn golden() {
    let page = include_str!("../../../../../docs/formats/block-index.md");
    let bytes = sample().encode();
    let shown = crate::stream::image::tests::example(page, "Example");
    assert_eq!(shown, bytes, "docs/formats/block-index.md shows other bytes than {bytes:02x?}");
    assert_eq!(BlockIndex::decode(&bytes).unwrap(), sample());
}

#[test]
fn what_is_cut_or_flipped_is_refused() {
    let bytes = sample().encode();
    for end in 0..bytes.len() {
        BlockIndex::decode(&bytes[..end]).unwrap_err();
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        BlockIndex::decode(&flipped).unwrap_err();
    }
}

/// A right checksum over nonsense: refused or read, never a panic, and never more memory than the bytes.
#[test]
fn nonsense_under_a_right_crc_does_no_harm() {
    let bytes = sample().encode();
    let body = bytes.len() - 4;
    for at in 0..body {
        for value in [0, 0x7f, 0x80, 0xff] {
            let mut wrong = bytes[..body].to_vec();
            wrong[at] = value;
            let crc = crc32c::crc32c(&wrong);
            wrong.extend_from_slice(&crc.to_le_bytes());
            if let Ok(index) = BlockIndex::decode(&wrong) {
                assert!(index.message_count() <= wrong.len() && index.frames().len() <= wrong.len());
            }
        }
    }
}

#[test]
fn frames_in_bytes_give_the_same_index_as_one_by_one() {
    let first = frame(1, &[("a.x", b"", RecordFlags::NONE)]);
    let second = frame(2, &[("a.y", b"", RecordFlags::NONE)]);
    let mut index = BlockIndexBuilder::new(StreamId::new(7), 3);
    index.add(4096, &first);
    index.add(4096 + first.header().len, &second);
    let bytes = Bytes::from([&first.bytes()[..], &second.bytes()[..]].concat());
    let end = 4096 + bytes.len() as u64;
    assert_eq!(BlockIndex::of_frames(StreamId::new(7), 3, 4096, &bytes), index.finish(end));
    assert_eq!(BlockIndex::of_frames(StreamId::new(8), 3, 4096, &bytes), None, "of another stream");
    assert_eq!(BlockIndex::of_frames(StreamId::new(7), 3, 4096, &bytes.slice(1..)), None, "no frames");
}

#[test]
fn sequences_that_go_back_have_no_index() {
    let mut index = BlockIndexBuilder::new(StreamId::new(7), 3);
    let (first, second) = (frame(5, &[("a", b"", RecordFlags::NONE)]), frame(5, &[("a", b"", RecordFlags::NONE)]));
    index.add(4096, &first);
    index.add(5000, &second);
    assert_eq!(index.finish(6000), None);
}
