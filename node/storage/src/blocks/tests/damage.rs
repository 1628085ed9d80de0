use super::*;

/// A store of several blocks, the last operations beyond its checkpoint.
pub(super) fn filled(log: StoreLog) -> SimDisk {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(log)).unwrap();
    for n in 1..=40 {
        store.push(index(n), messages(n, n, 1, 600));
        let (want, image) = if n == 30 { (FlushWant::Checkpoint, Some(image(30))) } else { (FlushWant::Sync, None) };
        assert!(run(&mut store, &disk, want, image));
    }
    disk
}

fn block_files(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    files(disk, "blk")
}

/// The files of the blocks' folder with this extension, and their lengths.
pub(super) fn files(disk: &SimDisk, extension: &str) -> Vec<(PathBuf, u64)> {
    let blocks = dir().join("blocks");
    let files = disk.list(&blocks).unwrap().into_iter().map(|entry| (blocks.join(entry.name), entry.len));
    files.filter(|(path, _)| path.extension().is_some_and(|found| found == extension)).collect()
}

/// What can be read of a store, each message with what it should be.
fn readable(store: &StreamStore) -> usize {
    let intact = |raw: &u64| match store.record(seq(*raw)) {
        Ok(Some(record)) => {
            assert_eq!(record.payload(), payload(*raw, 600));
            true
        }
        Ok(None) | Err(_) => false,
    };
    (1..=40).filter(intact).count()
}

/// Of the only copy nothing is lost but the message itself, and it is said which file is damaged where.
#[test]
fn every_flipped_bit_is_named_or_cut_beyond_what_was_synced() {
    let disk = filled(StoreLog::Own);
    let files = block_files(&disk);
    assert!(files.len() > 2);
    let (mut damaged, mut holes) = (0, 0);
    for (nth, (path, len)) in files.iter().enumerate() {
        for at in (0..44).chain(512..532).chain(1024..1044).chain((4096..*len).step_by(11)) {
            let flipped = disk.fork();
            flipped.flip_bit(path, at, (at % 8) as u8);
            match open(&flipped, options(StoreLog::Own)) {
                Err(FileError::Damaged { path: named, offset, .. }) => {
                    damaged += 1;
                    assert_eq!(&named, path);
                    assert!(offset <= at, "flipped {at}, named {offset}");
                    assert_eq!(block_files(&flipped), files, "a damaged store is left alone");
                }
                Err(error) => panic!("{error}"),
                Ok((mut store, scan, covered)) => {
                    if let Some(damage) = store.take_damage() {
                        holes += 1;
                        let FileError::Damaged { path: named, offset, .. } = damage else { panic!("{damage}") };
                        assert!(&named == path && offset <= at, "flipped {at}, named {}: {offset}", named.display());
                        assert_eq!(readable(&store), if at < HEADER_PAGE { 40 } else { 39 }, "at {at}");
                        // It goes on behind the hole.
                        store.push(index(41), messages(41, 41, 1, 600));
                        assert!(run(&mut store, &flipped, FlushWant::Checkpoint, Some(image(41))));
                        let (store, _, _) = open(&flipped, options(StoreLog::Own)).unwrap();
                        assert_eq!(store.record(seq(41)).unwrap().unwrap().payload(), payload(41, 600));
                        continue;
                    }
                    let count = covered.len() + scan.replay.len();
                    assert_eq!(contents(&store).len(), count);
                    if count < 40 {
                        // Only the very last job, whose sync no later mark tells of.
                        let torn = scan.torn.expect("a loss is reported");
                        assert_eq!((nth + 1, count), (files.len(), 39), "at {at}");
                        assert_eq!(&torn.path, path);
                    }
                }
            }
        }
    }
    assert!(damaged > 200 && holes > 500, "{damaged} {holes}");
}

#[test]
fn the_only_copy_goes_on_around_what_is_cut_off_or_gone() {
    let disk = filled(StoreLog::Own);
    let files = block_files(&disk);
    let listed = Checkpoint::load(&disk, &dir()).unwrap().unwrap().blocks;
    let newest = listed.len() - 1;
    for (nth, extent) in listed.iter().enumerate() {
        for len in (HEADER_PAGE..extent.valid_bytes).step_by(53) {
            let cut = disk.fork();
            cut.open(&files[nth].0).unwrap().set_len(len).unwrap();
            let (mut store, _, _) = open(&cut, options(StoreLog::Own)).unwrap();
            assert!(store.take_damage().expect("said").to_string().contains("is damaged at offset"));
            let left = readable(&store);
            assert!(left < 40 && left + 12 > 40, "block {nth} cut at {len}: {left}");
            store.push(index(41), messages(41, 41, 1, 600));
            assert!(run(&mut store, &cut, FlushWant::Checkpoint, Some(image(41))));
            let (store, _, _) = open(&cut, options(StoreLog::Own)).unwrap();
            assert_eq!(readable(&store), left);
            assert!(store.record(seq(41)).unwrap().is_some());
        }
    }
    // A block that takes no more frames may be missing: its index says what it had.
    let missing = disk.fork();
    missing.remove(&files[0].0).unwrap();
    let (store, _, _) = open(&missing, options(StoreLog::Own)).unwrap();
    assert!(store.take_damage().is_some() && store.record(seq(1)).is_err());
    assert_eq!(store.outline(seq(1)).unwrap().payload_len, payload(1, 600).len());
    for without in [&files[newest].0, &files[files.len() - 2].0] {
        let missing = disk.fork();
        missing.remove(without).unwrap();
        assert!(open(&missing, options(StoreLog::Own)).is_err(), "what came last is not known without it");
    }
}

#[test]
fn a_missing_or_short_block_of_a_replica_is_damage() {
    let disk = filled(StoreLog::Wal);
    let (first, _) = block_files(&disk)[0].clone();
    let missing = disk.fork();
    missing.remove(&first).unwrap();
    let error = open(&missing, options(StoreLog::Wal)).err().expect("must not open");
    assert!(error.to_string().contains("no file"), "{error}");
    let short = disk.fork();
    short.open(&first).unwrap().set_len(5000).unwrap();
    let error = open(&short, options(StoreLog::Wal)).err().expect("must not open");
    assert!(matches!(error, FileError::Damaged { offset: 5000, .. }), "{error}");
}

#[test]
fn another_streams_block_is_damage() {
    let disk = filled(StoreLog::Wal);
    let mut visit = Covered::default();
    let checkpoint = Checkpoint::load(&disk, &dir()).unwrap().unwrap();
    let other = StreamId::new(8);
    let error =
        StreamStore::open(Arc::new(disk.clone()), &dir(), other, options(StoreLog::Wal), Some(&checkpoint), &mut visit);
    assert!(error.err().expect("must not open").to_string().contains("stream 8"));
    let (path, _) = block_files(&disk)[0].clone();
    disk.open(&path).unwrap().write_at(0, &format::header(other, BlockNumber::FIRST)).unwrap();
    assert!(open(&disk, options(StoreLog::Wal)).is_err());
}

#[test]
fn damage_met_while_reading_is_an_error_and_reported() {
    let disk = filled(StoreLog::Wal);
    let (store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    let (path, _) = block_files(&disk)[0].clone();
    disk.flip_bit(&path, 4096 + 300, 0);
    assert_eq!(store.record(seq(1)).unwrap_err().seq, seq(1));
    let damage = store.take_damage().expect("reported");
    assert!(damage.to_string().contains("0000000001.blk"), "{damage}");
    assert!(store.record(seq(2)).unwrap().is_some(), "its neighbours can be read");
}

#[test]
fn a_torn_end_is_cut_for_good() {
    let disk = SimDisk::new();
    let own = options(StoreLog::Own);
    let (mut store, _, _) = open(&disk, own.clone()).unwrap();
    store.push(index(1), messages(1, 1, 1, 100));
    run(&mut store, &disk, FlushWant::Sync, None);
    for n in 2..=5 {
        store.push(index(n), messages(n, n, 1, 100));
    }
    run(&mut store, &disk, FlushWant::Write, None);
    let frame = messages(1, 1, 1, 100).bytes().len() as u64;
    let (path, _) = block_files(&disk)[0].clone();
    disk.flip_bit(&path, 4096 + frame + 80, 3);
    disk.kill();
    let kept = StoreOptions { last_stop: LastStop::PageCacheKept, ..own };
    assert!(open(&disk, kept).is_err(), "a killed process leaves a prefix");
    let (mut store, scan, _) = open(&disk, options(StoreLog::Own)).unwrap();
    let torn = scan.torn.expect("torn");
    assert_eq!((torn.offset, torn.later_frames), (4096 + frame, true));
    // A frame of the same length: had the later ones stayed, they would line up behind it.
    store.push(index(2), messages(12, 2, 1, 100));
    run(&mut store, &disk, FlushWant::Sync, None);
    disk.crash(0);
    let (store, scan, _) = open(&disk, options(StoreLog::Own)).unwrap();
    assert_eq!(scan.torn, None);
    assert_eq!(contents(&store), expected(1..=2, 100));
}
