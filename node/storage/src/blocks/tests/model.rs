use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Push { count: u64, len: usize },
    Void,
    Write,
    Sync,
    Checkpoint,
    DropBefore { keep: u64 },
    Kill,
    PowerLoss,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (1..6u64, 0..900usize).prop_map(|(count, len)| Step::Push { count, len }),
        1 => Just(Step::Void),
        3 => Just(Step::Write),
        2 => Just(Step::Sync),
        2 => Just(Step::Checkpoint),
        1 => (0..30u64).prop_map(|keep| Step::DropBefore { keep }),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerLoss),
    ]
}

/// The model: all messages by operation, and the watermarks.
#[derive(Default)]
struct Model {
    /// (operation, first sequence, count, payload length)
    pushed: Vec<(u64, u64, u64, usize)>,
    next_op: u64,
    first_live: u64,
    written: u64,
    synced: u64,
    persisted: u64,
}

impl Model {
    fn next_seq(&self) -> u64 {
        self.pushed.last().map_or(1, |(_, base, count, _)| base + count)
    }

    /// Goes back to the operations up to `op`.
    fn rewind(&mut self, op: u64) {
        self.pushed.retain(|(pushed, ..)| *pushed <= op);
        self.next_op = op;
        (self.written, self.synced) = (op, op);
    }

    fn live(&self) -> BTreeMap<u64, Vec<u8>> {
        let all =
            self.pushed.iter().flat_map(|(_, base, count, len)| (*base..base + count).map(move |raw| (raw, *len)));
        all.filter(|(raw, _)| *raw >= self.first_live).map(|(raw, len)| (raw, payload(raw, len))).collect()
    }
}

fn check(log: StoreLog, steps: &[Step]) {
    let disk = SimDisk::new();
    let (mut store, _, _) = open(&disk, options(log)).unwrap();
    let mut model = Model::default();
    for (nth, step) in steps.iter().enumerate() {
        match step {
            Step::Push { count, len } => {
                let base = model.next_seq();
                model.next_op += 1;
                model.pushed.push((model.next_op, base, *count, *len));
                store.push(index(model.next_op), messages(model.next_op, base, *count, *len));
            }
            // An operation without bytes: not for a stream whose blocks are its log.
            Step::Void if log == StoreLog::Wal => {
                model.next_op += 1;
                store.advance(index(model.next_op));
            }
            Step::Void => {}
            Step::Write => {
                if run(&mut store, &disk, FlushWant::Write, None) {
                    model.written = model.next_op;
                }
            }
            Step::Sync => {
                if run(&mut store, &disk, FlushWant::Sync, None) {
                    (model.written, model.synced) = (model.next_op, model.next_op);
                }
            }
            Step::Checkpoint if model.next_op > 0 => {
                assert!(run(&mut store, &disk, FlushWant::Checkpoint, Some(image(model.next_op))));
                (model.written, model.synced, model.persisted) = (model.next_op, model.next_op, model.next_op);
            }
            Step::Checkpoint => {}
            Step::DropBefore { keep } => {
                model.first_live = model.first_live.max(model.next_seq().saturating_sub(*keep));
                store.drop_before(seq(model.first_live));
            }
            Step::Kill | Step::PowerLoss => {
                let power = matches!(step, Step::PowerLoss);
                if power {
                    // What is kept of unsynced bytes is the crash test's matter; here: nothing.
                    disk.crash(nth as u64 * 4);
                } else {
                    disk.kill();
                }
                let opened = open(&disk, options(log)).unwrap();
                store = opened.0;
                let found = store.accepted().map_or(0, LogIndex::get);
                match log {
                    StoreLog::Wal => assert_eq!(found, model.persisted),
                    // A block that was full was synced before the next was begun.
                    StoreLog::Own if power => {
                        assert!((model.synced..=model.written).contains(&found))
                    }
                    StoreLog::Own => assert_eq!(found, model.written),
                }
                model.rewind(found);
                assert_eq!(opened.1.replay.len() as u64, found - model.persisted);
                store.drop_before(seq(model.first_live));
            }
        }
        let live = model.live();
        let mut found = contents(&store);
        found.retain(|raw, _| *raw >= model.first_live);
        assert_eq!(found, live, "after step {nth}: {step:?}");
        assert!(store.take_damage().is_none());
        if let Some((raw, expected)) = live.iter().nth(nth % live.len().max(1)) {
            assert_eq!(store.record(seq(*raw)).unwrap().unwrap().payload(), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_replicated_store_follows_the_model(steps in prop::collection::vec(step(), 0..60)) {
        check(StoreLog::Wal, &steps);
    }

    #[test]
    fn a_store_without_a_log_follows_the_model(steps in prop::collection::vec(step(), 0..60)) {
        check(StoreLog::Own, &steps);
    }
}
