//! Reading a block back to see whether it is still what was written: header page, and every frame that the checkpoint
//! covers. Needs no store: it reads the files of a stream beside the thread that owns them.
//!
//! The files may change meanwhile (a block is removed, a folder is replaced or deleted), so what looks like damage
//! counts only if the checkpoint, read again, still lists the block, and a second reading finds damage too.

use std::io;
use std::path::Path;

use bytes::Bytes;
use headwater_core::frame::HEADER_LEN;
use headwater_core::ids::StreamId;

use super::READ_AHEAD_BYTES;
use super::format::{HEADER_PAGE, check_header, path};
use super::open::frame_at;
use crate::checkpoint::{BlockExtent, Checkpoint};
use crate::disk::{Disk, DiskFile};
use crate::envelope::FileError;
use crate::wal::record::u32_at;

/// Asked before each read of so many bytes, at most a frame or 256 KiB, whichever is more. It may sleep to bound the
/// rate; `false` ends the reading.
pub type Pace<'a> = dyn FnMut(u64) -> bool + 'a;

/// What reading a block back came to, if it is not damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scrubbed {
    /// Everything is as it was written.
    Whole,
    /// The stream no longer has this block.
    Gone,
    /// [`Pace`] ended it.
    Stopped,
}

/// Reads the block `extent`, which the checkpoint in the stream's directory `dir` listed, and checks every checksum.
///
/// # Errors
/// [`FileError::Damaged`] with file, offset, expected and found; [`FileError::Io`] if the disk cannot read.
pub fn scrub_block(
    disk: &dyn Disk,
    dir: &Path,
    stream: StreamId,
    extent: BlockExtent,
    pace: &mut Pace<'_>,
) -> Result<Scrubbed, FileError> {
    let Err(first) = read_back(disk, dir, stream, extent, pace) else { return Ok(Scrubbed::Whole) };
    if matches!(first, Unread::Stopped) {
        return Ok(Scrubbed::Stopped);
    }
    // A damaged checkpoint is not this block's damage, and is met by whoever opens the stream.
    let listed = Checkpoint::load(disk, dir).ok().flatten().filter(|checkpoint| checkpoint.stream == stream);
    let Some(now) = listed.and_then(|now| now.blocks.into_iter().find(|now| now.block == extent.block)) else {
        return Ok(Scrubbed::Gone);
    };
    match read_back(disk, dir, stream, now, pace) {
        Ok(()) => Ok(Scrubbed::Whole),
        Err(Unread::Stopped) => Ok(Scrubbed::Stopped),
        Err(Unread::Bad(error)) => Err(error),
    }
}

/// Reads an open block file, called `path`, and checks every checksum up to where `extent` ends.
///
/// # Errors
/// As [`scrub_block`].
pub fn check_block(file: &dyn DiskFile, path: &Path, stream: StreamId, extent: BlockExtent) -> Result<(), FileError> {
    match read_file(file, path, stream, extent, &mut |_| true) {
        Err(Unread::Bad(error)) => Err(error),
        Ok(()) | Err(Unread::Stopped) => Ok(()),
    }
}

enum Unread {
    Stopped,
    Bad(FileError),
}

fn read_back(
    disk: &dyn Disk,
    dir: &Path,
    stream: StreamId,
    extent: BlockExtent,
    pace: &mut Pace<'_>,
) -> Result<(), Unread> {
    let BlockExtent { block, valid_bytes } = extent;
    let path = path(&dir.join("blocks"), block);
    match disk.open_read(&path) {
        Ok(file) => read_file(file.as_ref(), &path, stream, extent, pace),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let expected = format!("a block of {valid_bytes} bytes");
            Err(Unread::Bad(FileError::damaged(&path, 0, expected, "no file")))
        }
        Err(error) => Err(Unread::Bad(FileError::io("open", &path, error))),
    }
}

fn read_file(
    file: &dyn DiskFile,
    path: &Path,
    stream: StreamId,
    extent: BlockExtent,
    pace: &mut Pace<'_>,
) -> Result<(), Unread> {
    let BlockExtent { block, valid_bytes } = extent;
    let damaged =
        |offset, expected: String, found: String| Unread::Bad(FileError::damaged(path, offset, expected, found));
    let mut read = |at: u64, len: u64| -> Result<Bytes, Unread> {
        if !pace(len) {
            return Err(Unread::Stopped);
        }
        let bytes = read_up_to(file, at, len).map_err(|error| FileError::io("read", path, error));
        let bytes = bytes.map_err(Unread::Bad)?;
        let got = bytes.len() as u64;
        // A short page is named by its own check, with what it has.
        (got == len || at == 0)
            .then_some(bytes)
            .ok_or_else(|| damaged(at + got, format!("{valid_bytes} bytes"), format!("{} bytes", at + got)))
    };
    let page = read(0, HEADER_PAGE)?;
    check_header(&page, stream, block).map_err(|(at, expected, found)| damaged(at, expected, found))?;
    let mut at = HEADER_PAGE;
    while at < valid_bytes {
        let left = valid_bytes - at;
        let mut bytes = read(at, left.min(READ_AHEAD_BYTES as u64))?;
        let first = if bytes.len() < HEADER_LEN { 0 } else { u64::from(u32_at(&bytes, 0)) };
        if first > bytes.len() as u64 && first <= left {
            bytes = read(at, first)?;
        }
        let mut done = 0;
        while done < bytes.len() {
            match frame_at(&bytes, done, stream) {
                Ok(frame) => done += frame.bytes().len(),
                // Cut by the end of what was read at once; comes first in the next reading.
                Err(_) if done > 0 && (bytes.len() as u64) < left => break,
                Err(found) => return Err(damaged(at + done as u64, "a frame the checkpoint covers".into(), found)),
            }
        }
        at += done as u64;
    }
    Ok(())
}

/// Fewer bytes only at the end of the file.
fn read_up_to(file: &dyn DiskFile, at: u64, len: u64) -> io::Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let got = file.read_at(at, &mut bytes)?;
    bytes.truncate(got);
    Ok(Bytes::from(bytes))
}
