//! Publishes that travel to the leader's node: one batch per (source, owner) and turn, acks return batched.
//!
//! Batch: `stream u64 | batch u64 | count u32`, then per message `flags u8 | subject u16 | headers u32 | payload u32 |
//! bytes`. Acks: `batch u64 | count u32`, then per ack `message u32 | kind u8 | seq u64`, a refusal followed by `len u16 | JSON`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The message's publisher waits for an ack.
const WANTS_ACK: u8 = 1;

/// One message of a batch.
pub(crate) struct Forwarded {
    pub(crate) wants_ack: bool,
    pub(crate) subject: Bytes,
    pub(crate) headers: Bytes,
    pub(crate) payload: Bytes,
}

/// A batch being gathered.
pub(crate) struct BatchBuilder {
    out: BytesMut,
    count: u32,
}

const COUNT_AT: usize = 16;

impl BatchBuilder {
    pub(crate) fn new(stream: u64, batch: u64) -> Self {
        let mut out = BytesMut::with_capacity(4096);
        out.put_u64_le(stream);
        out.put_u64_le(batch);
        out.put_u32_le(0);
        Self { out, count: 0 }
    }

    /// Adds a message and returns its number in the batch.
    pub(crate) fn push(&mut self, wants_ack: bool, subject: &[u8], headers: &[u8], payload: &[u8]) -> u32 {
        self.out.reserve(11 + subject.len() + headers.len() + payload.len());
        self.out.put_u8(if wants_ack { WANTS_ACK } else { 0 });
        self.out.put_u16_le(u16::try_from(subject.len()).expect("a control line is at most 4 KiB"));
        self.out.put_u32_le(u32::try_from(headers.len()).expect("bounded by max_payload"));
        self.out.put_u32_le(u32::try_from(payload.len()).expect("bounded by max_payload"));
        self.out.extend_from_slice(subject);
        self.out.extend_from_slice(headers);
        self.out.extend_from_slice(payload);
        self.count += 1;
        self.count - 1
    }

    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    pub(crate) fn finish(mut self) -> Bytes {
        self.out[COUNT_AT..COUNT_AT + 4].copy_from_slice(&self.count.to_le_bytes());
        self.out.freeze()
    }
}

/// Bytes from a peer that are not a batch.
#[derive(Debug, thiserror::Error)]
#[error("bad forwarded batch")]
pub(crate) struct BadBatch;

fn need(b: &Bytes, n: usize) -> Result<(), BadBatch> {
    if b.remaining() < n { Err(BadBatch) } else { Ok(()) }
}

/// Stream, batch number and messages.
pub(crate) fn read_batch(mut b: Bytes) -> Result<(u64, u64, Vec<Forwarded>), BadBatch> {
    need(&b, 20)?;
    let (stream, batch, count) = (b.get_u64_le(), b.get_u64_le(), b.get_u32_le());
    let mut messages = Vec::with_capacity((count as usize).min(b.len() / 11 + 1));
    for _ in 0..count {
        need(&b, 11)?;
        let wants_ack = b.get_u8() & WANTS_ACK != 0;
        let (s, h, p) = (b.get_u16_le() as usize, b.get_u32_le() as usize, b.get_u32_le() as usize);
        need(&b, s.saturating_add(h).saturating_add(p))?;
        messages.push(Forwarded { wants_ack, subject: b.split_to(s), headers: b.split_to(h), payload: b.split_to(p) });
    }
    Ok((stream, batch, messages))
}

/// What became of one forwarded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stored {
        seq: u64,
    },
    Duplicate {
        seq: u64,
    },
    /// The error part of a publish ack, as JSON.
    Refused(Bytes),
    /// Nobody knows; the publisher gets no answer and retries.
    Unknown,
}

/// Acks for one batch, gathered over a turn.
pub(crate) struct AckBuilder {
    out: BytesMut,
    count: u32,
}

impl AckBuilder {
    pub(crate) fn new(batch: u64) -> Self {
        let mut out = BytesMut::with_capacity(256);
        out.put_u64_le(batch);
        out.put_u32_le(0);
        Self { out, count: 0 }
    }

    pub(crate) fn push(&mut self, message: u32, fate: &Fate) {
        self.out.put_u32_le(message);
        match fate {
            Fate::Stored { seq } => {
                self.out.put_u8(0);
                self.out.put_u64_le(*seq);
            }
            Fate::Duplicate { seq } => {
                self.out.put_u8(1);
                self.out.put_u64_le(*seq);
            }
            Fate::Refused(json) => {
                self.out.put_u8(2);
                self.out.put_u64_le(0);
                let n = json.len().min(usize::from(u16::MAX));
                self.out.put_u16_le(u16::try_from(n).expect("cut to u16"));
                self.out.extend_from_slice(&json[..n]);
            }
            Fate::Unknown => {
                self.out.put_u8(3);
                self.out.put_u64_le(0);
            }
        }
        self.count += 1;
    }

    pub(crate) fn finish(mut self) -> Bytes {
        self.out[8..12].copy_from_slice(&self.count.to_le_bytes());
        self.out.freeze()
    }
}

pub(crate) fn read_acks(mut b: Bytes) -> Result<(u64, Vec<(u32, Fate)>), BadBatch> {
    need(&b, 12)?;
    let (batch, count) = (b.get_u64_le(), b.get_u32_le());
    let mut acks = Vec::with_capacity((count as usize).min(b.len() / 13 + 1));
    for _ in 0..count {
        need(&b, 13)?;
        let (message, kind, seq) = (b.get_u32_le(), b.get_u8(), b.get_u64_le());
        let fate = match kind {
            0 => Fate::Stored { seq },
            1 => Fate::Duplicate { seq },
            2 => {
                need(&b, 2)?;
                let n = b.get_u16_le() as usize;
                need(&b, n)?;
                Fate::Refused(b.split_to(n))
            }
            3 => Fate::Unknown,
            _ => return Err(BadBatch),
        };
        acks.push((message, fate));
    }
    Ok((batch, acks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_and_acks_survive_the_wire_and_cuts_are_refused() {
        let mut batch = BatchBuilder::new(7, 9);
        batch.push(true, b"orders.1", b"NATS/1.0\r\na: b\r\n\r\n", b"payload");
        assert_eq!(batch.push(false, b"orders.2", b"", b""), 1);
        let bytes = batch.finish();
        let (stream, number, messages) = read_batch(bytes.clone()).unwrap();
        assert_eq!((stream, number, messages.len()), (7, 9, 2));
        assert_eq!(&messages[0].payload[..], b"payload");
        assert!(messages[0].wants_ack && !messages[1].wants_ack);
        for cut in 0..bytes.len() {
            assert!(read_batch(bytes.slice(..cut)).is_err());
        }

        let fates = [Fate::Stored { seq: 3 }, Fate::Duplicate { seq: 1 }, Fate::Refused("{}".into()), Fate::Unknown];
        let mut acks = AckBuilder::new(9);
        for (i, fate) in (0..).zip(&fates) {
            acks.push(i, fate);
        }
        let bytes = acks.finish();
        assert_eq!(read_acks(bytes.clone()).unwrap(), (9, (0..).zip(fates).collect()));
        for cut in 0..bytes.len() {
            assert!(read_acks(bytes.slice(..cut)).is_err());
        }
    }
}
