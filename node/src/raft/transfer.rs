//! Snapshot transfer over a bulk connection: files at `persisted`, staged completely before openraft hears of them.
//!
//! `header len u32 | header JSON | file bytes in manifest order`, answered by one raft vote (17 bytes) once installed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::machine::SnapshotHead;

/// Copied and read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// One snapshot file is at most this long (a block file with slack): a bad length never fills the disk.
const FILE_BYTES_MAX: u64 = 1 << 32;

/// A peer that neither takes nor sends a chunk for this long has gone without a word.
const CHUNK_PATIENCE: Duration = Duration::from_secs(20);
/// Longest wait for the receiver to install what it was sent: it reads all of it once.
pub(super) const INSTALL_PATIENCE: Duration = Duration::from_secs(600);

/// `work`, or an error when it takes too long.
pub(super) async fn in_time<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, work).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// One file of a snapshot: its path below the replica's folder, and how many bytes of it belong to the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// Files pinned for sending; they stay readable until this is dropped.
pub(crate) trait Outgoing: Send + Sync {
    fn files(&self) -> Vec<FileEntry>;
    /// Reads exactly `buf.len()` bytes of file `file` at `offset`. Blocking.
    fn read(&self, file: usize, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// A received snapshot: every file written and synced in a folder beside the replica's own.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) group: u64,
    pub(super) target: u64,
    pub(super) vote: (u64, u64, bool),
    pub(super) head: (super::LogPos, super::Members),
    pub(super) files: Vec<FileEntry>,
}

pub(super) async fn send(socket: &mut TcpStream, body: Arc<Box<dyn Outgoing>>) -> io::Result<()> {
    for (index, file) in body.files().into_iter().enumerate() {
        let mut offset = 0;
        while offset < file.bytes {
            let n = usize::try_from((file.bytes - offset).min(CHUNK_BYTES as u64)).expect("at most a chunk");
            let source = Arc::clone(&body);
            let chunk = tokio::task::spawn_blocking(move || {
                let mut buf = vec![0; n];
                source.read(index, offset, &mut buf).map(|()| buf)
            })
            .await
            .map_err(io::Error::other)??;
            in_time(CHUNK_PATIENCE, socket.write_all(&chunk)).await?;
            offset += n as u64;
        }
    }
    Ok(())
}

pub(super) fn encode_header(header: &Header) -> Bytes {
    let json = serde_json::to_vec(header).expect("a header is plain data");
    let mut out = BytesMut::with_capacity(json.len());
    out.put_slice(&json);
    out.freeze()
}

/// A name that stays inside the staging folder.
fn checked(name: &str) -> io::Result<&Path> {
    let path = Path::new(name);
    let plain = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
    if plain && !name.is_empty() { Ok(path) } else { Err(io::Error::other(format!("snapshot file name {name:?}"))) }
}

/// Receives the files into a fresh `dir`, syncing each one and the folders.
pub(super) async fn receive(socket: &mut TcpStream, files: &[FileEntry], dir: PathBuf) -> io::Result<Staged> {
    let fresh = dir.clone();
    tokio::task::spawn_blocking(move || staging::fresh(&fresh)).await.map_err(io::Error::other)??;
    for file in files {
        let path = dir.join(checked(&file.name)?);
        if file.bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("snapshot file {} of {} bytes", file.name, file.bytes)));
        }
        let mut left = file.bytes;
        let mut writer = tokio::task::spawn_blocking(move || staging::StagedFile::create(&path))
            .await
            .map_err(io::Error::other)??;
        while left > 0 {
            let n = usize::try_from(left.min(CHUNK_BYTES as u64)).expect("at most a chunk");
            let mut buf = vec![0; n];
            in_time(CHUNK_PATIENCE, socket.read_exact(&mut buf)).await?;
            writer = tokio::task::spawn_blocking(move || writer.append(&buf)).await.map_err(io::Error::other)??;
            left -= n as u64;
        }
        tokio::task::spawn_blocking(move || writer.finish()).await.map_err(io::Error::other)??;
    }
    let done = dir.clone();
    tokio::task::spawn_blocking(move || staging::sync_tree(&done)).await.map_err(io::Error::other)??;
    Ok(Staged { dir })
}

/// Blocking file work of the receiver.
mod staging {
    use std::fs;
    use std::io::{self, Write};
    use std::path::{Path, PathBuf};

    pub(super) fn fresh(dir: &Path) -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        fs::create_dir_all(dir)
    }

    pub(super) struct StagedFile(fs::File);

    impl StagedFile {
        pub(super) fn create(path: &PathBuf) -> io::Result<Self> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::File::create(path).map(Self)
        }
        pub(super) fn append(mut self, bytes: &[u8]) -> io::Result<Self> {
            self.0.write_all(bytes)?;
            Ok(self)
        }
        pub(super) fn finish(self) -> io::Result<()> {
            self.0.sync_all()
        }
    }

    /// Names exist only once their folder is synced (I-7).
    pub(super) fn sync_tree(dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                sync_tree(&entry.path())?;
            }
        }
        fs::File::open(dir)?.sync_all()
    }
}

pub(super) fn head_of(header: &Header) -> SnapshotHead {
    SnapshotHead { at: header.head.0, members: header.head.1.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_staging_folder() {
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
        assert!(checked("blocks/0000000001.blk").is_ok());
    }
}
