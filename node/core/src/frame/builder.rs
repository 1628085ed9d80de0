//! Building a frame: each message is copied once, straight to where it will stay.

use bytes::{BufMut, Bytes, BytesMut};

use super::{FRAME_LEN_MAX, FrameCrc, FrameKind, HEADER_LEN, RECORD_HEADER_LEN, RecordFlags, VERSION, u32_at};
use crate::ids::{Ordinal, StreamId, StreamSeq, Term, Timestamp};

/// Why a record does not go into this frame. The first two pass with a fresh frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFull {
    /// The record's time is more than a `u32` of nanoseconds (4.29 s) after the frame's.
    #[error("the frame was opened too long ago for this record")]
    TooOld,
    /// The frame would exceed [`FRAME_LEN_MAX`] bytes.
    #[error("the frame would exceed {FRAME_LEN_MAX} bytes")]
    TooLong,
    /// A subject's length must fit 16 bits.
    #[error("a subject of {0} bytes is too long")]
    SubjectTooLong(usize),
}

/// An open frame.
#[derive(Debug)]
pub struct FrameBuilder {
    buf: BytesMut,
    offsets: Vec<u32>,
    base_seq: StreamSeq,
    base_ts: Timestamp,
}

impl FrameBuilder {
    /// Opens a frame. `base_seq` and `base_ts` are those of the first record.
    pub fn new(
        kind: FrameKind,
        stream: StreamId,
        term: Term,
        ordinal: Ordinal,
        base_seq: StreamSeq,
        base_ts: Timestamp,
    ) -> Self {
        let mut buf = BytesMut::with_capacity(1024);
        buf.put_u64_le(0); // len and crc, filled in by finish
        buf.put_slice(&[VERSION, 0, kind as u8, 0]);
        buf.put_u32_le(0); // key id
        buf.put_u64_le(stream.get());
        buf.put_u64_le(term.get());
        buf.put_u64_le(ordinal.get());
        buf.put_u64_le(base_seq.get());
        buf.put_u64_le(base_ts.get());
        buf.put_u64_le(0); // count and table, filled in by finish
        debug_assert_eq!(buf.len(), HEADER_LEN);
        Self { buf, offsets: Vec::new(), base_seq, base_ts }
    }

    /// Makes room ahead of time for `bytes` more, so that filling does not grow step by step.
    pub fn reserve(&mut self, bytes: usize) {
        self.buf.reserve(bytes);
    }

    /// Appends a message with the next sequence. Times before the frame's count as the frame's.
    pub fn push_message(
        &mut self,
        ts: Timestamp,
        subject: &[u8],
        headers: &[u8],
        payload: &[u8],
        flags: RecordFlags,
    ) -> Result<StreamSeq, FrameFull> {
        let subject_len = u16::try_from(subject.len()).map_err(|_| FrameFull::SubjectTooLong(subject.len()))?;
        let ts_delta = u32::try_from(ts.since_ns(self.base_ts)).map_err(|_| FrameFull::TooOld)?;
        let len = RECORD_HEADER_LEN + subject.len() + headers.len() + payload.len() + 2;
        // With the table entries still to come, lengths stay far below u32::MAX.
        if self.len().saturating_add(len).saturating_add(4) > FRAME_LEN_MAX {
            return Err(FrameFull::TooLong);
        }
        let start = self.buf.len();
        let seq_delta = self.offsets.len() as u32;
        let mut head = [0u8; RECORD_HEADER_LEN];
        head[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        head[8..12].copy_from_slice(&seq_delta.to_le_bytes());
        head[12..16].copy_from_slice(&ts_delta.to_le_bytes());
        head[16..18].copy_from_slice(&subject_len.to_le_bytes());
        head[18] = flags.bits();
        head[20..24].copy_from_slice(&(headers.len() as u32).to_le_bytes());
        self.buf.reserve(len);
        self.buf.put_slice(&head);
        self.buf.put_slice(subject);
        self.buf.put_slice(headers);
        self.buf.put_slice(payload);
        self.buf.put_slice(b"\r\n");
        let crc = crc32c::crc32c(&self.buf[start + 4..]);
        self.buf[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        self.offsets.push(start as u32);
        Ok(StreamSeq::new(self.base_seq.get() + u64::from(seq_delta)))
    }

    /// Appends the body of a non-message frame.
    pub fn push_body(&mut self, body: &[u8]) -> Result<(), FrameFull> {
        self.push_message(self.base_ts, b"", b"", body, RecordFlags::NONE).map(|_| ())
    }

    /// Bytes that [`FrameBuilder::finish`] would return now.
    #[expect(clippy::len_without_is_empty, reason = "an open frame always has its header")]
    pub fn len(&self) -> usize {
        self.buf.len() + 4 * self.offsets.len()
    }

    /// Records so far.
    pub fn count(&self) -> u32 {
        self.offsets.len() as u32
    }

    /// Sequence of the first record.
    pub fn base_seq(&self) -> StreamSeq {
        self.base_seq
    }

    /// Time of the first record.
    pub fn base_ts(&self) -> Timestamp {
        self.base_ts
    }

    /// The record bytes so far, without header and table: a view for in-flight look-ups.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = (StreamSeq, &[u8])> {
        self.offsets.iter().enumerate().map(|(i, &at)| {
            let at = at as usize;
            let subject_len = usize::from(u16::from_le_bytes([self.buf[at + 16], self.buf[at + 17]]));
            let subject = &self.buf[at + RECORD_HEADER_LEN..at + RECORD_HEADER_LEN + subject_len];
            (StreamSeq::new(self.base_seq.get() + i as u64), subject)
        })
    }

    /// Seals the frame.
    pub fn finish(mut self) -> Bytes {
        let table = self.buf.len();
        let count = self.offsets.len() as u32;
        self.buf.reserve(4 * self.offsets.len());
        for offset in &self.offsets {
            self.buf.put_u32_le(*offset);
        }
        let len = self.buf.len() as u32;
        self.buf[0..4].copy_from_slice(&len.to_le_bytes());
        self.buf[56..60].copy_from_slice(&count.to_le_bytes());
        self.buf[60..64].copy_from_slice(&(table as u32).to_le_bytes());
        let mut crc = FrameCrc::new(&self.buf[8..HEADER_LEN]);
        for offset in &self.offsets {
            crc.record(u32_at(&self.buf, *offset as usize).to_le_bytes());
        }
        let crc = crc.finish(&self.buf[table..]);
        self.buf[4..8].copy_from_slice(&crc.to_le_bytes());
        self.buf.freeze()
    }
}
