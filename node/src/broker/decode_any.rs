//! Any bytes as what brokers tell each other: see [`crate::decoders`].

use super::peer_wire::{each_interest, put_interest, read_routed, routed_body, routed_head};

/// The first byte says whether the rest is interest or a routed message.
///
/// # Panics
/// If a decoder contradicts itself.
pub fn decode_any(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    if kind & 1 == 0 {
        let mut written = Vec::new();
        let whole = each_interest(body, |begins, filter, queue| put_interest(&mut written, begins, filter, queue));
        assert!(body.starts_with(&written), "interest has one encoding");
        assert!(!whole || written.len() == body.len());
        return;
    }
    let Some(routed) = read_routed(body) else { return };
    let queues = routed.queues();
    assert!(queues.iter().all(|queue| routed.names_queue(queue)));
    let mut written = routed_head(routed.to, routed.plain, &queues, &routed.msg).to_vec();
    written.extend_from_slice(&routed_body(&routed.msg));
    let again = read_routed(&written).expect("what was written can be read");
    assert_eq!((again.to, again.plain, again.queues()), (routed.to, routed.plain, queues));
    let (msg, other) = (&routed.msg, &again.msg);
    assert_eq!(
        (other.subject, other.reply, other.headers, other.payload),
        (msg.subject, msg.reply, msg.headers, msg.payload)
    );
}
