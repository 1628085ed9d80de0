//! A crash at every operation: what was promised is there, nothing is there in part.

use super::*;

/// What a run got promised: last operations synced and persisted, and those the kernel had.
#[derive(Debug, Default, Clone, Copy)]
struct Promised {
    written: u64,
    synced: u64,
    persisted: u64,
    /// Messages before this may be gone.
    dropped: u64,
}

const STEPS: u64 = 36;

/// One message per operation, flushed in changing ways, with old ones dropped on the way.
fn script(disk: &SimDisk, log: StoreLog) -> Promised {
    let mut promised = Promised::default();
    let Ok((mut store, _, _)) = open(disk, options(log)) else {
        return promised;
    };
    for op in 1..=STEPS {
        store.push(index(op), messages(op, op, 1, 700 + (op as usize * 37) % 900));
        if op == 20 {
            promised.dropped = 12;
            store.drop_before(seq(12));
        }
        let (want, image) = match op % 6 {
            0 => (FlushWant::Checkpoint, Some(image(op))),
            3 | 5 => (FlushWant::Sync, None),
            _ => (FlushWant::Write, None),
        };
        run(&mut store, disk, want, image);
        let reached = |at: Option<LogIndex>| at.map_or(0, LogIndex::get);
        promised.written = reached(store.stored());
        promised.synced = reached(store.synced());
        promised.persisted = reached(store.persisted());
        assert!(promised.persisted <= promised.synced && promised.synced <= promised.written);
        if store.failure().is_some() {
            break;
        }
    }
    promised
}

fn check(disk: &SimDisk, log: StoreLog, promised: Promised, power_lost: bool, context: &str) {
    let last_stop = if power_lost { LastStop::PowerLost } else { LastStop::PageCacheKept };
    let opened = open(disk, StoreOptions { last_stop, ..options(log) });
    let (store, scan, covered) = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
    let at = store.accepted().map_or(0, LogIndex::get);
    let persisted = store.persisted().map_or(0, LogIndex::get);
    assert!(persisted >= promised.persisted, "{context}: checkpoint {persisted}, promised {promised:?}");
    let floor = match log {
        StoreLog::Wal => persisted,
        StoreLog::Own if power_lost => promised.synced,
        StoreLog::Own => promised.written,
    };
    assert!(at >= floor && at <= STEPS, "{context}: found {at}, promised {promised:?}");
    if log == StoreLog::Wal {
        assert_eq!(at, persisted, "{context}: nothing beyond the checkpoint");
    }
    let ordinals: Vec<u64> = covered
        .iter()
        .chain(scan.replay.iter().map(|replay| &replay.frame))
        .map(|frame| frame.header().ordinal.get())
        .collect();
    let first = ordinals.first().copied().unwrap_or(at + 1);
    assert!(first <= promised.dropped.max(1), "{context}: starts at {first}, {promised:?}");
    assert_eq!(ordinals, (first..=at).collect::<Vec<u64>>(), "{context}: a hole or a wrong order");
    for raw in first..=at {
        let record = store.record(seq(raw)).unwrap().unwrap_or_else(|| panic!("{context}: message {raw} is missing"));
        assert_eq!(record.payload(), payload(raw, 700 + (raw as usize * 37) % 900), "{context}");
    }
    // Going on from here, then losing power again, loses nothing either.
    let mut store = store;
    let next = at + 1;
    store.push(index(next), messages(next, next, 1, 300));
    run(&mut store, disk, FlushWant::Checkpoint, Some(image(next)));
    assert_eq!(store.persisted(), Some(index(next)), "{context}: {:?}", store.failure());
    let before = contents(&store);
    disk.crash(3);
    let (store, _) = open_by_index(disk, options(log)).unwrap_or_else(|error| panic!("{context}: again: {error}"));
    assert_eq!(contents(&store), before, "{context}: second crash");
}

fn crash_everywhere(log: StoreLog) {
    let whole = SimDisk::new();
    let done = script(&whole, log);
    assert_eq!(done.persisted, STEPS);
    for stop in 0..=whole.ops() {
        let disk = SimDisk::new();
        disk.stop_after(stop);
        let promised = script(&disk, log);
        for seed in 0..9 {
            let crashed = disk.fork();
            let power_lost = seed > 0;
            if power_lost {
                crashed.crash(seed - 1 + stop % 5 * 8);
            } else {
                crashed.kill();
            }
            check(&crashed, log, promised, power_lost, &format!("{log:?}, stop {stop}, seed {seed}"));
        }
    }
}

#[test]
fn a_replicated_store_survives_a_crash_at_every_operation() {
    crash_everywhere(StoreLog::Wal);
}

#[test]
fn a_store_without_a_log_survives_a_crash_at_every_operation() {
    crash_everywhere(StoreLog::Own);
}

#[test]
fn a_fault_at_every_operation_is_final_and_keeps_every_promise() {
    for log in [StoreLog::Wal, StoreLog::Own] {
        let whole = SimDisk::new();
        script(&whole, log);
        for fault in [Fault::Eio, Fault::Enospc] {
            for at in 0..whole.ops() {
                let disk = SimDisk::new();
                disk.fail_op(at, fault);
                let promised = script(&disk, log);
                disk.crash(at);
                check(&disk, log, promised, true, &format!("{log:?}, {fault:?} at {at}"));
            }
        }
    }
}

/// A process that ends after a sync failed starts again on the same page cache: what it reads there was perhaps never
/// written, and no sync of its own writes it. What is confirmed behind it must not hang on it.
#[test]
fn what_a_failed_sync_left_out_is_durable_after_the_next_open() {
    let log = StoreLog::Own;
    let disk = SimDisk::new();
    let (mut store, ..) = open(&disk, options(log)).unwrap();
    store.push(index(1), messages(1, 1, 3, 600));
    run(&mut store, &disk, FlushWant::Sync, None);
    store.push(index(2), messages(2, 4, 3, 600));
    run(&mut store, &disk, FlushWant::Write, None);
    // The mark, then the sync.
    disk.fail_op(1, Fault::Eio);
    run(&mut store, &disk, FlushWant::Sync, None);
    assert!(store.failure().is_some(), "the fault hit the sync");
    disk.kill();
    let (mut store, scan, _) = open(&disk, options(log)).unwrap();
    assert_eq!(scan.replay.len(), 2, "the page cache has both");
    store.push(index(3), messages(3, 7, 3, 600));
    run(&mut store, &disk, FlushWant::Sync, None);
    assert_eq!(store.synced(), Some(index(3)));
    disk.crash(0);
    let (store, ..) = open(&disk, options(log)).unwrap();
    assert_eq!(contents(&store), expected(1..=9, 600));
}
