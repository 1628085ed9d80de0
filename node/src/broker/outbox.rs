//! Bytes on their way to one client.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::reply_cache::ReplyCache;

/// Buffers above this capacity are given back once a batch needed much less.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// Output of one connection: everything that gathers between two writes leaves in one.
#[derive(Debug)]
pub(super) struct Outbox {
    state: Mutex<OutState>,
    /// In the writer's hands, not yet taken by the kernel.
    in_flight_bytes: AtomicUsize,
    pending_bytes_max: usize,
    wake: Notify,
    drained: Notify,
}

/// What the lock of an [`Outbox`] guards.
#[derive(Debug, Default)]
pub(super) struct OutState {
    bytes: Vec<u8>,
    /// No further bytes are taken; what is here is still written.
    finished: bool,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) replies: ReplyCache,
}

/// How a write to an outbox went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// Bytes now waiting for this connection.
    Waiting(usize),
    /// The connection is closing.
    Closed,
    /// More waits than a connection may have: it has to be closed.
    Overflow,
}

/// What the writer found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Bytes,
    Nothing,
    End,
}

impl Outbox {
    pub(super) fn new(pending_bytes_max: usize) -> Outbox {
        Outbox {
            state: Mutex::default(),
            in_flight_bytes: AtomicUsize::new(0),
            pending_bytes_max,
            wake: Notify::new(),
            drained: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OutState> {
        self.state.lock()
    }

    /// Appends with `write` while the lock is held.
    pub(super) fn push_locked(&self, state: &mut OutState, write: impl FnOnce(&mut Vec<u8>)) -> Pushed {
        if state.finished {
            return Pushed::Closed;
        }
        let was_empty = state.bytes.is_empty();
        write(&mut state.bytes);
        let waiting = state.bytes.len() + self.in_flight_bytes.load(Ordering::Relaxed);
        if waiting > self.pending_bytes_max {
            state.finished = true;
            state.bytes = Vec::new();
            return Pushed::Overflow;
        }
        // A writer that is busy looks again by itself; one that waits needs to be told once.
        if was_empty {
            self.wake.notify_one();
        }
        Pushed::Waiting(waiting)
    }

    /// Appends what is not a message.
    pub(super) fn push_control(&self, write: impl FnOnce(&mut Vec<u8>)) -> Pushed {
        self.push_locked(&mut self.state.lock(), write)
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.state.lock().bytes.len() + self.in_flight_bytes.load(Ordering::Relaxed)
    }

    /// Whether so much waits that publishers should pause for a moment.
    pub(super) fn is_crowded(&self, waiting: usize) -> bool {
        waiting > self.pending_bytes_max / 2
    }

    /// Returns once the outbox is no longer crowded.
    pub(super) async fn until_drained(&self) {
        loop {
            let drained = self.drained.notified();
            if !self.is_crowded(self.pending_bytes()) || self.state.lock().finished {
                return;
            }
            drained.await;
        }
    }

    /// Takes no more bytes; the writer ends after what is here.
    pub(super) fn finish(&self) {
        self.state.lock().finished = true;
        self.wake.notify_one();
        self.drained.notify_waiters();
    }

    /// Swaps what waits into `batch`, whose old content is dropped.
    pub(super) fn take(&self, batch: &mut Vec<u8>) -> Taken {
        let used = batch.len();
        batch.clear();
        if batch.capacity() > KEPT_BYTES_MAX && used < batch.capacity() / 4 {
            *batch = Vec::new();
        }
        let mut state = self.state.lock();
        if state.bytes.is_empty() {
            return if state.finished { Taken::End } else { Taken::Nothing };
        }
        std::mem::swap(&mut state.bytes, batch);
        self.in_flight_bytes.store(batch.len(), Ordering::Relaxed);
        Taken::Bytes
    }

    /// `bytes` of the batch in the writer's hands have left.
    pub(super) fn written(&self, bytes: usize) {
        self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.drained.notify_waiters();
    }

    /// Returns when there may be something to write, or the end was reached.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_gather_and_overflow_ends_the_outbox() {
        let out = Outbox::new(100);
        let mut batch = Vec::new();
        assert_eq!(out.take(&mut batch), Taken::Nothing);
        assert_eq!(out.push_control(|to| to.extend([1; 40])), Pushed::Waiting(40));
        assert_eq!(out.take(&mut batch), Taken::Bytes);
        // What the writer holds still counts.
        assert_eq!(out.push_control(|to| to.extend([2; 40])), Pushed::Waiting(80));
        assert!(out.is_crowded(80));
        out.written(40);
        assert_eq!(out.pending_bytes(), 40);
        assert_eq!(out.push_control(|to| to.extend([3; 61])), Pushed::Overflow);
        assert_eq!(out.push_control(|to| to.extend([3; 1])), Pushed::Closed);
        assert_eq!(out.take(&mut batch), Taken::End);
    }

    #[test]
    fn finish_still_writes_what_is_there() {
        let out = Outbox::new(100);
        out.push_control(|to| to.extend(*b"bye"));
        out.finish();
        let mut batch = Vec::new();
        assert_eq!(out.take(&mut batch), Taken::Bytes);
        assert_eq!(batch, b"bye");
        assert_eq!(out.take(&mut batch), Taken::End);
    }
}
