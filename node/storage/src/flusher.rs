//! The flusher: carries out flush jobs, away from the data thread.
//!
//! Two lanes. The *commit* lane takes what somebody waits for: it gathers all queued jobs of all streams,
//! writes them, syncs each file once, and reports. The *checkpoint* lane takes what nobody waits for:
//! large extents of replicated streams, and checkpoints, which first wait for the log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use headwater_core::ids::{GroupId, LogIndex};

use crate::blocks::{FlushDone, FlushError, FlushJob, FlushStage};
use crate::checkpoint::{CHECKPOINT_FILE, MetaCheckpoint};
use crate::disk::Disk;
use crate::wal::{Wal, WalFailure, wait_for};

/// Called on a flusher thread, once per stage.
pub type FlushCallback = Box<dyn FnMut(FlushDone) + Send>;
/// Told what became of a catalogue checkpoint.
pub type MetaCallback = Box<dyn FnOnce(Result<LogIndex, FlushError>) + Send>;

enum Work {
    Job(Box<FlushJob>, FlushCallback),
    Meta(MetaWork),
}

struct MetaWork {
    dir: PathBuf,
    group: GroupId,
    checkpoint: MetaCheckpoint,
    done: MetaCallback,
}

/// The two lanes. Dropping it finishes what was submitted and ends the threads.
///
/// The queues need no bound of their own: whoever submits has at most `JOBS_MAX` jobs of a replica on their way
/// (`node/src/stream/flush.rs`), and one checkpoint of the catalogue.
pub struct Flusher {
    commit: Option<Sender<Work>>,
    checkpoint: Option<Sender<Work>>,
    handles: Vec<JoinHandle<()>>,
}

impl Flusher {
    /// Starts the lanes. `wal` is synced before a checkpoint of a stream that has its log there.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(disk: Arc<dyn Disk>, wal: Wal) -> io::Result<Self> {
        let (commit, commit_queue) = channel();
        let (checkpoint, checkpoint_queue) = channel();
        let forward = checkpoint.clone();
        let commit_disk = Arc::clone(&disk);
        let handles = vec![
            thread::Builder::new()
                .name("flush-commit".into())
                .spawn(move || run_commit(commit_disk.as_ref(), &commit_queue, &forward))?,
            thread::Builder::new()
                .name("flush-checkpt".into())
                .spawn(move || run_checkpoint(disk.as_ref(), &wal, &checkpoint_queue))?,
        ];
        Ok(Self { commit: Some(commit), checkpoint: Some(checkpoint), handles })
    }

    /// Carries out a job. Never waits.
    pub fn submit(&self, job: FlushJob, done: FlushCallback) {
        let lane = if job.background { &self.checkpoint } else { &self.commit };
        send(lane, Work::Job(Box::new(job), done));
    }

    /// Publishes the catalogue's checkpoint in `dir`, after the log of `group` is synced up to its position.
    pub fn submit_meta(&self, dir: PathBuf, group: GroupId, checkpoint: MetaCheckpoint, done: MetaCallback) {
        send(&self.checkpoint, Work::Meta(MetaWork { dir, group, checkpoint, done }));
    }
}

fn send(lane: &Option<Sender<Work>>, work: Work) {
    let Some(lane) = lane else { return };
    if let Err(unsent) = lane.send(work) {
        // The lane's thread is gone, which takes a panic in a callback. Whoever waits must not wait forever.
        refuse(unsent.0);
    }
}

fn refuse(work: Work) {
    let error =
        FlushError::Io { op: "flush", path: PathBuf::new(), passes: false, message: "the flusher has ended".into() };
    match work {
        Work::Job(job, mut done) => done(FlushDone { stream: job.stream(), stage: FlushStage::Failed(error) }),
        Work::Meta(meta) => (meta.done)(Err(error)),
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.commit = None;
        self.checkpoint = None;
        for handle in self.handles.drain(..) {
            if handle.thread().id() != thread::current().id() {
                // A panicked lane has been reported by the panic hook; there is nothing to add.
                let _ = handle.join();
            }
        }
    }
}

fn run_commit(disk: &dyn Disk, queue: &Receiver<Work>, checkpoint: &Sender<Work>) {
    while let Ok(first) = queue.recv() {
        let mut to_sync = Vec::new();
        // Everything that is waiting shares this round.
        for work in std::iter::once(first).chain(queue.try_iter()) {
            let Work::Job(mut job, mut done) = work else {
                refuse(work);
                continue;
            };
            match job.write(disk) {
                Ok(()) if job.sync => to_sync.push((job, done)),
                Ok(()) => done(job.stored()),
                Err(error) => done(FlushDone { stream: job.stream(), stage: FlushStage::Failed(error) }),
            }
        }
        for (mut job, mut done) in to_sync {
            if let Err(error) = job.sync(disk) {
                done(FlushDone { stream: job.stream(), stage: FlushStage::Failed(error) });
                continue;
            }
            done(job.stored());
            if job.checkpoint.is_some()
                && let Err(unsent) = checkpoint.send(Work::Job(job, done))
            {
                refuse(unsent.0);
            }
        }
    }
}

fn run_checkpoint(disk: &dyn Disk, wal: &Wal, queue: &Receiver<Work>) {
    let barrier = |group: GroupId, index: LogIndex| -> Result<(), WalFailure> {
        wait_for(|done| wal.sync_barrier(group, index, done))
    };
    while let Ok(work) = queue.recv() {
        match work {
            Work::Job(job, mut done) if job.background => job.run(disk, &barrier, &mut *done),
            Work::Job(mut job, mut done) => {
                if let Some(second) = job.checkpoint(disk, &barrier) {
                    done(second);
                }
            }
            Work::Meta(MetaWork { dir, group, checkpoint, done }) => {
                let index = checkpoint.applied.index;
                let published = barrier(group, index).map_err(FlushError::Log).and_then(|()| {
                    let path = dir.join(CHECKPOINT_FILE);
                    checkpoint.publish(disk, &dir).map_err(|error| FlushError::io("publish", &path, &error))
                });
                done(published.map(|()| index));
            }
        }
    }
}
