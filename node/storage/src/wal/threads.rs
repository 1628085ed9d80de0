//! The log's threads: one that writes, one that syncs, one that keeps segments in supply.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_core::ids::GroupId;
use parking_lot::Mutex;

use super::failure::WalFailure;
use super::record::{Head, RecordType};
use super::shared::Shared;
use super::state::Done;

/// After this long without a write, the writer notes in the log what is synced. See `wal/record.rs`.
const MARK_AFTER: Duration = Duration::from_millis(100);

/// The running threads; stops them when the last handle goes.
pub(super) struct Threads {
    shared: Arc<Shared>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// An inline log has none.
    pub(super) fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), handles: Mutex::new(Vec::new()) }
    }

    /// Starts writer, sync thread and keeper.
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let threads = Self::none(shared);
        threads.spawn("wal-writer", run_writer)?;
        threads.spawn("wal-sync", run_sync)?;
        threads.spawn("wal-keeper", run_keeper)?;
        Ok(threads)
    }

    fn spawn(&self, name: &str, run: fn(&Shared)) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let handle = thread::Builder::new().name(name.into()).spawn(move || run(&shared))?;
        self.handles.lock().push(handle);
        Ok(())
    }

    /// Lets the writer empty the queue, then ends all threads.
    pub(super) fn stop(&self) {
        let handles = std::mem::take(&mut *self.handles.lock());
        self.shared.state.lock().closing = true;
        for handle in handles {
            self.shared.wake_all();
            // The last handle may go inside a callback, on one of these threads: that one ends by itself.
            if handle.thread().id() != thread::current().id() {
                // A panicked thread has been reported by the panic hook; there is nothing to add.
                let _ = handle.join();
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run_writer(shared: &Shared) {
    let mut scratch = Vec::new();
    loop {
        {
            let mut state = shared.state.lock();
            while state.queue.is_empty() {
                if state.closing || state.failure.is_some() {
                    state.writer_done = true;
                    drop(state);
                    shared.wake_all();
                    return;
                }
                let owed = state.active_synced > state.active_stated && state.active_end == state.active_synced;
                if !owed {
                    shared.work.wait(&mut state);
                } else if shared.work.wait_for(&mut state, MARK_AFTER).timed_out() && state.queue.is_empty() {
                    state.enqueue(Head::plain(RecordType::Mark, GroupId::new(0)), Bytes::new());
                }
            }
        }
        shared.write_step(&mut scratch);
    }
}

fn run_sync(shared: &Shared) {
    loop {
        let force = {
            let mut state = shared.state.lock();
            loop {
                if state.failure.is_some() {
                    return;
                }
                if state.wants_sync() {
                    break false;
                }
                // While closing, the writer may still need a sync to roll; it goes first, so this ends last.
                if state.closing && state.writer_done {
                    return;
                }
                match state.interval_deadline {
                    Some(_) if state.written <= state.synced => state.interval_deadline = None,
                    Some(deadline) if deadline <= Instant::now() => break true,
                    Some(deadline) => {
                        shared.sync.wait_until(&mut state, deadline);
                    }
                    None => shared.sync.wait(&mut state),
                }
            }
        };
        shared.sync_step(force);
    }
}

fn run_keeper(shared: &Shared) {
    loop {
        {
            let mut state = shared.state.lock();
            while !std::mem::take(&mut state.keep_wanted) {
                if state.failure.is_some() || (state.closing && state.writer_done) {
                    return;
                }
                shared.keep.wait(&mut state);
            }
        }
        while shared.keep_step() {}
    }
}

/// Blocks until `done` was called. For callers that have a thread to wait on: the flusher, tests.
pub(crate) fn wait_for(start: impl FnOnce(Done)) -> Result<(), WalFailure> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    start(Box::new(move |result| {
        // The receiver waits below; it can only be gone if this thread panicked.
        let _ = sender.send(result);
    }));
    receiver.recv().unwrap_or(Err(WalFailure::ShutDown))
}
