use super::damage::{files, filled};
use super::*;

#[test]
fn closed_blocks_are_taken_by_their_index() {
    for log in [StoreLog::Wal, StoreLog::Own] {
        let disk = filled(log);
        let (whole, ..) = open(&disk.fork(), options(log)).unwrap();
        let indexes = files(&disk, "idx").len();
        assert!(indexes > 1);
        let (store, taken) = open_by_index(&disk, options(log)).unwrap();
        assert_eq!(taken, indexes);
        assert_eq!(contents(&store), contents(&whole));
        assert_eq!(store.frames.len(), whole.frames.len());
    }
}

#[test]
fn an_index_that_is_gone_torn_or_flipped_costs_a_reading_and_is_written_again() {
    let disk = filled(StoreLog::Wal);
    let (path, len) = files(&disk, "idx")[0].clone();
    let (whole, indexes) = open_by_index(&disk.fork(), options(StoreLog::Wal)).unwrap();
    let check = |spoil: &dyn Fn(&SimDisk)| {
        let spoiled = disk.fork();
        spoil(&spoiled);
        let (store, taken) = open_by_index(&spoiled, options(StoreLog::Wal)).unwrap();
        assert_eq!((taken, contents(&store)), (indexes - 1, contents(&whole)));
        let (store, taken) = open_by_index(&spoiled, options(StoreLog::Wal)).unwrap();
        assert_eq!((taken, contents(&store)), (indexes, contents(&whole)));
    };
    check(&|disk| disk.remove(&path).unwrap());
    for short in 0..len {
        check(&|disk| disk.open(&path).unwrap().set_len(short).unwrap());
        check(&|disk| disk.flip_bit(&path, short, (short % 8) as u8));
    }
    // Of another block.
    check(&|disk| {
        let other = crate::disk::read_file(disk, &files(disk, "idx")[1].0).unwrap();
        let file = disk.open(&path).unwrap();
        file.set_len(0).unwrap();
        file.write_at(0, &other).unwrap();
    });
}

#[test]
fn an_index_does_not_stand_for_a_block_that_is_gone_short_or_anothers() {
    let disk = filled(StoreLog::Wal);
    let (path, len) = files(&disk, "blk")[0].clone();
    let refused = |spoil: &dyn Fn(&SimDisk)| {
        let spoiled = disk.fork();
        spoil(&spoiled);
        let error = open_by_index(&spoiled, options(StoreLog::Wal)).err().expect("must not open");
        assert!(error.to_string().contains("0000000001.blk"), "{error}");
    };
    refused(&|disk| disk.remove(&path).unwrap());
    refused(&|disk| disk.open(&path).unwrap().set_len(len - 1).unwrap());
    for at in 0..44 {
        refused(&|disk| disk.flip_bit(&path, at, 1));
    }
}

/// What a start does not read any more is found when it is read: never served, never passed over as absent.
#[test]
fn a_flip_in_a_block_that_was_taken_by_its_index_is_met_when_it_is_read() {
    let disk = filled(StoreLog::Wal);
    let (path, _) = files(&disk, "blk")[0].clone();
    disk.flip_bit(&path, 4096 + 300, 0);
    let (store, _) = open_by_index(&disk, options(StoreLog::Wal)).unwrap();
    assert_eq!(store.record(seq(1)).unwrap_err().seq, seq(1));
    assert!(store.take_damage().expect("reported").to_string().contains("0000000001.blk"));
}

#[test]
fn an_index_goes_with_its_block_and_never_stays_behind() {
    let disk = filled(StoreLog::Wal);
    let (mut store, _) = open_by_index(&disk, options(StoreLog::Wal)).unwrap();
    let before = files(&disk, "idx").len();
    store.drop_before(seq(25));
    store.push(index(41), messages(41, 41, 1, 600));
    assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(41))));
    let numbers = |extension| -> Vec<_> {
        files(&disk, extension).into_iter().filter_map(|(path, _)| path.file_stem().map(ToOwned::to_owned)).collect()
    };
    assert!(numbers("idx").len() < before);
    assert!(numbers("idx").iter().all(|number| numbers("blk").contains(number)));
    let orphan = dir().join("blocks/0000000099.idx");
    disk.create(&orphan).unwrap();
    open_by_index(&disk, options(StoreLog::Wal)).unwrap();
    assert!(disk.open(&orphan).is_err(), "it belongs to no block");
}
