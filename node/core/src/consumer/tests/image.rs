//! What an image may say.

use super::world::{Messages, explicit};
use crate::consumer::image::EXHAUSTED_MAX;
use crate::consumer::*;
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

/// A consumer that was given messages 1 to 3, changed.
fn with(change: impl FnOnce(&mut ConsumerState)) -> Result<ConsumerSet, Malformed> {
    let mut messages = Messages::default();
    for _ in 0..3 {
        messages.publish("s", 0);
    }
    let (mut set, mut effects) = (ConsumerSet::default(), ConsumerEffects::default());
    let create =
        CreateConsumer { config: explicit(), config_json: "{}".into(), start: StartAt::Next(StreamSeq::FIRST) };
    let run = DeliveredRun { seq: StreamSeq::new(1), cseq: ConsumerSeq::new(1), len: 3 };
    let ts = Timestamp::new(9);
    set.apply(&ConsumerOp::Create { ts, create: Box::new(create) }, &messages, &mut effects);
    let id = ConsumerId::new(1);
    set.apply(&ConsumerOp::Delivered { id, ts, runs: vec![run] }, &messages, &mut effects);
    change(set.consumers.get_mut(&id).unwrap());
    ConsumerSet::from_image(&set.image())
}

/// Found by fuzzing: such a consumer had an ack floor above its last delivery.
#[test]
fn nothing_is_pending_that_was_not_delivered() {
    assert!(with(|_| {}).is_ok());
    assert!(with(|state| state.delivered.stream = StreamSeq::new(2)).is_err());
    assert!(with(|state| state.delivered.consumer = ConsumerSeq::new(2)).is_err());
    assert!(with(|state| state.delivered.stream = StreamSeq::new(u64::MAX)).is_err());
}

/// Found by fuzzing: the next consumer's id was past the largest number.
#[test]
fn ids_are_as_many_as_counting_gives() {
    let given = |ids_given| ConsumerSet::from_image(&ConsumerSet { ids_given, ..ConsumerSet::default() }.image());
    assert!(given(u64::MAX / 2).is_ok());
    assert!(given(u64::MAX / 2 + 1).is_err());
}

/// Found by reading: one run of 2^26 was as many nodes of a tree.
#[test]
fn a_run_of_exhausted_messages_is_cheap_however_long() {
    let far = |len: u64| {
        with(|state| {
            state.delivered.stream = StreamSeq::new(EXHAUSTED_MAX * 2);
            state.exhausted.insert_range(10..10 + len);
        })
    };
    let (_, state) = far(EXHAUSTED_MAX).unwrap().iter().map(|(id, state)| (id, state.clone())).next().unwrap();
    assert!(state.is_exhausted(StreamSeq::new(9 + EXHAUSTED_MAX)));
    assert!(!state.is_exhausted(StreamSeq::new(10 + EXHAUSTED_MAX)));
    assert!(far(EXHAUSTED_MAX + 1).is_err());
}
