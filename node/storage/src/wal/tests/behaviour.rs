use super::*;

#[test]
fn entries_can_be_read_before_they_are_written_and_after_reopening() {
    let disk = SimDisk::new();
    let (wal, scan) = open(&disk);
    assert_eq!(scan.end, ScanEnd::Clean);
    assert!(scan.groups.is_empty());
    let entries: Vec<WalEntry> = (1..=5).map(|raw| entry(7, raw, 1, 10)).collect();
    let done = append(&wal, 7, entries.clone(), Need::Synced);
    assert_eq!(read_all(&wal, 7), entries);
    assert_eq!(wal.watermarks(group(7)), WalWatermarks { accepted: Some(index(5)), written: None, synced: None });
    assert!(wal.drive_write());
    assert!(done.lock().is_none(), "written is not synced");
    assert_eq!(wal.watermarks(group(7)).written, Some(index(5)));
    wal.drive();
    assert_eq!(*done.lock(), Some(Ok(())));
    assert_eq!(wal.watermarks(group(7)).synced, Some(index(5)));
    disk.crash(0);
    let (wal, scan) = open(&disk);
    assert_eq!(scan.groups.len(), 1);
    assert_eq!(scan.groups[0].last, Some(at(5, 1)));
    assert_eq!(read_all(&wal, 7), entries);
    assert_eq!(wal.watermarks(group(7)).synced, Some(index(5)), "what is found at open is durable");
}

#[test]
fn each_need_completes_at_its_own_watermark() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    let memory = append(&wal, 1, vec![entry(1, 1, 1, 1)], Need::Memory);
    let written = append(&wal, 1, vec![entry(1, 2, 1, 1)], Need::Written);
    let synced = append(&wal, 1, vec![entry(1, 3, 1, 1)], Need::Synced);
    assert_eq!(*memory.lock(), Some(Ok(())));
    assert_eq!(*written.lock(), None);
    wal.drive_write();
    assert_eq!(*written.lock(), Some(Ok(())));
    assert_eq!(*synced.lock(), None);
    wal.drive();
    assert_eq!(*synced.lock(), Some(Ok(())));
}

#[test]
fn one_write_and_one_sync_cover_all_groups() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    wal.drive();
    let before = wal.stats();
    let done: Vec<_> = (1..=50).map(|id| append(&wal, id, vec![entry(id, 1, 1, 20)], Need::Synced)).collect();
    wal.drive();
    let after = wal.stats();
    assert_eq!(after.write_count - before.write_count, 1);
    assert_eq!(after.sync_count - before.sync_count, 1);
    assert!(done.iter().all(|done| *done.lock() == Some(Ok(()))));
}

#[test]
fn without_a_need_for_it_nothing_is_synced_until_the_interval() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    wal.drive();
    let before = wal.stats().sync_count;
    append(&wal, 1, vec![entry(1, 1, 1, 1)], Need::Written);
    wal.drive();
    assert_eq!(wal.stats().sync_count, before);
    assert_eq!(wal.stats().unsynced_records, 1);
    assert!(wal.drive_sync());
    assert!(!wal.drive_sync(), "nothing new to sync");
    assert_eq!(wal.watermarks(group(1)).synced, Some(index(1)));
}

#[test]
fn a_vote_waits_for_the_sync_of_everything_its_group_appended() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, vec![entry(1, 1, 1, 1)], Need::Written);
    let voted = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&voted);
    wal.vote(group(1), Bytes::from_static(b"vote-1"), Box::new(move |result| *slot.lock() = Some(result)));
    wal.drive_write();
    assert_eq!(*voted.lock(), None);
    wal.drive();
    assert_eq!(*voted.lock(), Some(Ok(())));
    disk.crash(0);
    let (wal, _) = open(&disk);
    assert_eq!(wal.group(group(1)).unwrap().vote, Some(Bytes::from_static(b"vote-1")));
    assert_eq!(read_all(&wal, 1).len(), 1);
}

#[test]
fn committed_is_carried_by_the_next_write_and_never_writes_itself() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, vec![entry(1, 1, 1, 1)], Need::Synced);
    wal.drive();
    let before = wal.stats().write_count;
    wal.committed(group(1), at(1, 1));
    wal.drive();
    assert_eq!(wal.stats().write_count, before);
    append(&wal, 1, vec![entry(1, 2, 1, 1)], Need::Synced);
    wal.drive();
    assert_eq!(wal.stats().write_count, before + 1);
    disk.crash(0);
    let (wal, _) = open(&disk);
    assert_eq!(wal.group(group(1)).unwrap().committed, Some(at(1, 1)));
}

#[test]
fn truncated_and_purged_entries_stay_gone() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, (1..=10).map(|raw| entry(1, raw, 1, 5)).collect(), Need::Memory);
    wal.truncate_after(group(1), Some(index(6))).unwrap();
    append(&wal, 1, vec![entry(1, 7, 2, 5)], Need::Memory);
    wal.purge(group(1), at(3, 1)).unwrap();
    let expected: Vec<WalEntry> = (4..=6).map(|raw| entry(1, raw, 1, 5)).chain([entry(1, 7, 2, 5)]).collect();
    assert_eq!(read_all(&wal, 1), expected);
    wal.drive();
    wal.drive_sync();
    disk.crash(0);
    let (wal, scan) = open(&disk);
    assert_eq!(read_all(&wal, 1), expected);
    assert_eq!(scan.groups[0].purged, Some(at(3, 1)));
    let error = wal.read(group(1), index(2)..index(5), usize::MAX).unwrap_err();
    assert!(matches!(error, WalReadError::Purged { first, .. } if first == index(4)), "{error}");
}

#[test]
fn a_purge_beyond_the_end_moves_the_log() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, vec![entry(1, 1, 1, 5)], Need::Memory);
    wal.purge(group(1), at(100, 4)).unwrap();
    assert_eq!(wal.group(group(1)).unwrap().last, Some(at(100, 4)));
    let refused = append(&wal, 1, vec![entry(1, 2, 1, 5)], Need::Memory);
    assert!(matches!(&*refused.lock(), Some(Err(WalFailure::OutOfOrder { expected, .. })) if *expected == index(101)));
    append(&wal, 1, vec![entry(1, 101, 4, 5)], Need::Memory);
    wal.drive();
    wal.drive_sync();
    disk.crash(0);
    let (wal, _) = open(&disk);
    assert_eq!(read_all(&wal, 1), [entry(1, 101, 4, 5)]);
}

#[test]
fn a_dropped_group_does_not_come_back() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    for id in 1..=2 {
        append(&wal, id, vec![entry(id, 1, 1, 5)], Need::Synced);
    }
    wal.drive();
    wal.drop_group(group(1)).unwrap();
    wal.drive();
    wal.drive_sync();
    disk.crash(0);
    let (wal, _) = open(&disk);
    assert_eq!(wal.groups(), [group(2)]);
}

#[test]
fn reads_are_bounded_by_bytes_but_give_at_least_one_entry() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, (1..=10).map(|raw| entry(1, raw, 1, 100)).collect(), Need::Synced);
    let read = |max| wal.read(group(1), index(1)..index(11), max).unwrap().len();
    assert_eq!((read(0), read(150), read(usize::MAX)), (1, 2, 10));
    wal.drive();
    let (cold, _) = {
        disk.kill();
        open(&disk)
    };
    let read = |max| cold.read(group(1), index(1)..index(11), max).unwrap().len();
    assert_eq!((read(0), read(150), read(usize::MAX)), (1, 2, 10));
    assert!(cold.read(group(9), index(1)..index(2), 10).unwrap().is_empty());
}

#[test]
fn a_record_larger_than_a_segment_gets_its_own() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    let entries = vec![entry(1, 1, 1, 10), entry(1, 2, 1, 100_000), entry(1, 3, 1, 10)];
    let done = append(&wal, 1, entries.clone(), Need::Synced);
    wal.drive();
    assert_eq!(*done.lock(), Some(Ok(())));
    disk.crash(0);
    let (wal, scan) = open(&disk);
    assert_eq!(read_all(&wal, 1), entries);
    assert!(scan.segments.iter().any(|segment| segment.len > 100_000));
}

#[test]
fn segments_are_recycled_and_never_give_old_records_back() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    for round in 0..40 {
        let first = round * 10 + 1;
        append(&wal, 1, (first..first + 10).map(|raw| entry(1, raw, 1, 700)).collect(), Need::Synced);
        wal.drive();
        if round > 0 {
            wal.purge(group(1), at(first - 1, 1)).unwrap();
        }
        wal.drive();
        // Never more than the target and one on its way.
        assert!(wal.stats().segment_count <= 4, "round {round}: {}", wal.stats().segment_count);
    }
    let names: Vec<String> = disk.list(&dir()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(names.iter().any(|name| name.ends_with(".spare")), "{names:?}");
    wal.drive_sync();
    disk.crash(0);
    let (wal, scan) = open(&disk);
    assert!(scan.segments.iter().all(|segment| segment.segment.get() > 20), "old numbers are gone");
    let left: Vec<u64> = read_all(&wal, 1).iter().map(|entry| entry.index.get()).collect();
    assert_eq!(left, (391..=400).collect::<Vec<u64>>());
}

#[test]
fn an_idle_group_is_rewritten_forward_and_a_lagging_one_is_named() {
    let disk = SimDisk::new();
    let options = WalOptions { rewrite_group_bytes_max: 2000, ..small() };
    let (wal, _) = Wal::open_inline(Arc::new(disk.clone()), &dir(), options).unwrap();
    // Group 1 votes and has one small entry and a purge marker, then sleeps. Group 2 lags with a lot.
    wal.vote(group(1), Bytes::from_static(b"idle vote"), Box::new(|_| {}));
    append(&wal, 1, (1..=3).map(|raw| entry(1, raw, 1, 50)).collect(), Need::Synced);
    wal.purge(group(1), at(1, 1)).unwrap();
    wal.drive();
    for raw in 1..=400 {
        append(&wal, 3, vec![entry(3, raw, 1, 700)], Need::Synced);
        wal.drive();
        if raw > 1 {
            wal.purge(group(3), at(raw - 1, 1)).unwrap();
        }
    }
    wal.drive();
    assert!(wal.stats().rewritten_record_count >= 4);
    assert!(wal.stats().segment_count <= 5, "{}", wal.stats().segment_count);
    assert_eq!(wal.pinned_groups(), []);
    append(&wal, 2, (1..=20).map(|raw| entry(2, raw, 1, 500)).collect(), Need::Synced);
    for raw in 401..=800 {
        append(&wal, 3, vec![entry(3, raw, 1, 700)], Need::Synced);
        wal.drive();
        wal.purge(group(3), at(raw - 1, 1)).unwrap();
    }
    wal.drive();
    let pinned = wal.pinned_groups();
    assert_eq!(pinned[0].group, group(2));
    assert_eq!(pinned[0].release_index, Some(index(20)));
    let check = |wal: &Wal| {
        assert_eq!(wal.group(group(1)).unwrap().vote, Some(Bytes::from_static(b"idle vote")));
        assert_eq!(read_all(wal, 1), [entry(1, 2, 1, 50), entry(1, 3, 1, 50)]);
        assert_eq!(read_all(wal, 2).len(), 20);
    };
    check(&wal);
    wal.drive_sync();
    disk.crash(0);
    let (wal, _) = open(&disk);
    check(&wal);
    wal.purge(group(2), at(20, 1)).unwrap();
    wal.drive();
    wal.drive_sync();
    wal.drive();
    assert_eq!(wal.pinned_groups(), []);
    assert!(wal.stats().segment_count <= 5, "{}", wal.stats().segment_count);
}

#[test]
fn the_queue_is_bounded_and_says_when_there_is_room() {
    let disk = SimDisk::new();
    let options = WalOptions { queue_bytes_max: 1000, ..small() };
    let (wal, _) = Wal::open_inline(Arc::new(disk), &dir(), options).unwrap();
    assert!(wal.has_room());
    append(&wal, 1, vec![entry(1, 1, 1, 2000)], Need::Memory);
    assert!(!wal.has_room());
    assert!(wal.queued_bytes() >= 2000);
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    wal.when_room(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(told.load(Ordering::Relaxed), 0);
    wal.drive();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(wal.queued_bytes(), 0);
}

#[test]
fn a_failed_sync_is_final_for_everybody() {
    let disk = SimDisk::new();
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let options = WalOptions {
        on_failure: Some(Arc::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })),
        ..small()
    };
    let (wal, _) = Wal::open_inline(Arc::new(disk.clone()), &dir(), options).unwrap();
    wal.drive();
    let memory = append(&wal, 1, vec![entry(1, 1, 1, 1)], Need::Memory);
    let synced = append(&wal, 1, vec![entry(1, 2, 1, 1)], Need::Synced);
    disk.fail_op(1, Fault::Eio);
    wal.drive();
    assert_eq!(*memory.lock(), Some(Ok(())));
    let failure = wal.failure().expect("sticky");
    assert!(matches!(&failure, WalFailure::Io { op: "sync", .. }), "{failure}");
    assert_eq!(*synced.lock(), Some(Err(failure.clone())));
    assert_eq!(told.load(Ordering::Relaxed), 1);
    let syncs = disk.ops();
    let later = append(&wal, 2, vec![entry(2, 1, 1, 1)], Need::Memory);
    assert_eq!(*later.lock(), Some(Err(failure.clone())));
    assert_eq!(wal.purge(group(1), at(1, 1)), Err(failure.clone()));
    wal.drive();
    assert!(!wal.drive_sync());
    assert_eq!(wal.shutdown(), Err(failure));
    assert_eq!(disk.ops(), syncs, "nothing is tried again");
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn a_full_disk_is_final_only_when_a_segment_cannot_be_had() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    // The next segment is not prepared yet, and cannot be.
    disk.set_full(true);
    let done = append(&wal, 1, vec![entry(1, 1, 1, 100)], Need::Synced);
    wal.drive();
    assert_eq!(*done.lock(), Some(Ok(())), "the current segment is pre-allocated");
    disk.set_full(false);
    let entries: Vec<WalEntry> = (2..=60).map(|raw| entry(1, raw, 1, 700)).collect();
    let done = append(&wal, 1, entries, Need::Synced);
    wal.drive();
    assert_eq!(*done.lock(), Some(Ok(())), "asked again once space was back");
    disk.set_full(true);
    let entries: Vec<WalEntry> = (61..=160).map(|raw| entry(1, raw, 1, 700)).collect();
    let done = append(&wal, 1, entries, Need::Synced);
    wal.drive();
    let failure = wal.failure().expect("no segment, no log");
    assert!(matches!(&failure, WalFailure::Io { kind: std::io::ErrorKind::StorageFull, .. }), "{failure:?}");
    assert_eq!(*done.lock(), Some(Err(failure)));
    disk.set_full(false);
    disk.crash(0);
    let (wal, _) = open(&disk);
    assert!(read_all(&wal, 1).len() >= 60);
}

#[test]
fn a_barrier_covers_what_was_given_before_it() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    append(&wal, 1, (1..=3).map(|raw| entry(1, raw, 1, 1)).collect(), Need::Written);
    let reached = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&reached);
    wal.sync_barrier(group(1), index(2), Box::new(move |result| *slot.lock() = Some(result)));
    wal.drive_write();
    assert_eq!(*reached.lock(), None);
    wal.drive();
    assert_eq!(*reached.lock(), Some(Ok(())));
    let slot = Arc::clone(&reached);
    *reached.lock() = None;
    wal.sync_barrier(group(1), index(2), Box::new(move |result| *slot.lock() = Some(result)));
    assert_eq!(*reached.lock(), Some(Ok(())), "at once if it is synced");
    let slot = Arc::clone(&reached);
    *reached.lock() = None;
    wal.sync_barrier(group(99), index(2), Box::new(move |result| *slot.lock() = Some(result)));
    assert_eq!(*reached.lock(), Some(Ok(())), "an unknown group has nothing to sync");
}

#[test]
fn what_is_confirmed_from_memory_waits_for_the_writer_beyond_the_bound() {
    let disk = SimDisk::new();
    let options = WalOptions { queue_bytes_max: 1000, ..small() };
    let (wal, _) = Wal::open_inline(Arc::new(disk), &dir(), options).unwrap();
    // A disk that takes nothing in: a publisher that waits for its answers stops here.
    let mut confirmed = 0;
    let waiting = loop {
        let done = append(&wal, 1, vec![entry(1, confirmed + 1, 1, 100)], Need::Memory);
        if done.lock().is_none() {
            break done;
        }
        confirmed += 1;
        assert!(confirmed < 100, "nothing waits");
    };
    assert!(wal.queued_bytes() < 1000 + 2 * 200, "{} bytes are queued", wal.queued_bytes());
    wal.drive_write();
    assert_eq!(*waiting.lock(), Some(Ok(())), "written is enough, it waits for no sync");
    assert_eq!(wal.watermarks(group(1)).synced, None);
    let done = append(&wal, 1, vec![entry(1, confirmed + 2, 1, 100)], Need::Memory);
    assert_eq!(*done.lock(), Some(Ok(())), "from memory again");
}

#[test]
fn an_idle_group_among_a_thousand_pins_no_segments() {
    let disk = SimDisk::new();
    // A thousand groups at rest are a small part of a segment, as they are of one of 64 MiB.
    let options = || WalOptions { segment_bytes: 1 << 20, rewrite_group_bytes_max: 4 << 10, ..small() };
    let reopen = || Wal::open_inline(Arc::new(disk.clone()), &dir(), options()).unwrap().0;
    let wal = reopen();
    // Each has written a little, and is never heard of again.
    for id in 2..=1000 {
        append(&wal, id, vec![entry(id, 1, 1, 10)], Need::Synced);
        wal.vote(group(id), Bytes::from_static(b"vote"), Box::new(|_| {}));
    }
    wal.drive();
    let mut most = 0;
    for round in 0..400_u64 {
        append(&wal, 1, vec![entry(1, round + 1, 1, 50_000)], Need::Synced);
        wal.drive();
        if round >= 2 {
            wal.purge(group(1), at(round - 1, 1)).unwrap();
        }
        wal.drive();
        most = most.max(wal.stats().segment_bytes);
    }
    assert!(wal.stats().written_bytes > 400 * 50_000);
    let allowed = (small().segments_target as u64 + 1) * (1 << 20);
    assert!(most <= allowed, "{most} bytes of segments, {allowed} allowed");
    assert_eq!(wal.pinned_groups(), []);
    wal.shutdown().unwrap();
    let wal = reopen();
    for id in 2..=1000 {
        assert_eq!(read_all(&wal, id), vec![entry(id, 1, 1, 10)]);
        assert_eq!(wal.group(group(id)).unwrap().vote, Some(Bytes::from_static(b"vote")));
    }
}

#[test]
fn a_segment_goes_only_once_the_purge_marker_is_synced() {
    let disk = SimDisk::new();
    let (wal, _) = open(&disk);
    for raw in 1..=40 {
        append(&wal, 1, vec![entry(1, raw, 1, 2000)], Need::Synced);
        wal.drive();
    }
    let keep = |wal: &Wal| while wal.shared.keep_step() {};
    keep(&wal);
    let before = wal.stats().segment_count;
    assert!(before > 4, "{before} segments");
    wal.purge(group(1), at(39, 1)).unwrap();
    assert!(wal.drive_write());
    keep(&wal);
    assert_eq!(wal.stats().segment_count, before, "the marker is written, not synced");
    // A power cut now finds either: the entries, or the marker. Never a hole.
    for seed in 0..32 {
        let crashed = disk.fork();
        crashed.crash(seed);
        let (wal, _) = open(&crashed);
        let log = wal.group(group(1)).unwrap();
        let first = log.purged.map_or(1, |purged| purged.index.get() + 1);
        assert_eq!(read_all(&wal, 1).len() as u64, 41 - first, "seed {seed}");
    }
    append(&wal, 2, vec![entry(2, 1, 1, 1)], Need::Synced);
    wal.drive();
    keep(&wal);
    let after = wal.stats().segment_count;
    assert!(after <= 2, "{after} of {before} segments are left");
}
