//! A little binary reader and writer for images and command bodies: little endian, varints for counts.

/// Bytes that do not hold what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("the bytes end at {0}, inside a field")]
    Truncated(usize),
    /// A varint longer than ten bytes, or a length beyond the bytes.
    #[error("a length or varint at {0} is impossible")]
    Length(usize),
    /// Bytes remain after the last field.
    #[error("{0} bytes remain after the last field")]
    Trailing(usize),
    /// A tag, version or embedded document that is not known.
    #[error("unknown or malformed {0}")]
    Unknown(&'static str),
}

/// Appends fields to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }

    pub(crate) fn written(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes fields from a buffer; every read is bounds-checked.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn raw(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(len).ok_or(DecodeError::Length(self.at))?;
        let slice = self.bytes.get(self.at..end).ok_or(DecodeError::Truncated(self.bytes.len()))?;
        self.at = end;
        Ok(slice)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.raw(1)?[0])
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        let mut raw = [0; 8];
        raw.copy_from_slice(self.raw(8)?);
        Ok(u64::from_le_bytes(raw))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Length(start))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let start = self.at;
        let len = usize::try_from(self.varint()?).map_err(|_| DecodeError::Length(start))?;
        self.raw(len)
    }

    /// A count of items that take at least one byte each, so that a damaged count cannot ask for memory.
    pub(crate) fn count(&mut self) -> Result<usize, DecodeError> {
        let start = self.at;
        let count = usize::try_from(self.varint()?).map_err(|_| DecodeError::Length(start))?;
        if count > self.bytes.len() - self.at {
            return Err(DecodeError::Length(start));
        }
        Ok(count)
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DecodeError, Reader, Writer};

    #[test]
    fn fields_come_back_and_ends_are_checked() {
        let mut out = Writer::new();
        for value in [0, 127, 128, u64::MAX] {
            out.varint(value);
        }
        out.bytes(b"abc");
        out.u64(9);
        let bytes = out.finish();
        let mut read = Reader::new(&bytes);
        for value in [0, 127, 128, u64::MAX] {
            assert_eq!(read.varint(), Ok(value));
        }
        assert_eq!(read.bytes(), Ok(&b"abc"[..]));
        assert_eq!(read.u64(), Ok(9));
        assert_eq!(read.u8(), Err(DecodeError::Truncated(bytes.len())));
        assert_eq!(Reader::new(&[0xff; 11]).varint(), Err(DecodeError::Length(0)));
        assert_eq!(Reader::new(&[5, 1]).count(), Err(DecodeError::Length(0)));
        assert_eq!(Reader::new(&[5]).end(), Err(DecodeError::Trailing(1)));
    }
}
