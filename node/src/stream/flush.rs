//! From the store's memory to its files: when to write, and what a finished job means.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::durability::{Durability, FlushMode};
use headwater_core::flush_policy::{self, FlushFacts, FlushWant};
use headwater_core::ids::{LogIndex, LogPosition};
use headwater_core::stream::StorageKind;
use headwater_storage::blocks::{self, FlushDone, FlushStage};
use headwater_storage::checkpoint::CheckpointImage;

use super::replica::{Failure, Inner, StreamReplica};
use super::snapshot::SnapshotMark;
use crate::raft::{LogPos, Members, SnapshotHead};

/// The state's digest as of one applied entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateSample {
    pub(crate) at: LogPosition,
    pub(crate) digest: u64,
}

/// Flush jobs of one replica at a time (I-14): one that is being written, one whose checkpoint is on its way, and one that
/// ends while the next begins. So the flusher's queues hold at most this many for every replica on the node.
const JOBS_MAX: usize = 3;
/// Samples kept while they wait for the log's sync; one per applied entry, so this bounds memory only.
const SAMPLES_MAX: usize = 4096;
/// A snapshot mark is taken when this many bytes were applied since the last one.
const MARK_BYTES: usize = 1 << 20;

/// Bookkeeping of one replica's flushing.
pub(crate) struct Flushing {
    /// Held by every job until it has ended, in whichever way.
    running: Arc<()>,
    /// Held while a snapshot mark is written.
    marking: Arc<()>,
    /// The state came as a snapshot at this index, and the files still say so: the log does not reach it yet.
    installed: Option<LogIndex>,
    /// No job may start: the files are about to be replaced.
    held: bool,
    busy: bool,
    checkpointing: bool,
    unwritten_bytes: usize,
    since_checkpoint_bytes: usize,
    since_mark_bytes: usize,
    oldest_unpersisted: Option<std::time::Instant>,
    barrier: Option<LogIndex>,
    log_pressure: bool,
    persisted: LogIndex,
    head: Option<SnapshotHead>,
    samples: VecDeque<StateSample>,
    mark: Option<SnapshotMark>,
    /// The mark found at start, until replay has passed it.
    to_prove: Option<SnapshotMark>,
    mode: Durability,
    /// R1 in interval mode: when the store was synced last.
    last_sync: std::time::Instant,
}

impl Flushing {
    pub(crate) fn new(recovered: (Option<LogPos>, Members), mark: Option<SnapshotMark>) -> Self {
        let persisted = recovered.0.map_or(LogIndex::new(0), |p| p.index);
        Self {
            running: Arc::new(()),
            marking: Arc::new(()),
            installed: None,
            held: false,
            busy: false,
            checkpointing: false,
            unwritten_bytes: 0,
            since_checkpoint_bytes: 0,
            since_mark_bytes: 0,
            oldest_unpersisted: None,
            barrier: None,
            log_pressure: false,
            persisted,
            head: recovered.0.map(|at| SnapshotHead { at, members: recovered.1 }),
            samples: VecDeque::new(),
            mark,
            to_prove: mark.filter(|m| m.is_async(persisted)),
            mode: Durability::default(),
            last_sync: std::time::Instant::now(),
        }
    }

    pub(crate) fn set_mode(&mut self, mode: Durability) {
        self.mode = mode;
    }

    pub(crate) fn persisted(&self) -> LogIndex {
        self.persisted
    }

    pub(crate) fn persisted_head(&self) -> Option<SnapshotHead> {
        self.head.clone()
    }

    pub(crate) fn mark(&self) -> Option<SnapshotMark> {
        self.mark
    }

    /// Persists at least up to `index` soon.
    pub(crate) fn set_barrier(&mut self, index: LogIndex) {
        self.barrier = Some(self.barrier.map_or(index, |b| b.max(index)));
    }

    /// No job starts from now on, until a snapshot has replaced the store.
    pub(crate) fn hold(&mut self) {
        self.held = true;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Held by work on the files that is no flush job.
    pub(crate) fn running(&self) -> Arc<()> {
        Arc::clone(&self.running)
    }

    /// The state came as a snapshot before this start, and the files still say so.
    pub(crate) fn set_installed(&mut self) {
        self.installed = Some(self.persisted);
    }

    /// The index up to which the state came as a snapshot, until a checkpoint of this replica's own.
    pub(crate) fn installed_at(&self) -> Option<LogIndex> {
        self.installed
    }

    /// Whether another job may begin. One that may not is asked for again when a job ends, and on the next tick.
    fn has_room_for_a_job(&self) -> bool {
        Arc::strong_count(&self.running) <= JOBS_MAX
    }

    /// Whether a job is under way.
    pub(crate) fn is_running(&self) -> bool {
        Arc::strong_count(&self.running) > 1 || self.is_marking()
    }

    fn is_marking(&self) -> bool {
        Arc::strong_count(&self.marking) > 1
    }

    pub(crate) fn set_log_pressure(&mut self) {
        self.log_pressure = true;
    }

    pub(crate) fn pushed(&mut self, bytes: usize) {
        self.unwritten_bytes += bytes;
        self.since_checkpoint_bytes += bytes;
        self.since_mark_bytes += bytes;
        self.oldest_unpersisted.get_or_insert_with(std::time::Instant::now);
    }

    pub(crate) fn applied(&mut self, sample: StateSample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// A snapshot replaced the store.
    pub(crate) fn installed(&mut self, head: &SnapshotHead) {
        self.persisted = head.at.index;
        self.head = Some(head.clone());
        self.samples.clear();
        self.mark = None;
        self.to_prove = None;
        self.installed = Some(head.at.index);
        self.held = false;
        self.busy = false;
        self.checkpointing = false;
        self.unwritten_bytes = 0;
        self.since_checkpoint_bytes = 0;
        self.since_mark_bytes = 0;
        self.oldest_unpersisted = None;
    }
}

impl StreamReplica {
    /// Replay has passed the snapshot mark found at start: proves the state against it.
    pub(crate) fn prove_snapshot(&self, inner: &mut Inner) {
        let Some(mark) = inner.flushing.to_prove else { return };
        let Some(sample) = inner.flushing.samples.iter().find(|s| s.at.index == mark.at.index) else {
            if inner.state.applied().index > mark.at.index {
                // The entry at S carried no frame, so no sample was taken there: nothing to compare.
                inner.flushing.to_prove = None;
            }
            return;
        };
        inner.flushing.to_prove = None;
        if sample.at == mark.at && sample.digest != mark.digest {
            let (expected, found) = (mark.digest, sample.digest);
            self.fail(
                inner,
                format!(
                    "the state at entry {} has digest {found:016x}, its snapshot says {expected:016x}",
                    mark.at.index
                ),
            );
        } else {
            tracing::info!(stream = self.spec.name, index = %mark.at.index, "replay proved the snapshot");
        }
    }

    fn facts(&self, inner: &Inner) -> FlushFacts {
        let f = &inner.flushing;
        let waits = |need| inner.gate.last_waiting(need);
        let (stored, synced) = (inner.stored(), inner.store_synced());
        let synced_wait = waits(super::gate::Need::StoreSynced).filter(|i| *i > synced);
        FlushFacts {
            unwritten_bytes: f.unwritten_bytes as u64,
            since_checkpoint_bytes: f.since_checkpoint_bytes as u64,
            applied: inner.state.applied().index,
            stored,
            persisted: f.persisted,
            barrier: f.barrier.filter(|b| *b > f.persisted).map(|b| b.min(inner.state.applied().index)),
            wait_stored: waits(super::gate::Need::Stored).filter(|i| *i > stored),
            wait_stored_synced: synced_wait,
            flush_sync: self.is_replicated()
                && f.mode.flush == FlushMode::Sync
                && inner.state.settings().storage == StorageKind::File,
            log_pressure: f.log_pressure,
            oldest_unpersisted_ns: f
                .oldest_unpersisted
                .map_or(0, |at| u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            busy: f.busy || f.held || inner.failed.is_some() || !f.has_room_for_a_job(),
        }
    }

    /// Starts a flush job if the policy wants one.
    pub(crate) fn flush_if_due(self: &Arc<Self>, inner: &mut Inner) {
        let facts = self.facts(inner);
        let mut want = flush_policy::decide(&facts);
        if want == FlushWant::Checkpoint && inner.flushing.checkpointing {
            // One checkpoint at a time; meanwhile extents are written, and synced if somebody waits for that.
            want = flush_policy::decide(&FlushFacts {
                since_checkpoint_bytes: 0,
                barrier: None,
                log_pressure: false,
                oldest_unpersisted_ns: 0,
                ..facts
            });
        }
        if want == FlushWant::Nothing && self.interval_sync_due(inner) {
            want = FlushWant::Sync;
        }
        self.mark_if_due(inner);
        if want != FlushWant::Nothing && inner.flushing.has_room_for_a_job() {
            self.start_job(inner, want);
        }
    }

    /// As [`flush_if_due`](Self::flush_if_due), ten times a second: an only copy has no log that its messages are in, so what
    /// `noWait` has confirmed is handed to the kernel soon, however little it is.
    pub(crate) fn flush_on_tick(self: &Arc<Self>, inner: &mut Inner) {
        self.flush_if_due(inner);
        let facts = self.facts(inner);
        if !self.is_replicated() && !facts.busy && facts.unwritten_bytes > 0 {
            self.start_job(inner, FlushWant::Write);
        }
    }

    /// R1 with `syncMode: interval` has no log: its store is synced on the timer.
    fn interval_sync_due(&self, inner: &Inner) -> bool {
        let f = &inner.flushing;
        !f.busy
            && !f.held
            && inner.failed.is_none()
            && !self.is_replicated()
            && f.mode.sync == headwater_core::durability::SyncMode::Interval
            && inner.store_synced() < inner.state.applied().index
            && f.last_sync.elapsed() >= std::time::Duration::from_millis(u64::from(f.mode.interval_ms))
    }

    /// Takes a snapshot mark at what is applied and synced in the log.
    fn mark_if_due(&self, inner: &mut Inner) {
        let f = &mut inner.flushing;
        let is_due = f.since_mark_bytes >= MARK_BYTES && f.to_prove.is_none() && !f.held && !f.is_marking();
        if !self.is_replicated() || !is_due {
            return;
        }
        let Some(synced) = self.context.wal.watermarks(self.spec.group).synced else { return };
        let Some(sample) = f.samples.iter().rev().find(|s| s.at.index <= synced).copied() else { return };
        if f.mark.is_some_and(|m| m.at.index >= sample.at.index) {
            return;
        }
        let mark = SnapshotMark { at: sample.at, persisted: f.persisted, digest: sample.digest };
        f.mark = Some(mark);
        f.since_mark_bytes = 0;
        while f.samples.front().is_some_and(|s| s.at.index < sample.at.index) {
            f.samples.pop_front();
        }
        let (disk, dir) = (Arc::clone(&self.context.disk), self.dir.clone());
        let (name, marking) = (self.spec.name.clone(), Arc::clone(&f.marking));
        self.context.runtime.spawn_blocking(move || {
            let _marking = marking;
            if let Err(error) = mark.write(&*disk, &dir) {
                tracing::warn!(stream = name, %error, "snapshot mark not written; a restart replays without proof");
            }
        });
    }

    fn start_job(self: &Arc<Self>, inner: &mut Inner, want: FlushWant) {
        let applied = inner.state.applied();
        let image = (want == FlushWant::Checkpoint).then(|| CheckpointImage {
            group: self.spec.group,
            applied,
            membership: serde_json::to_vec(&inner.members).expect("a membership is plain data").into(),
            snapshot: Bytes::new(),
            image: inner.state.image().into(),
            digest: inner.state.digest(),
        });
        let head = image.is_some().then(|| SnapshotHead { at: applied, members: inner.members.clone() });
        let wanted = match want {
            FlushWant::Nothing => return,
            FlushWant::Write => blocks::FlushWant::Write,
            FlushWant::Sync => blocks::FlushWant::Sync,
            FlushWant::Checkpoint => blocks::FlushWant::Checkpoint,
        };
        let Some(job) = inner.store.take_job(wanted, image) else { return };
        let f = &mut inner.flushing;
        f.busy = true;
        f.checkpointing |= head.is_some();
        f.log_pressure = false;
        f.unwritten_bytes = 0;
        if head.is_some() {
            f.since_checkpoint_bytes = 0;
            f.oldest_unpersisted = None;
        }
        if want >= FlushWant::Sync {
            f.last_sync = std::time::Instant::now();
        }
        let this = Arc::clone(self);
        let running = Arc::clone(&f.running);
        self.context.flusher.submit(
            job,
            Box::new(move |done| {
                let _held_until_the_job_ends = &running;
                this.job_done(done, head.clone());
            }),
        );
    }

    /// Runs on a flusher thread, once per stage.
    fn job_done(self: &Arc<Self>, done: FlushDone, head: Option<SnapshotHead>) {
        let mut inner = self.lock();
        match &done.stage {
            FlushStage::Failed(error) => {
                let failure = Failure { why: format!("flush failed: {error}"), passes: error.passes() };
                return self.stop_with(&mut inner, failure);
            }
            FlushStage::Stored { .. } => inner.flushing.busy = false,
            FlushStage::Persisted { .. } => {
                inner.flushing.checkpointing = false;
                if let Some(head) = head {
                    assert!(head.at.index >= inner.flushing.persisted, "persisted never moves back");
                    inner.flushing.persisted = head.at.index;
                    inner.flushing.head = Some(head);
                    if let Some(at) = inner.flushing.installed.take()
                        && let Err(error) = crate::log_check::clear_installed(&*self.context.disk, &self.dir)
                    {
                        tracing::warn!(stream = self.spec.name, %error, "tried again after the next checkpoint");
                        inner.flushing.installed = Some(at);
                    }
                    if inner.flushing.barrier.is_some_and(|b| b <= inner.flushing.persisted) {
                        inner.flushing.barrier = None;
                    }
                }
            }
        }
        inner.store.complete(done);
        self.open_gate(&mut inner);
        self.room.notify_waiters();
        self.flush_if_due(&mut inner);
        drop(inner);
        self.wake.notify_one();
    }

    /// Persists everything that is applied; returns when it is, or when the store has failed.
    pub(crate) async fn persist_all(self: &Arc<Self>) {
        loop {
            {
                let mut inner = self.lock();
                let applied = inner.state.applied().index;
                if inner.failed.is_some() || inner.flushing.persisted() >= applied {
                    return;
                }
                inner.flushing.set_barrier(applied);
                self.flush_if_due(&mut inner);
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_has_so_many_jobs_at_a_time() {
        let flushing = Flushing::new((None, Members::default()), None);
        let mut jobs = Vec::new();
        while flushing.has_room_for_a_job() {
            jobs.push(flushing.running());
            assert!(jobs.len() <= JOBS_MAX, "{} jobs", jobs.len());
        }
        assert_eq!(jobs.len(), JOBS_MAX);
        jobs.pop();
        assert!(flushing.has_room_for_a_job());
    }
}
