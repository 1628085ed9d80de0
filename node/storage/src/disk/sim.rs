//! A simulated disk: bytes and names are volatile until synced, and every operation can be the last.
//!
//! What a power loss may do here is what POSIX allows, not what one file system happens to do: unsynced
//! writes are kept or lost per 512-byte sector, in any combination; unsynced names likewise. A failed sync
//! drops the dirty bytes for good, as Linux does, so code that retries it is caught.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskEntry, DiskFile, LockGuard};

/// Unit of a torn write, in bytes.
const SECTOR_BYTES: usize = 512;

/// What an injected fault returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device failed.
    Eio,
    /// The volume is full.
    Enospc,
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Self::Eio => io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()),
            Self::Enospc => io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()),
        }
    }
}

/// The simulated disk. Cloning the handle shares the disk; [`SimDisk::fork`] copies it.
#[derive(Clone, Default)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Clone, Default)]
struct Inner {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<NameOp>,
    dirs: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    /// Mutating operations so far.
    ops: u64,
    stop_at: Option<u64>,
    faults: BTreeMap<u64, Fault>,
    full: bool,
    /// Bumped by a crash; handles of an earlier life are dead.
    life: u64,
}

#[derive(Clone, Default)]
struct Inode {
    content: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<ByteOp>,
}

#[derive(Clone)]
enum ByteOp {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Clone)]
enum NameOp {
    Create {
        path: PathBuf,
        inode: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
        inode: u64,
    },
    Remove {
        path: PathBuf,
    },
    /// `gone` are its files: what is made under the same path later is not among them.
    RemoveTree {
        path: PathBuf,
        gone: BTreeSet<u64>,
    },
}

impl NameOp {
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Create { path, .. } | Self::Remove { path } | Self::RemoveTree { path, .. } => path.parent(),
            Self::Rename { to, .. } => to.parent(),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Create { path, inode } => {
                names.insert(path.clone(), *inode);
            }
            Self::Rename { from, to, inode } => {
                // The source may have a newer owner if an earlier rename was lost; leave that one alone.
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
            Self::Remove { path } => {
                names.remove(path);
            }
            Self::RemoveTree { gone, .. } => names.retain(|_, inode| !gone.contains(inode)),
        }
    }
}

impl ByteOp {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes: new } => put(bytes, *offset, new),
            Self::SetLen(len) => bytes.resize(*len, 0),
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    let end = offset + new.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(new);
}

/// SplitMix64: enough randomness for choosing what a crash keeps, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

/// How a crash treats what was not synced.
#[derive(Clone, Copy)]
enum Keep {
    Nothing,
    Everything,
    /// A prefix of the operations, the last one torn.
    Prefix,
    /// Every sector and every name by its own coin.
    Random,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A deep copy, to try several crashes from one point.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { inner: Arc::new(Mutex::new(self.inner.lock().clone())) }
    }

    /// Mutating operations so far: writes, syncs, names, length changes.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.inner.lock().ops
    }

    /// Lets `count` more operations pass; the next one is cut short and everything after it fails, as if the
    /// process had been killed inside that call.
    pub fn stop_after(&self, count: u64) {
        let mut inner = self.inner.lock();
        inner.stop_at = Some(inner.ops + count);
    }

    /// Whether the stop point was passed.
    #[must_use]
    pub fn stopped(&self) -> bool {
        let inner = self.inner.lock();
        inner.stop_at.is_some_and(|at| inner.ops > at)
    }

    /// Lets the `nth` mutating operation from now (0 = the next one) fail once.
    pub fn fail_op(&self, nth: u64, fault: Fault) {
        let mut inner = self.inner.lock();
        let at = inner.ops + nth;
        inner.faults.insert(at, fault);
    }

    /// While full, every write that needs new space fails with `ENOSPC`.
    pub fn set_full(&self, full: bool) {
        self.inner.lock().full = full;
    }

    /// Power loss: unsynced bytes and names are kept or lost as `seed` decides, open handles die, locks and
    /// injected faults are gone.
    pub fn crash(&self, seed: u64) {
        let mut rng = Rng(seed);
        let keep = match seed % 4 {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            2 => Keep::Prefix,
            _ => Keep::Random,
        };
        let mut inner = self.inner.lock();
        for inode in inner.inodes.values_mut() {
            inode.crash(keep, &mut rng);
        }
        let mut names = std::mem::take(&mut inner.durable_names);
        let ops = std::mem::take(&mut inner.pending_names);
        let cut = match keep {
            Keep::Prefix => (rng.next() % (ops.len() as u64 + 1)) as usize,
            _ => ops.len(),
        };
        for op in &ops[..cut] {
            let kept = match keep {
                Keep::Nothing => false,
                Keep::Everything | Keep::Prefix => true,
                Keep::Random => rng.coin(),
            };
            if kept {
                op.apply(&mut names);
            }
        }
        inner.names.clone_from(&names);
        inner.durable_names = names;
        inner.restart();
    }

    /// Process crash: everything handed to the disk survives, open handles die.
    pub fn kill(&self) {
        self.inner.lock().restart();
    }

    /// Flips one bit in the content and in the durable bytes of a file, as a decaying medium does.
    ///
    /// # Panics
    /// If the file or the byte is not there: a test asked for nonsense.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) {
        let mut inner = self.inner.lock();
        let inode = *inner.names.get(path).expect("file to damage exists");
        let inode = inner.inodes.get_mut(&inode).expect("every name has an inode");
        let at = offset as usize;
        inode.content[at] ^= 1 << bit;
        if let Some(byte) = inode.durable.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }

    fn file(&self, inode: u64, life: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), inode, life })
    }
}

impl Inode {
    fn crash(&mut self, keep: Keep, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        let cut = match keep {
            Keep::Prefix => (rng.next() % (pending.len() as u64 + 1)) as usize,
            _ => pending.len(),
        };
        for (nth, op) in pending.iter().enumerate() {
            match (keep, op) {
                (Keep::Nothing, _) => {}
                (Keep::Everything, op) => op.apply(&mut self.durable),
                (Keep::Prefix, op) if nth < cut => op.apply(&mut self.durable),
                (Keep::Prefix, ByteOp::Write { offset, bytes }) if nth == cut => {
                    let sectors = bytes.len().div_ceil(SECTOR_BYTES) as u64;
                    let kept = (rng.next() % (sectors + 1)) as usize * SECTOR_BYTES;
                    // Sectors are aligned in the file, not in the buffer.
                    let kept = kept.saturating_sub(offset % SECTOR_BYTES).min(bytes.len());
                    put(&mut self.durable, *offset, &bytes[..kept]);
                }
                (Keep::Prefix, _) => {}
                (Keep::Random, ByteOp::SetLen(len)) => {
                    if rng.coin() {
                        self.durable.resize(*len, 0);
                    }
                }
                (Keep::Random, ByteOp::Write { offset, bytes }) => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let to_boundary = SECTOR_BYTES - (offset + at) % SECTOR_BYTES;
                        let end = (at + to_boundary).min(bytes.len());
                        if rng.coin() {
                            put(&mut self.durable, offset + at, &bytes[at..end]);
                        }
                        at = end;
                    }
                }
            }
        }
        self.content.clone_from(&self.durable);
    }
}

/// What an operation about to be performed may do.
enum Pass {
    /// Perform it.
    Go,
    /// Perform its effect on volatile state, then report the stop: the caller died inside the call.
    Last,
}

impl Inner {
    fn restart(&mut self) {
        self.life += 1;
        self.locks.clear();
        self.faults.clear();
        self.stop_at = None;
        let used: BTreeSet<u64> = self.names.values().chain(self.durable_names.values()).copied().collect();
        let pending: BTreeSet<u64> = self
            .pending_names
            .iter()
            .filter_map(|op| match op {
                NameOp::Create { inode, .. } | NameOp::Rename { inode, .. } => Some(*inode),
                NameOp::Remove { .. } | NameOp::RemoveTree { .. } => None,
            })
            .collect();
        self.inodes.retain(|inode, _| used.contains(inode) || pending.contains(inode));
    }

    /// Directories are rarely renamed; here that is atomic and durable at once.
    fn rename_dir(&mut self, from: &Path, to: &Path) {
        // The name is free only once what had it is gone: that removal cannot come after this.
        let (before, pending): (Vec<NameOp>, Vec<NameOp>) = std::mem::take(&mut self.pending_names)
            .into_iter()
            .partition(|op| matches!(op, NameOp::RemoveTree { path, .. } if path == to));
        self.pending_names = pending;
        before.iter().for_each(|op| op.apply(&mut self.durable_names));
        let moved = |path: &Path| path.strip_prefix(from).map_or_else(|_| path.to_owned(), |rest| to.join(rest));
        self.names = std::mem::take(&mut self.names).into_iter().map(|(path, inode)| (moved(&path), inode)).collect();
        self.durable_names =
            std::mem::take(&mut self.durable_names).into_iter().map(|(path, inode)| (moved(&path), inode)).collect();
        self.dirs = std::mem::take(&mut self.dirs).into_iter().map(|path| moved(&path)).collect();
        for op in &mut self.pending_names {
            match op {
                NameOp::Create { path, .. } | NameOp::Remove { path } | NameOp::RemoveTree { path, .. } => {
                    *path = moved(path);
                }
                NameOp::Rename { from, to, .. } => {
                    *from = moved(from);
                    *to = moved(to);
                }
            }
        }
    }

    fn begin(&mut self) -> io::Result<Pass> {
        let now = self.ops;
        self.ops += 1;
        if let Some(stop) = self.stop_at {
            if now == stop {
                return Ok(Pass::Last);
            }
            if now > stop {
                return Err(stopped());
            }
        }
        if let Some(fault) = self.faults.remove(&now) {
            return Err(fault.error());
        }
        Ok(Pass::Go)
    }

    fn inode(&mut self, inode: u64, life: u64) -> io::Result<&mut Inode> {
        if life != self.life {
            return Err(io::Error::other("file handle from before the crash"));
        }
        self.inodes.get_mut(&inode).ok_or_else(|| io::Error::other("inode is gone"))
    }
}

fn stopped() -> io::Error {
    io::Error::other("the simulated process was stopped")
}

fn done(pass: &Pass) -> io::Result<()> {
    match pass {
        Pass::Go => Ok(()),
        Pass::Last => Err(stopped()),
    }
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no such file: {}", path.display()))
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.inner.lock();
        let pass = inner.begin()?;
        let dir = path.parent().unwrap_or(Path::new(""));
        if !inner.dirs.contains(dir) {
            return Err(not_found(dir));
        }
        if inner.names.contains_key(path) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, path.display().to_string()));
        }
        let inode = inner.next_inode;
        inner.next_inode += 1;
        inner.inodes.insert(inode, Inode::default());
        inner.names.insert(path.to_owned(), inode);
        inner.pending_names.push(NameOp::Create { path: path.to_owned(), inode });
        done(&pass)?;
        Ok(self.file(inode, inner.life))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.lock();
        let inode = *inner.names.get(path).ok_or_else(|| not_found(path))?;
        Ok(self.file(inode, inner.life))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let pass = inner.begin()?;
        if from.parent() != to.parent() {
            return Err(io::Error::other("rename across directories is not part of the contract"));
        }
        if inner.dirs.contains(from) {
            inner.rename_dir(from, to);
            return done(&pass);
        }
        let inode = inner.names.remove(from).ok_or_else(|| not_found(from))?;
        inner.names.insert(to.to_owned(), inode);
        inner.pending_names.push(NameOp::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        done(&pass)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.names.contains_key(path) {
            return Err(not_found(path));
        }
        let pass = inner.begin()?;
        inner.names.remove(path);
        inner.pending_names.push(NameOp::Remove { path: path.to_owned() });
        done(&pass)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let pass = inner.begin()?;
        let now = inner.names.iter().chain(&inner.durable_names);
        let mut gone: BTreeSet<u64> = now.filter(|(name, _)| name.starts_with(path)).map(|(_, inode)| *inode).collect();
        gone.extend(inner.pending_names.iter().filter_map(|op| match op {
            NameOp::Create { path: name, inode } | NameOp::Rename { to: name, inode, .. } if name.starts_with(path) => {
                Some(*inode)
            }
            _ => None,
        }));
        inner.names.retain(|name, _| !name.starts_with(path));
        inner.pending_names.push(NameOp::RemoveTree { path: path.to_owned(), gone });
        inner.dirs.retain(|dir| !dir.starts_with(path));
        done(&pass)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if inner.dirs.contains(path) {
            return Ok(());
        }
        let pass = inner.begin()?;
        for dir in path.ancestors() {
            inner.dirs.insert(dir.to_owned());
        }
        done(&pass)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DiskEntry>> {
        let inner = self.inner.lock();
        if !inner.dirs.contains(dir) {
            return Err(not_found(dir));
        }
        let mut entries = Vec::new();
        let base_name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        for (path, inode) in inner.names.iter().filter(|(path, _)| path.parent() == Some(dir)) {
            let len = inner.inodes.get(inode).map_or(0, |inode| inode.content.len() as u64);
            entries.extend(base_name(path).map(|name| DiskEntry { name, is_dir: false, len }));
        }
        for path in inner.dirs.iter().filter(|path| path.parent() == Some(dir)) {
            entries.extend(base_name(path).map(|name| DiskEntry { name, is_dir: true, len: 0 }));
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let pass = inner.begin()?;
        // Cut short: nothing is promised, so nothing is done.
        done(&pass)?;
        let (now, later) = std::mem::take(&mut inner.pending_names)
            .into_iter()
            .partition::<Vec<NameOp>, _>(|op| op.dir() == Some(dir));
        inner.pending_names = later;
        for op in now {
            op.apply(&mut inner.durable_names);
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn LockGuard>> {
        let mut inner = self.inner.lock();
        if !inner.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { disk: self.clone(), path: path.to_owned(), life: inner.life }))
    }

    fn available_bytes(&self, _path: &Path) -> io::Result<u64> {
        Ok(if self.inner.lock().full { 0 } else { u64::MAX })
    }
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
    life: u64,
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner.lock();
        if inner.life == self.life {
            inner.locks.remove(&self.path);
        }
    }
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
    life: u64,
}

impl SimFile {
    fn change(&self, op: ByteOp) -> io::Result<()> {
        let mut inner = self.disk.inner.lock();
        let pass = inner.begin()?;
        let full = inner.full;
        let inode = inner.inode(self.inode, self.life)?;
        let end = match &op {
            ByteOp::Write { offset, bytes } => offset + bytes.len(),
            ByteOp::SetLen(len) => *len,
        };
        if full && end > inode.content.len() {
            return Err(Fault::Enospc.error());
        }
        op.apply(&mut inode.content);
        inode.pending.push(op);
        done(&pass)
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(ByteOp::Write { offset: offset as usize, bytes: bytes.to_vec() })
    }

    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.change(ByteOp::Write { offset: offset as usize, bytes })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.disk.inner.lock();
        let inode = inner.inode(self.inode, self.life)?;
        let Some(rest) = inode.content.get(offset as usize..) else {
            return Ok(0);
        };
        let got = rest.len().min(buf.len());
        buf[..got].copy_from_slice(&rest[..got]);
        Ok(got)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.disk.inner.lock();
        let pass = inner.begin();
        let inode = inner.inode(self.inode, self.life)?;
        match pass {
            Ok(Pass::Go) => {
                for op in std::mem::take(&mut inode.pending) {
                    op.apply(&mut inode.durable);
                }
                Ok(())
            }
            Ok(Pass::Last) => Err(stopped()),
            Err(error) => {
                if error.raw_os_error().is_some() {
                    // The pages count as clean now, though they never reached the device.
                    inode.pending.clear();
                }
                Err(error)
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.inner.lock().inode(self.inode, self.life)?.content.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(ByteOp::SetLen(len as usize))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        if self.len()? < len { self.set_len(len) } else { Ok(()) }
    }

    fn fill_zero(&self, from: u64, len: u64) -> io::Result<()> {
        self.write_at(from, &vec![0; len.saturating_sub(from) as usize])
    }
}

#[cfg(test)]
mod tests;
