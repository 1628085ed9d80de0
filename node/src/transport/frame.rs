//! The frame of the node-to-node protocol.
//!
//! ```text
//!  0       4      5       6          8              16
//!  | len   | kind | flags | reserved | request id   | body …
//!  | u32   | u8   | u8    | u16 = 0  | u64          |
//! ```
//!
//! All numbers are little endian. `len` counts the whole frame, header included, and is at most [`FRAME_BYTES_MAX`].
//! `flags` holds the [`Role`]; the request id is zero on one-way frames.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Length of the frame header, in bytes.
pub(super) const HEADER_BYTES: usize = 16;
/// Longest frame a peer may send, header included.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;
/// Reads start with this much free space and grow with what the socket delivers.
const READ_BYTES_MIN: usize = 64 << 10;
/// Free space one read may offer at most.
const READ_BYTES_MAX: usize = 1 << 20;

/// What a frame is to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    OneWay,
    Request,
    Response,
    ResponseError,
    Ping,
    Pong,
}

impl Role {
    fn to_flags(self) -> u8 {
        match self {
            Role::OneWay => 0,
            Role::Request => 1,
            Role::Response => 2,
            Role::ResponseError => 3,
            Role::Ping => 4,
            Role::Pong => 5,
        }
    }

    fn from_flags(flags: u8) -> Option<Role> {
        Some(match flags {
            0 => Role::OneWay,
            1 => Role::Request,
            2 => Role::Response,
            3 => Role::ResponseError,
            4 => Role::Ping,
            5 => Role::Pong,
            _ => return None,
        })
    }
}

/// One decoded frame; `body` is a slice of the read buffer.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) role: Role,
    pub(super) kind: u8,
    pub(super) id: u64,
    pub(super) body: Bytes,
}

/// Why a byte stream is not a sequence of frames; the link must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("frame length {0} is shorter than its header")]
    TooShort(u32),
    #[error("frame length {0} is above the limit")]
    TooLong(u32),
    #[error("unknown frame flags {0:#x}")]
    UnknownFlags(u8),
    #[error("reserved bytes of the frame header are {0:#x}, not zero")]
    Reserved(u16),
}

/// The header in front of a body of `body_bytes` bytes; `None` when the frame would be too long.
pub(super) fn header(role: Role, kind: u8, id: u64, body_bytes: usize) -> Option<[u8; HEADER_BYTES]> {
    let len = body_bytes.checked_add(HEADER_BYTES).filter(|len| *len <= FRAME_BYTES_MAX)?;
    let len = u32::try_from(len).ok()?;
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&len.to_le_bytes());
    header[4] = kind;
    header[5] = role.to_flags();
    header[8..16].copy_from_slice(&id.to_le_bytes());
    Some(header)
}

/// Bytes received on a link, cut into frames without copying the bodies.
#[derive(Debug, Default)]
pub(super) struct FrameBuffer {
    bytes: BytesMut,
    read_bytes: usize,
}

/// What one read brought.
pub(super) struct Filled {
    pub(super) bytes: usize,
    /// The read used all the space it was given, so the socket probably holds more.
    pub(super) more: bool,
}

impl FrameBuffer {
    /// Reads once. Cancel safe: bytes are either in the buffer or still in the socket.
    pub(super) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Filled> {
        let missing = self.missing().clamp(READ_BYTES_MIN, FRAME_BYTES_MAX);
        let wanted = self.read_bytes.max(missing);
        let free = self.bytes.capacity() - self.bytes.len();
        if free < READ_BYTES_MIN / 4 || free < self.missing() {
            self.bytes.reserve(wanted);
        }
        let free = self.bytes.capacity() - self.bytes.len();
        let bytes = from.read_buf(&mut self.bytes).await?;
        let more = bytes == free;
        self.read_bytes = if more { (free * 2).min(READ_BYTES_MAX) } else { (self.read_bytes / 2).max(bytes) };
        self.read_bytes = self.read_bytes.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        Ok(Filled { bytes, more })
    }

    /// Bytes still missing to the end of the frame that has begun; zero when its length is not known yet.
    fn missing(&self) -> usize {
        match self.bytes.first_chunk::<4>() {
            Some(len) => (u32::from_le_bytes(*len) as usize).saturating_sub(self.bytes.len()).min(FRAME_BYTES_MAX),
            None => 0,
        }
    }

    /// The next complete frame, `None` when more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(head) = self.bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [l0, l1, l2, l3, kind, flags, r0, r1, id @ ..] = *head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let frame_bytes = len as usize;
        if frame_bytes < HEADER_BYTES {
            return Err(FrameError::TooShort(len));
        }
        if frame_bytes > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong(len));
        }
        let reserved = u16::from_le_bytes([r0, r1]);
        if reserved != 0 {
            return Err(FrameError::Reserved(reserved));
        }
        let role = Role::from_flags(flags).ok_or(FrameError::UnknownFlags(flags))?;
        if self.bytes.len() < frame_bytes {
            return Ok(None);
        }
        let mut frame = self.bytes.split_to(frame_bytes);
        frame.advance(HEADER_BYTES);
        Ok(Some(Frame { role, kind, id: u64::from_le_bytes(id), body: frame.freeze() }))
    }

    /// Bytes that did not come by [`Self::fill`].
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn encoded(role: Role, kind: u8, id: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = header(role, kind, id, body.len()).unwrap().to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn frames_survive_every_split_of_the_byte_stream() {
        let mut wire = encoded(Role::Request, 7, 42, b"hello");
        wire.extend(encoded(Role::OneWay, 8, 0, b""));
        wire.extend(encoded(Role::ResponseError, 0, u64::MAX, &[9; 300]));
        for cut in 0..=wire.len() {
            let mut buffer = FrameBuffer::default();
            let mut seen = Vec::new();
            for piece in [&wire[..cut], &wire[cut..]] {
                buffer.push(piece);
                while let Some(frame) = buffer.next().unwrap() {
                    seen.push((frame.role, frame.kind, frame.id, frame.body.to_vec()));
                }
            }
            let expected = vec![
                (Role::Request, 7, 42, b"hello".to_vec()),
                (Role::OneWay, 8, 0, vec![]),
                (Role::ResponseError, 0, u64::MAX, vec![9; 300]),
            ];
            assert_eq!(seen, expected, "cut at {cut}");
        }
    }

    #[test]
    fn bad_headers_are_refused_before_their_body_arrives() {
        let good = encoded(Role::OneWay, 1, 0, b"x");
        let cases: [(usize, u8, FrameError); 4] = [
            (0, 3, FrameError::TooShort(3)),
            (3, 0xff, FrameError::TooLong(0xff00_0011)),
            (5, 6, FrameError::UnknownFlags(6)),
            (6, 1, FrameError::Reserved(1)),
        ];
        for (at, value, expected) in cases {
            let mut bytes = good.clone();
            bytes[at] = value;
            let mut buffer = FrameBuffer::default();
            buffer.push(&bytes[..HEADER_BYTES]);
            assert_eq!(buffer.next().unwrap_err(), expected);
        }
        assert!(header(Role::OneWay, 0, 0, FRAME_BYTES_MAX - HEADER_BYTES).is_some());
        assert!(header(Role::OneWay, 0, 0, FRAME_BYTES_MAX - HEADER_BYTES + 1).is_none());
        assert!(header(Role::OneWay, 0, 0, usize::MAX).is_none());
    }

    #[test]
    fn random_bytes_never_panic_and_never_yield_more_than_they_hold() {
        let mut random = rand::rngs::StdRng::seed_from_u64(0x4857_5031);
        for _ in 0..2_000 {
            let mut bytes = vec![0; random.random_range(0..400)];
            random.fill(&mut bytes[..]);
            // Half the cases start with a plausible length, else almost all die on the first check.
            if bytes.len() > 8 && random.random() {
                bytes[0..4].copy_from_slice(&random.random_range(0u32..200).to_le_bytes());
                bytes[5] = random.random_range(0..7);
                bytes[6..8].fill(0);
            }
            let mut buffer = FrameBuffer::default();
            buffer.push(&bytes);
            let mut body_bytes = 0;
            while let Ok(Some(frame)) = buffer.next() {
                body_bytes += frame.body.len() + HEADER_BYTES;
            }
            assert!(body_bytes <= bytes.len());
            assert!(buffer.missing() <= FRAME_BYTES_MAX);
        }
    }

    #[tokio::test]
    async fn fill_makes_room_for_a_frame_larger_than_one_read() {
        let body = vec![5; 3 << 20];
        let wire = encoded(Role::OneWay, 2, 0, &body);
        let mut from = &wire[..];
        let mut buffer = FrameBuffer::default();
        let frame = loop {
            if let Some(frame) = buffer.next().unwrap() {
                break frame;
            }
            assert!(buffer.fill(&mut from).await.unwrap().bytes > 0);
        };
        assert_eq!(frame.body.len(), body.len());
        assert_eq!(buffer.fill(&mut from).await.unwrap().bytes, 0);
    }
}
