//! The node's hard state: who it is, and how it stopped. Votes are not here, they are in the log.
//!
//! One line `headwater-hard-state 1 <crc32c of the rest, 8 hex digits>`, then JSON, readable by people.
//! Replaced by temporary file, sync, rename, directory sync: always the old one or the new one.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use headwater_core::ids::Timestamp;
use serde::{Deserialize, Serialize};

use crate::disk::{Disk, LockGuard, publish, read_file};
use crate::envelope::FileError;
use crate::signed_json;

/// Name of the file in the store directory.
pub const HARD_STATE_FILE: &str = "hard-state";
/// Name of the lock file in the store directory.
pub const LOCK_FILE: &str = "lock";
const PREFIX: &str = "headwater-hard-state 1 ";

/// What a node must remember besides its log and its streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardState {
    /// The cluster, minted once; `None` until the node belongs to one.
    pub cluster_id: Option<String>,
    /// Name of the node.
    pub node_name: String,
    /// This life of the node's disk: a random number, minted when the disk was first used.
    pub node_incarnation: u64,
    /// Rises at every start: one more, or the time in milliseconds since the epoch if that is later.
    pub boot_epoch: u64,
    /// The operating system's boot id at the last start.
    pub os_boot_id: String,
    /// Identity of the mount that holds the store.
    pub mount_id: String,
    /// Whether the last stop was orderly, with everything synced.
    pub clean_stop: bool,
    /// Since when something weaker than a sync may have been confirmed; `None` after a full sync.
    pub weak_since: Option<Timestamp>,
    /// Number of the log's newest segment at the last start: a log whose newest is older is not this node's last one.
    #[serde(default)]
    pub log_segment: u64,
    /// Why the cluster refused this store for good.
    #[serde(default)]
    pub refused: Option<String>,
    /// Incarnations of nodes that a person has declared lost for good: never spoken to again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lost: BTreeSet<u64>,
}

impl HardState {
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
        signed_json::decode(PREFIX, "hard state version 1", path, bytes)
    }

    /// Reads the hard state of a store; `None` if it has none yet.
    ///
    /// # Errors
    /// If the disk fails or the file is damaged.
    pub fn load(disk: &dyn Disk, store: &Path) -> Result<Option<Self>, FileError> {
        let path = store.join(HARD_STATE_FILE);
        match read_file(disk, &path) {
            Ok(bytes) => Self::decode(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::io("read", &path, error)),
        }
    }

    /// Makes this the hard state of a store; durable on return.
    ///
    /// # Errors
    /// Whatever the disk reports.
    pub fn save(&self, disk: &dyn Disk, store: &Path) -> Result<(), FileError> {
        let path = store.join(HARD_STATE_FILE);
        publish(disk, &path, &self.encode()).map_err(|error| FileError::io("publish", &path, error))
    }
}

/// Locks a store directory for this process, creating it if needed.
///
/// # Errors
/// `WouldBlock` inside [`FileError::Io`] if another process has it.
pub fn lock_store(disk: &dyn Disk, store: &Path) -> Result<Box<dyn LockGuard>, FileError> {
    disk.create_dir_all(store).map_err(|error| FileError::io("create", store, error))?;
    let path = store.join(LOCK_FILE);
    disk.lock(&path).map_err(|error| FileError::io("lock", &path, error))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::disk::SimDisk;

    pub(crate) fn sample() -> HardState {
        HardState {
            cluster_id: Some("c-1".into()),
            node_name: "n1".into(),
            node_incarnation: 77,
            boot_epoch: 3,
            os_boot_id: "b-9".into(),
            mount_id: "259:1".into(),
            clean_stop: false,
            weak_since: Some(Timestamp::new(1_700_000_000_000_000_000)),
            log_segment: 4,
            refused: None,
            lost: BTreeSet::new(),
        }
    }

    #[test]
    fn golden_text() {
        let expected = "headwater-hard-state 1 a6812d16\n\
            {\n  \"cluster_id\": \"c-1\",\n  \"node_name\": \"n1\",\n  \"node_incarnation\": 77,\n  \
            \"boot_epoch\": 3,\n  \"os_boot_id\": \"b-9\",\n  \"mount_id\": \"259:1\",\n  \
            \"clean_stop\": false,\n  \"weak_since\": 1700000000000000000,\n  \
            \"log_segment\": 4,\n  \"refused\": null\n}";
        assert_eq!(String::from_utf8(sample().encode()).unwrap(), expected);
    }

    #[test]
    fn it_reads_back_and_every_flipped_bit_is_damage() {
        let path = Path::new("hard-state");
        let good = sample().encode();
        assert_eq!(HardState::decode(path, &good).unwrap(), sample());
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(HardState::decode(path, &bad).is_err(), "byte {at} bit {bit}");
            }
            assert!(HardState::decode(path, &good[..at]).is_err());
        }
    }

    #[test]
    fn a_crash_during_save_leaves_old_or_new() {
        let store = Path::new("/store");
        let old = sample();
        let new = HardState { boot_epoch: 4, clean_stop: true, weak_since: None, ..sample() };
        for stop in 0..20 {
            let disk = SimDisk::new();
            let lock = lock_store(&disk, store).unwrap();
            assert!(lock_store(&disk, store).is_err());
            old.save(&disk, store).unwrap();
            disk.stop_after(stop);
            let saved = new.save(&disk, store).is_ok();
            drop(lock);
            for seed in 0..16 {
                let crashed = disk.fork();
                crashed.crash(seed);
                let found = HardState::load(&crashed, store).unwrap().unwrap();
                assert!(found == new || (!saved && found == old), "stop {stop} seed {seed}");
            }
        }
    }
}
