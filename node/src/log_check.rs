//! Whether the log still holds what was once synced in it.
//!
//! A checkpoint and a snapshot mark are only ever written for entries that the log has synced. A log that ends before
//! them has lost entries that were confirmed, and votes with them: what is left of it must not take part in any
//! election, or the cluster would go on without messages that it has confirmed.

use std::io;
use std::path::Path;

use headwater_core::ids::{GroupId, LogIndex};
use headwater_storage::checkpoint::{Checkpoint, MetaCheckpoint};
use headwater_storage::disk::Disk;

use crate::meta;
use crate::raft::Members;
use crate::stream::snapshot::SnapshotMark;

/// A file in a replica's folder: its state came as a snapshot, and the log may not have been told yet.
const INSTALLED: &str = "installed";

/// Why the log is not what it was.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} is at entry {reached}, and the log of its group ends at {last}: entries that were synced are gone")]
pub(crate) struct Lost {
    what: String,
    reached: LogIndex,
    last: LogIndex,
}

/// Where the log of a group ends.
pub(crate) trait LogEnds: Fn(GroupId) -> LogIndex {}
impl<F: Fn(GroupId) -> LogIndex> LogEnds for F {}

/// Looks at the catalogue and, with `streams`, at every replicated stream below `store`. Files that cannot be read are
/// left to those who open them.
///
/// Leave the streams out on a node that may have confirmed anything by a mode weaker than `always`: after a power cut
/// such a stream may have been cut back by the next leader, below what this node had synced.
pub(crate) fn check(disk: &dyn Disk, store: &Path, streams: bool, last: impl LogEnds) -> Result<(), Lost> {
    let dir = store.join("meta");
    if let Ok(Some(found)) = MetaCheckpoint::load(disk, &dir) {
        held(disk, "the catalogue", &dir, last(meta::GROUP), found.applied.index)?;
    }
    let folders = if streams { disk.list(&store.join("streams")).unwrap_or_default() } else { Vec::new() };
    for folder in folders.iter().filter(|folder| folder.name.bytes().all(|b| b.is_ascii_digit())) {
        check_stream(disk, &store.join("streams").join(&folder.name), &last)?;
    }
    Ok(())
}

/// As [`check`], for the stream in `dir`.
pub(crate) fn check_stream(disk: &dyn Disk, dir: &Path, last: impl LogEnds) -> Result<(), Lost> {
    let Ok(Some(found)) = Checkpoint::load(disk, dir) else { return Ok(()) };
    let members: Members = serde_json::from_slice(&found.state.membership).unwrap_or_default();
    // A stream with one replica has no log.
    if members.configs.is_empty() {
        return Ok(());
    }
    let marked = SnapshotMark::read(disk, dir).map_or(LogIndex::new(0), |mark| mark.at.index);
    let group = found.state.group;
    let what = format!("stream {} (group {group})", found.stream);
    held(disk, &what, dir, last(group), found.state.applied.index.max(marked))
}

fn held(disk: &dyn Disk, what: &str, dir: &Path, last: LogIndex, reached: LogIndex) -> Result<(), Lost> {
    let is_held = last >= reached || is_installed(disk, dir);
    if is_held { Ok(()) } else { Err(Lost { what: what.to_owned(), reached, last }) }
}

/// Whether the state in `dir` came as a snapshot that the log may not have been told of.
pub(crate) fn is_installed(disk: &dyn Disk, dir: &Path) -> bool {
    disk.open_read(&dir.join(INSTALLED)).is_ok()
}

/// Says in a staged folder that the log does not reach its state yet. Durable when this returns.
pub(crate) fn mark_installed(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    match disk.create(&dir.join(INSTALLED)) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => disk.sync_dir(dir),
    }
}

/// A checkpoint of the replica's own has been published since: the log reaches it.
pub(crate) fn clear_installed(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    match disk.remove(&dir.join(INSTALLED)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(()) => disk.sync_dir(dir),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headwater_core::ids::{StreamId, Term};
    use headwater_storage::checkpoint::CheckpointImage;
    use headwater_storage::disk::SimDisk;

    use super::*;
    use crate::raft::LogPos;

    fn at(index: u64) -> LogPos {
        LogPos { term: Term::new(1), index: LogIndex::new(index) }
    }

    fn stream(disk: &SimDisk, id: u64, persisted: u64, replicated: bool) -> std::path::PathBuf {
        let dir = Path::new("/d/streams").join(id.to_string());
        disk.create_dir_all(&dir).unwrap();
        let members =
            Members { configs: if replicated { vec![[1, 2, 3].into()] } else { Vec::new() }, ..Members::default() };
        let state = CheckpointImage {
            group: GroupId::new(id),
            applied: at(persisted),
            membership: serde_json::to_vec(&members).unwrap().into(),
            snapshot: Bytes::new(),
            image: Bytes::new(),
            digest: 0,
        };
        Checkpoint { stream: StreamId::new(id), state, blocks: Vec::new() }.publish(disk, &dir).unwrap();
        dir
    }

    #[test]
    fn a_log_that_ends_before_what_it_once_held_is_noticed() {
        let disk = SimDisk::new();
        let dir = stream(&disk, 9, 40, true);
        let look = |last: u64| check(&disk, Path::new("/d"), true, |_| LogIndex::new(last));
        assert_eq!(look(40), Ok(()));
        assert_eq!(check(&disk, Path::new("/d"), false, |_| LogIndex::new(0)), Ok(()));
        let lost = look(39).unwrap_err();
        assert_eq!((lost.reached, lost.last), (LogIndex::new(40), LogIndex::new(39)));
        assert!(lost.to_string().contains("stream 9"), "{lost}");

        SnapshotMark { at: at(70), persisted: LogIndex::new(40), digest: 1 }.write(&disk, &dir).unwrap();
        assert_eq!(look(70), Ok(()));
        assert!(look(69).is_err(), "the mark says that 70 was synced");

        mark_installed(&disk, &dir).unwrap();
        assert_eq!(look(0), Ok(()), "the state came from a peer");
        clear_installed(&disk, &dir).unwrap();
        clear_installed(&disk, &dir).unwrap();
        assert!(look(0).is_err());
    }

    #[test]
    fn a_stream_without_a_log_and_the_catalogue() {
        let disk = SimDisk::new();
        stream(&disk, 9, 40, false);
        let look = |last: u64| check(&disk, Path::new("/d"), true, |_| LogIndex::new(last));
        assert_eq!(look(0), Ok(()));
        let meta = Path::new("/d/meta");
        disk.create_dir_all(meta).unwrap();
        let checkpoint =
            MetaCheckpoint { applied: at(5), membership: Bytes::new(), snapshot: Bytes::new(), image: Bytes::new() };
        checkpoint.publish(&disk, meta).unwrap();
        assert_eq!((look(5), look(4).is_err()), (Ok(()), true));
    }
}
