//! Requests sent on a link that have no answer yet.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::RequestError;

/// Open requests of one link, by request id.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, oneshot::Sender<Result<Bytes, RequestError>>>,
    last_id: u64,
    lost: bool,
}

/// A registered request; forgetting it (a timeout, a cancelled caller) removes it from the table.
pub(super) struct Waiter<'a> {
    pub(super) id: u64,
    pub(super) answer: oneshot::Receiver<Result<Bytes, RequestError>>,
    requests: &'a PendingRequests,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.requests.state.lock().waiting.remove(&self.id);
    }
}

impl PendingRequests {
    /// A place for the answer to a new request; `None` when the link is lost.
    pub(super) fn register(&self) -> Option<Waiter<'_>> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.state.lock();
        if state.lost {
            return None;
        }
        state.last_id += 1;
        let id = state.last_id;
        state.waiting.insert(id, sender);
        Some(Waiter { id, answer, requests: self })
    }

    /// Hands over an answer; one that nobody waits for any more is dropped.
    pub(super) fn answer(&self, id: u64, answer: Result<Bytes, RequestError>) {
        let waiting = self.state.lock().waiting.remove(&id);
        if let Some(sender) = waiting {
            // The caller may have given up a moment ago.
            let _ = sender.send(answer);
        }
    }

    /// Fails everything open and everything to come.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        state.lost = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for sender in waiting.into_values() {
            // As above: a caller that gave up needs no error.
            let _ = sender.send(Err(RequestError::LinkLost));
        }
    }
}
