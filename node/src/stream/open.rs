//! Opening a replica: checkpoint, blocks, and the decision what to do with what was found.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headwater_core::catalog::StreamEntry;
use headwater_core::durability::{Durability, SyncMode};
use headwater_core::ids::{Generation, LogIndex, LogPosition, StreamId, Timestamp};
use headwater_core::recovery::{
    self, CheckpointFound, LastRun, LogEnd, OpenFacts, PhaseLatch, RecoveryPlan, RejoinReason,
};
use headwater_core::rejoin::Standing;
use headwater_core::stream::{Settings, StreamState};
use headwater_storage::blocks::{StoreLog, StoreOptions, StreamStore};
use headwater_storage::checkpoint::Checkpoint;
use headwater_storage::disk::Disk;
use headwater_storage::replica_file::ReplicaFile;
use headwater_storage::wal::LastStop;

use super::folders;
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
    #[error(
        "{path} is gone, and with it the only copy of {stream}: put the folder back, or delete the stream", path = .folder.display()
    )]
    Gone { stream: String, folder: PathBuf },
    #[error("{} cannot be used: {}", .0.display(), .1)]
    Folder(PathBuf, io::Error),
    #[error("the log of {0} could not be cleared: {1}")]
    Log(String, String),
    #[error("the log and the checkpoint of {0} could not be brought into its new group: {1}")]
    Regroup(String, io::Error),
    #[error("{0} was to go on from the replica here, which is gone: put the store folder back")]
    NotTheSource(String),
    #[error("what an interrupted snapshot left of {0} could not be cleared away: {1}")]
    Settle(String, io::Error),
}

impl OpenError {
    /// Whether the files are damaged, so that only its peers can help.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            OpenError::File(error) => matches!(error, headwater_storage::FileError::Damaged { .. }),
            OpenError::Image(..) | OpenError::Blocks { .. } | OpenError::Replay { .. } | OpenError::Members(_) => true,
            OpenError::Gone { .. }
            | OpenError::Folder(..)
            | OpenError::Log(..)
            | OpenError::Regroup(..)
            | OpenError::NotTheSource(_)
            | OpenError::Settle(..) => false,
        }
    }
}

/// Makes sure that what is on disk belongs to this member of the group: what an earlier one left is removed.
fn take_place(
    context: &Context,
    spec: &ReplicaSpec,
    entry: &StreamEntry,
    dir: &Path,
) -> Result<ReplicaFile, OpenError> {
    let (disk, store) = (&*context.disk, &context.config.store_dir);
    if let Some(regrouped) = entry.regrouped.filter(|regrouped| regrouped.founder == spec.raft_id) {
        return super::regroup::take_over(&context.disk, &context.wal, store, dir, spec, &regrouped);
    }
    let unusable = |e: io::Error| OpenError::Folder(dir.to_owned(), e);
    let is_there = folders::is_there(disk, dir).map_err(unusable)?;
    let found = ReplicaFile::load(disk, store, spec.stream)?;
    if let Some(file) = found.filter(|file| file.raft_id == spec.raft_id) {
        if !is_there && spec.replicas == 1 {
            return Err(OpenError::Gone { stream: spec.name.clone(), folder: dir.to_owned() });
        }
        return Ok(file);
    }
    let is_first = spec.raft_id.get() == context.node_id;
    if found.is_some() || !is_first {
        // First the files, then the log, then the name of the new member: a crash between any two repeats all of it.
        folders::remove(disk, dir)?;
        clear_log(context, spec)?;
    }
    let weakest = if is_there && is_first && context.last_run.weak_since { SyncMode::NoWait } else { SyncMode::Always };
    disk.create_dir_all(dir).map_err(unusable)?;
    if let Some(parent) = dir.parent() {
        disk.sync_dir(parent).map_err(unusable)?;
    }
    let file = ReplicaFile { raft_id: spec.raft_id, weakest, may_have_lost: false };
    file.save(disk, store, spec.stream)?;
    Ok(file)
}

/// Drops the group from the log; it stays dropped.
fn clear_log(context: &Context, spec: &ReplicaSpec) -> Result<(), OpenError> {
    let failed = |why: String| OpenError::Log(spec.name.clone(), why);
    context.wal.drop_group(spec.group).map_err(|e| failed(e.to_string()))?;
    let (done, synced) = std::sync::mpsc::sync_channel(1);
    context.wal.sync_all(Box::new(move |result| {
        // The receiver waits for it.
        let _gone = done.send(result);
    }));
    synced.recv().map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))
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
pub(crate) fn read(
    disk: &Arc<dyn Disk>,
    last_stop: LastStop,
    spec: &ReplicaSpec,
    dir: &Path,
    created: Timestamp,
) -> Result<Opened, OpenError> {
    let checkpoint = Checkpoint::load(&**disk, dir)?;
    let name = || spec.name.clone();
    let mut state = match &checkpoint {
        Some(c) => StreamState::from_image(&c.state.image).map_err(|e| OpenError::Image(name(), e.to_string()))?,
        None => fresh(spec, created),
    };
    let log = if spec.replicas > 1 { StoreLog::Wal } else { StoreLog::Own };
    let options = StoreOptions { cache_bytes_max: CACHE_BYTES, last_stop, ..StoreOptions::new(log) };
    let (store, scan) =
        StreamStore::open(Arc::clone(disk), dir, spec.stream, options, checkpoint.as_ref(), &mut state)?;
    let lost = state.finish_rebuild().map_err(|m| OpenError::Blocks {
        stream: name(),
        what: m.what,
        expected: m.expected,
        found: m.found,
    })?;
    if lost > 0 {
        tracing::error!(stream = spec.name, lost, "messages of the only copy are gone with what is damaged");
    }
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

/// Opens a replica, or says why it stays out; with a standing if it must not take part as it is. Its files are never
/// changed by a failure. Blocking: it reads them all.
pub(crate) fn open(
    context: &Arc<Context>,
    spec: ReplicaSpec,
    entry: &StreamEntry,
) -> Result<(Arc<StreamReplica>, Option<Standing>), OpenError> {
    let (dir, created) = (dir_of(context, spec.stream), entry.created);
    let mut file = take_place(context, &spec, entry, &dir)?;
    for group in entry.past_groups.iter().filter(|group| context.wal.group(**group).is_some()) {
        context.wal.drop_group(*group).map_err(|e| OpenError::Log(spec.name.clone(), e.to_string()))?;
    }
    let unsettled = |e| OpenError::Settle(spec.name.clone(), e);
    let before = folders::settle(&*context.disk, &dir).map_err(unsettled)?;
    let read = || read(&context.disk, context.last_run.last_stop(), &spec, &dir, created);
    let opened = match read() {
        Err(error) if before => {
            tracing::error!(stream = spec.name, %error, "an interrupted snapshot cannot be opened; the state before it is taken");
            folders::put_back(&*context.disk, &dir).map_err(unsettled)?;
            read()?
        }
        opened => opened?,
    };
    folders::drop_replaced(&*context.disk, &dir).map_err(unsettled)?;
    let mark = SnapshotMark::read(&*context.disk, &dir);
    let log = context.wal.group(spec.group);
    let log_last = log.as_ref().and_then(|g| g.last).map_or(LogIndex::new(0), |p| p.index);
    let persisted = opened.head.0.map_or(LogIndex::new(0), |p| p.index);
    let last = context.last_run;
    if last.clean_stop && file.weakest != SyncMode::Always {
        // Everything is synced. The mode that is in force says so again, if it is a weak one.
        file.weakest = SyncMode::Always;
        file.save(&*context.disk, &context.config.store_dir, spec.stream)?;
    }
    let effective = opened.state.durability().effective(spec.raft_id).sync;
    let facts = OpenFacts {
        last_run: last.known.then_some(LastRun {
            clean_stop: last.clean_stop,
            same_boot_and_mount: last.same_boot_and_mount,
            io_error: false,
            weak_since: last.weak_since && file.weakest != SyncMode::Always,
            unwritten_confirmed: !last.clean_stop && file.weakest == SyncMode::NoWait,
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
    let mut kept_out = None;
    if let RecoveryPlan::RejoinAsLearner { why } = plan {
        // A node without a hard state is new: its id in this group is, too.
        kept_out = (why != RejoinReason::Wiped).then_some(why);
        plan = RecoveryPlan::Replay { from: persisted };
    }
    if kept_out.is_some() && !file.may_have_lost {
        // This boot looks like any other to the next one.
        file.may_have_lost = true;
        file.save(&*context.disk, &context.config.store_dir, spec.stream)?;
    } else if file.may_have_lost && spec.replicas > 1 {
        kept_out = kept_out.or(Some(RejoinReason::UnsyncedConfirmed));
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
    let mut phase = PhaseLatch::new(&plan, log_last);
    if let Some(why) = kept_out {
        phase.quarantined(format!("it may have lost what it confirmed ({why:?}); asks the other replicas"));
    }
    let installed = crate::log_check::is_installed(&*context.disk, &dir);
    let lost = crate::log_check::check_stream(&*context.disk, &dir, |_| log_last).err();
    let replica = StreamReplica::new(Arc::clone(context), spec, dir, file, opened, mark, phase);
    if installed {
        replica.lock().flushing.set_installed();
    }
    let damage = match plan {
        _ if lost.is_some() => lost.map(|lost| lost.to_string()),
        RecoveryPlan::Repair { why } => Some(format!("needs its peers' data: {why}")),
        RecoveryPlan::Refuse { why } => Some(format!("refused: {why:?}")),
        _ => None,
    };
    if let Some(why) = damage {
        replica.fail(&mut replica.lock(), why);
        return Ok((replica, Some(Standing::Damaged)));
    }
    let standing = kept_out.map(|_| Standing::MayHaveLost { last: super::rejoin::log_end(&replica) });
    Ok((replica, standing))
}

/// Puts a complete staged folder in the place of a replica's own and opens it; if it cannot be opened, the old one
/// comes back. Blocking.
pub(crate) fn swap_in(
    disk: &Arc<dyn Disk>,
    last_stop: LastStop,
    spec: &ReplicaSpec,
    dir: &Path,
    staged: &Path,
) -> io::Result<Opened> {
    folders::exchange(&**disk, dir, staged)?;
    match read(disk, last_stop, spec, dir, Timestamp::new(0)) {
        Ok(opened) => {
            folders::drop_replaced(&**disk, dir)?;
            Ok(opened)
        }
        Err(error) => {
            folders::put_back(&**disk, dir)?;
            Err(io::Error::other(error))
        }
    }
}
