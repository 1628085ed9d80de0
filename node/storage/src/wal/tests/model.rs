//! The log against a plain model: whatever sequence of calls, reopening gives what the model holds.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What a group holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ModelGroup {
    pub(super) vote: Option<u64>,
    pub(super) purged: Option<u64>,
    pub(super) next: u64,
    /// index → (term, payload length)
    pub(super) entries: BTreeMap<u64, (u64, usize)>,
}

#[derive(Debug, Clone)]
pub(super) enum Call {
    Append { group: u64, count: u64, term: u64, len: usize, need: Need },
    Truncate { group: u64, back: u64 },
    Purge { group: u64, keep: u64 },
    Vote { group: u64, vote: u64 },
    Committed { group: u64 },
    Drop { group: u64 },
    Write,
    Sync,
    Drive,
}

impl ModelGroup {
    fn first_next(&self) -> u64 {
        self.next.max(1)
    }

    pub(super) fn push(&mut self, term: u64, len: usize) {
        let next = self.first_next();
        self.entries.insert(next, (term, len));
        self.next = next + 1;
    }

    /// Applies a call to the model and performs it on the log.
    pub(super) fn perform(slot: &mut Option<Self>, call: &Call, wal: &Wal, done: Done) {
        match *call {
            Call::Append { group: id, count, term, len, need } => {
                let model = slot.get_or_insert_default();
                let first = model.first_next();
                let entries = (first..first + count).map(|raw| entry(id, raw, term, len)).collect();
                for _ in 0..count {
                    model.push(term, len);
                }
                wal.append(AppendBatch { group: group(id), entries, need, done });
            }
            Call::Truncate { group: id, back } => {
                let model = slot.get_or_insert_default();
                let last = model.first_next() - 1;
                let floor = model.purged.unwrap_or(0);
                let keep = last.saturating_sub(back).max(floor);
                model.entries.split_off(&(keep + 1));
                model.next = keep + 1;
                // Not all refusals are of interest: a failed log says so elsewhere.
                let _ = wal.truncate_after(group(id), (keep > 0).then(|| index(keep)));
            }
            Call::Purge { group: id, keep } => {
                let Some(model) = slot else { return };
                let upto = (model.first_next() - 1).saturating_sub(keep);
                if upto == 0 || model.purged.is_some_and(|purged| purged >= upto) {
                    return;
                }
                let term = model.entries.get(&upto).map_or(0, |(term, _)| *term);
                model.purged = Some(upto);
                model.entries = model.entries.split_off(&(upto + 1));
                let _ = wal.purge(group(id), at(upto, term));
            }
            Call::Vote { group: id, vote } => {
                slot.get_or_insert_default().vote = Some(vote);
                wal.vote(group(id), Bytes::from(vote.to_string()), done);
            }
            Call::Committed { group: id } => {
                let model = slot.get_or_insert_default();
                wal.committed(group(id), at(model.first_next() - 1, 1));
            }
            Call::Drop { group: id } => {
                *slot = None;
                let _ = wal.drop_group(group(id));
            }
            Call::Write => {
                wal.drive_write();
            }
            Call::Sync => {
                wal.drive_sync();
            }
            Call::Drive => wal.drive(),
        }
    }

    /// What the log holds of a group, as a model; checks every payload on the way.
    pub(super) fn of(wal: &Wal, id: u64) -> Option<Self> {
        let state = wal.group(group(id))?;
        let entries: BTreeMap<u64, (u64, usize)> = read_all(wal, id)
            .into_iter()
            .map(|found| {
                let (raw, term) = (found.index.get(), found.term.get());
                let len = found.payload.len() - payload(id, raw, term, 0).len();
                assert_eq!(found, entry(id, raw, term, len));
                (raw, (term, len))
            })
            .collect();
        let purged = state.purged.map(|purged| purged.index.get());
        let vote = state.vote.map(|vote| String::from_utf8(vote.to_vec()).unwrap().parse().unwrap());
        let next = entries.keys().last().copied().or(purged).map_or(0, |last| last + 1);
        Some(Self { vote, purged, next, entries })
    }

    /// Whether two states look the same from outside: an empty group's next index cannot be seen, and a group
    /// with nothing at all is as good as none.
    pub(super) fn same(one: &Option<Self>, other: &Option<Self>) -> bool {
        let visible = |slot: &Option<Self>| {
            let state = slot.clone().unwrap_or_default();
            (state.vote, state.purged, state.entries)
        };
        visible(one) == visible(other)
    }
}

impl Call {
    pub(super) fn group(&self) -> Option<u64> {
        match self {
            Self::Append { group, .. }
            | Self::Truncate { group, .. }
            | Self::Purge { group, .. }
            | Self::Vote { group, .. }
            | Self::Committed { group }
            | Self::Drop { group } => Some(*group),
            Self::Write | Self::Sync | Self::Drive => None,
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let group = 1..4u64;
    let need = prop_oneof![Just(Need::Memory), Just(Need::Written), Just(Need::Synced)];
    let append = (group.clone(), 1..5u64, 1..4u64, 0..2500usize, need)
        .prop_map(|(group, count, term, len, need)| Call::Append { group, count, term, len, need });
    prop_oneof![
        8 => append,
        2 => (group.clone(), 0..6u64).prop_map(|(group, back)| Call::Truncate { group, back }),
        4 => (group.clone(), 0..6u64).prop_map(|(group, keep)| Call::Purge { group, keep }),
        2 => (group.clone(), any::<u64>()).prop_map(|(group, vote)| Call::Vote { group, vote }),
        1 => group.clone().prop_map(|group| Call::Committed { group }),
        1 => group.prop_map(|group| Call::Drop { group }),
        2 => Just(Call::Write),
        1 => Just(Call::Sync),
        3 => Just(Call::Drive),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Stop {
    Shutdown,
    Kill,
    PowerLoss,
}

fn check(rounds: Vec<(Vec<Call>, Stop)>) {
    let disk = SimDisk::new();
    let mut model: BTreeMap<u64, Option<ModelGroup>> = (1..4).map(|id| (id, None)).collect();
    for (seed, (calls, stop)) in rounds.into_iter().enumerate() {
        let (wal, scan) = open(&disk);
        assert_eq!(scan.end, ScanEnd::Clean);
        for (id, expected) in &model {
            let found = ModelGroup::of(&wal, *id);
            assert!(ModelGroup::same(&found, expected), "group {id} reopened: {found:?}, not {expected:?}");
        }
        for call in &calls {
            let mut none = None;
            let slot = call.group().map_or(&mut none, |id| model.entry(id).or_default());
            ModelGroup::perform(slot, call, &wal, Box::new(|result| result.unwrap()));
            if let Some(id) = call.group() {
                let (found, expected) = (ModelGroup::of(&wal, id), &model[&id]);
                assert!(ModelGroup::same(&found, expected), "{call:?}: {found:?}, not {expected:?}");
            }
        }
        match stop {
            Stop::Shutdown => {
                wal.shutdown().unwrap();
                disk.crash(0);
            }
            Stop::Kill => {
                wal.drive();
                disk.kill();
            }
            Stop::PowerLoss => {
                wal.drive();
                wal.drive_sync();
                disk.crash(seed as u64 * 4 + 3);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_and_any_orderly_stop_keep_the_model(
        rounds in prop::collection::vec(
            (
                prop::collection::vec(call(), 0..60),
                prop_oneof![Just(Stop::Shutdown), Just(Stop::Kill), Just(Stop::PowerLoss)],
            ),
            1..5,
        )
    ) {
        check(rounds);
    }
}
