//! A disk that fails, stalls or ends the process where a file says so: for tests of whole processes, in debug builds.
//!
//! The file holds a rule a line, and may change or be removed at any time:
//!
//! ```text
//! sync wal/      delay 50     every sync of a file under a path with "wal/" in it takes 50 ms longer
//! write blocks/  fail EIO     also ENOSPC and EROFS
//! any streams/   kill 7       at the seventh such operation from now on the process kills itself, before it
//! ```
//!
//! Operations are `write` (content and length of files), `sync` (of files), `name` (create, rename, remove), `syncdir`,
//! `read` and `any`, which is all but `read`.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Disk, DiskEntry, DiskFile, LockGuard};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Write,
    Sync,
    Name,
    SyncDir,
    Read,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Act {
    Delay(Duration),
    Fail(Errno),
    /// After so many operations more.
    Kill(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    /// `None` is any that changes something.
    op: Option<Op>,
    part: String,
    act: Act,
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [op, part, act, value] = words[..] else { return None };
        let op = match op {
            "write" => Some(Op::Write),
            "sync" => Some(Op::Sync),
            "name" => Some(Op::Name),
            "syncdir" => Some(Op::SyncDir),
            "read" => Some(Op::Read),
            "any" => None,
            _ => return None,
        };
        let act = match (act, value) {
            ("delay", ms) => Act::Delay(Duration::from_millis(ms.parse().ok()?)),
            ("fail", "EIO") => Act::Fail(Errno::IO),
            ("fail", "ENOSPC") => Act::Fail(Errno::NOSPC),
            ("fail", "EROFS") => Act::Fail(Errno::ROFS),
            ("kill", nth) => Act::Kill(nth.parse().ok()?),
            _ => return None,
        };
        Some(Self { op, part: part.to_owned(), act })
    }

    fn is_about(&self, op: Op, path: &str) -> bool {
        self.op.map_or(op != Op::Read, |own| own == op) && path.contains(&self.part)
    }
}

#[derive(Debug, Default)]
struct Rules {
    written: Option<SystemTime>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Faults {
    file: PathBuf,
    rules: Mutex<Rules>,
}

impl Faults {
    /// What is done before an operation.
    fn before(&self, op: Op, path: &Path) -> io::Result<()> {
        let written = std::fs::metadata(&self.file).and_then(|meta| meta.modified()).ok();
        let mut rules = self.rules.lock();
        if rules.written != written {
            #[expect(clippy::disallowed_methods, reason = "the rules are no file of a store")]
            let text = std::fs::read_to_string(&self.file).unwrap_or_default();
            *rules = Rules { written, rules: text.lines().filter_map(Rule::parse).collect() };
        }
        let path = path.to_string_lossy();
        let mut delay = Duration::ZERO;
        for rule in rules.rules.iter_mut().filter(|rule| rule.is_about(op, &path)) {
            match &mut rule.act {
                Act::Delay(time) => delay += *time,
                Act::Fail(errno) => return Err((*errno).into()),
                Act::Kill(left) => {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        let own = rustix::process::getpid();
                        let _sent = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                    }
                }
            }
        }
        drop(rules);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        Ok(())
    }
}

/// A disk under the rules of a file.
pub(super) struct FaultyDisk {
    disk: Arc<dyn Disk>,
    faults: Arc<Faults>,
}

struct FaultyFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    faults: Arc<Faults>,
}

impl FaultyDisk {
    pub(super) fn new(disk: Arc<dyn Disk>, file: PathBuf) -> Self {
        Self { disk, faults: Arc::new(Faults { file, rules: Mutex::default() }) }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>, path: &Path) -> Arc<dyn DiskFile> {
        Arc::new(FaultyFile { file, path: path.to_owned(), faults: Arc::clone(&self.faults) })
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.before(Op::Name, path)?;
        Ok(self.wrap(self.disk.create(path)?, path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.open(path)?, path))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.before(Op::Read, path)?;
        Ok(self.wrap(self.disk.open_read(path)?, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.faults.before(Op::Name, to)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.before(Op::Name, path)?;
        self.disk.remove(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.faults.before(Op::Name, path)?;
        self.disk.remove_dir_all(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.faults.before(Op::Name, path)?;
        self.disk.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DiskEntry>> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.faults.before(Op::SyncDir, dir)?;
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }

    fn available_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.available_bytes(path)
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.faults.before(Op::Write, &self.path)?;
        self.file.write_at(offset, bytes)
    }

    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.faults.before(Op::Write, &self.path)?;
        self.file.write_vectored_at(offset, slices)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.faults.before(Op::Read, &self.path)?;
        self.file.read_at(offset, buf)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.before(Op::Sync, &self.path)?;
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.before(Op::Write, &self.path)?;
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.faults.before(Op::Write, &self.path)?;
        self.file.reserve(len)
    }

    fn fill_zero(&self, from: u64, len: u64) -> io::Result<()> {
        self.faults.before(Op::Write, &self.path)?;
        self.file.fill_zero(from, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{RealDisk, SimDisk};

    #[test]
    fn rules_come_and_go_with_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("faults");
        let disk = FaultyDisk::new(Arc::new(SimDisk::new()), rules.clone());
        let folder = Path::new("/store/blocks");
        disk.create_dir_all(folder).unwrap();
        let file = disk.create(&folder.join("1.blk")).unwrap();
        file.write_at(0, b"x").unwrap();
        RealDisk
            .create(&rules)
            .unwrap()
            .write_at(0, b"sync blocks/ fail EIO\nwrite wal/ fail ENOSPC\nnonsense\n")
            .unwrap();
        file.write_at(0, b"y").unwrap();
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        disk.remove(&folder.join("1.blk")).unwrap();
        RealDisk.remove(&rules).unwrap();
        file.sync_data().unwrap();
    }

    #[test]
    fn any_is_all_that_changes_something() {
        let rule = Rule::parse("any streams/ kill 3").unwrap();
        assert_eq!(rule.act, Act::Kill(3));
        for (op, about) in
            [(Op::Write, true), (Op::Sync, true), (Op::Name, true), (Op::SyncDir, true), (Op::Read, false)]
        {
            assert_eq!(rule.is_about(op, "/s/streams/1/blocks"), about);
        }
        assert!(!rule.is_about(Op::Write, "/s/wal/1"));
        assert_eq!(Rule::parse("sync wal/ delay ten"), None);
    }
}
