//! A crash at every single operation on the disk.
//!
//! Every group's log is one sequence of changes. Whatever happens, what is found afterwards must be the state
//! after some prefix of them that includes every change whose promise was given.

use std::collections::BTreeMap;

use super::model::{Call, ModelGroup};
use super::*;

/// One group's states, one per change, and how far promises reach.
#[derive(Default)]
struct History {
    states: Vec<Option<ModelGroup>>,
    promised_synced: Arc<AtomicUsize>,
    promised_written: Arc<AtomicUsize>,
}

struct Script {
    calls: Vec<Call>,
}

impl Script {
    /// A pseudo-random script: busy group 1, slow group 2, short-lived group 3.
    fn new(seed: u64, len: usize) -> Self {
        let mut state = seed;
        let mut next = |bound: u64| {
            state = headwater_core::hash::mix64(state, 77);
            state % bound
        };
        let calls = (0..len)
            .map(|_| match next(20) {
                0..=6 => Call::Append {
                    group: 1,
                    count: 1 + next(3),
                    term: 1 + next(3),
                    len: next(2500) as usize,
                    need: Need::Synced,
                },
                7..=8 => Call::Append { group: 1, count: 1, term: 2, len: next(300) as usize, need: Need::Written },
                9 => Call::Append { group: 2, count: 1, term: 1, len: next(400) as usize, need: Need::Synced },
                10 => Call::Append { group: 3, count: 2, term: 1, len: next(900) as usize, need: Need::Synced },
                11 => Call::Vote { group: 1 + next(3), vote: next(1000) },
                12 => Call::Truncate { group: 1, back: next(4) },
                13..=14 => Call::Purge { group: 1, keep: next(4) },
                15 => Call::Purge { group: 2, keep: 2 },
                16 if next(3) == 0 => Call::Drop { group: 3 },
                16 => Call::Committed { group: 1 },
                17 => Call::Write,
                _ => Call::Drive,
            })
            .collect();
        Self { calls }
    }

    /// Runs the script on a log that may stop at any point. Returns what was promised.
    fn run(&self, disk: &SimDisk) -> BTreeMap<u64, History> {
        let mut histories: BTreeMap<u64, History> =
            (1..4).map(|id| (id, History { states: vec![None], ..History::default() })).collect();
        let Ok((wal, _)) = Wal::open_inline(Arc::new(disk.clone()), &dir(), small()) else {
            return histories;
        };
        for call in &self.calls {
            if disk.stopped() || wal.failure().is_some() {
                break;
            }
            let Some(history) = call.group().and_then(|id| histories.get_mut(&id)) else {
                ModelGroup::perform(&mut None, call, &wal, Box::new(|_| {}));
                continue;
            };
            let mut state = history.states.last().cloned().flatten();
            // One record per entry: a batch may be found in part, as long as it was not promised.
            if let Call::Append { count, term, len, .. } = call {
                let mut part = state.clone().unwrap_or_default();
                for _ in 1..*count {
                    part.push(*term, *len);
                    history.states.push(Some(part.clone()));
                }
            }
            let number = history.states.len();
            let promise = match call {
                Call::Append { need: Need::Written, .. } => Arc::clone(&history.promised_written),
                _ => Arc::clone(&history.promised_synced),
            };
            let done: Done = Box::new(move |result| {
                if result.is_ok() {
                    promise.fetch_max(number, Ordering::Relaxed);
                }
            });
            ModelGroup::perform(&mut state, call, &wal, done);
            history.states.push(state);
        }
        wal.drive();
        histories
    }
}

/// Checks that each group is found in a state it had, no older than promised; returns which.
fn check(wal: &Wal, histories: &BTreeMap<u64, History>, power_lost: bool, context: &str) {
    for (id, history) in histories {
        let found = ModelGroup::of(wal, *id);
        let mut promised = history.promised_synced.load(Ordering::Relaxed);
        if !power_lost {
            promised = promised.max(history.promised_written.load(Ordering::Relaxed));
        }
        let allowed = &history.states[promised..];
        let ok = allowed.iter().any(|state| ModelGroup::same(state, &found));
        assert!(
            ok,
            "{context}: group {id} found {found:?}, promised {promised} of {}, e.g. {:?}",
            history.states.len(),
            allowed.first()
        );
    }
}

fn crash_everywhere(seed: u64, len: usize, crash_seeds: u64) {
    let script = Script::new(seed, len);
    let whole = SimDisk::new();
    script.run(&whole);
    let total = whole.ops();
    assert!(total > 60, "the script does too little: {total} operations");
    for stop in 0..=total {
        let disk = SimDisk::new();
        disk.stop_after(stop);
        let histories = script.run(&disk);
        for crash in 0..crash_seeds {
            let context = format!("script {seed}, stop {stop}, crash {crash}");
            let crashed = disk.fork();
            let power_lost = crash > 0;
            if power_lost {
                crashed.crash(crash - 1 + (stop % 7) * 4);
            } else {
                crashed.kill();
            }
            let last_stop = if power_lost { LastStop::PowerLost } else { LastStop::PageCacheKept };
            let options = WalOptions { last_stop, ..small() };
            let opened = Wal::open_inline(Arc::new(crashed.clone()), &dir(), options);
            let (wal, _) = opened.unwrap_or_else(|error| panic!("{context}: {error}"));
            check(&wal, &histories, power_lost, &context);
            // And again: what was found must not be lost by the next crash, nor what is added now.
            let before: Vec<_> = (1..4).map(|id| ModelGroup::of(&wal, id)).collect();
            let mut group_four = None;
            let call = Call::Append { group: 4, count: 3, term: 9, len: 700, need: Need::Synced };
            ModelGroup::perform(&mut group_four, &call, &wal, Box::new(|result| result.unwrap()));
            wal.drive();
            crashed.crash(crash);
            let (wal, _) = open(&crashed);
            let after: Vec<_> = (1..4).map(|id| ModelGroup::of(&wal, id)).collect();
            assert_eq!(after, before, "{context}: second crash");
            assert!(ModelGroup::same(&ModelGroup::of(&wal, 4), &group_four), "{context}: second crash");
        }
    }
}

#[test]
fn a_crash_at_every_operation_keeps_every_promise() {
    crash_everywhere(1, 60, 6);
    crash_everywhere(2, 60, 6);
}

#[test]
fn a_crash_at_every_operation_of_a_long_life_with_recycling_keeps_every_promise() {
    crash_everywhere(3, 220, 3);
}

#[test]
fn a_fault_at_every_operation_is_sticky_and_keeps_every_promise() {
    let script = Script::new(5, 80);
    let whole = SimDisk::new();
    script.run(&whole);
    for fault in [Fault::Eio, Fault::Enospc] {
        for at in 0..whole.ops() {
            let disk = SimDisk::new();
            disk.fail_op(at, fault);
            let histories = script.run(&disk);
            disk.crash(at);
            let context = format!("{fault:?} at {at}");
            // The very first operations fail the open itself; then nothing was promised.
            let (wal, _) = open(&disk);
            check(&wal, &histories, true, &context);
        }
    }
}

/// A process that ends because a sync failed starts again on the same page cache: what it reads there was perhaps never
/// written, and no sync of its own writes it.
#[test]
fn what_a_failed_sync_left_out_is_durable_after_the_next_open() {
    for fault_at in [0, 1] {
        let disk = SimDisk::new();
        let (wal, _) = open(&disk);
        append(&wal, 1, (1..=3).map(|i| entry(1, i, 1, 700)).collect(), Need::Synced);
        wal.drive();
        append(&wal, 1, (4..=6).map(|i| entry(1, i, 1, 700)).collect(), Need::Synced);
        wal.drive_write();
        disk.fail_op(0, Fault::Eio);
        wal.drive_sync();
        assert!(wal.failure().is_some());
        disk.kill();
        if fault_at == 1 {
            // The sync of the open fails as well: directory, end of the segment, sync.
            disk.fail_op(2, Fault::Eio);
            assert!(Wal::open_inline(Arc::new(disk.clone()), &dir(), small()).is_err());
            disk.kill();
        }
        let (wal, _) = open(&disk);
        append(&wal, 1, vec![entry(1, 7, 1, 700)], Need::Synced);
        wal.drive();
        disk.crash(0);
        let (wal, _) = open(&disk);
        assert_eq!(read_all(&wal, 1), (1..=7).map(|i| entry(1, i, 1, 700)).collect::<Vec<_>>(), "fault {fault_at}");
    }
}

/// The end that an open writes behind unsynced records says nothing about them that is not true yet.
#[test]
fn a_power_loss_while_a_log_is_opened_is_no_damage() {
    let killed = SimDisk::new();
    let (wal, _) = open(&killed);
    append(&wal, 1, (1..=8).map(|i| entry(1, i, 1, 700)).collect(), Need::Written);
    wal.drive_write();
    killed.kill();
    for stop in 0.. {
        let disk = killed.fork();
        disk.stop_after(stop);
        let is_open = Wal::open_inline(Arc::new(disk.clone()), &dir(), small()).is_ok();
        for seed in 0..64 {
            let crashed = disk.fork();
            crashed.crash(seed);
            let opened = Wal::open_inline(Arc::new(crashed), &dir(), small());
            assert!(opened.is_ok(), "stop {stop}, seed {seed}: {:?}", opened.err());
        }
        if is_open {
            break;
        }
    }
}
