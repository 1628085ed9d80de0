//! Small files for people and programs: one line with the kind, its version and the checksum of the rest, then JSON.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::envelope::FileError;

/// `prefix` is the first line up to the checksum, with the blank before it.
pub(crate) fn encode(prefix: &str, value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec_pretty(value).expect("plain fields always have a JSON form");
    let mut bytes = format!("{prefix}{:08x}\n", crc32c::crc32c(&json)).into_bytes();
    bytes.extend_from_slice(&json);
    bytes
}

/// Reads what [`encode`] wrote. `what` names kind and version, `path` the file, for error messages.
pub(crate) fn decode<T: DeserializeOwned>(prefix: &str, what: &str, path: &Path, bytes: &[u8]) -> Result<T, FileError> {
    let head_len = prefix.len() + 8 + 1;
    let Some((head, json)) = bytes.split_at_checked(head_len) else {
        return Err(FileError::damaged(path, 0, format!("{head_len} bytes or more"), format!("{}", bytes.len())));
    };
    let crc = head.strip_prefix(prefix.as_bytes()).and_then(|rest| std::str::from_utf8(rest).ok());
    let Some(stored) = crc.and_then(|crc| crc.strip_suffix('\n')) else {
        return Err(FileError::damaged(path, 0, prefix, String::from_utf8_lossy(head)));
    };
    let found = format!("{:08x}", crc32c::crc32c(json));
    if stored != found {
        return Err(FileError::damaged(path, prefix.len() as u64, format!("crc {stored}"), format!("crc {found}")));
    }
    serde_json::from_slice(json).map_err(|error| FileError::damaged(path, head_len as u64, what, error.to_string()))
}
