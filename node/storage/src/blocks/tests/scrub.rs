use super::damage::filled;
use super::*;
use crate::blocks::scrub::{Scrubbed, scrub_block};
use crate::checkpoint::BlockExtent;

fn extents(disk: &SimDisk) -> Vec<BlockExtent> {
    Checkpoint::load(disk, &dir()).unwrap().unwrap().blocks
}

fn scrub(disk: &SimDisk, extent: BlockExtent) -> Result<Scrubbed, FileError> {
    scrub_block(disk, &dir(), STREAM, extent, &mut |_| true)
}

fn block_path(extent: BlockExtent) -> PathBuf {
    format::path(&dir().join("blocks"), extent.block)
}

#[test]
fn whole_blocks_are_read_once_and_no_further_than_the_checkpoint() {
    for log in [StoreLog::Wal, StoreLog::Own] {
        let disk = filled(log);
        assert!(extents(&disk).len() > 2);
        for extent in extents(&disk) {
            let mut paced = 0;
            let scrubbed = scrub_block(&disk, &dir(), STREAM, extent, &mut |bytes| {
                paced += bytes;
                true
            });
            assert_eq!((scrubbed.unwrap(), paced), (Scrubbed::Whole, extent.valid_bytes));
        }
    }
}

#[test]
fn frames_over_the_ends_of_reads_and_longer_than_one_are_whole_or_named() {
    let disk = SimDisk::new();
    let large = StoreOptions { block_bytes_max: 4 << 20, ..StoreOptions::new(StoreLog::Wal) };
    let (mut store, _, _) = open(&disk, large).unwrap();
    let lens = [100_000, 100_000, 100_000, 700_000, 90];
    let mut ends = vec![HEADER_PAGE];
    for (n, len) in (1..).zip(lens) {
        let frame = messages(n, n, 1, len);
        ends.push(ends[n as usize - 1] + frame.bytes().len() as u64);
        store.push(index(n), frame);
    }
    assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(5))));
    let [extent] = extents(&disk)[..] else { panic!("one block") };
    assert_eq!(scrub(&disk, extent).unwrap(), Scrubbed::Whole);
    for pair in ends.windows(2) {
        for at in [pair[0], pair[0] + 50, pair[1] - 1] {
            let flipped = disk.fork();
            flipped.flip_bit(&block_path(extent), at, 1);
            let error = scrub(&flipped, extent).unwrap_err();
            assert!(matches!(error, FileError::Damaged { offset, .. } if offset == pair[0]), "{at}: {error}");
        }
    }
}

#[test]
fn every_flipped_bit_below_the_checkpoint_is_named() {
    for log in [StoreLog::Wal, StoreLog::Own] {
        let disk = filled(log);
        for extent in extents(&disk) {
            for at in (0..44).chain((HEADER_PAGE..extent.valid_bytes).step_by(11)) {
                let flipped = disk.fork();
                flipped.flip_bit(&block_path(extent), at, (at % 8) as u8);
                match scrub(&flipped, extent) {
                    Err(FileError::Damaged { path, offset, .. }) => {
                        assert_eq!(path, block_path(extent));
                        assert!(offset <= at, "flipped {at}, named {offset}");
                    }
                    other => panic!("at {at}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_cut_or_missing_block_that_is_still_listed_is_damage() {
    let disk = filled(StoreLog::Wal);
    for extent in extents(&disk) {
        for len in (0..extent.valid_bytes).step_by(97) {
            let cut = disk.fork();
            cut.open(&block_path(extent)).unwrap().set_len(len).unwrap();
            let error = scrub(&cut, extent).unwrap_err();
            assert!(matches!(&error, FileError::Damaged { offset, .. } if *offset <= len), "{len}: {error}");
        }
        let missing = disk.fork();
        missing.remove(&block_path(extent)).unwrap();
        assert!(scrub(&missing, extent).unwrap_err().to_string().contains("no file"));
    }
}

#[test]
fn what_went_away_is_no_damage() {
    let disk = filled(StoreLog::Wal);
    let before = extents(&disk);
    // The stream drops its first block.
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    let accepted = store.accepted().unwrap().get();
    store.drop_before(seq(20));
    assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(accepted))));
    assert!(disk.open_read(&block_path(before[0])).is_err());
    assert_eq!(scrub(&disk, before[0]).unwrap(), Scrubbed::Gone);
    // Its folder goes.
    remove_stream(&disk, &dir()).unwrap();
    assert_eq!(scrub(&disk, before[1]).unwrap(), Scrubbed::Gone);
}

#[test]
fn it_ends_when_told_to() {
    let disk = filled(StoreLog::Wal);
    let mut reads = 0;
    let stopped = scrub_block(&disk, &dir(), STREAM, extents(&disk)[0], &mut |_| {
        reads += 1;
        reads < 2
    });
    assert_eq!((stopped.unwrap(), reads), (Scrubbed::Stopped, 2));
}
