//! Admission and `apply` against a naive model, under random publishes, purges, deletes, limit changes,
//! leader changes and restarts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::world::{World, block};
use crate::ids::{StreamSeq, Timestamp};
use crate::stream::{
    Command, DeleteMessage, Discard, Expire, Limits, Outcome, PubRefusal, Purge, Settings, StorageKind, stored_len,
};

#[derive(Clone, Debug)]
struct Message {
    subject: &'static str,
    len: u64,
    ts: u64,
}

/// The stream as a list: every rule in its plainest form.
#[derive(Clone, Debug, Default)]
struct Model {
    live: BTreeMap<u64, Message>,
    last: u64,
    ids: Vec<(u8, u64, u64)>,
    settings: Settings,
}

const SUBJECTS: [&str; 4] = ["k.a", "k.b", "k.c", "x"];
const WINDOW_NS: u64 = 400;

impl Model {
    fn bytes(&self) -> u64 {
        self.live.values().map(|message| message.len).sum()
    }

    fn of(&self, subject: &str) -> Vec<u64> {
        self.live.iter().filter(|(_, m)| m.subject == subject).map(|(seq, _)| *seq).collect()
    }

    fn refusal(&self, subject: &'static str, len: u64, expect: Option<u64>) -> Option<PubRefusal> {
        let last = self.of(subject).last().copied().unwrap_or(0);
        if expect.is_some_and(|expect| expect != last) {
            return Some(PubRefusal::WrongLastSequence(StreamSeq::new(last)));
        }
        let limits = self.settings.limits;
        if limits.max_bytes.is_some_and(|max| len > max) {
            return Some(PubRefusal::MaxBytes);
        }
        if self.settings.discard == Discard::Old {
            return None;
        }
        let mut after = self.clone();
        after.store(subject, len, 0, None, false);
        let (messages, bytes) = (after.live.len(), after.bytes());
        if limits.max_msgs.is_some_and(|max| messages > max as usize && messages > self.live.len()) {
            return Some(PubRefusal::MaxMessages);
        }
        (limits.max_bytes.is_some_and(|max| bytes > max) && bytes > self.bytes()).then_some(PubRefusal::MaxBytes)
    }

    fn store(&mut self, subject: &'static str, len: u64, ts: u64, id: Option<u8>, rollup: bool) {
        self.last += 1;
        if let Some(id) = id {
            self.ids.push((id, self.last, ts));
        }
        if rollup {
            self.live.retain(|_, m| m.subject != subject);
        }
        self.live.insert(self.last, Message { subject, len, ts });
        self.settle_subjects();
        self.settle_totals();
    }

    fn settle_subjects(&mut self) {
        let Some(max) = self.settings.limits.max_msgs_per_subject else {
            return;
        };
        for subject in SUBJECTS {
            let all = self.of(subject);
            for seq in &all[..all.len().saturating_sub(max as usize)] {
                self.live.remove(seq);
            }
        }
    }

    fn settle_totals(&mut self) {
        if self.settings.discard == Discard::New {
            return;
        }
        while self.settings.limits.max_msgs.is_some_and(|max| self.live.len() as u64 > max)
            || self.settings.limits.max_bytes.is_some_and(|max| self.bytes() > max)
        {
            self.live.pop_first();
        }
    }

    fn purge(&mut self, purge: &Purge) {
        let covers = |m: &Message| match purge.filter.as_deref() {
            None => true,
            Some("k.*") => m.subject.starts_with("k."),
            Some(literal) => m.subject == literal,
        };
        let below = |seq: u64| purge.seq.is_none_or(|bound| bound.get() == 0 || seq < bound.get());
        let covered: Vec<u64> =
            self.live.iter().filter(|(seq, m)| below(**seq) && covers(m)).map(|(s, _)| *s).collect();
        let keep = purge.keep.unwrap_or(0) as usize;
        for seq in &covered[..covered.len().saturating_sub(keep)] {
            self.live.remove(seq);
        }
    }

    fn duplicate(&self, id: u8, now: u64) -> Option<u64> {
        let (_, seq, ts) = self.ids.iter().rev().find(|(i, _, _)| *i == id)?;
        (now - ts < WINDOW_NS).then_some(*seq)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Publish { subject: usize, id: Option<u8>, len: usize, expect: Option<bool>, rollup: bool },
    Purge { filter: Option<usize>, seq: Option<u64>, keep: Option<u64> },
    Delete(u64),
    Limits { max_msgs: Option<u64>, max_bytes: Option<u64>, per_subject: Option<u64>, new: bool },
    Expire,
    Drain,
    Wait(u64),
    NewTerm,
    Reset,
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let maybe = |range: std::ops::Range<u64>| proptest::option::of(range);
    let publish = (
        0..4usize,
        proptest::option::weighted(0.3, 0u8..6),
        0..30usize,
        proptest::option::weighted(0.2, any::<bool>()),
        proptest::bool::weighted(0.05),
    )
        .prop_map(|(subject, id, len, expect, rollup)| Op::Publish { subject, id, len, expect, rollup });
    let op = prop_oneof![
        20 => publish,
        1 => (proptest::option::of(0..3usize), maybe(0..40), maybe(0..4))
            .prop_map(|(filter, seq, keep)| Op::Purge { filter, seq, keep: if seq.is_some() { None } else { keep } }),
        3 => (1..60u64).prop_map(Op::Delete),
        1 => (maybe(1..12), maybe(60..500), maybe(1..4), any::<bool>()).prop_map(
            |(max_msgs, max_bytes, per_subject, new)| Op::Limits {
                max_msgs,
                // Discard new with both is covered apart: what a message in flight pushes out of its subject
                // counts for nothing there until it is applied.
                max_bytes: if new && per_subject.is_some() { None } else { max_bytes },
                per_subject,
                new,
            }
        ),
        1 => Just(Op::Expire),
        4 => Just(Op::Drain),
        4 => (1..300u64).prop_map(Op::Wait),
        1 => Just(Op::NewTerm),
        1 => Just(Op::Reset),
        1 => Just(Op::Restart),
    ];
    proptest::collection::vec(op, 1..120)
}

struct Run {
    world: World,
    /// As admitted.
    model: Model,
    /// As applied.
    applied: Model,
}

impl Run {
    fn drain(&mut self) {
        for applied in self.world.drain() {
            assert!(!applied.is_void(), "{:?}", applied.outcome);
        }
        self.applied = self.model.clone();
        let live: Vec<u64> = self.model.live.keys().copied().collect();
        assert_eq!(self.world.live(), live);
        let counts = self.world.leader.state.counts();
        assert_eq!(counts.last_seq, self.model.last);
        assert_eq!(counts.messages, live.len() as u64);
        assert_eq!(counts.bytes, self.model.bytes());
        for subject in SUBJECTS {
            let last = self.world.leader.state.last_by_subject(subject.as_bytes());
            assert_eq!(last.map(StreamSeq::get), self.model.of(subject).last().copied());
        }
    }

    fn propose(&mut self, command: Command) {
        self.world.admission.propose(&self.world.leader.state, command, Timestamp::new(self.world.now)).unwrap();
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Publish { subject, id, len, expect, rollup } => {
                self.publish(SUBJECTS[*subject], *id, *len, *expect, *rollup);
            }
            Op::Purge { filter, seq, keep } => {
                let filter = filter.map(|f| ["k.a", "k.*", "x"][f].to_owned());
                let seq = seq.map(StreamSeq::new);
                let purge = Purge { filter, seq, keep: *keep, up_to_last: StreamSeq::ZERO };
                self.model.purge(&purge);
                self.propose(Command::Purge(purge));
                self.drain();
            }
            Op::Delete(seq) => {
                self.drain();
                let was = self.model.live.remove(seq).is_some();
                let delete = DeleteMessage { seq: StreamSeq::new(*seq), erase: false };
                let applied = self.world.propose(Command::DeleteMessage(delete));
                assert_eq!(applied.outcome == Outcome::Done, was);
                self.drain();
            }
            Op::Limits { max_msgs, max_bytes, per_subject, new } => {
                self.drain();
                let settings = Settings {
                    limits: Limits {
                        max_msgs: *max_msgs,
                        max_bytes: *max_bytes,
                        max_msgs_per_subject: *per_subject,
                        ..self.model.settings.limits
                    },
                    discard: if *new { Discard::New } else { Discard::Old },
                    ..self.model.settings.clone()
                };
                self.model.settings = settings.clone();
                self.world.configure(settings);
                self.model.settle_subjects();
                self.model.settle_totals();
                self.drain();
            }
            Op::Expire => {
                let now = self.world.now;
                let max_age_ns = self.model.settings.limits.max_age_ns.unwrap();
                self.model.live.retain(|_, m| m.ts + max_age_ns > now);
                let now = Timestamp::new(now);
                self.propose(Command::Expire(Expire { now, max_count: u32::MAX }));
                self.drain();
            }
            Op::Drain => self.drain(),
            Op::Wait(ns) => self.world.now += ns,
            Op::NewTerm => {
                self.world.new_term();
                self.model = self.applied.clone();
            }
            Op::Reset => {
                let refused = self.world.admission.newest_in_flight();
                let sealed = self.world.admission.seal();
                if let Some(ordinal) = refused {
                    self.world.admission.refused(ordinal);
                }
                self.world.admission.reset(&self.world.leader.state, self.world.admission.term());
                self.model = self.applied.clone();
                self.drain();
                if let Some((_, late)) = sealed {
                    assert!(self.world.append(&late).is_void());
                }
            }
            Op::Restart => {
                self.drain();
                self.world.leader.restart();
            }
        }
    }

    fn publish(&mut self, subject: &'static str, id: Option<u8>, len: usize, expect: Option<bool>, rollup: bool) {
        if rollup || expect.is_some() {
            // What messages in flight evict is not known to an expectation before they are applied.
            self.drain();
        }
        let right = self.model.of(subject).last().copied().unwrap_or(0);
        let expect = expect.map(|right_one| if right_one { right } else { right + 1 });
        let mut headers = Vec::new();
        let (id_text, expect_text) = (format!("id-{id:?}"), expect.unwrap_or(0).to_string());
        if id.is_some() {
            headers.push(("Nats-Msg-Id", id_text.as_str()));
        }
        if expect.is_some() {
            headers.push(("Nats-Expected-Last-Subject-Sequence", expect_text.as_str()));
        }
        if rollup {
            headers.push(("Nats-Rollup", "sub"));
        }
        let payload = vec![7; len];
        let hdr_len = block(&headers).len();
        let counted = stored_len(StorageKind::File, subject.len(), hdr_len, len);
        let found = self.world.publish(subject, &headers, &payload);
        if expect.is_some_and(|seq| seq != right) {
            // Told before anything else, a known id included.
            assert_eq!(found, Err(PubRefusal::WrongLastSequence(StreamSeq::new(right))));
            return;
        }
        if let Some(seq) = id.and_then(|id| self.model.duplicate(id, self.world.now)) {
            assert_eq!(found.unwrap().duplicate_of, Some(StreamSeq::new(seq)));
            return;
        }
        match self.model.refusal(subject, counted, expect) {
            Some(why) => assert_eq!(found, Err(why)),
            None => {
                let admitted = found.unwrap();
                self.model.store(subject, counted, self.world.now, id, rollup);
                assert_eq!((admitted.seq.get(), admitted.duplicate_of), (self.model.last, None));
            }
        }
        if rollup {
            self.drain();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn admission_and_apply_agree_with_a_list(ops in ops()) {
        let settings = Settings {
            duplicate_window_ns: WINDOW_NS,
            allow_rollup: true,
            limits: Limits { max_age_ns: Some(700), ..Limits::default() },
            ..Settings::default()
        };
        let model = Model { settings: settings.clone(), ..Model::default() };
        let world = World::new(settings.clone());
        let mut run = Run { world, model: model.clone(), applied: model };
        for op in &ops {
            run.step(op);
        }
        run.drain();
        run.world.leader.restart();
        run.world.check_replicas(&settings);
    }
}
