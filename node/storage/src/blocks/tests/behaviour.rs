use super::*;

#[test]
fn a_message_can_be_read_pending_stored_cached_and_cold() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    for n in 0..20 {
        store.push(index(n + 1), messages(n, n * 3 + 1, 3, 200));
    }
    assert_eq!(contents(&store), expected(1..=60, 200));
    assert_eq!((store.accepted(), store.stored()), (Some(index(20)), None));
    assert!(store.dirty_bytes() > 0);
    assert!(run(&mut store, &disk, FlushWant::Write, None));
    assert_eq!(store.stored(), Some(index(20)));
    assert_eq!((store.synced(), store.persisted(), store.dirty_bytes()), (None, None, 0));
    assert_eq!(contents(&store), expected(1..=60, 200));
    assert!(store.cold_reads() > 0, "the cache is smaller than this");
    assert_eq!(store.record(seq(31)).unwrap().unwrap().payload(), payload(31, 200));
    assert!(store.record(seq(61)).unwrap().is_none());
    assert!(store.record(seq(0)).unwrap().is_none());
    assert!(store.take_damage().is_none());
}

#[test]
fn a_replicated_store_starts_again_from_its_checkpoint() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    for n in 0..30 {
        store.push(index(n + 1), messages(n, n * 3 + 1, 3, 200));
    }
    store.advance(index(31));
    assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(31))));
    assert_eq!(store.persisted(), Some(index(31)));
    let blocks = store.blocks.len();
    assert!(blocks > 1);
    for n in 31..60 {
        store.push(index(n + 1), messages(n, (n - 1) * 3 + 1, 3, 200));
    }
    assert!(run(&mut store, &disk, FlushWant::Write, None));
    disk.kill();
    let (mut store, scan, covered) = open(&disk, options(StoreLog::Wal)).unwrap();
    assert!(scan.cut_bytes > 0 && scan.replay.is_empty());
    assert_eq!(covered.len(), 30);
    assert_eq!(contents(&store), expected(1..=90, 200));
    assert_eq!((store.accepted(), store.persisted()), (Some(index(31)), Some(index(31))));
    // Replay puts the same frames where new blocks do not collide with the cut ones.
    for n in 31..60 {
        store.push(index(n + 1), messages(n, (n - 1) * 3 + 1, 3, 200));
    }
    assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(60))));
    disk.crash(0);
    let (store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    assert_eq!(contents(&store), expected(1..=177, 200));
}

#[test]
fn frames_without_messages_cost_a_replicated_store_nothing() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    store.push(index(1), purge(1, 1));
    assert_eq!((store.stored(), store.dirty_bytes(), store.blocks.len()), (Some(index(1)), 0, 0));
    store.push(index(2), messages(2, 1, 1, 10));
    store.push(index(3), purge(3, 2));
    assert_eq!(store.stored(), Some(index(1)), "not before what lies in front");
    run(&mut store, &disk, FlushWant::Write, None);
    assert_eq!(store.stored(), Some(index(3)));
}

#[test]
fn a_stream_without_a_log_gets_its_frames_back() {
    let disk = SimDisk::new();
    let own = options(StoreLog::Own);
    let (mut store, _, _) = open(&disk, own.clone()).unwrap();
    for n in 1..=20 {
        let frame = if n % 5 == 0 { purge(n, n + 1) } else { messages(n, n, 1, 900) };
        store.push(index(n), frame);
        assert!(run(&mut store, &disk, FlushWant::Sync, None));
        if n == 7 {
            assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(7))));
        }
    }
    assert_eq!(store.synced(), Some(index(20)));
    let before = contents(&store);
    disk.crash(0);
    let (store, scan, covered) = open(&disk, own.clone()).unwrap();
    assert_eq!(covered.len(), 7);
    let ordinals: Vec<u64> = scan.replay.iter().map(|replay| replay.frame.header().ordinal.get()).collect();
    assert_eq!(ordinals, (8..=20).collect::<Vec<u64>>());
    assert_eq!(scan.replay[0].index, index(8));
    assert_eq!(contents(&store), before);
    assert_eq!(
        (store.accepted(), store.synced(), store.persisted()),
        (Some(index(20)), Some(index(20)), Some(index(7)))
    );
    // Without the checkpoint everything is replay, and the index is the same.
    disk.remove(&Checkpoint::path(&dir())).unwrap();
    let (store, scan, covered) = open(&disk, own).unwrap();
    assert_eq!((covered.len(), scan.replay.len()), (0, 20));
    assert_eq!(contents(&store), before);
}

#[test]
fn dead_blocks_go_only_after_a_checkpoint_without_them() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    for n in 1..=60 {
        store.push(index(n), messages(n, n, 1, 900));
    }
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(60)));
    let files = || disk.list(&dir().join("blocks")).unwrap().len();
    let before = files();
    store.drop_before(seq(40));
    assert_eq!(files(), before);
    assert!(store.record(seq(1)).unwrap().is_some(), "readable until a checkpoint covers its removal");
    store.advance(index(61));
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(61)));
    assert!(files() < before);
    assert!(store.record(seq(1)).unwrap().is_none());
    assert!(store.record(seq(40)).unwrap().is_some());
    // An emptied block in the middle goes as well.
    let middle = store.blocks[1].messages.unwrap();
    let gone = middle.0.get()..=middle.1.get();
    store.sweep(|range| !(gone.contains(&range.start().get()) && gone.contains(&range.end().get())));
    store.advance(index(62));
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(62)));
    assert!(store.record(middle.0).unwrap().is_none());
    let left = contents(&store);
    disk.crash(0);
    let (store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    assert_eq!(contents(&store), left);
    assert!(left.contains_key(&60) && !left.contains_key(&middle.0.get()));
}

#[test]
fn one_job_at_a_time_but_a_checkpoint_does_not_hold_up_commits() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Own)).unwrap();
    store.push(index(1), messages(1, 1, 1, 10));
    let mut first = store.take_job(FlushWant::Checkpoint, Some(image(1))).unwrap();
    store.push(index(2), messages(2, 2, 1, 10));
    assert!(store.take_job(FlushWant::Sync, None).is_none(), "stage 1 of the checkpoint is outstanding");
    first.write(&disk).unwrap();
    first.sync(&disk).unwrap();
    store.complete(first.stored());
    assert_eq!(store.synced(), Some(index(1)));
    assert!(run(&mut store, &disk, FlushWant::Sync, None), "stage 2 is not in the way");
    assert!(store.take_job(FlushWant::Checkpoint, Some(image(2))).is_none());
    store.complete(first.checkpoint(&disk, &|_, _| Ok(())).unwrap());
    assert_eq!((store.persisted(), store.synced()), (Some(index(1)), Some(index(2))));
    assert!(store.take_job(FlushWant::Sync, None).is_none(), "nothing to do");
    assert!(store.take_job(FlushWant::Write, None).is_none());
    assert!(store.take_job(FlushWant::Checkpoint, None).is_none(), "a checkpoint needs an image");
}

#[test]
fn the_log_is_synced_before_the_checkpoint_and_its_failure_is_final() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    store.push(index(1), messages(1, 1, 1, 10));
    let job = store.take_job(FlushWant::Checkpoint, Some(image(1))).unwrap();
    let failed = crate::wal::WalFailure::ShutDown;
    job.run(
        &disk,
        &|group, upto| {
            assert_eq!((group, upto), (GroupId::new(9), index(1)));
            Err(failed.clone())
        },
        &mut |done| store.complete(done),
    );
    assert_eq!(store.failure(), Some(&FlushError::Log(failed)));
    assert!(Checkpoint::load(&disk, &dir()).unwrap().is_none());
    assert_eq!(store.persisted(), None);
    assert!(store.take_job(FlushWant::Write, None).is_none());
}

#[test]
fn a_frame_larger_than_a_block_gets_its_own() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Own)).unwrap();
    store.push(index(1), messages(1, 1, 1, 10));
    store.push(index(2), messages(2, 2, 1, 40_000));
    store.push(index(3), messages(3, 3, 1, 10));
    run(&mut store, &disk, FlushWant::Sync, None);
    assert_eq!(store.blocks.len(), 3);
    disk.crash(0);
    let (store, _, _) = open(&disk, options(StoreLog::Own)).unwrap();
    assert_eq!(contents(&store).len(), 3);
}

#[test]
fn it_may_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<StreamStore>();
    is_send::<FlushJob>();
    is_send::<FlushDone>();
}

#[test]
fn a_pinned_stream_keeps_its_blocks() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Wal)).unwrap();
    for n in 1..=60 {
        store.push(index(n), messages(n, n, 1, 900));
    }
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(60)));
    let files = || disk.list(&dir().join("blocks")).unwrap().len();
    let before = files();
    store.pin();
    store.drop_before(seq(40));
    store.advance(index(61));
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(61)));
    assert_eq!(files(), before);
    assert!(store.record(seq(1)).unwrap().is_some());
    store.unpin();
    store.advance(index(62));
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(62)));
    assert!(files() < before);
    assert!(store.record(seq(1)).unwrap().is_none());
}

#[test]
fn a_removed_stream_leaves_nothing() {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(StoreLog::Own)).unwrap();
    store.push(index(1), messages(1, 1, 1, 10));
    run(&mut store, &disk, FlushWant::Checkpoint, Some(image(1)));
    remove_stream(&disk, &dir()).unwrap();
    disk.crash(0);
    let (store, scan, covered) = open(&disk, options(StoreLog::Own)).unwrap();
    assert_eq!((covered.len(), scan.replay.len(), store.accepted()), (0, 0, None));
    remove_stream(&disk, &dir()).unwrap();
}
