//! Opening a replica: checkpoint, blocks, and the decision what to do with what was found.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_core::durability::{Durability, SyncMode};
use headwater_core::ids::{Generation, LogIndex, LogPosition, StreamId, Timestamp};
use headwater_core::recovery::{
    self, CheckpointFound, LastRun, LogEnd, OpenFacts, PhaseLatch, RecoveryPlan, RejoinReason,
};
use headwater_core::stream::{Settings, StreamState};
use headwater_storage::blocks::{StoreLog, StoreOptions, StreamStore, remove_stream};
use headwater_storage::checkpoint::Checkpoint;
use headwater_storage::disk::Disk;
use headwater_storage::wal::LastStop;

use super::local::LOCAL_TERM;
use super::replica::{ReplicaSpec, StreamReplica};
use super::snapshot::SnapshotMark;
use crate::node::Context;
use crate::raft::{LogPos, Members};

/// Frames of a stream kept in memory after they are written, in bytes: what consumers at the tail read.
const CACHE_BYTES: usize = 8 << 20;

/// Where a stream's files lie; by id, since names are reused.
pub(crate) fn dir_of(context: &Context, stream: StreamId) -> PathBuf {
    context.config.store_dir.join("streams").join(stream.to_string())
}

/// A state and its store, as the files have them.
pub(crate) struct Opened {
    pub(crate) state: StreamState,
    pub(crate) store: StreamStore,
    pub(crate) head: (Option<LogPos>, Members),
}

/// What could not be read, and what that means for the replica.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    File(#[from] headwater_storage::FileError),
    #[error("the checkpoint of {0} does not parse: {1}")]
    Image(String, String),
    #[error("the blocks of {stream} hold {what} {found}, its checkpoint says {expected}")]
    Blocks { stream: String, what: &'static str, expected: u64, found: u64 },
    #[error("replaying {stream} failed at operation {index}: message {seq} cannot be read")]
    Replay { stream: String, index: LogIndex, seq: headwater_core::ids::StreamSeq },
    #[error("the membership in the checkpoint of {0} does not parse")]
    Members(String),
    #[error("what an interrupted snapshot left of {0} could not be cleared away: {1}")]
    Settle(String, io::Error),
}

/// The state every replica of a stream starts from: nothing of the configuration, which is the log's first entries.
fn fresh(spec: &ReplicaSpec, created: Timestamp) -> StreamState {
    StreamState::new(
        spec.stream,
        Settings { name: spec.name.clone(), ..Settings::default() },
        String::new(),
        Generation::new(0),
        Durability::default(),
        created,
        None,
    )
}

/// Reads the files of a replica.
pub(crate) fn read(context: &Context, spec: &ReplicaSpec, dir: &Path, created: Timestamp) -> Result<Opened, OpenError> {
    let checkpoint = Checkpoint::load(&*context.disk, dir)?;
    let name = || spec.name.clone();
    let mut state = match &checkpoint {
        Some(c) => StreamState::from_image(&c.state.image).map_err(|e| OpenError::Image(name(), e.to_string()))?,
        None => fresh(spec, created),
    };
    let log = if spec.replicas > 1 { StoreLog::Wal } else { StoreLog::Own };
    let last_stop = if context.last_run.same_boot_and_mount { LastStop::PageCacheKept } else { LastStop::PowerLost };
    let options = StoreOptions { cache_bytes_max: CACHE_BYTES, last_stop, ..StoreOptions::new(log) };
    let (store, scan) =
        StreamStore::open(Arc::clone(&context.disk), dir, spec.stream, options, checkpoint.as_ref(), &mut |frame| {
            state.rebuild(frame)
        })?;
    state.finish_rebuild().map_err(|m| OpenError::Blocks {
        stream: name(),
        what: m.what,
        expected: m.expected,
        found: m.found,
    })?;
    if let Some(torn) = &scan.torn {
        tracing::warn!(stream = spec.name, path = %torn.path.display(), offset = torn.offset, bytes = torn.bytes, "a torn end was cut");
    }
    for replay in &scan.replay {
        let at = LogPosition { term: LOCAL_TERM, index: replay.index };
        state.apply(at, &replay.frame, &store).map_err(|d| OpenError::Replay {
            stream: name(),
            index: replay.index,
            seq: d.seq,
        })?;
    }
    let head = match &checkpoint {
        Some(c) => {
            let members = serde_json::from_slice(&c.state.membership).map_err(|_| OpenError::Members(name()))?;
            (Some(c.state.applied), members)
        }
        None => (None, Members::default()),
    };
    Ok(Opened { state, store, head })
}

/// Opens a replica, or says why it stays out. Its files are never changed by a failure. Blocking: it reads them all.
pub(crate) fn open(
    context: &Arc<Context>,
    spec: ReplicaSpec,
    created: Timestamp,
) -> Result<Arc<StreamReplica>, OpenError> {
    let dir = dir_of(context, spec.stream);
    let unsettled = |e| OpenError::Settle(spec.name.clone(), e);
    let before = settle(&*context.disk, &dir).map_err(unsettled)?;
    let opened = match read(context, &spec, &dir, created) {
        Err(error) if before => {
            tracing::error!(stream = spec.name, %error, "an interrupted snapshot cannot be opened; the state before it is taken");
            put_back(&*context.disk, &dir).map_err(unsettled)?;
            read(context, &spec, &dir, created)?
        }
        opened => opened?,
    };
    context.disk.remove_dir_all(&replaced(&dir)).map_err(unsettled)?;
    let mark = SnapshotMark::read(&*context.disk, &dir);
    let log = context.wal.group(spec.group);
    let log_last = log.as_ref().and_then(|g| g.last).map_or(LogIndex::new(0), |p| p.index);
    let persisted = opened.head.0.map_or(LogIndex::new(0), |p| p.index);
    let last = context.last_run;
    let effective = opened.state.durability().effective(spec.raft_id).sync;
    let facts = OpenFacts {
        last_run: last.known.then_some(LastRun {
            clean_stop: last.clean_stop,
            same_boot_and_mount: last.same_boot_and_mount,
            io_error: false,
            weak_since: last.weak_since,
            unwritten_confirmed: !last.clean_stop && effective == SyncMode::NoWait,
        }),
        checkpoint: if opened.head.0.is_some() { CheckpointFound::Sound { persisted } } else { CheckpointFound::None },
        log_end: LogEnd::Clean,
        log_purged: log.as_ref().and_then(|g| g.purged).map_or(LogIndex::new(0), |p| p.index),
        log_last: log_last.max(persisted),
        rolled_back: false,
        replica_count: spec.replicas,
        in_memory: false,
    };
    let mut plan = recovery::decide(&facts);
    if let RecoveryPlan::RejoinAsLearner { why } = plan {
        if why != RejoinReason::Wiped {
            // What was confirmed under a weaker mode may be missing from this log's end. See docs/operations/durability.md.
            tracing::warn!(
                stream = spec.name,
                ?why,
                "this replica may have lost messages that its relaxed sync mode confirmed"
            );
        }
        plan = RecoveryPlan::Replay { from: persisted };
    }
    if spec.replicas == 1 && last.known && !last.clean_stop {
        let lost = match effective {
            SyncMode::Always => false,
            SyncMode::Interval => !last.same_boot_and_mount,
            SyncMode::NoWait => true,
        };
        if lost {
            tracing::warn!(
                stream = spec.name,
                mode = ?effective,
                "the stop was not clean: the newest messages that this sync mode confirmed may be missing"
            );
        }
    }
    tracing::info!(
        stream = spec.name,
        ?plan,
        persisted = persisted.get(),
        log_last = log_last.get(),
        snapshot = mark.map(|m| m.at.index.get()),
        "replica opened"
    );
    let phase = PhaseLatch::new(&plan, log_last);
    let installed = crate::log_check::is_installed(&*context.disk, &dir);
    let lost = crate::log_check::check_stream(&*context.disk, &dir, |_| log_last).err();
    let replica = StreamReplica::new(Arc::clone(context), spec, dir, opened, mark, phase);
    if installed {
        replica.lock().flushing.set_installed();
    }
    if let Some(lost) = lost {
        replica.fail(&mut replica.lock(), lost.to_string());
    }
    if let RecoveryPlan::Repair { why } = plan {
        let mut inner = replica.lock();
        replica.fail(&mut inner, format!("needs repair from its peers: {why:?}"));
    } else if let RecoveryPlan::Refuse { why } = plan {
        let mut inner = replica.lock();
        replica.fail(&mut inner, format!("refused: {why:?}"));
    }
    Ok(replica)
}

/// Puts a complete staged folder in the place of a replica's own and opens it; if it cannot be opened, the old one
/// comes back. Blocking.
pub(crate) fn swap_in(context: &Context, spec: &ReplicaSpec, dir: &Path, staged: &Path) -> io::Result<Opened> {
    let (disk, old) = (&*context.disk, replaced(dir));
    let parent = dir.parent().ok_or_else(|| io::Error::other("a stream's folder has a parent"))?;
    disk.remove_dir_all(&old)?;
    disk.rename(dir, &old)?;
    // A crash here leaves no folder: `settle` puts the old one back.
    disk.rename(staged, dir)?;
    disk.sync_dir(parent)?;
    match read(context, spec, dir, Timestamp::new(0)) {
        Ok(opened) => {
            disk.remove_dir_all(&old)?;
            Ok(opened)
        }
        Err(error) => {
            put_back(disk, dir)?;
            Err(io::Error::other(error))
        }
    }
}

/// Where a replica's folder is kept while a snapshot takes its place.
pub(crate) fn replaced(dir: &Path) -> PathBuf {
    dir.with_extension("replaced")
}

/// Where a snapshot is staged.
pub(crate) fn incoming(dir: &Path) -> PathBuf {
    dir.with_extension("incoming")
}

/// Removes all that a stream has on this disk. It stays removed: the names are synced. Blocking.
pub(crate) fn remove(disk: &dyn Disk, dir: &Path) -> Result<(), headwater_storage::FileError> {
    for folder in [incoming(dir), replaced(dir), dir.to_owned()] {
        remove_stream(disk, &folder)?;
    }
    Ok(())
}

/// Puts the folder that a snapshot replaced back in its place.
fn put_back(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.remove_dir_all(dir)?;
    disk.rename(&replaced(dir), dir)?;
    dir.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))
}

/// Ends what a crash interrupted: a snapshot that was on its way, or half put in place. True if what it replaced is
/// still there, beside it.
fn settle(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let is_there = |path: &Path| match disk.list(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    };
    disk.remove_dir_all(&incoming(dir))?;
    let before = is_there(&replaced(dir))?;
    if before && !is_there(dir)? {
        put_back(disk, dir)?;
        return Ok(false);
    }
    Ok(before)
}
