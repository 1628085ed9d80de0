//! Random histories against a model that is kept the obvious way.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::world::*;
use crate::consumer::*;
use crate::ids::StreamSeq;

#[derive(Clone, Debug)]
enum Step {
    Publish(u8),
    Pull {
        batch: u32,
        no_wait: bool,
        expires_s: u64,
        max_bytes: Option<u64>,
    },
    /// The message is an index into what clients hold.
    Ack(prop::sample::Index),
    Nak(prop::sample::Index, Option<u64>),
    Term(prop::sample::Index),
    Progress(prop::sample::Index),
    Wait(u64),
    Remove(u64, u64),
    Poll,
    Apply,
    RefuseAll,
    FailOver,
}

fn step() -> impl Strategy<Value = Step> {
    let held = any::<prop::sample::Index>();
    prop_oneof![
        6 => (0u8..3).prop_map(Step::Publish),
        4 => (1u32..6, any::<bool>(), 0u64..40, prop::option::of(50u64..800))
            .prop_map(|(batch, no_wait, expires_s, max_bytes)| Step::Pull { batch, no_wait, expires_s, max_bytes }),
        6 => held.clone().prop_map(Step::Ack),
        2 => (held.clone(), prop::option::of(1u64..20)).prop_map(|(held, delay)| Step::Nak(held, delay)),
        1 => held.clone().prop_map(Step::Term),
        1 => held.prop_map(Step::Progress),
        2 => (1u64..40).prop_map(Step::Wait),
        1 => (1u64..60, 0u64..5).prop_map(|(first, more)| Step::Remove(first, more)),
        8 => Just(Step::Poll),
        6 => Just(Step::Apply),
        1 => Just(Step::RefuseAll),
        1 => Just(Step::FailOver),
    ]
}

/// What clients know.
#[derive(Default)]
struct Clients {
    /// Inbox → messages asked for, bytes asked for.
    asked: BTreeMap<String, (u32, Option<u64>)>,
    got: BTreeMap<String, (u32, u64)>,
    closed: BTreeSet<String>,
    /// Messages delivered at least once.
    held: Vec<u64>,
    deliveries: BTreeMap<u64, u32>,
    /// Ever acked or termed.
    settled: BTreeSet<u64>,
}

impl Clients {
    fn see(&mut self, actions: Vec<PumpAction>, world: &World) -> Result<(), TestCaseError> {
        for action in actions {
            match action {
                PumpAction::Deliver(delivery) => {
                    let inbox = String::from_utf8(delivery.to.to_vec()).unwrap();
                    prop_assert!(!self.closed.contains(&inbox), "a closed request gets nothing");
                    let (batch, bytes) = self.asked[&inbox];
                    let got = self.got.entry(inbox).or_default();
                    got.0 += 1;
                    got.1 += MESSAGE_LEN;
                    prop_assert!(got.0 <= batch, "more than asked for");
                    prop_assert!(bytes.is_none_or(|bytes| got.1 <= bytes), "more bytes than asked for");
                    let seq = delivery.seq.get();
                    prop_assert!(world.messages.stored[&seq].0 != "skip", "a filtered message");
                    let count = self.deliveries.entry(seq).or_default();
                    // What was sent before its entry was refused is sent again under the same count.
                    let logged_first = world.pump.tracking() == Tracking::LoggedFirst;
                    prop_assert!(delivery.deliveries > *count || !logged_first, "delivery counts rise");
                    *count = delivery.deliveries;
                    self.held.push(seq);
                }
                PumpAction::Status { to, status } if !matches!(status, Status::IdleHeartbeat { .. }) => {
                    self.closed.insert(String::from_utf8(to.to_vec()).unwrap());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn run(steps: Vec<Step>, tracking: Tracking, max_ack_pending: u32, ack_wait_s: u64) -> Result<(), TestCaseError> {
    let config = ConsumerConfig {
        max_ack_pending: Some(max_ack_pending),
        ack_wait_ns: ack_wait_s * SECOND,
        filters: Filters::new(["s", "t"]),
        ..explicit()
    };
    let mut world = World::new(config.clone(), tracking);
    let mut clients = Clients::default();
    let mut inboxes = 0;
    for step in steps {
        let held = |index: &prop::sample::Index| {
            (!clients.held.is_empty()).then(|| clients.held[index.index(clients.held.len())])
        };
        match step {
            Step::Publish(subject) => {
                world.messages.publish(["s", "t", "skip"][usize::from(subject)], world.now);
            }
            Step::Pull { batch, no_wait, expires_s, max_bytes } => {
                inboxes += 1;
                let inbox = format!("i{inboxes}");
                clients.asked.insert(inbox.clone(), (batch, max_bytes));
                world.pull(PullRequest {
                    no_wait,
                    expires_ns: Some(expires_s * SECOND),
                    max_bytes,
                    ..request(&inbox, batch)
                });
            }
            Step::Ack(index) => {
                if let Some(seq) = held(&index) {
                    world.ack(seq, AckVerb::Ack);
                    clients.settled.insert(seq);
                }
            }
            Step::Term(index) => {
                if let Some(seq) = held(&index) {
                    world.ack(seq, AckVerb::Term { reason: None });
                    clients.settled.insert(seq);
                }
            }
            Step::Nak(index, delay) => {
                if let Some(seq) = held(&index) {
                    world.ack(seq, AckVerb::Nak { delay_ns: delay.map(|delay| delay * SECOND) });
                }
            }
            Step::Progress(index) => {
                if let Some(seq) = held(&index) {
                    world.ack(seq, AckVerb::Progress);
                }
            }
            Step::Wait(seconds) => world.wait(seconds * SECOND),
            Step::Remove(first, more) => world.remove(first, first + more),
            Step::Poll => world.poll(),
            Step::Apply => {
                world.apply_one();
            }
            Step::RefuseAll => world.refuse_all(),
            Step::FailOver => world.fail_over(),
        }
        let actions = std::mem::take(&mut world.actions);
        clients.see(actions, &world)?;
        check(&mut world, &config, max_ack_pending)?;
    }
    // From here on all goes well: everything still there and not settled must reach a client, then be acked.
    for round in 0..400 {
        inboxes += 1;
        let inbox = format!("i{inboxes}");
        clients.asked.insert(inbox.clone(), (50, None));
        world.pull(request(&inbox, 50));
        let before = clients.held.len();
        let actions = world.settle();
        clients.see(actions, &world)?;
        check(&mut world, &config, max_ack_pending)?;
        for at in before..clients.held.len() {
            let seq = clients.held[at];
            world.ack(seq, AckVerb::Ack);
            clients.settled.insert(seq);
        }
        let actions = world.settle();
        clients.see(actions, &world)?;
        let info = world.info();
        if info.num_ack_pending == 0 && info.num_pending == 0 {
            break;
        }
        prop_assert!(round < 399, "the consumer is stuck: {info:?}");
        world.wait(ack_wait_s * SECOND);
    }
    for (seq, (subject, _)) in &world.messages.stored {
        let wanted = subject != "skip";
        prop_assert_eq!(clients.deliveries.contains_key(seq), wanted, "message {}", seq);
        prop_assert!(!wanted || clients.settled.contains(seq), "message {} was lost", seq);
        prop_assert!(!world.state().needs(StreamSeq::new(*seq), subject.as_bytes()));
    }
    Ok(())
}

fn check(world: &mut World, config: &ConsumerConfig, max_ack_pending: u32) -> Result<(), TestCaseError> {
    let state = world.state();
    prop_assert!(state.pending_count() as u64 <= u64::from(max_ack_pending), "max_ack_pending exceeded");
    for entry in state.iter_pending() {
        prop_assert!(world.messages.contains(entry.seq), "pending {} does not exist", entry.seq);
    }
    if world.log.is_empty() {
        let from = state.delivered().stream.next();
        let expected = world.messages.count_matching(&config.filters, from);
        world.poll_free_info(expected)?;
    }
    Ok(())
}

impl World {
    /// With nothing in flight the pump's count is what a scan says.
    fn poll_free_info(&mut self, expected: u64) -> Result<(), TestCaseError> {
        if self.pump_is_settled() {
            prop_assert_eq!(self.info().num_pending, expected);
        }
        Ok(())
    }

    fn pump_is_settled(&self) -> bool {
        self.pump.next_deadline(self.state()).is_none_or(|deadline| deadline.get() > 0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_message_is_lost_and_no_limit_is_broken(
        steps in prop::collection::vec(step(), 1..200),
        tracking in prop::sample::select(vec![Tracking::LoggedFirst, Tracking::LoggedAfter]),
        max_ack_pending in 1u32..8,
        ack_wait_s in 1u64..30,
    ) {
        run(steps, tracking, max_ack_pending, ack_wait_s)?;
    }

    #[test]
    fn the_state_agrees_with_a_naive_one(
        ops in prop::collection::vec((0u8..7, 1u64..40, 1u64..4, 0u64..9), 1..120),
    ) {
        let mut messages = Messages::default();
        for _ in 0..60 {
            messages.publish("s", 0);
        }
        let mut world = World::over(messages, explicit(), Tracking::LoggedFirst);
        let id = world.id;
        // seq → (cseq, deliveries, due); everything else is derived.
        let mut naive: BTreeMap<u64, (u64, u32, u64)> = BTreeMap::new();
        let mut gave_up: BTreeSet<u64> = BTreeSet::new();
        let (mut last, mut cseq) = (0u64, 0u64);
        for (kind, seq, len, seconds) in ops {
            let wait = 30 * SECOND;
            let ts = seconds * SECOND;
            let seqs = seq..seq + len;
            let runs = vec![SeqRun { seq: StreamSeq::new(seq), len }];
            let op = match kind {
                0 | 1 => {
                    // New ones from the front, or a redelivery.
                    let first = if kind == 0 { last + 1 } else { seq };
                    let runs = vec![DeliveredRun {
                        seq: StreamSeq::new(first),
                        cseq: crate::ids::ConsumerSeq::new(cseq + 1),
                        len,
                    }];
                    for seq in first..first + len {
                        cseq += 1;
                        if seq > last {
                            last = seq;
                            if world.messages.stored.contains_key(&seq) {
                                naive.insert(seq, (cseq, 1, ts + wait));
                            }
                        } else if let Some(entry) = naive.get_mut(&seq) {
                            entry.1 += 1;
                            entry.2 = ts + wait;
                        }
                    }
                    ConsumerOp::Delivered { id, ts: crate::ids::Timestamp::new(ts), runs }
                }
                2 | 3 => {
                    seqs.for_each(|seq| {
                        naive.remove(&seq);
                        gave_up.remove(&seq);
                    });
                    if kind == 2 { ConsumerOp::Ack { id, runs } } else { ConsumerOp::Term { id, runs } }
                }
                4 => {
                    seqs.for_each(|seq| {
                        if let Some(entry) = naive.get_mut(&seq) {
                            entry.2 = ts;
                        }
                    });
                    ConsumerOp::Nak { id, due: crate::ids::Timestamp::new(ts), runs }
                }
                5 => {
                    seqs.for_each(|seq| {
                        if naive.remove(&seq).is_some() {
                            gave_up.insert(seq);
                        }
                    });
                    ConsumerOp::Exhausted { id, runs }
                }
                _ => {
                    naive.retain(|have, _| !seqs.contains(have));
                    gave_up.retain(|have| !seqs.contains(have));
                    world.remove(seq, seq + len - 1);
                    continue;
                }
            };
            world.set.apply(&op, &world.messages, &mut world.effects);
            let state = world.state();
            let real: BTreeMap<u64, (u64, u32, u64)> = state
                .iter_pending()
                .map(|entry| (entry.seq.get(), (entry.cseq.get(), entry.deliveries, entry.due.get())))
                .collect();
            prop_assert_eq!(&real, &naive);
            prop_assert_eq!(state.delivered().stream.get(), last);
            prop_assert_eq!(state.delivered().consumer.get(), cseq);
            let floor = naive.first_key_value().map_or((last, cseq), |(seq, entry)| (seq - 1, entry.0 - 1));
            prop_assert_eq!((state.ack_floor().stream.get(), state.ack_floor().consumer.get()), floor);
            for seq in 1..80 {
                prop_assert_eq!(state.pending(StreamSeq::new(seq)).is_some(), naive.contains_key(&seq));
                prop_assert_eq!(state.is_exhausted(StreamSeq::new(seq)), gave_up.contains(&seq));
            }
        }
    }
}
