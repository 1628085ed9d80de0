//! Encoding, images, recovery.

use proptest::prelude::*;

use super::world::{Messages, SECOND, explicit};
use crate::consumer::*;
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

fn runs() -> impl Strategy<Value = Vec<SeqRun>> {
    prop::collection::vec((0u64..100, 1u64..5), 0..6)
        .prop_map(|runs| runs.into_iter().map(|(seq, len)| SeqRun { seq: StreamSeq::new(seq), len }).collect())
}

fn op() -> impl Strategy<Value = ConsumerOp> {
    let id = (1u64..4).prop_map(ConsumerId::new);
    let ts = (0u64..100).prop_map(|seconds| Timestamp::new(seconds * SECOND));
    let policy = prop::sample::select(vec![AckPolicy::None, AckPolicy::All, AckPolicy::Explicit]);
    let seq = (0u64..100).prop_map(StreamSeq::new);
    let deliveries = prop::collection::vec((1u64..100, 1u64..200, 1u64..6), 0..5).prop_map(|runs| {
        runs.into_iter()
            .map(|(seq, cseq, len)| DeliveredRun { seq: StreamSeq::new(seq), cseq: ConsumerSeq::new(cseq), len })
            .collect::<Vec<_>>()
    });
    let config = (prop::sample::select(vec!["A", "B", "C"]), policy, 0u64..9).prop_map(|(name, policy, wait)| {
        ConsumerConfig { name: name.to_owned(), ack_policy: policy, ack_wait_ns: wait * SECOND, ..explicit() }
    });
    let start =
        prop_oneof![seq.clone().prop_map(StartAt::Next), Just(StartAt::AfterLast), Just(StartAt::LastPerSubject),];
    prop_oneof![
        2 => (ts.clone(), config.clone(), start).prop_map(|(ts, config, start)| ConsumerOp::Create {
            ts,
            create: Box::new(CreateConsumer { config, config_json: "{\"x\":1}".to_owned(), start }),
        }),
        1 => (id.clone(), config).prop_map(|(id, config)| ConsumerOp::Update {
            id,
            update: Box::new(UpdateConsumer { config, config_json: "{}".to_owned() }),
        }),
        1 => id.clone().prop_map(|id| ConsumerOp::Delete { id }),
        6 => (id.clone(), ts.clone(), deliveries).prop_map(|(id, ts, runs)| ConsumerOp::Delivered { id, ts, runs }),
        3 => (id.clone(), runs()).prop_map(|(id, runs)| ConsumerOp::Ack { id, runs }),
        1 => (id.clone(), seq.clone()).prop_map(|(id, through)| ConsumerOp::AckAll { id, through }),
        2 => (id.clone(), ts.clone(), runs()).prop_map(|(id, due, runs)| ConsumerOp::Nak { id, due, runs }),
        1 => (id.clone(), runs()).prop_map(|(id, runs)| ConsumerOp::Term { id, runs }),
        1 => (id.clone(), ts, runs()).prop_map(|(id, ts, runs)| ConsumerOp::Progress { id, ts, runs }),
        1 => (id.clone(), runs()).prop_map(|(id, runs)| ConsumerOp::Exhausted { id, runs }),
        1 => (id.clone(), seq.clone()).prop_map(|(id, through)| ConsumerOp::Skip { id, through }),
        1 => (id, seq).prop_map(|(id, next)| ConsumerOp::Reset { id, next }),
    ]
}

fn stream(last: u64, holes: &[u64]) -> Messages {
    let mut messages = Messages::default();
    for _ in 0..last {
        messages.publish("s", 0);
    }
    for hole in holes {
        messages.stored.remove(hole);
    }
    messages
}

proptest! {
    #[test]
    fn operations_survive_their_encoding(ops in prop::collection::vec(op(), 0..20)) {
        let mut body = Vec::new();
        encode_ops(&ops, &mut body);
        prop_assert_eq!(decode_ops(&body).unwrap(), ops);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(ops) = decode_ops(&bytes) {
            let messages = stream(10, &[]);
            let mut set = ConsumerSet::default();
            let mut effects = ConsumerEffects::default();
            ops.iter().for_each(|op| set.apply(op, &messages, &mut effects));
        }
        let _any = ConsumerSet::from_image(&bytes).is_ok();
    }

    #[test]
    fn replay_from_any_image_gives_the_same_set(
        ops in prop::collection::vec((op(), prop::option::weighted(0.1, (1u64..100, 0u64..20))), 1..60),
        holes in prop::collection::vec(1u64..90, 0..10),
        cut in any::<prop::sample::Index>(),
    ) {
        let messages = stream(90, &holes);
        let apply = |set: &mut ConsumerSet, (op, removed): &(ConsumerOp, Option<(u64, u64)>)| {
            let mut effects = ConsumerEffects::default();
            set.apply(op, &messages, &mut effects);
            if let Some((first, more)) = removed {
                set.messages_removed(StreamSeq::new(*first), StreamSeq::new(first + more));
            }
            effects
        };
        let mut set = ConsumerSet::default();
        let mut images = vec![set.image()];
        let mut all_effects = Vec::new();
        for step in &ops {
            all_effects.push(apply(&mut set, step));
            for (_, state) in set.iter() {
                let listed: Vec<_> = state.iter_pending().collect();
                prop_assert_eq!(listed.len(), state.pending_count());
                prop_assert!(listed.windows(2).all(|pair| pair[0].seq < pair[1].seq));
                prop_assert!(state.ack_floor().stream <= state.delivered().stream);
                let again = listed.iter().filter(|entry| entry.deliveries > 1).count();
                let exhausted = (0..200).filter(|seq| state.is_exhausted(StreamSeq::new(*seq))).count();
                prop_assert_eq!(state.redelivered_count(), again + exhausted);
            }
            images.push(set.image());
        }
        let cut = cut.index(images.len());
        let mut replayed = ConsumerSet::from_image(&images[cut]).unwrap();
        for (step, effects) in ops.iter().zip(&all_effects).skip(cut) {
            prop_assert_eq!(&apply(&mut replayed, step), effects);
        }
        prop_assert_eq!(replayed.image(), set.image());
        let image = set.image();
        for len in 0..image.len() {
            prop_assert!(ConsumerSet::from_image(&image[..len]).is_err(), "a torn image is refused");
        }
    }
}

fn create(name: &str) -> ConsumerOp {
    ConsumerOp::Create {
        ts: Timestamp::new(SECOND),
        create: Box::new(CreateConsumer {
            config: ConsumerConfig { name: name.to_owned(), ..explicit() },
            config_json: "{}".to_owned(),
            start: StartAt::Next(StreamSeq::FIRST),
        }),
    }
}

fn deliver(id: ConsumerId, first: u64, len: u64) -> ConsumerOp {
    ConsumerOp::Delivered {
        id,
        ts: Timestamp::new(SECOND),
        runs: vec![DeliveredRun { seq: StreamSeq::new(first), cseq: ConsumerSeq::new(first), len }],
    }
}

#[test]
fn an_operation_of_a_deleted_consumer_does_not_hit_its_namesake() {
    let messages = stream(10, &[]);
    let mut set = ConsumerSet::default();
    let mut effects = ConsumerEffects::default();
    set.apply(&create("C"), &messages, &mut effects);
    set.apply(&create("C"), &messages, &mut effects);
    let old = set.id_of("C").unwrap();
    set.apply(&ConsumerOp::Delete { id: old }, &messages, &mut effects);
    set.apply(&create("C"), &messages, &mut effects);
    set.apply(&deliver(old, 1, 5), &messages, &mut effects);
    let new = set.id_of("C").unwrap();
    assert_eq!(
        effects.created,
        [CreateOutcome::Created(old), CreateOutcome::Existing(old), CreateOutcome::Created(new)]
    );
    assert_eq!(set.get(new).unwrap().delivered().stream, StreamSeq::ZERO);
}

#[test]
fn settled_messages_are_reported_for_retention() {
    let messages = stream(10, &[]);
    let mut set = ConsumerSet::default();
    let mut effects = ConsumerEffects::default();
    set.apply(&create("C"), &messages, &mut effects);
    let id = set.id_of("C").unwrap();
    set.apply(&deliver(id, 1, 6), &messages, &mut effects);
    assert_eq!(effects.settled, []);
    let run = |seq, len| SeqRun { seq: StreamSeq::new(seq), len };
    set.apply(&ConsumerOp::Ack { id, runs: vec![run(2, 2), run(9, 1)] }, &messages, &mut effects);
    set.apply(&ConsumerOp::Exhausted { id, runs: vec![run(1, 1)] }, &messages, &mut effects);
    set.apply(&ConsumerOp::Term { id, runs: vec![run(4, 1)] }, &messages, &mut effects);
    assert_eq!(effects.settled, [run(2, 3)], "delivered ones only; giving up settles nothing");
    assert!(set.needs(StreamSeq::new(1), b"s") && set.needs(StreamSeq::new(7), b"s"));
    assert!(!set.needs(StreamSeq::new(3), b"s"));
}

#[test]
fn a_consumer_ahead_of_its_stream_moves_back_with_it() {
    // B55: a stream that lost its tail (relaxed modes only) must not leave a consumer waiting for ever.
    let mut messages = stream(10, &[]);
    let mut set = ConsumerSet::default();
    let mut effects = ConsumerEffects::default();
    set.apply(&create("C"), &messages, &mut effects);
    set.apply(&create("D"), &messages, &mut effects);
    let id = set.id_of("C").unwrap();
    set.apply(&deliver(id, 1, 10), &messages, &mut effects);
    messages.last = 4;
    assert_eq!(set.clamp(messages.next_seq()), ["C"]);
    let state = set.get(id).unwrap();
    assert_eq!((state.delivered().stream.get(), state.pending_count()), (4, 4));
    assert_eq!(set.clamp(messages.next_seq()), Vec::<String>::new());
}

#[test]
fn fixed_fields_cannot_be_updated() {
    let config = explicit();
    let mut next = config.clone();
    next.ack_wait_ns = 1;
    next.max_ack_pending = None;
    assert_eq!(config.check_update(&next), Ok(()));
    next.ack_policy = AckPolicy::None;
    assert_eq!(config.check_update(&next), Err(UpdateRefusal { field: "ack policy" }));
}
