//! One life of one member: the real log, log store, state machine and block store on a simulated disk, and a small
//! shell around them that does what the node's own does, in steps that the simulation may end at any point.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use headwater_core::durability::SyncMode;
use headwater_core::frame::Frame;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Ordinal, RaftNodeId, StreamId, StreamSeq, Term, Timestamp};
use headwater_core::stream::{Admission, Command as StreamCommand, Outcome, Publish, Records, StreamState};
use headwater_storage::blocks::{FlushDone, FlushStage, FlushWant, StreamStore};
use headwater_storage::checkpoint::CheckpointImage;
use headwater_storage::disk::{Disk, SimDisk};
use headwater_storage::wal::{LastStop, Wal, WalFailure, WalOptions};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::net::{Factory, Net, Port};
use super::watch::Watch;
use super::{Rng, spawn};
use crate::raft::group::{GroupKind, Storage, open_raft};
use crate::raft::log_store::EffectiveSync;
use crate::raft::machine::{Committed, Replica, SnapshotHead};
use crate::raft::transfer::{Outgoing, Staged};
use crate::raft::types::*;
use crate::stream::folders;
use crate::stream::open::{Opened, read, swap_in};
use crate::stream::outgoing::PinnedFiles;
use crate::stream::replica::ReplicaSpec;

pub(super) const GROUP: GroupId = GroupId::new(9);
const STREAM: StreamId = StreamId::new(9);
const DIR: &str = "/n/streams/9";
const WAL: &str = "/n/wal";

/// What became of something that was proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Confirmed,
    /// It took its place and had no effect.
    Refused,
}

struct Leading {
    term: Term,
    admission: Admission,
    outstanding: usize,
    waiting: VecDeque<(Ordinal, oneshot::Sender<Fate>)>,
}

struct Inner {
    state: StreamState,
    store: StreamStore,
    members: Members,
    recovered: (Option<LogPos>, Members),
    head: Option<SnapshotHead>,
    leading: Option<Leading>,
    failed: Option<String>,
    /// A snapshot is about to replace the files: no flush starts.
    held: bool,
    /// This life is over: nobody leads here any more.
    ended: bool,
}

pub(super) struct SimReplica {
    node: usize,
    spec: ReplicaSpec,
    disk: Arc<dyn Disk>,
    inner: Mutex<Inner>,
    watch: Arc<Watch>,
    /// Something may be there to be proposed, or a term of its own may have begun.
    wake: Notify,
}

impl SimReplica {
    fn open(node: usize, raft_id: u64, disk: Arc<dyn Disk>, watch: Arc<Watch>) -> Result<Self, String> {
        let spec = ReplicaSpec {
            stream: STREAM,
            group: GROUP,
            raft_id: RaftNodeId::new(raft_id),
            name: "sim".to_owned(),
            replicas: 3,
        };
        let dir = Path::new(DIR);
        let text = |e: io::Error| e.to_string();
        disk.create_dir_all(Path::new("/n/streams")).map_err(text)?;
        let before = folders::settle(&*disk, dir).map_err(text)?;
        disk.create_dir_all(dir).map_err(text)?;
        let open = || read(&disk, LastStop::PowerLost, &spec, dir, Timestamp::new(0)).map_err(|e| e.to_string());
        let opened = match open() {
            Err(_) if before => {
                folders::put_back(&*disk, dir).map_err(text)?;
                open()?
            }
            opened => opened?,
        };
        folders::drop_replaced(&*disk, dir).map_err(text)?;
        let Opened { state, store, head: recovered } = opened;
        if recovered.0.is_some() {
            watch.state(node, state.applied(), state.digest())?;
        }
        let head = recovered.0.map(|at| SnapshotHead { at, members: recovered.1.clone() });
        let members = recovered.1.clone();
        let inner =
            Inner { state, store, members, recovered, head, leading: None, failed: None, held: false, ended: false };
        Ok(Self { node, spec, disk, inner: Mutex::new(inner), watch, wake: Notify::new() })
    }

    fn apply_frame(&self, inner: &mut Inner, at: LogPosition, bytes: &Bytes) {
        let frame = Frame::parse(bytes.clone()).expect("a committed frame is whole");
        let header = frame.header();
        let applied = match inner.state.apply(at, &frame, &inner.store) {
            Ok(applied) => applied,
            Err(damaged) => {
                self.watch.broken(format!("node {}: message {} cannot be read", self.node, damaged.seq));
                return;
            }
        };
        if applied.is_void() {
            inner.store.advance(at.index)
        } else {
            inner.store.push(at.index, frame)
        }
        if applied.removed.first().is_some_and(|range| range.first <= inner.state.first_seq()) {
            inner.store.drop_before(inner.state.first_seq());
        }
        self.watch.applied(self.node, at, bytes, inner.state.digest());
        let Inner { state, leading: Some(leading), .. } = inner else { return };
        if leading.term != header.term {
            return;
        }
        leading.admission.sync(state);
        while leading.waiting.front().is_some_and(|(ordinal, _)| *ordinal <= header.ordinal) {
            let Some((ordinal, waiter)) = leading.waiting.pop_front() else { break };
            if applied.is_void() || ordinal != header.ordinal {
                continue;
            }
            let refused = matches!(applied.outcome, Outcome::Rejected(_));
            // The client may have given up.
            let _gone = waiter.send(if refused { Fate::Refused } else { Fate::Confirmed });
        }
    }

    /// Publishes here, if this member leads: the sequence, and what becomes of it.
    pub(super) fn publish(&self, id: &str, now: Timestamp) -> Option<(StreamSeq, oneshot::Receiver<Fate>)> {
        let mut inner = self.inner.lock();
        let Inner { state, store, leading: Some(leading), .. } = &mut *inner else { return None };
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let subject = format!("s.{}", id.len() % 3);
        let publish = Publish { subject: subject.as_bytes(), headers: headers.as_bytes(), payload: id.as_bytes(), now };
        let admitted = leading.admission.admit(state, store, publish).ok()?;
        let (tx, rx) = oneshot::channel();
        match admitted.ordinal {
            Some(ordinal) => leading.waiting.push_back((ordinal, tx)),
            // The receiver is at hand.
            None => tx.send(Fate::Confirmed).expect("nobody has taken it"),
        }
        self.wake.notify_one();
        Some((admitted.seq, rx))
    }

    pub(super) fn command(&self, command: StreamCommand, now: Timestamp) -> Option<oneshot::Receiver<Fate>> {
        let mut inner = self.inner.lock();
        let Inner { state, leading: Some(leading), .. } = &mut *inner else { return None };
        let proposed = leading.admission.propose(state, command, now).ok()?;
        let (tx, rx) = oneshot::channel();
        leading.waiting.push_back((proposed.ordinal, tx));
        self.wake.notify_one();
        Some(rx)
    }

    /// Follows Raft; takes what is sealed.
    fn follow(&self, leads: bool, term: u64) -> Vec<(Term, Ordinal, Bytes)> {
        let mut inner = self.inner.lock();
        if inner.ended {
            return Vec::new();
        }
        let Inner { state, leading, .. } = &mut *inner;
        if leading.as_ref().is_some_and(|l| !leads || l.term.get() != term) {
            *leading = None;
        }
        if leads && leading.is_none() && state.applied().term.get() == term {
            let term = Term::new(term);
            let admission = Admission::new(state, term);
            *leading = Some(Leading { term, admission, outstanding: 0, waiting: VecDeque::new() });
        }
        let mut sealed = Vec::new();
        if let Some(leading) = leading {
            while let Some((ordinal, frame)) = leading.admission.seal() {
                leading.outstanding += 1;
                sealed.push((leading.term, ordinal, frame));
            }
        }
        sealed
    }

    fn proposal_ended(&self, term: Term, ordinal: Ordinal, is_applied: bool) {
        let mut inner = self.inner.lock();
        let Inner { state, leading: Some(leading), .. } = &mut *inner else { return };
        if leading.term != term {
            return;
        }
        leading.outstanding -= 1;
        if !is_applied && !leading.admission.is_halted() {
            leading.admission.refused(ordinal);
            leading.waiting.retain(|(waiting, _)| *waiting < ordinal);
        }
        if leading.admission.is_halted() && leading.outstanding == 0 {
            leading.admission.reset(state, term);
            self.wake.notify_one();
        }
    }

    /// Carries out one flush job, if there is one; true if `persisted` moved.
    fn flush(&self, want: FlushWant, wal: &Wal) -> bool {
        let (job, head) = {
            let mut inner = self.inner.lock();
            if inner.failed.is_some() || inner.held || inner.state.applied().index.get() == 0 {
                return false;
            }
            let applied = inner.state.applied();
            let image = (want == FlushWant::Checkpoint).then(|| CheckpointImage {
                group: GROUP,
                applied,
                membership: serde_json::to_vec(&inner.members).expect("plain data").into(),
                snapshot: Bytes::new(),
                image: inner.state.image().into(),
                digest: inner.state.digest(),
            });
            let head = SnapshotHead { at: applied, members: inner.members.clone() };
            let Some(job) = inner.store.take_job(want, image) else { return false };
            (job, head)
        };
        let barrier = |group: GroupId, index: LogIndex| -> Result<(), WalFailure> {
            let (tx, rx) = std::sync::mpsc::channel();
            // The receiver waits below.
            wal.sync_barrier(group, index, Box::new(move |result| drop(tx.send(result))));
            wal.drive();
            rx.try_recv().unwrap_or(Err(WalFailure::ShutDown))
        };
        let mut moved = false;
        job.run(&*self.disk, &barrier, &mut |done: FlushDone| {
            let mut inner = self.inner.lock();
            match &done.stage {
                FlushStage::Failed(error) => inner.failed = Some(error.to_string()),
                FlushStage::Stored { .. } => {}
                FlushStage::Persisted { .. } => {
                    inner.head = Some(head.clone());
                    moved = true;
                }
            }
            inner.store.complete(done);
        });
        moved
    }

    pub(super) fn persisted(&self) -> LogIndex {
        self.inner.lock().head.as_ref().map_or(LogIndex::new(0), |head| head.at.index)
    }

    pub(super) fn applied(&self) -> LogPosition {
        self.inner.lock().state.applied()
    }

    /// The live messages, oldest first, and the bounds of the stream.
    pub(super) fn content(&self) -> (u64, u64, Vec<(u64, String)>) {
        let inner = self.inner.lock();
        let (first, last) = (inner.state.first_seq().get(), inner.state.last_seq().get());
        let live = (first..=last).map(StreamSeq::new).filter(|seq| inner.state.is_live(*seq));
        let read =
            |seq| inner.store.record(seq).ok().flatten().map(|r| String::from_utf8_lossy(r.payload()).into_owned());
        let content = live.map(|seq| (seq.get(), read(seq).unwrap_or_else(|| "unreadable".to_owned()))).collect();
        (first, last, content)
    }
}

impl Replica for SimReplica {
    fn recovered(&self) -> (Option<LogPos>, Members) {
        self.inner.lock().recovered.clone()
    }

    fn apply(&self, at: LogPos, what: Committed<'_>) -> Bytes {
        let mut inner = self.inner.lock();
        if inner.failed.is_some() {
            // As the node's own: what it holds does not count any more, and this life ends.
            return Bytes::new();
        }
        match what {
            Committed::Blank => {
                inner.state.skip(at);
                inner.store.advance(at.index);
                self.watch.applied(self.node, at, b"blank", inner.state.digest());
                self.wake.notify_one();
            }
            Committed::Members(members) => {
                inner.members = members.clone();
                inner.state.members_changed(at, |replica| members.nodes.contains(&replica.get()));
                inner.store.advance(at.index);
                self.watch.applied(self.node, at, b"members", inner.state.digest());
            }
            Committed::Command(frame) => self.apply_frame(&mut inner, at, frame),
        }
        Bytes::new()
    }

    fn applied_run(&self) {}

    fn snapshot(&self) -> Option<SnapshotHead> {
        self.inner.lock().head.clone()
    }

    fn pin(&self) -> io::Result<Option<(SnapshotHead, Box<dyn Outgoing>)>> {
        if self.inner.lock().head.is_none() {
            return Ok(None);
        }
        let (head, pinned) = PinnedFiles::pin(&self.disk, Path::new(DIR), Box::new(|_| ()))?;
        Ok(Some((head, Box::new(pinned))))
    }

    fn install(&self, head: SnapshotHead, staged: Staged) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            {
                let mut inner = self.inner.lock();
                inner.leading = None;
                inner.held = true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            if self.inner.lock().ended {
                // The next life is on the same disk already.
                return Err(io::Error::other("this life is over"));
            }
            let opened = swap_in(&self.disk, LastStop::PowerLost, &self.spec, Path::new(DIR), &staged.dir);
            let mut inner = self.inner.lock();
            match opened {
                Ok(opened) => {
                    if let Err(why) = self.watch.state(self.node, head.at, opened.state.digest()) {
                        self.watch.broken(why);
                    }
                    self.watch.count("installed");
                    inner.state = opened.state;
                    inner.store = opened.store;
                    inner.members = head.members.clone();
                    inner.head = Some(head);
                    inner.held = false;
                    Ok(())
                }
                Err(error) => {
                    inner.failed = Some(error.to_string());
                    Err(error)
                }
            }
        })
    }

    fn cannot_stage(&self, error: &io::Error) {
        self.inner.lock().failed.get_or_insert(error.to_string());
    }

    fn room(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

/// A member that runs.
pub(super) struct Running {
    pub(super) raft_id: u64,
    pub(super) raft: Raft,
    pub(super) replica: Arc<SimReplica>,
    pub(super) wal: Wal,
    closed: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

/// How a member's disk and log are driven.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub(super) mode: SyncMode,
    pub(super) seed: u64,
    /// Every wait for the disk is this many times as long.
    pub(super) slow: u64,
    /// Log entries kept behind `persisted`.
    pub(super) keep: u64,
}

impl Running {
    /// Starts a life on what the disk holds.
    pub(super) async fn start(
        node: usize,
        raft_id: u64,
        life: u64,
        disk: &SimDisk,
        net: &Net,
        watch: &Arc<Watch>,
        pace: Pace,
    ) -> Result<Self, String> {
        let dynamic: Arc<dyn Disk> = Arc::new(disk.clone());
        let options =
            WalOptions { segment_bytes: 32 << 10, segments_target: 3, spares_max: 1, ..WalOptions::default() };
        let (wal, _) =
            Wal::open_inline(Arc::clone(&dynamic), Path::new(WAL), options).map_err(|e| format!("log: {e}"))?;
        let replica = Arc::new(SimReplica::open(node, raft_id, Arc::clone(&dynamic), Arc::clone(watch))?);
        let stop = Arc::<AtomicBool>::default();
        let mut rng = Rng::new(pace.seed);
        drive_disk(node, &wal, net, &stop, pace, rng.fork());
        let closed = Arc::<AtomicBool>::default();
        let storage = Storage {
            kind: GroupKind::Stream,
            group: GROUP,
            raft_id,
            wal: wal.clone(),
            sync: EffectiveSync::new(pace.mode),
            replica: Arc::clone(&replica) as Arc<dyn Replica>,
            closed: Arc::clone(&closed),
            log_entries_to_keep: pace.keep,
        };
        let factory = Factory { net: net.clone(), node, life };
        let raft = open_raft(storage, factory).await.map_err(|e| e.to_string())?;
        net.up(node, life);
        let staging = folders::incoming(Path::new(DIR));
        net.listen(raft_id, Port { node, life, raft: raft.clone(), disk: dynamic, staging, turn: Arc::default() });
        drive_flush(node, &raft, &replica, &wal, net, &stop, pace, rng.fork());
        drive_proposals(node, &raft, &replica, net, &stop, rng.fork());
        Ok(Self { raft_id, raft, replica, wal, closed, stop })
    }

    /// Ends this life at once. The disk is the caller's.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.closed.store(true, Ordering::Release);
        {
            let mut inner = self.replica.inner.lock();
            inner.ended = true;
            inner.leading = None;
        }
        self.replica.wake.notify_one();
        let raft = self.raft;
        spawn(async move {
            // Its task may be dead, or wait for a disk that is gone.
            let _ended = tokio::time::timeout(Duration::from_secs(1), raft.shutdown()).await;
        });
    }

    /// Why this life cannot go on, if it cannot; an error is one that no fault excuses.
    pub(super) fn trouble(&self) -> Result<Option<String>, String> {
        let running = self.raft.metrics().borrow_watched().running_state.clone();
        match running {
            Err(Fatal::Panicked) => return Err(format!("node {}: openraft panicked", self.replica.node)),
            Err(fatal) => return Ok(Some(fatal.to_string())),
            Ok(()) => {}
        }
        if let Some(failure) = self.wal.failure() {
            return Ok(Some(failure.to_string()));
        }
        Ok(self.replica.inner.lock().failed.clone())
    }

    /// For whoever looks into a failure.
    pub(super) fn describe(&self) -> String {
        let replica = format!("applied {}, persisted {}", self.replica.applied().index, self.replica.persisted());
        format!("{replica}, {}", *self.raft.metrics().borrow_watched())
    }

    pub(super) fn leads(&self) -> bool {
        self.raft.metrics().borrow_watched().state == ServerState::Leader
    }

    pub(super) fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// As far as they are committed.
    pub(super) fn members(&self) -> Members {
        self.replica.inner.lock().members.clone()
    }
}

fn drive_disk(node: usize, wal: &Wal, net: &Net, stop: &Arc<AtomicBool>, pace: Pace, mut rng: Rng) {
    let (wal, net, stop) = (wal.clone(), net.clone(), Arc::clone(stop));
    spawn(async move {
        while !stop.load(Ordering::Acquire) {
            let stats = wal.stats();
            let wait = match rng.below(200) {
                0 => rng.below(1500),
                // Nothing is there to be done: seldom looked at, which saves time.
                _ if stats.queued_bytes == 0 && stats.unsynced_records == 0 => 1 + rng.below(20),
                _ => 1 + rng.below(6) * pace.slow,
            };
            tokio::time::sleep(Duration::from_millis(wait)).await;
            if net.is_paused(node) || stop.load(Ordering::Acquire) {
                continue;
            }
            match rng.below(4) {
                0 | 1 => drop(wal.drive_write()),
                2 => wal.drive(),
                // An interval's timer.
                _ if rng.below(20) == 0 => drop(wal.drive_sync()),
                _ => {}
            }
        }
    });
}

#[expect(clippy::too_many_arguments, reason = "the parts of one life")]
fn drive_flush(
    node: usize,
    raft: &Raft,
    replica: &Arc<SimReplica>,
    wal: &Wal,
    net: &Net,
    stop: &Arc<AtomicBool>,
    pace: Pace,
    mut rng: Rng,
) {
    let (raft, replica, wal, net, stop) =
        (raft.clone(), Arc::clone(replica), wal.clone(), net.clone(), Arc::clone(stop));
    spawn(async move {
        while !stop.load(Ordering::Acquire) {
            let wait = if rng.below(20) == 0 { rng.below(3000) } else { rng.below(150) * pace.slow };
            tokio::time::sleep(Duration::from_millis(wait)).await;
            if net.is_paused(node) || stop.load(Ordering::Acquire) {
                continue;
            }
            let want = match rng.below(6) {
                0 | 1 => FlushWant::Write,
                2 | 3 => FlushWant::Sync,
                _ => FlushWant::Checkpoint,
            };
            if replica.flush(want, &wal) {
                // Fails only when the group has stopped.
                let _stopped = raft.trigger().snapshot().await;
            }
        }
    });
}

/// Follows Raft and proposes what is sealed, whenever one of them may have something new.
fn drive_proposals(
    node: usize,
    raft: &Raft,
    replica: &Arc<SimReplica>,
    net: &Net,
    stop: &Arc<AtomicBool>,
    mut rng: Rng,
) {
    let (raft, replica, net, stop) = (raft.clone(), Arc::clone(replica), net.clone(), Arc::clone(stop));
    spawn(async move {
        let mut changes = raft.server_metrics();
        loop {
            tokio::select! {
                biased;
                () = replica.wake.notified() => {}
                alive = changes.changed() => if alive.is_err() {
                    return;
                },
            }
            // What comes within a moment may share a frame.
            tokio::time::sleep(Duration::from_millis(rng.below(4))).await;
            while net.is_paused(node) && !stop.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if stop.load(Ordering::Acquire) {
                return;
            }
            let (leads, term) = {
                let now = changes.borrow_watched();
                (now.state == ServerState::Leader, now.vote.leader_id().term)
            };
            for (term, ordinal, frame) in replica.follow(leads, term) {
                let ended = Arc::clone(&replica);
                let responder =
                    CallbackResponder::new(move |result: Option<openraft::raft::ClientWriteResult<TypeConfig>>| {
                        if let Some(Err(ClientWriteError::ChangeMembershipError(why))) = &result {
                            ended.watch.broken(format!("a frame was answered as a membership: {why}"));
                        }
                        ended.proposal_ended(term, ordinal, matches!(result, Some(Ok(_))));
                    });
                // Fails only when the group has stopped.
                let _stopped = raft.write(Command(frame)).responder(responder).with_leader(term.get()).await;
            }
        }
    });
}
