//! Finding the next frame in a file's bytes, where the end may be torn.

use bytes::Bytes;

use super::HEADER_LEN;
use super::parse::{Frame, FrameError, header};

/// What the bytes at a file position are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameScan {
    /// A complete, valid frame of this many bytes.
    Complete(usize),
    /// The beginning of a frame, or never-written (zeroed) space: the end of what was written.
    Torn,
    /// Complete by its length, but wrong. At the end of the newest file this may be a torn write whose
    /// pages landed out of order; anywhere else it is damage. The caller knows where it is.
    Corrupt {
        /// What is wrong.
        error: FrameError,
        /// Where the next frame would start, if the stated length can be believed.
        skip: Option<usize>,
    },
}

/// Classifies the bytes from a frame boundary to the end of what is readable. Copies the frame it
/// checks: scanning happens at start, from read buffers that are reused.
pub fn scan(bytes: &[u8]) -> FrameScan {
    let prefix = &bytes[..bytes.len().min(HEADER_LEN)];
    if bytes.len() < HEADER_LEN || prefix.iter().all(|&b| b == 0) {
        return FrameScan::Torn;
    }
    let header = match header(bytes) {
        Ok(header) => header,
        Err(error) => return FrameScan::Corrupt { error, skip: None },
    };
    let len = header.len as usize;
    if len > bytes.len() {
        return FrameScan::Torn;
    }
    match Frame::parse(Bytes::copy_from_slice(&bytes[..len])) {
        Ok(_) => FrameScan::Complete(len),
        Err(error) => FrameScan::Corrupt { error, skip: Some(len) },
    }
}
