//! The real disk. The only file of the crate that names `std::fs`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fdatasync, flock, fsync, statvfs};
use rustix::io::Errno;

use super::{Disk, DiskEntry, DiskFile, LockGuard};

/// Slices per `pwritev` call: the kernel's `IOV_MAX`.
const SLICES_MAX: usize = 1024;
/// Unit in which zeros are written: large enough for few calls, small enough for the cache.
const ZERO_CHUNK_BYTES: usize = 1 << 20;

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

struct RealFile {
    file: File,
}

struct FileLock {
    /// The lock lives as long as this descriptor.
    _file: File,
}

impl LockGuard for FileLock {}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o640).open(path)?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Arc::new(RealFile { file }))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile { file: File::open(path)? }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that renames; callers sync the folder")]
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut dir = path;
        while !dir.exists() {
            missing.push(dir);
            match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => dir = parent,
                _ => break,
            }
        }
        fs::create_dir_all(path)?;
        // Outermost first: a directory's own name is durable before anything is put into it.
        for dir in missing.into_iter().rev() {
            let parent = match dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            self.sync_dir(parent)?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DiskEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // Names that are not UTF-8 are not ours.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let meta = entry.metadata()?;
            let is_dir = meta.is_dir();
            entries.push(DiskEntry { name, is_dir, len: if is_dir { 0 } else { meta.len() } });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Ok(fsync(File::open(dir)?)?)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o640).open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(FileLock { _file: file }))
    }

    fn available_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_vectored_at(&self, mut offset: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        for chunk in slices.chunks(SLICES_MAX) {
            let total: usize = chunk.iter().map(|slice| slice.len()).sum();
            let written = loop {
                match rustix::io::pwritev(&self.file, chunk, offset) {
                    Err(Errno::INTR) => {}
                    other => break other?,
                }
            };
            if written < total {
                self.write_rest(offset, chunk, written)?;
            }
            offset += total as u64;
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.file.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync_data(&self) -> io::Result<()> {
        // No loop around EINTR: fdatasync does not return it, and a failed sync is never repeated.
        Ok(fdatasync(&self.file)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            // The file system cannot reserve; a sparse file is the best it offers.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                if self.len()? < len {
                    self.set_len(len)?;
                }
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn fill_zero(&self, from: u64, len: u64) -> io::Result<()> {
        self.reserve(len)?;
        let zeros = vec![0; ZERO_CHUNK_BYTES];
        let mut at = from;
        while at < len {
            let step = (len - at).min(ZERO_CHUNK_BYTES as u64);
            self.file.write_all_at(&zeros[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }
}

impl RealFile {
    /// Completes a short vectored write, slice by slice.
    fn write_rest(&self, offset: u64, slices: &[IoSlice<'_>], written: usize) -> io::Result<()> {
        let mut skip = written;
        let mut at = offset;
        for slice in slices {
            if skip < slice.len() {
                self.file.write_all_at(&slice[skip..], at + skip as u64)?;
                skip = 0;
            } else {
                skip -= slice.len();
            }
            at += slice.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{publish, read_file};

    #[test]
    fn vectored_writes_beyond_the_slice_limit_arrive_whole_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = RealDisk.create(&path).unwrap();
        let parts: Vec<Vec<u8>> = (0..3000u32).map(|n| n.to_le_bytes().to_vec()).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_vectored_at(5, &slices).unwrap();
        file.sync_data().unwrap();
        let mut expected = vec![0; 5];
        expected.extend(parts.concat());
        assert_eq!(read_file(&RealDisk, &path).unwrap(), expected);
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = RealDisk.lock(&path).unwrap();
        let second = RealDisk.lock(&path).err().expect("must be refused");
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        drop(first);
        RealDisk.lock(&path).unwrap();
    }

    #[test]
    fn publish_replaces_and_leaves_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let nested = dir.path().join("a/b");
        RealDisk.create_dir_all(&nested).unwrap();
        let path = nested.join("file");
        publish(&RealDisk, &path, b"one").unwrap();
        publish(&RealDisk, &path, b"two").unwrap();
        assert_eq!(read_file(&RealDisk, &path).unwrap(), b"two");
        let names: Vec<String> = RealDisk.list(&nested).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["file"]);
    }

    #[test]
    fn zero_fill_overwrites_and_extends() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk.create(&dir.path().join("file")).unwrap();
        file.write_at(0, &[7; 100]).unwrap();
        file.fill_zero(10, 5000).unwrap();
        let mut bytes = vec![1; 5000];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), 5000);
        assert_eq!(&bytes[..10], &[7; 10]);
        assert!(bytes[10..].iter().all(|byte| *byte == 0));
        assert!(RealDisk.available_bytes(dir.path()).unwrap() > 0);
    }
}
