//! Snapshot transfer over a bulk connection: files at `persisted`, staged completely before openraft hears of them.
//!
//! ```text
//! sender    header len u32 | header JSON
//! receiver  len u32 | Wanted JSON
//! sender    bytes of the wanted files, in the header's order
//! receiver  one raft vote (17 bytes), once installed
//! ```
//!
//! What an earlier transfer to this boot has brought, or the replica that the snapshot replaces has anyway, is not
//! wanted again, if it can be told to be the same.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use headwater_core::ids::Term;
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// For a file that never changes again, what says what is in it; see [`BlockIndex::identity`]. Who has a file of the
    /// same name, length and identity need not be sent this one.
    ///
    /// [`BlockIndex::identity`]: headwater_core::stream::BlockIndex::identity
    #[serde(default)]
    pub(crate) identity: Option<u64>,
}

/// Files pinned for sending; they stay readable until this is dropped.
pub(crate) trait Outgoing: Send + Sync {
    fn files(&self) -> Vec<FileEntry>;
    /// Reads exactly `buf.len()` bytes of file `file` at `offset`. Blocking.
    fn read(&self, file: usize, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Whether file `file` is as it was written: what is damaged here must not become what others have. Blocking.
    fn check(&self, file: usize) -> io::Result<()> {
        let _ = file;
        Ok(())
    }
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

/// Which files the receiver does not have, by their place in the header.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Wanted {
    files: Vec<usize>,
}

pub(super) async fn send(socket: &mut TcpStream, body: Arc<Box<dyn Outgoing>>) -> io::Result<()> {
    let files = body.files();
    let len = in_time(CHUNK_PATIENCE, socket.read_u32_le()).await? as usize;
    // Each is a number and a comma.
    if len > 64 + files.len() * 24 {
        return Err(io::Error::other(format!("an answer of {len} bytes to {} files", files.len())));
    }
    let mut wanted = vec![0; len];
    in_time(CHUNK_PATIENCE, socket.read_exact(&mut wanted)).await?;
    let wanted: Wanted = serde_json::from_slice(&wanted)?;
    for index in wanted.files {
        let file = files.get(index).ok_or_else(|| io::Error::other(format!("file {index} is wanted")))?;
        let source = Arc::clone(&body);
        tokio::task::spawn_blocking(move || source.check(index)).await.map_err(io::Error::other)??;
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

/// Reads what [`encode_header`] wrote.
pub(super) fn read_header(bytes: &[u8]) -> io::Result<Header> {
    let header: Header = serde_json::from_slice(bytes).map_err(io::Error::other)?;
    // openraft counts on from both.
    if !header.head.0.is_countable() || !Term::new(header.vote.0).is_countable() {
        return Err(io::Error::other("a snapshot at a term or index that no log reaches"));
    }
    Ok(header)
}

/// Any bytes as a header: see [`crate::decoders`].
///
/// # Panics
/// If a file's name would lead out of the staging folder, or the decoder contradicts itself.
pub(super) fn decode_any(bytes: &[u8]) {
    let Ok(header) = read_header(bytes) else { return };
    let (again, head) = (read_header(&encode_header(&header)), head_of(&header));
    assert!(
        again.is_ok_and(|again| head_of(&again).members == head.members && again.files.len() == header.files.len())
    );
    for file in &header.files {
        if let Ok(path) = checked(&file.name) {
            let folder = Path::new("staging");
            let below = folder.join(path);
            assert!(below.starts_with(folder) && below != folder, "{}", file.name);
            assert!(!path.components().any(|c| c == std::path::Component::ParentDir), "{}", file.name);
        }
    }
}

/// A name that stays inside the staging folder.
fn checked(name: &str) -> io::Result<&Path> {
    let path = Path::new(name);
    let plain = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
    if plain && !name.is_empty() { Ok(path) } else { Err(io::Error::other(format!("snapshot file name {name:?}"))) }
}

/// Tells the sender that nothing is missing.
pub(super) async fn want_nothing(socket: &mut TcpStream) -> io::Result<()> {
    want(socket, &Wanted::default()).await
}

async fn want(socket: &mut TcpStream, wanted: &Wanted) -> io::Result<()> {
    let answer = serde_json::to_vec(wanted)?;
    in_time(CHUNK_PATIENCE, socket.write_u32_le(u32::try_from(answer.len()).map_err(io::Error::other)?)).await?;
    in_time(CHUNK_PATIENCE, socket.write_all(&answer)).await
}

/// What transfers to one replica have brought so far in this boot.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Whole, synced files in the staging folder that a later transfer may ask for again.
    kept: Vec<FileEntry>,
}

/// What a transfer moved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// Bytes that came over the network.
    pub(super) received: u64,
    /// Bytes that were here already.
    pub(super) reused: u64,
}

/// Receives what is missing of `files` into `dir`, which then holds them and nothing else, all synced. `own` is the folder
/// of the replica that they will replace.
pub(super) async fn receive(
    socket: &mut TcpStream,
    files: &[FileEntry],
    dir: PathBuf,
    own: Option<PathBuf>,
    received: &mut Received,
) -> io::Result<(Staged, Moved)> {
    for file in files {
        checked(&file.name)?;
        if file.bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("snapshot file {} of {} bytes", file.name, file.bytes)));
        }
    }
    let (here, entries, earlier) = (dir.clone(), files.to_vec(), std::mem::take(&mut received.kept));
    let kept = tokio::task::spawn_blocking(move || staging::prepare(&here, own.as_deref(), &entries, earlier));
    received.kept = kept.await.map_err(io::Error::other)??;
    let missing = |(_, file): &(usize, &FileEntry)| !received.kept.contains(file);
    let wanted = Wanted { files: files.iter().enumerate().filter(missing).map(|(index, _)| index).collect() };
    let mut moved = Moved { received: 0, reused: received.kept.iter().map(|file| file.bytes).sum() };
    want(socket, &wanted).await?;
    for index in wanted.files {
        let file = &files[index];
        let path = dir.join(&file.name);
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
        moved.received += file.bytes;
        if file.identity.is_some() {
            received.kept.push(file.clone());
        }
    }
    let done = dir.clone();
    tokio::task::spawn_blocking(move || staging::sync_tree(&done)).await.map_err(io::Error::other)??;
    // From here on the folder belongs to whoever installs it.
    received.kept.clear();
    Ok((Staged { dir }, moved))
}

/// Blocking file work of the receiver.
mod staging {
    use std::fs;
    use std::io::{self, Write};
    use std::path::{Path, PathBuf};

    use headwater_core::stream::BlockIndex;
    use headwater_storage::blocks::INDEX_EXTENSION;

    use super::FileEntry;

    /// Leaves in `dir` what is wanted and was received by `earlier` transfers, and adds what can be taken over from the
    /// replica's own folder. Returns what is there then.
    pub(super) fn prepare(
        dir: &Path,
        own: Option<&Path>,
        wanted: &[FileEntry],
        earlier: Vec<FileEntry>,
    ) -> io::Result<Vec<FileEntry>> {
        let mut kept: Vec<FileEntry> = earlier.into_iter().filter(|file| wanted.contains(file)).collect();
        clear(dir, dir, &kept)?;
        fs::create_dir_all(dir)?;
        for file in wanted {
            let Some(own) = own.filter(|_| file.identity.is_some() && !kept.contains(file)) else { continue };
            if take_over(own, dir, file).unwrap_or(false) {
                kept.push(file.clone());
            }
        }
        Ok(kept)
    }

    /// Removes all files below `root` but these.
    fn clear(root: &Path, dir: &Path, keep: &[FileEntry]) -> io::Result<()> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                clear(root, &path, keep)?;
            } else if !keep
                .iter()
                .map(|file| root.join(&file.name))
                .any(|kept| path == kept || path == kept.with_extension(INDEX_EXTENSION))
            {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Gives a file of the replica's own folder, which never changes again, a second name in the staging folder; with the
    /// index that says so. False if it is not there, or is another one.
    fn take_over(own: &Path, dir: &Path, file: &FileEntry) -> io::Result<bool> {
        let (source, index) = (own.join(&file.name), own.join(&file.name).with_extension(INDEX_EXTENSION));
        let bytes = fs::read(&index)?;
        BlockIndex::decode(&bytes).map_err(io::Error::other)?;
        let is_same = BlockIndex::identity(&bytes, bytes.len() as u64) == file.identity;
        if !is_same || fs::metadata(&source)?.len() != file.bytes {
            return Ok(false);
        }
        let target = dir.join(&file.name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::hard_link(&index, target.with_extension(INDEX_EXTENSION))?;
        fs::hard_link(&source, &target)?;
        Ok(true)
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
    use std::fs;

    use headwater_core::ids::StreamId;
    use headwater_core::stream::{BlockIndex, BlockIndexBuilder};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn names_cannot_leave_the_staging_folder() {
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
        assert!(checked("blocks/0000000001.blk").is_ok());
    }

    /// Files of one byte value each; reading number `breaks` fails.
    struct Files {
        entries: Vec<FileEntry>,
        breaks: Option<usize>,
    }

    impl Outgoing for Files {
        fn files(&self) -> Vec<FileEntry> {
            self.entries.clone()
        }

        fn read(&self, file: usize, _offset: u64, buf: &mut [u8]) -> io::Result<()> {
            buf.fill(file as u8);
            if self.breaks == Some(file) { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
        }
    }

    fn write(path: &PathBuf, bytes: &[u8]) {
        staging::StagedFile::create(path).and_then(|file| file.append(bytes)).unwrap();
    }

    fn index(block: u64) -> BlockIndex {
        BlockIndexBuilder::new(StreamId::new(7), block).finish(block * 1000).expect("no sequence goes back")
    }

    fn identity(index: &BlockIndex) -> Option<u64> {
        let bytes = index.encode();
        BlockIndex::identity(&bytes, bytes.len() as u64)
    }

    /// Blocks 1 to 3, which never change again, and a checkpoint, which may.
    fn entries() -> Vec<FileEntry> {
        let block =
            |n: u64| FileEntry { name: format!("blocks/{n:010}.blk"), bytes: n * 1000, identity: identity(&index(n)) };
        let checkpoint = FileEntry { name: "checkpoint".into(), bytes: 50, identity: None };
        vec![block(1), block(2), block(3), checkpoint]
    }

    async fn transfer(
        entries: Vec<FileEntry>,
        breaks: Option<usize>,
        dir: &Path,
        own: Option<&Path>,
        received: &mut Received,
    ) -> io::Result<Moved> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let body: Arc<Box<dyn Outgoing>> = Arc::new(Box::new(Files { entries: entries.clone(), breaks }));
        let sender = tokio::spawn(async move { send(&mut TcpStream::connect(address).await?, body).await });
        let (mut socket, _) = listener.accept().await?;
        let moved = receive(&mut socket, &entries, dir.to_owned(), own.map(Path::to_owned), received).await;
        sender.await.map_err(io::Error::other)?.and(moved).map(|(_, moved)| moved)
    }

    /// Every file with its length and first byte.
    fn content(dir: &Path) -> Vec<(String, usize, u8)> {
        let mut found = Vec::new();
        for folder in [dir.to_owned(), dir.join("blocks")] {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
                let bytes = fs::read(entry.path()).unwrap();
                found.push((entry.file_name().into_string().unwrap(), bytes.len(), bytes[0]));
            }
        }
        found.sort();
        found
    }

    fn whole() -> Vec<(String, usize, u8)> {
        let block = |n: usize| (format!("{n:010}.blk"), n * 1000, n as u8 - 1);
        vec![block(1), block(2), block(3), ("checkpoint".into(), 50, 3)]
    }

    #[tokio::test]
    async fn a_transfer_that_broke_goes_on_where_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("7.incoming");
        let mut received = Received::default();
        transfer(entries(), Some(2), &dir, None, &mut received).await.unwrap_err();
        // Of another boot, or of another snapshot.
        write(&dir.join("blocks/0000000009.blk"), b"x");
        let moved = transfer(entries(), None, &dir, None, &mut received).await.unwrap();
        assert_eq!(moved, Moved { received: 3050, reused: 3000 });
        assert_eq!(content(&dir), whole());
        // It was handed over: the next one brings everything.
        let moved = transfer(entries(), None, &dir, None, &mut received).await.unwrap();
        assert_eq!((moved, content(&dir)), (Moved { received: 6050, reused: 0 }, whole()));
    }

    #[tokio::test]
    async fn a_block_that_became_another_is_sent_again() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("7.incoming");
        let mut received = Received::default();
        transfer(entries(), Some(2), &dir, None, &mut received).await.unwrap_err();
        let mut other = entries();
        other[0].identity = Some(1);
        let moved = transfer(other, None, &dir, None, &mut received).await.unwrap();
        assert_eq!(moved, Moved { received: 4050, reused: 2000 });
        assert_eq!(content(&dir), whole());
    }

    #[tokio::test]
    async fn what_the_replica_has_itself_is_not_sent() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, own) = (temp.path().join("7.incoming"), temp.path().join("7"));
        fs::create_dir_all(own.join("blocks")).unwrap();
        let put = |n: u64, bytes: u64, index: &BlockIndex| {
            write(&own.join(format!("blocks/{n:010}.blk")), &vec![n as u8 - 1; bytes as usize]);
            write(&own.join(format!("blocks/{n:010}.idx")), &index.encode());
        };
        put(1, 1000, &index(1));
        put(2, 1999, &index(2));
        put(3, 3000, &index(4));
        let moved = transfer(entries(), None, &dir, Some(&own), &mut Received::default()).await.unwrap();
        assert_eq!(moved, Moved { received: 5050, reused: 1000 }, "one is short, one is another");
        let mut found = content(&dir);
        found.retain(|(name, ..)| !name.ends_with(".idx"));
        assert_eq!(found, whole());
    }

    #[tokio::test]
    async fn nonsense_from_the_receiver_ends_the_transfer() {
        for answer in [&b"{\"files\":[9]}"[..], b"{}", b"nonsense"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let body: Arc<Box<dyn Outgoing>> = Arc::new(Box::new(Files { entries: entries(), breaks: None }));
            let sender = tokio::spawn(async move { send(&mut TcpStream::connect(address).await?, body).await });
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_u32_le(answer.len() as u32).await.unwrap();
            socket.write_all(answer).await.unwrap();
            assert!(sender.await.unwrap().is_err());
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let body: Arc<Box<dyn Outgoing>> = Arc::new(Box::new(Files { entries: entries(), breaks: None }));
        let sender = tokio::spawn(async move { send(&mut TcpStream::connect(address).await?, body).await });
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_u32_le(u32::MAX).await.unwrap();
        assert!(sender.await.unwrap().unwrap_err().to_string().contains("an answer of"));
    }
}
