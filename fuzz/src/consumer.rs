//! Consumers: operations as they stand in the log, applied, and the image of all consumers of a stream.

use headwater_core::consumer::{ConsumerEffects, ConsumerSet, LiveMessages, decode_ops, encode_ops};
use headwater_core::ids::StreamSeq;

use crate::input::Input;
use crate::sample;

/// Messages 2 to 40 of which every seventh is gone.
struct Live;

impl LiveMessages for Live {
    fn next_seq(&self) -> StreamSeq {
        StreamSeq::new(41)
    }

    fn contains(&self, seq: StreamSeq) -> bool {
        (2..=40).contains(&seq.get()) && !seq.get().is_multiple_of(7)
    }
}

pub(crate) fn op_seeds() -> Vec<Vec<u8>> {
    let ops = sample::consumer_ops();
    let encoded = |ops: &[_]| {
        let mut out = Vec::new();
        encode_ops(ops, &mut out);
        out
    };
    let mut seeds: Vec<Vec<u8>> = (1..=ops.len()).map(|count| encoded(&ops[..count])).collect();
    seeds.extend(ops.iter().map(|op| encoded(std::slice::from_ref(op))));
    seeds
}

pub(crate) fn ops(data: &[u8]) {
    let Ok(ops) = decode_ops(data) else { return };
    let mut written = Vec::new();
    encode_ops(&ops, &mut written);
    assert_eq!(decode_ops(&written).as_ref(), Ok(&ops));
    // A run of a million deliveries is allowed, and takes as much memory: those are tested where they are applied.
    if written.len() > 2_000 {
        return;
    }
    let mut set = ConsumerSet::default();
    let mut effects = ConsumerEffects::default();
    // Twice: what a consumer that is there already makes of it.
    for _ in 0..2 {
        for op in &ops {
            set.apply(op, &Live, &mut effects);
        }
    }
    check(&mut set);
}

pub(crate) fn image_seeds() -> Vec<Vec<u8>> {
    let mut set = ConsumerSet::default();
    let mut seeds = vec![set.image()];
    for op in sample::consumer_ops() {
        set.apply(&op, &Live, &mut ConsumerEffects::default());
        seeds.push(set.image());
    }
    seeds
}

/// The ids an image says were given: a varint behind its version.
fn ids_given(image: &[u8]) -> u64 {
    let mut value = 0;
    for (nth, byte) in image.iter().skip(1).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * nth);
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

pub(crate) fn image(data: &[u8]) {
    let Ok(mut set) = ConsumerSet::from_image(data) else { return };
    check(&mut set);
    // The next one has an id, too.
    if ids_given(&set.image()) > u64::MAX / 2 - 100 {
        return;
    }
    let mut input = Input::new(data);
    set.clamp(StreamSeq::new(input.number()));
    set.messages_removed(StreamSeq::new(input.number()), StreamSeq::new(input.number()));
    for op in sample::consumer_ops() {
        set.apply(&op, &Live, &mut ConsumerEffects::default());
    }
    check(&mut set);
}

fn check(set: &mut ConsumerSet) {
    let image = set.image();
    let again = ConsumerSet::from_image(&image).expect("what was written can be read");
    assert_eq!(again, *set);
    assert_eq!(again.image(), image);
    for (id, state) in set.iter() {
        assert!(state.ack_floor().stream <= state.delivered().stream);
        assert_eq!(set.id_of(&state.config().name), Some(id));
        assert_eq!(state.iter_pending().count(), state.pending_count());
        let _ = (state.redelivered_count(), state.needs(StreamSeq::new(3), b"a.b"));
    }
}
