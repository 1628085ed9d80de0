//! Which member of its group a replica on this disk is: one small file per stream, `replicas/<stream id>.replica` in the
//! store directory. It lies beside the streams' folders, so that a folder that is gone is noticed.
//!
//! One line `headwater-replica 1 <crc32c of the rest, 8 hex digits>`, then JSON, readable by people.
//! Replaced by temporary file, sync, rename, directory sync: always the old one or the new one.

use std::io;
use std::path::{Path, PathBuf};

use headwater_core::durability::SyncMode;
use headwater_core::ids::{RaftNodeId, StreamId};
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, publish, read_file};
use crate::envelope::FileError;
use crate::signed_json;

/// Folder of these files in the store directory.
pub const REPLICAS_DIR: &str = "replicas";
/// Ending of their names.
pub(crate) const SUFFIX: &str = ".replica";
const PREFIX: &str = "headwater-replica 1 ";

/// What a node remembers of one of its replicas besides the replica's own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaFile {
    /// The member of the stream's group that the log and the files belong to.
    pub raft_id: RaftNodeId,
    /// The weakest mode that anything was confirmed by since the last orderly stop.
    pub weakest: SyncMode,
    /// It may have lost what it confirmed, and is kept out of its group until there is a leader over what is left. Stays
    /// over restarts, orderly ones too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_have_lost: bool,
}

fn path(store: &Path, stream: StreamId) -> PathBuf {
    store.join(REPLICAS_DIR).join(format!("{stream}{SUFFIX}"))
}

impl ReplicaFile {
    /// As bytes on disk.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        signed_json::encode(PREFIX, self)
    }

    /// Reads what [`encode`](Self::encode) wrote; `path` is for error messages.
    ///
    /// # Errors
    /// [`FileError::Damaged`].
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        signed_json::decode(PREFIX, "replica file version 1", path, bytes)
    }

    /// Reads the file of a stream; `None` if there is none.
    ///
    /// # Errors
    /// If the disk fails or the file is damaged.
    pub fn load(disk: &dyn Disk, store: &Path, stream: StreamId) -> Result<Option<Self>, FileError> {
        let path = path(store, stream);
        match read_file(disk, &path) {
            Ok(bytes) => Self::decode(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::io("read", &path, error)),
        }
    }

    /// Makes this the file of a stream; durable on return.
    ///
    /// # Errors
    /// Whatever the disk reports.
    pub fn save(&self, disk: &dyn Disk, store: &Path, stream: StreamId) -> Result<(), FileError> {
        let (dir, path) = (store.join(REPLICAS_DIR), path(store, stream));
        let made = disk.create_dir_all(&dir).and_then(|()| disk.sync_dir(store));
        made.map_err(|error| FileError::io("create", &dir, error))?;
        publish(disk, &path, &self.encode()).map_err(|error| FileError::io("publish", &path, error))
    }

    /// Removes the file of a stream, if there is one; durable on return.
    ///
    /// # Errors
    /// Whatever the disk reports.
    pub fn remove(disk: &dyn Disk, store: &Path, stream: StreamId) -> Result<(), FileError> {
        let (dir, path) = (store.join(REPLICAS_DIR), path(store, stream));
        match disk.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(FileError::io("remove", &path, error)),
            Ok(()) => disk.sync_dir(&dir).map_err(|error| FileError::io("sync", &dir, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    #[test]
    fn golden_text_and_round_trip() {
        let file = ReplicaFile { raft_id: RaftNodeId::new(77), weakest: SyncMode::NoWait, may_have_lost: false };
        let text = String::from_utf8(file.encode()).unwrap();
        let (head, json) = text.split_once('\n').unwrap();
        assert_eq!(head.len(), PREFIX.len() + 8);
        assert_eq!(json, "{\n  \"raft_id\": 77,\n  \"weakest\": \"noWait\"\n}");
        let (disk, store, stream) = (SimDisk::new(), Path::new("/d"), StreamId::new(5));
        disk.create_dir_all(store).unwrap();
        assert_eq!(ReplicaFile::load(&disk, store, stream).unwrap(), None);
        file.save(&disk, store, stream).unwrap();
        assert_eq!(ReplicaFile::load(&disk, store, stream).unwrap(), Some(file));
        let mut bytes = file.encode();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(ReplicaFile::decode(Path::new("x"), &bytes).is_err());
        ReplicaFile::remove(&disk, store, stream).unwrap();
        ReplicaFile::remove(&disk, store, stream).unwrap();
        assert_eq!(ReplicaFile::load(&disk, store, stream).unwrap(), None);
    }
}
