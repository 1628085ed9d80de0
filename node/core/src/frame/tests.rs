use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn sample() -> Bytes {
    let mut frame = FrameBuilder::new(
        FrameKind::Messages,
        StreamId::new(7),
        Term::new(3),
        Ordinal::new(9),
        StreamSeq::new(41),
        Timestamp::new(1_000),
    );
    frame.push_message(Timestamp::new(1_000), b"a.b", b"", b"hi", RecordFlags::NONE).unwrap();
    frame
        .push_message(
            Timestamp::new(1_005),
            b"a.c",
            b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n",
            b"",
            RecordFlags::HAS_MSG_ID,
        )
        .unwrap();
    assert_eq!(frame.count(), 2);
    let len = frame.len();
    let bytes = frame.finish();
    assert_eq!(bytes.len(), len);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn the_layout_is_these_bytes() {
    let bytes = sample();
    let expected = concat!(
        "@len",
        "@crc",
        "01000100",
        "00000000",
        "0700000000000000",
        "0300000000000000",
        "0900000000000000",
        "2900000000000000",
        "e803000000000000",
        "02000000",
        "@tab",
    );
    let expected = expected
        .replace("@len", &hex(&160u32.to_le_bytes()))
        .replace("@tab", &hex(&152u32.to_le_bytes()))
        .replace("@crc", GOLDEN_FRAME_CRC);
    assert_eq!(hex(&bytes[..HEADER_LEN]), expected);
    // crc | len 31 | seq_delta 0 | ts_delta 0 | subject 3 | flags 0 | 0 | hdr 0 | a.b hi CRLF
    assert_eq!(
        hex(&bytes[64..95]),
        format!("{GOLDEN_RECORD_CRC}1f000000000000000000000003000000{}612e6268690d0a", "00000000")
    );
    assert_eq!(bytes[95 + 18], RecordFlags::HAS_MSG_ID.bits());
    assert_eq!(hex(&bytes[152..]), "400000005f000000");
}

// Computed once with an independent CRC32C implementation over the ranges the table states.
const GOLDEN_FRAME_CRC: &str = "f5fe8088";
const GOLDEN_RECORD_CRC: &str = "6d716dbf";

#[test]
fn what_was_pushed_comes_back() {
    let frame = Frame::parse(sample()).unwrap();
    let header = frame.header();
    assert_eq!((header.kind, header.count), (FrameKind::Messages, 2));
    assert_eq!((header.stream.get(), header.term.get(), header.ordinal.get()), (7, 3, 9));
    let second = frame.record(1);
    assert_eq!((second.seq.get(), second.ts.get()), (42, 1_005));
    assert_eq!(second.subject(), b"a.c");
    assert_eq!(second.headers(), b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n");
    assert_eq!(second.payload(), b"");
    assert!(second.body_with_crlf().ends_with(b"\r\n\r\n\r\n"));
    assert!(second.flags.has(RecordFlags::HAS_MSG_ID));
    let owned = frame.owned_record(0).unwrap();
    assert_eq!(owned.payload(), b"hi");
    assert_eq!(owned.body_with_crlf(), &b"hi\r\n"[..]);
    let alone = OwnedRecord::from_parts(owned.bytes().clone(), header.base_seq, header.base_ts);
    assert_eq!(alone.unwrap().seq().get(), 41);
    assert_eq!(frame.records().map(|r| r.seq.get()).collect::<Vec<_>>(), [41, 42]);
    assert_eq!(frame.by_seq(StreamSeq::new(42)).unwrap().subject(), b"a.c");
    assert!(frame.by_seq(StreamSeq::new(43)).is_none());
    assert!(frame.by_seq(StreamSeq::new(40)).is_none());
}

#[test]
fn a_record_later_than_the_frame_can_say_is_refused() {
    let mut frame = FrameBuilder::new(
        FrameKind::Messages,
        StreamId::new(1),
        Term::new(1),
        Ordinal::new(1),
        StreamSeq::FIRST,
        Timestamp::ZERO,
    );
    let late = Timestamp::new(u64::from(u32::MAX) + 1);
    assert_eq!(frame.push_message(late, b"a", b"", b"", RecordFlags::NONE), Err(FrameFull::TooOld));
    let long = vec![b'a'; 70_000];
    assert_eq!(
        frame.push_message(Timestamp::ZERO, &long, b"", b"", RecordFlags::NONE),
        Err(FrameFull::SubjectTooLong(70_000))
    );
    assert_eq!(frame.count(), 0);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = sample();
    for at in 0..good.len() * 8 {
        let mut bad = good.to_vec();
        bad[at / 8] ^= 1 << (at % 8);
        assert!(Frame::parse(Bytes::from(bad)).is_err(), "bit {at} flipped unnoticed");
    }
}

/// Found by fuzzing: counting goes on from a frame's numbers.
#[test]
fn numbers_that_no_counting_leads_to_are_refused() {
    let frame = |ordinal: u64, base_seq: u64| {
        let (stream, term) = (StreamId::new(7), Term::new(1));
        let (ordinal, base_seq) = (Ordinal::new(ordinal), StreamSeq::new(base_seq));
        let mut frame = FrameBuilder::new(FrameKind::Messages, stream, term, ordinal, base_seq, Timestamp::ZERO);
        frame.push_message(Timestamp::ZERO, b"a", b"", b"", RecordFlags::NONE).unwrap();
        Frame::parse(frame.finish()).map(|frame| frame.record(0).seq)
    };
    let most = u64::MAX / 2;
    assert_eq!(frame(most, most), Ok(StreamSeq::new(most)));
    for beyond in [most + 1, u64::MAX] {
        assert_eq!(frame(beyond, 1), Err(FrameError::Numbers));
        assert_eq!(frame(1, beyond), Err(FrameError::Numbers));
    }
}

#[test]
fn a_scan_tells_torn_from_corrupt() {
    let mut bytes = sample().to_vec();
    let len = bytes.len();
    for cut in 0..len {
        assert_eq!(scan(&bytes[..cut]), FrameScan::Torn, "cut at {cut}");
    }
    bytes.extend_from_slice(&[0; 80]);
    assert_eq!(scan(&bytes), FrameScan::Complete(len));
    assert_eq!(scan(&bytes[len..]), FrameScan::Torn);
    bytes[100] ^= 1;
    assert!(matches!(scan(&bytes), FrameScan::Corrupt { skip: Some(n), .. } if n == len));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), fix in any::<bool>()) {
        if fix && bytes.len() >= HEADER_LEN {
            let len = bytes.len() as u32;
            bytes[0..4].copy_from_slice(&len.to_le_bytes());
            bytes[8..16].copy_from_slice(&[1, 0, 1, 0, 0, 0, 0, 0]);
            bytes[56..60].copy_from_slice(&1u32.to_le_bytes());
            bytes[60..64].copy_from_slice(&(len.saturating_sub(4)).to_le_bytes());
        }
        let _scan = scan(&bytes);
        if let Ok(frame) = Frame::parse_trusted(Bytes::from(bytes)) {
            for i in 0..frame.header().count.min(8) {
                let _record = frame.get(i).map(|r| (r.subject(), r.headers(), r.payload()));
            }
            assert!(frame.records().count() <= 80);
        }
    }
}
