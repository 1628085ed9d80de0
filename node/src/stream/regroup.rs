//! The one replica that a stream goes on from, when a person has ordered that: its files and its log become those of the
//! new group's founder.
//!
//! First the new group's log, then the checkpoint under the new group, then the name of the new member: a crash between
//! any two repeats what is not done, and until the last the old member is whole.

use std::path::Path;
use std::sync::Arc;

use headwater_core::catalog::Regrouped;
use headwater_core::durability::SyncMode;
use headwater_storage::checkpoint::Checkpoint;
use headwater_storage::disk::Disk;
use headwater_storage::replica_file::ReplicaFile;
use headwater_storage::wal::Wal;

use super::folders;
use super::open::OpenError;
use super::replica::ReplicaSpec;
use crate::raft::refound;

/// Makes what is on this disk the founder's, if it is not yet. Blocking.
pub(super) fn take_over(
    disk: &Arc<dyn Disk>,
    wal: &Wal,
    store: &Path,
    dir: &Path,
    spec: &ReplicaSpec,
    regrouped: &Regrouped,
) -> Result<ReplicaFile, OpenError> {
    let failed = |e: std::io::Error| OpenError::Regroup(spec.name.clone(), e);
    let found = ReplicaFile::load(&**disk, store, spec.stream)?;
    if found.is_none_or(|file| file.raft_id != regrouped.source) {
        return match found.filter(|file| file.raft_id == regrouped.founder) {
            Some(file) => Ok(file),
            None => Err(OpenError::NotTheSource(spec.name.clone())),
        };
    }
    folders::settle(&**disk, dir).map_err(|e| OpenError::Settle(spec.name.clone(), e))?;
    let checkpoint = Checkpoint::load(&**disk, dir)?;
    // Under the new group the log is there: it was written before.
    if checkpoint.as_ref().is_none_or(|c| c.state.group != spec.group) {
        let base = checkpoint.as_ref().map(|c| c.state.applied);
        let seen = wal.group(regrouped.from).and_then(|log| log.vote);
        refound::copy_log(wal, regrouped.from, spec.group, base).map_err(failed)?;
        let founder = regrouped.founder.get();
        let at = refound::go_on_alone(wal, spec.group, founder, &[].into(), seen).map_err(failed)?;
        tracing::warn!(stream = spec.name, group = %spec.group, from = %regrouped.from, entry = %at.index, "goes on alone");
        if let Some(mut checkpoint) = checkpoint {
            checkpoint.state.group = spec.group;
            checkpoint.publish(&**disk, dir).map_err(failed)?;
        }
    }
    // What is here is all there is from now on, whatever was promised before.
    let file = ReplicaFile { raft_id: regrouped.founder, weakest: SyncMode::Always, may_have_lost: false };
    file.save(&**disk, store, spec.stream)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headwater_core::ids::{GroupId, LogIndex, LogPosition, RaftNodeId, StreamId, Term};
    use headwater_storage::checkpoint::CheckpointImage;
    use headwater_storage::disk::SimDisk;
    use headwater_storage::wal::{AppendBatch, Need, WalEntry, WalOptions};

    use super::*;
    use crate::log_check;
    use crate::raft::Members;

    const STORE: &str = "/d";
    const REGROUPED: Regrouped =
        Regrouped { from: GroupId::new(4), source: RaftNodeId::new(70), founder: RaftNodeId::new(900) };
    /// The last entry of the old log, and the term that its member has voted in.
    const LAST: LogPosition = LogPosition { term: Term::new(6), index: LogIndex::new(30) };
    const VOTED: u64 = 8;

    fn spec() -> ReplicaSpec {
        ReplicaSpec {
            stream: StreamId::new(9),
            group: GroupId::new(7),
            raft_id: REGROUPED.founder,
            name: "S".into(),
            replicas: 3,
        }
    }

    fn dir() -> std::path::PathBuf {
        Path::new(STORE).join("streams/9")
    }

    fn open(disk: &Arc<SimDisk>) -> Wal {
        let options = WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() };
        Wal::open(Arc::clone(disk) as Arc<dyn Disk>, &Path::new(STORE).join("wal"), options).unwrap().0
    }

    fn payload(index: u64) -> Bytes {
        Bytes::from(vec![index as u8; 500])
    }

    /// A member of group 4 whose files stand at `persisted`, with the log behind them.
    fn member(persisted: Option<u64>) -> Arc<SimDisk> {
        let disk = Arc::new(SimDisk::new());
        disk.create_dir_all(&dir()).unwrap();
        disk.sync_dir(&Path::new(STORE).join("streams")).unwrap();
        disk.sync_dir(Path::new(STORE)).unwrap();
        let file = ReplicaFile { raft_id: REGROUPED.source, weakest: SyncMode::NoWait, may_have_lost: true };
        file.save(&*disk, Path::new(STORE), StreamId::new(9)).unwrap();
        let wal = open(&disk);
        let entry = |index| WalEntry { index: LogIndex::new(index), term: LAST.term, kind: 1, payload: payload(index) };
        let entries = (0..=LAST.index.get()).map(entry).collect();
        wal.append(AppendBatch { group: REGROUPED.from, entries, need: Need::Synced, done: Box::new(|_| {}) });
        let vote = [&VOTED.to_le_bytes()[..], &[0; 9]].concat();
        wal.vote(REGROUPED.from, vote.into(), Box::new(|_| {}));
        if let Some(persisted) = persisted {
            let applied = LogPosition { term: LAST.term, index: LogIndex::new(persisted) };
            let members = Members { configs: vec![[70, 71, 72].into()], ..Members::default() };
            let state = CheckpointImage {
                group: REGROUPED.from,
                applied,
                membership: serde_json::to_vec(&members).unwrap().into(),
                snapshot: Bytes::new(),
                image: Bytes::from_static(b"image"),
                digest: 3,
            };
            let checkpoint = Checkpoint { stream: StreamId::new(9), state, blocks: Vec::new() };
            checkpoint.publish(&*disk, &dir()).unwrap();
        }
        wal.shutdown().unwrap();
        disk
    }

    fn take(disk: &Arc<SimDisk>, wal: &Wal) -> Result<ReplicaFile, OpenError> {
        let disk = Arc::clone(disk) as Arc<dyn Disk>;
        take_over(&disk, wal, Path::new(STORE), &dir(), &spec(), &REGROUPED)
    }

    /// The node starts on this disk, and the founder has all that the old member had.
    fn is_taken_over(disk: &Arc<SimDisk>, persisted: Option<u64>) {
        let wal = open(disk);
        let last = |group| wal.group(group).and_then(|log| log.last).map_or(LogIndex::new(0), |at| at.index);
        log_check::check(&**disk, Path::new(STORE), true, last).unwrap();
        let file = take(disk, &wal).unwrap();
        assert_eq!((file.raft_id, file.may_have_lost, file.weakest), (REGROUPED.founder, false, SyncMode::Always));
        assert_eq!(take(disk, &wal).unwrap(), file, "done once");
        let log = wal.group(spec().group).unwrap();
        let end = LogPosition { term: Term::new(VOTED + 1), index: LAST.index.next() };
        assert_eq!(log.last, Some(end));
        assert_eq!(log.purged.map(|at| at.index.get()), persisted);
        let from = persisted.map_or(0, |at| at + 1);
        let read = wal.read(spec().group, LogIndex::new(from)..end.index.next(), usize::MAX).unwrap();
        assert_eq!(read.len() as u64, end.index.get() + 1 - from);
        for entry in &read[..read.len() - 1] {
            assert_eq!((entry.term, &entry.payload), (LAST.term, &payload(entry.index.get())));
        }
        let members: Members = serde_json::from_slice(&read.last().unwrap().payload).unwrap();
        assert_eq!((members.configs, members.nodes), (vec![[900].into()], [900].into()));
        let checkpoint = Checkpoint::load(&**disk, &dir()).unwrap();
        assert_eq!(checkpoint.as_ref().map(|c| c.state.applied.index.get()), persisted);
        assert!(checkpoint.is_none_or(|c| c.state.group == spec().group && c.state.image == "image"));
        // What is in the new log alone is enough from here on.
        wal.drop_group(REGROUPED.from).unwrap();
        wal.shutdown().unwrap();
        let wal = open(disk);
        let last = |group| wal.group(group).and_then(|log| log.last).map_or(LogIndex::new(0), |at| at.index);
        log_check::check(&**disk, Path::new(STORE), true, last).unwrap();
        wal.shutdown().unwrap();
    }

    #[test]
    fn a_crash_at_any_operation_leaves_the_old_member_or_the_founder() {
        for persisted in [None, Some(12), Some(LAST.index.get())] {
            let whole = member(persisted);
            is_taken_over(&whole, persisted);
            let mut stop = 0;
            loop {
                let disk = member(persisted);
                let wal = open(&disk);
                disk.stop_after(stop);
                let done = take(&disk, &wal).is_ok();
                drop(wal);
                for seed in 0..4 {
                    let crashed = Arc::new(disk.fork());
                    if seed == 0 {
                        crashed.kill()
                    } else {
                        crashed.crash(seed)
                    }
                    is_taken_over(&crashed, persisted);
                }
                if done {
                    break;
                }
                stop += 1;
            }
            assert!(stop > 10, "{stop} operations");
        }
    }

    #[test]
    fn another_members_files_are_left_alone() {
        let disk = member(Some(12));
        let file = ReplicaFile { raft_id: RaftNodeId::new(71), weakest: SyncMode::Always, may_have_lost: false };
        file.save(&*disk, Path::new(STORE), StreamId::new(9)).unwrap();
        let wal = open(&disk);
        assert!(matches!(take(&disk, &wal), Err(OpenError::NotTheSource(_))));
        assert_eq!(Checkpoint::load(&*disk, &dir()).unwrap().unwrap().state.group, REGROUPED.from);
        wal.shutdown().unwrap();
    }
}
