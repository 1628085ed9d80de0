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

/// Where the answer to a registered request arrives.
pub(super) type Waiting = oneshot::Receiver<Result<Bytes, RequestError>>;

impl PendingRequests {
    /// A new request's id, and a place for its answer; `None` when the link is lost.
    pub(super) fn register(&self) -> Option<(u64, Waiting)> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.state.lock();
        if state.lost {
            return None;
        }
        state.last_id += 1;
        let id = state.last_id;
        state.waiting.insert(id, sender);
        Some((id, answer))
    }

    /// Nobody waits for the answer any more.
    pub(super) fn forget(&self, id: u64) {
        self.state.lock().waiting.remove(&id);
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
