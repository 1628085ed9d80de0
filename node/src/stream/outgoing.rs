//! The files of a replica at `persisted`, pinned for a transfer: open handles keep removed blocks readable.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_core::ids::StreamId;
use headwater_storage::FileError;
use headwater_storage::blocks::{block_identity, check_block};
use headwater_storage::checkpoint::{BlockExtent, CHECKPOINT_FILE, Checkpoint};
use headwater_storage::disk::{Disk, DiskFile, read_exact_at, read_file};

use crate::raft::SnapshotHead;
use crate::raft::transfer::{FileEntry, Outgoing};

/// How often the files of a replica are looked for anew.
const PIN_TRIES_MAX: usize = 10;

enum Source {
    Memory(Vec<u8>),
    Block(Arc<dyn DiskFile>, BlockExtent),
}

/// Told of what is found damaged.
pub(crate) type OnDamage = Box<dyn Fn(&FileError) + Send + Sync>;

/// A checkpoint and the block files it covers, at the lengths it covers.
pub(crate) struct PinnedFiles {
    dir: PathBuf,
    stream: StreamId,
    files: Vec<(FileEntry, Source)>,
    on_damage: OnDamage,
}

impl PinnedFiles {
    /// Pins the files, and tells the state they are at.
    pub(crate) fn pin(disk: &Arc<dyn Disk>, dir: &Path, on_damage: OnDamage) -> io::Result<(SnapshotHead, Self)> {
        // A block may be removed after the checkpoint that lists it was read; the next checkpoint does not list it.
        let mut tries = 1;
        let (head, stream, files) = loop {
            match try_pin(disk, dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < PIN_TRIES_MAX => tries += 1,
                done => break done?,
            }
        };
        Ok((head, Self { dir: dir.to_owned(), stream, files, on_damage }))
    }
}

type Pinned = (SnapshotHead, StreamId, Vec<(FileEntry, Source)>);

fn try_pin(disk: &Arc<dyn Disk>, dir: &Path) -> io::Result<Pinned> {
    let path = dir.join(CHECKPOINT_FILE);
    let bytes = read_file(&**disk, &path)?;
    let checkpoint = Checkpoint::decode(&path, bytes.clone()).map_err(io::Error::other)?;
    let mut files = Vec::with_capacity(checkpoint.blocks.len() + 1);
    for block in &checkpoint.blocks {
        let name = block.block.file_name();
        let file = disk.open_read(&dir.join(&name))?;
        let identity = block_identity(&**disk, &dir.join(&name));
        files.push((FileEntry { name, bytes: block.valid_bytes, identity }, Source::Block(file, *block)));
    }
    let entry = FileEntry { name: CHECKPOINT_FILE.to_owned(), bytes: bytes.len() as u64, identity: None };
    files.push((entry, Source::Memory(bytes)));
    let members = serde_json::from_slice(&checkpoint.state.membership)?;
    Ok((SnapshotHead { at: checkpoint.state.applied, members }, checkpoint.stream, files))
}

impl Outgoing for PinnedFiles {
    fn files(&self) -> Vec<FileEntry> {
        self.files.iter().map(|(entry, _)| entry.clone()).collect()
    }

    fn read(&self, file: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.files.get(file).map(|(_, source)| source) {
            Some(Source::Block(file, _)) => read_exact_at(&**file, offset, buf),
            Some(Source::Memory(bytes)) => {
                let start = usize::try_from(offset).map_err(io::Error::other)?;
                let part = bytes.get(start..start + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                buf.copy_from_slice(part);
                Ok(())
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
    fn check(&self, file: usize) -> io::Result<()> {
        let Some((entry, Source::Block(file, extent))) = self.files.get(file) else { return Ok(()) };
        check_block(&**file, &self.dir.join(&entry.name), self.stream, *extent).map_err(|error| {
            (self.on_damage)(&error);
            io::Error::other(error)
        })
    }
}
