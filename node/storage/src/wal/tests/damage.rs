use super::*;

/// A closed log of two groups over several segments.
fn closed_log() -> SimDisk {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    for raw in 1..=30 {
        append(&wal, 1, vec![entry(1, raw, 1, 300)], Need::Synced);
        append(&wal, 2, vec![entry(2, raw, 1, 600)], Need::Memory);
        wal.drive();
    }
    wal.vote(group(1), Bytes::from_static(b"vote"), Box::new(|_| {}));
    wal.shutdown().unwrap();
    disk
}

fn holds_everything(disk: &SimDisk) -> bool {
    let (wal, _) = open(disk);
    read_all(&wal, 1) == (1..=30).map(|raw| entry(1, raw, 1, 300)).collect::<Vec<_>>()
        && read_all(&wal, 2) == (1..=30).map(|raw| entry(2, raw, 1, 600)).collect::<Vec<_>>()
        && wal.group(group(1)).unwrap().vote == Some(Bytes::from_static(b"vote"))
}

#[test]
fn after_a_clean_stop_every_flipped_bit_is_corruption_or_harmless() {
    let disk = closed_log();
    let segments = Wal::scan(&disk, &dir(), LastStop::PowerLost).unwrap().segments;
    assert!(segments.len() > 2);
    let mut corrupt = 0;
    for segment in &segments {
        let path = segment::path(&dir(), segment.segment);
        // Every header byte, and a spread of places in the records.
        let places = (0..48).chain((4096..segment.end + 64).step_by(13)).filter(|at| *at < segment.len);
        for at in places {
            let flipped = disk.fork();
            flipped.flip_bit(&path, at, (at % 8) as u8);
            let scan = Wal::scan(&flipped, &dir(), LastStop::PowerLost).unwrap();
            match scan.end {
                ScanEnd::Corrupt(damage) => {
                    corrupt += 1;
                    assert_eq!(damage.path, path);
                    assert!(damage.offset <= at, "found at {}, flipped {at}", damage.offset);
                    let before = flipped.ops();
                    let error = Wal::open_inline(Arc::new(flipped.clone()), &dir(), small()).err();
                    assert!(matches!(error, Some(WalError::Corrupt(_))));
                    assert!(flipped.ops() <= before + 1, "a damaged log is left alone");
                }
                ScanEnd::Clean | ScanEnd::TornTail { .. } => {
                    assert!(holds_everything(&flipped), "{} at {at} lost something silently", path.display());
                }
            }
        }
    }
    assert!(corrupt > 500, "{corrupt}");
}

#[test]
fn a_torn_tail_is_cut_and_what_lay_behind_it_stays_dead() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, vec![entry(1, 1, 1, 40)], Need::Synced);
    wal.drive();
    // Not synced: a power loss may keep the later ones and lose the earlier.
    append(&wal, 1, (2..=9).map(|raw| entry(1, raw, 1, 40)).collect(), Need::Written);
    wal.drive_write();
    let end = Wal::scan(&disk, &dir(), LastStop::PowerLost).unwrap().segments[0].end;
    disk.flip_bit(&segment::path(&dir(), SegmentSeq::FIRST), end - 8 * 96 + 60, 1);
    disk.kill();
    let kept = LastStop::PageCacheKept;
    let scan = Wal::scan(&disk, &dir(), kept).unwrap();
    assert!(matches!(scan.end, ScanEnd::Corrupt(_)), "a killed process leaves a prefix: {:?}", scan.end);
    let (wal, scan) = open(&disk);
    assert!(matches!(scan.end, ScanEnd::TornTail { later_records: true, .. }), "{:?}", scan.end);
    assert_eq!(read_all(&wal, 1), [entry(1, 1, 1, 40)]);
    // Records of the same sizes as the torn ones, as unlucky as can be.
    append(&wal, 1, vec![entry(1, 2, 2, 40)], Need::Synced);
    wal.drive();
    disk.crash(0);
    let (wal, scan) = open(&disk);
    assert_eq!(scan.end, ScanEnd::Clean);
    assert_eq!(read_all(&wal, 1), [entry(1, 1, 1, 40), entry(1, 2, 2, 40)]);
}

#[test]
fn a_missing_segment_is_corruption() {
    let disk = closed_log();
    let segments = Wal::scan(&disk, &dir(), LastStop::PowerLost).unwrap().segments;
    let middle = &segments[segments.len() / 2];
    disk.remove(&segment::path(&dir(), middle.segment)).unwrap();
    let scan = Wal::scan(&disk, &dir(), LastStop::PowerLost).unwrap();
    let ScanEnd::Corrupt(damage) = scan.end else { panic!("{:?}", scan.end) };
    assert_eq!(damage.segment, middle.segment);
}

#[test]
fn a_shortened_segment_is_corruption() {
    let disk = closed_log();
    for segment in Wal::scan(&disk, &dir(), LastStop::PowerLost).unwrap().segments {
        for keep in [4096, segment.end, segment.len - 1] {
            let cut = disk.fork();
            let path = segment::path(&dir(), segment.segment);
            let file = cut.open(&path).unwrap();
            file.set_len(keep).unwrap();
            match Wal::scan(&cut, &dir(), LastStop::PowerLost).unwrap().end {
                ScanEnd::Corrupt(damage) => assert_eq!((damage.path, damage.offset), (path, keep)),
                end => panic!("segment {} cut to {keep}: {end:?}", segment.segment),
            }
        }
    }
}

#[test]
fn a_damaged_record_read_later_is_reported_not_returned() {
    let disk = closed_log();
    let (wal, scan) = open(&disk);
    let path = segment::path(&dir(), scan.segments[0].segment);
    disk.flip_bit(&path, 4096 + 60, 0);
    let error = wal.read(group(1), index(1)..index(2), usize::MAX).unwrap_err();
    assert!(matches!(error, WalReadError::Damaged(_)), "{error}");
    assert!(error.to_string().contains("0000000001.wal"), "{error}");
}
