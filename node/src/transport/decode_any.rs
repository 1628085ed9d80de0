//! Any bytes as what a peer sends on a link or in a handshake: see [`crate::decoders`].

use bytes::Bytes;

use super::frame::{self, FrameBuffer, HEADER_BYTES};
use super::hello;

/// How a byte stream was cut into frames: role, kind, id and body of each, and what ended it.
type Heard = (Vec<(frame::Role, u8, u64, Bytes)>, Option<frame::FrameError>);

fn hear<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Heard {
    let (mut buffer, mut frames) = (FrameBuffer::default(), Vec::new());
    for piece in pieces {
        buffer.push(piece);
        loop {
            match buffer.next() {
                Ok(Some(frame)) => frames.push((frame.role, frame.kind, frame.id, frame.body)),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// The first byte says where the stream is cut, the rest is the stream.
///
/// # Panics
/// If a decoder contradicts itself.
pub fn decode_any(bytes: &[u8]) {
    let Some((cut, wire)) = bytes.split_first() else { return };
    let whole = hear([wire]);
    let cut = usize::from(*cut).min(wire.len());
    assert_eq!(hear([&wire[..cut], &wire[cut..]]), whole);
    assert_eq!(hear(wire.chunks(1)), whole);
    let (frames, ended) = whole;
    let mut written = Vec::new();
    for (role, kind, id, body) in frames {
        written.extend_from_slice(&frame::header(role, kind, id, body.len()).expect("it was short enough to come in"));
        written.extend_from_slice(&body);
    }
    assert!(wire.starts_with(&written), "frames have one encoding");
    assert!(ended.is_none() || wire.len() >= written.len() + HEADER_BYTES, "judged by a whole header");
    hello::decode_any(wire);
}
