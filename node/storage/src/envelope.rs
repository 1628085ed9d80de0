//! The wrapping of every small file that is replaced as a whole: checkpoints.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, per kind of file |
//! | 8 | 4 | `version` |
//! | 12 | 4 | `crc`: CRC32C of bytes 0..12 and 16.. |
//! | 16 | 8 | `len` of the body |
//! | 24 | … | body |
//!
//! Such files are published by rename, so a torn one cannot be seen; whatever does not match is damage.

use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

const CRC_AT: usize = 12;
const BODY_AT: usize = 24;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The disk failed.
    #[error("{op} of {} failed", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On which file.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
    /// The content is not what was written.
    #[error("{} is damaged at offset {offset}: expected {expected}, found {found}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Byte offset of what is wrong.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
}

impl FileError {
    /// The same, if it is damage: that does not pass.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Io { .. } => None,
            Self::Damaged { path, offset, expected, found } => {
                Some(Self::damaged(path, *offset, expected.as_str(), found.as_str()))
            }
        }
    }

    pub(crate) fn io(op: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { op, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, expected: expected.into(), found: found.into() }
    }
}

/// Wraps a body.
pub(crate) fn seal(magic: &[u8; 8], version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BODY_AT + body.len());
    bytes.extend_from_slice(magic);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    let crc = crc(&bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &bytes[CRC_AT + 4..])
}

/// Unwraps a body after checking everything.
pub(crate) fn unseal(path: &Path, magic: &[u8; 8], version: u32, bytes: Vec<u8>) -> Result<Bytes, FileError> {
    let damaged = |offset, expected: String, found: String| Err(FileError::damaged(path, offset, expected, found));
    if bytes.len() < BODY_AT {
        return damaged(0, format!("at least {BODY_AT} bytes"), format!("{} bytes", bytes.len()));
    }
    if &bytes[..8] != magic {
        return damaged(0, format!("magic {magic:02x?}"), format!("{:02x?}", &bytes[..8]));
    }
    let len = (&bytes[16..24]).get_u64_le();
    if len != (bytes.len() - BODY_AT) as u64 {
        return damaged(16, format!("a body of {len} bytes"), format!("{} bytes", bytes.len() - BODY_AT));
    }
    let stored = (&bytes[CRC_AT..16]).get_u32_le();
    let found = crc(&bytes);
    if stored != found {
        return damaged(12, format!("crc {stored:08x}"), format!("bytes with crc {found:08x}"));
    }
    let found = (&bytes[8..12]).get_u32_le();
    if found != version {
        return damaged(8, format!("version {version}"), format!("version {found}"));
    }
    Ok(Bytes::from(bytes).slice(BODY_AT..))
}

/// Reads fields one after the other; running out is damage.
pub(crate) struct Fields<'a> {
    path: &'a Path,
    rest: Bytes,
    at: u64,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(path: &'a Path, body: Bytes) -> Self {
        Self { path, rest: body, at: BODY_AT as u64 }
    }

    fn take(&mut self, len: u64, what: &str) -> Result<Bytes, FileError> {
        if len > self.rest.len() as u64 {
            let found = format!("{} bytes left", self.rest.len());
            return Err(FileError::damaged(self.path, self.at, format!("{what} of {len} bytes"), found));
        }
        self.at += len;
        Ok(self.rest.split_to(len as usize))
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, FileError> {
        Ok(self.take(4, what)?.get_u32_le())
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, FileError> {
        Ok(self.take(8, what)?.get_u64_le())
    }

    pub(crate) fn bytes(&mut self, what: &str) -> Result<Bytes, FileError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// What was read last cannot be.
    pub(crate) fn bad(&self, expected: &str, found: impl std::fmt::Display) -> FileError {
        FileError::damaged(self.path, self.at, expected, found.to_string())
    }

    pub(crate) fn end(self) -> Result<(), FileError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let found = format!("{} more bytes", self.rest.len());
        Err(FileError::damaged(self.path, self.at, "the end of the file", found))
    }
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
