//! The small binary encoding that operations and images share: LEB128 varints and length-prefixed bytes.

use thiserror::Error;

/// Bytes that are not what an encoder of this version writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Error)]
#[error("malformed consumer {what} at byte {at}")]
pub struct Malformed {
    /// What was being read.
    pub what: &'static str,
    /// Offset from the start of the input.
    pub at: usize,
}

pub(super) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what the `put_*` functions wrote; every read is bounds-checked.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn fail(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at }
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed { what, at: self.at })?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(self.fail(what));
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.fail(what))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        let value = self.u64(what)?;
        u32::try_from(value).map_err(|_| self.fail(what))
    }

    /// A count of items of at least `item_len` bytes each: refused when the input cannot hold that many.
    pub(super) fn count(&mut self, what: &'static str, item_len: usize) -> Result<usize, Malformed> {
        let value = self.u64(what)?;
        let most = (self.remaining() / item_len.max(1)) as u64;
        if value > most {
            return Err(self.fail(what));
        }
        Ok(value as usize)
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let len = self.count(what, 1)?;
        let bytes = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }
}
