//! The disk as this crate sees it: one trait for directories and names, one for files.
//!
//! Everything above this module is written against [`Disk`] and [`DiskFile`], so that the very code which
//! runs in production also runs on [`SimDisk`], where a crash may happen after every single operation.
//!
//! # Contract
//!
//! * Bytes written with `write_at` survive a *process* crash once the call returned, and a *power* loss only
//!   after [`DiskFile::sync_data`] returned.
//! * A name (create, rename, remove) survives a power loss only after [`Disk::sync_dir`] of its directory.
//! * After a failed `sync_data` the content of the file on the device is unknown. Callers MUST NOT retry it:
//!   the kernel may have dropped the dirty pages, and a second sync would then succeed without them.
//! * `write_at` and `write_vectored_at` write everything or return an error.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

#[cfg(debug_assertions)]
mod faulty;
mod real;
mod sim;

pub use real::RealDisk;
pub use sim::{Fault, SimDisk};

/// One directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskEntry {
    /// File name without the directory.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_dir: bool,
    /// Length in bytes; zero for directories.
    pub len: u64,
}

/// Holds the lock of a store directory until dropped.
pub trait LockGuard: Send + Sync {}

/// Directories and names.
pub trait Disk: Send + Sync {
    /// Creates `path` for reading and writing. Fails with `AlreadyExists` if it is there.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading only; works on a read-only mount.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Atomically gives the file `from` the name `to`, replacing what was there. Both MUST be in one directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with everything in it. Missing is not an error.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory and its parents, and makes their names durable.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// The entries of a directory, sorted by name. A missing directory is `NotFound`.
    fn list(&self, dir: &Path) -> io::Result<Vec<DiskEntry>>;

    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the exclusive lock `path`, creating the file. `WouldBlock` if somebody else holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>>;

    /// Bytes still available to us on the file system that holds `path`.
    fn available_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// An open file. Shared between threads; every call names its offset.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes all slices, one behind the other, from `offset` on.
    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> io::Result<()>;

    /// Fills `buf` from `offset`; returns fewer bytes only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Makes the content, and as much metadata as is needed to read it, durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space for `len` bytes, so that `ENOSPC` shows now and not later. The new part reads as zeros.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// As [`reserve`](Self::reserve), and overwrites `from..len` with zeros, so that later writes touch only
    /// allocated, initialised extents: no metadata in their sync.
    fn fill_zero(&self, from: u64, len: u64) -> io::Result<()>;
}

/// The operating system's disk. In a debug build, under the rules of the file that `HEADWATER_DISK_FAULTS` names, if it
/// does: tests of whole processes have it fail, stall, or end the process in the middle.
#[must_use]
pub fn real_disk() -> Arc<dyn Disk> {
    #[cfg(debug_assertions)]
    if let Some(rules) = std::env::var_os("HEADWATER_DISK_FAULTS") {
        return Arc::new(faulty::FaultyDisk::new(Arc::new(RealDisk), rules.into()));
    }
    Arc::new(RealDisk)
}

/// Reads a whole file.
///
/// # Errors
/// Whatever the disk reports; `UnexpectedEof` if the file shrank meanwhile.
pub fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open_read(path)?;
    let len = usize::try_from(file.len()?).map_err(|_| io::Error::other("file is larger than memory"))?;
    let mut bytes = vec![0; len];
    read_exact_at(file.as_ref(), 0, &mut bytes)?;
    Ok(bytes)
}

/// Fills `buf` or fails with `UnexpectedEof`.
///
/// # Errors
/// Whatever the disk reports.
pub fn read_exact_at(file: &dyn DiskFile, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let got = file.read_at(offset, buf)?;
    if got < buf.len() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("wanted {} bytes at {offset}, file ends after {got}", buf.len()),
        ));
    }
    Ok(())
}

/// Replaces `path` with `bytes` so that a crash leaves either the old file or the new one, never a mixture:
/// temporary file, sync, rename, directory sync.
///
/// # Errors
/// Whatever the disk reports. After an error either version may be the one on disk.
pub fn publish(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("a published file needs a directory"))?;
    let mut temp = path.as_os_str().to_owned();
    temp.push(".tmp");
    let temp = Path::new(&temp);
    match disk.remove(temp) {
        // A leftover of a crash between create and rename; it was never valid.
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(temp)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    disk.rename(temp, path)?;
    disk.sync_dir(dir)
}
