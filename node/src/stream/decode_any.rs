//! Any bytes as what nodes send each other about streams, and as a snapshot mark: see [`crate::decoders`].

use bytes::Bytes;

use super::forward::{AckBuilder, BatchBuilder, read_acks, read_batch};
use super::snapshot;

/// The first byte says what the rest is: a batch of publishes, its acks, or a snapshot mark.
///
/// # Panics
/// If a decoder contradicts itself.
pub fn decode_any(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let body = Bytes::copy_from_slice(rest);
    match kind % 3 {
        0 => {
            let Ok((stream, batch, messages)) = read_batch(body) else { return };
            let mut written = BatchBuilder::new(stream, batch);
            for message in &messages {
                written.push(message.wants_ack, &message.subject, &message.headers, &message.payload);
            }
            let (again_stream, again_batch, again) =
                read_batch(written.finish()).expect("what was written can be read");
            assert_eq!((again_stream, again_batch, again.len()), (stream, batch, messages.len()));
            for (a, b) in again.iter().zip(&messages) {
                assert_eq!((&a.subject, &a.headers, &a.payload), (&b.subject, &b.headers, &b.payload));
            }
        }
        1 => {
            let Ok((batch, acks)) = read_acks(body) else { return };
            let mut written = AckBuilder::new(batch);
            for (message, fate) in &acks {
                written.push(*message, fate);
            }
            assert_eq!(read_acks(written.finish()).expect("what was written can be read"), (batch, acks));
        }
        _ => snapshot::decode_any(rest),
    }
}
