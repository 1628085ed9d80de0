use super::*;
use crate::disk::{publish, read_file};

fn disk_with(path: &Path, bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir_all(Path::new("/d")).unwrap();
    publish(&disk, path, bytes).unwrap();
    disk
}

#[test]
fn unsynced_bytes_are_lost_and_synced_ones_kept() {
    let path = Path::new("/d/f");
    let disk = disk_with(path, b"kept");
    let file = disk.open(path).unwrap();
    file.write_at(0, b"lost").unwrap();
    assert_eq!(read_file(&disk, path).unwrap(), b"lost");
    disk.crash(0);
    assert_eq!(read_file(&disk, path).unwrap(), b"kept");
    assert!(file.write_at(0, b"dead").is_err(), "a handle does not outlive the crash");
}

#[test]
fn a_name_without_directory_sync_can_vanish_and_can_stay() {
    let mut seen = BTreeSet::new();
    for seed in 0..16 {
        let disk = SimDisk::new();
        disk.create_dir_all(Path::new("/d")).unwrap();
        disk.create(Path::new("/d/f")).unwrap().sync_data().unwrap();
        disk.crash(seed);
        seen.insert(disk.open(Path::new("/d/f")).is_ok());
    }
    assert_eq!(seen, BTreeSet::from([false, true]));
}

#[test]
fn a_torn_write_mixes_old_and_new_sectors() {
    let path = Path::new("/d/f");
    let mixed = (0..64).any(|seed| {
        let disk = disk_with(path, &[1; 4096]);
        disk.open(path).unwrap().write_at(0, &[2; 4096]).unwrap();
        disk.crash(seed);
        let bytes = read_file(&disk, path).unwrap();
        assert!(bytes.chunks(SECTOR_BYTES).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        bytes.contains(&1) && bytes.contains(&2)
    });
    assert!(mixed);
}

#[test]
fn a_sync_that_failed_once_loses_the_bytes_even_if_the_next_one_succeeds() {
    let path = Path::new("/d/f");
    let disk = disk_with(path, b"old!");
    let file = disk.open(path).unwrap();
    file.write_at(0, b"new!").unwrap();
    disk.fail_op(0, Fault::Eio);
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    disk.crash(0);
    assert_eq!(read_file(&disk, path).unwrap(), b"old!");
}

#[test]
fn publish_is_old_or_new_at_every_stop_and_every_crash() {
    let path = Path::new("/d/f");
    let old = vec![1; 2000];
    let new = vec![2; 3000];
    for stop in 0.. {
        let disk = disk_with(path, &old);
        disk.stop_after(stop);
        let result = publish(&disk, path, &new);
        for seed in 0..32 {
            let crashed = disk.fork();
            crashed.crash(seed);
            let found = read_file(&crashed, path).unwrap();
            assert!(found == old || found == new, "stop {stop} seed {seed}");
            if result.is_ok() {
                assert_eq!(found, new, "stop {stop} seed {seed}");
            }
        }
        if result.is_ok() {
            break;
        }
    }
}

#[test]
fn a_full_disk_refuses_growth_but_not_overwrites() {
    let path = Path::new("/d/f");
    let disk = disk_with(path, b"1234");
    disk.set_full(true);
    let file = disk.open(path).unwrap();
    file.write_at(0, b"5678").unwrap();
    let error = file.write_at(4, b"9").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_removed_folder_takes_nothing_of_its_successor_with_it() {
    let (dir, path) = (Path::new("/d/s"), Path::new("/d/s/f"));
    let disk = disk_with(Path::new("/d/g"), b"");
    disk.create_dir_all(dir).unwrap();
    publish(&disk, path, b"old").unwrap();
    disk.remove_dir_all(dir).unwrap();
    disk.create_dir_all(dir).unwrap();
    publish(&disk, path, b"new").unwrap();
    disk.rename(dir, Path::new("/d/t")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    disk.crash(0);
    assert_eq!(read_file(&disk, Path::new("/d/t/f")).unwrap(), b"new");
}
