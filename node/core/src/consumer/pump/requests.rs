//! Open pull requests: served in turn, one message each.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashMap;

use super::super::config::ConsumerConfig;
use super::super::status::{Status, Unserved};
use super::{EndReason, PullRequest, PumpAction};
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

/// One open request. Its limits cover what is assigned, sent or not.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) reply: Bytes,
    /// Messages not assigned yet.
    pub(super) remaining: u32,
    /// Bytes not assigned yet.
    pub(super) bytes_left: Option<u64>,
    pub(super) no_wait: bool,
    pub(super) expires: Option<Timestamp>,
    heartbeat_ns: Option<u64>,
    last_sent: Timestamp,
    /// Assigned and not sent yet.
    pub(super) unsent: u32,
    pub(super) sent_any: bool,
    /// The status that ends it once nothing is unsent; nothing more is assigned.
    ending: Option<Ending>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Timeout,
    NoMessages,
    TooLarge,
}

impl Waiting {
    fn unserved(&self) -> Unserved {
        Unserved { messages: self.remaining, bytes: self.bytes_left.unwrap_or(0) }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let heartbeat = self.heartbeat_ns.map(|ns| self.last_sent.plus_ns(ns));
        match (self.expires.filter(|_| self.ending.is_none()), heartbeat) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    open: HashMap<u64, Waiting>,
    /// Those that still want messages, next one first.
    order: VecDeque<u64>,
    next_id: u64,
    /// Not later than the earliest deadline.
    deadline: Option<Timestamp>,
    paused: bool,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.deadline.filter(|_| !self.open.is_empty())
    }

    pub(super) fn paused(&self) -> bool {
        self.paused
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether any request still wants messages.
    pub(super) fn wants(&self) -> bool {
        !self.order.is_empty()
    }

    /// Messages wanted by all.
    pub(super) fn demand(&self) -> u64 {
        self.order.iter().filter_map(|id| self.open.get(id)).map(|waiting| u64::from(waiting.remaining)).sum()
    }

    /// The status that refuses a request outright; the inner `None` refuses silently.
    pub(super) fn refusal(&self, request: &PullRequest, config: &ConsumerConfig) -> Option<Option<Status>> {
        let batch = request.batch.max(1);
        if let Some(most) = config.max_batch.filter(|most| batch > *most) {
            return Some(Some(Status::ExceededMaxBatch(most)));
        }
        if let Some(most) = config.max_expires_ns.filter(|most| request.expires_ns.unwrap_or(0) > *most) {
            return Some(Some(Status::ExceededMaxExpires(most)));
        }
        if let Some(most) = config.max_bytes.filter(|most| request.max_bytes.unwrap_or(0) > *most) {
            return Some(Some(Status::ExceededMaxBytes(most)));
        }
        let heartbeat = request.heartbeat_ns.unwrap_or(0);
        if heartbeat > 0 && heartbeat.saturating_mul(2) > request.expires_ns.unwrap_or(0) {
            return Some(Some(Status::BadRequest("heartbeat value too large")));
        }
        if config.max_waiting.is_some_and(|most| self.open.len() as u64 >= u64::from(most)) {
            // A client that asked for heartbeats would take the status as the end; silence makes it ask again.
            return Some((heartbeat == 0).then_some(Status::ExceededMaxWaiting));
        }
        None
    }

    pub(super) fn add(&mut self, request: PullRequest, now: Timestamp) {
        let waiting = Waiting {
            reply: request.reply,
            remaining: request.batch.max(1),
            bytes_left: request.max_bytes.filter(|bytes| *bytes > 0),
            no_wait: request.no_wait,
            expires: request.expires_ns.filter(|ns| *ns > 0).map(|ns| now.plus_ns(ns)),
            heartbeat_ns: request.heartbeat_ns.filter(|ns| *ns > 0),
            last_sent: now,
            unsent: 0,
            sent_any: false,
            ending: None,
        };
        self.note_deadline(waiting.deadline());
        let id = self.next_id;
        self.next_id += 1;
        self.open.insert(id, waiting);
        self.order.push_back(id);
    }

    /// The request whose turn it is.
    pub(super) fn front(&self) -> Option<(u64, &Waiting)> {
        let id = *self.order.front()?;
        Some((id, self.open.get(&id)?))
    }

    /// Gives the front request one message of `bytes` (0 if it has no byte limit), and the turn to the next one.
    pub(super) fn assign_front(&mut self, bytes: u64) {
        let Some(id) = self.order.pop_front() else {
            return;
        };
        let Some(waiting) = self.open.get_mut(&id) else {
            return;
        };
        waiting.remaining -= 1;
        waiting.unsent += 1;
        if let Some(left) = &mut waiting.bytes_left {
            *left -= bytes;
            if *left == 0 {
                waiting.remaining = 0;
            }
        }
        if waiting.remaining > 0 {
            self.order.push_back(id);
        }
    }

    /// Takes back an assigned message that will not be sent.
    pub(super) fn give_back(&mut self, id: u64, bytes: u64) {
        let Some(waiting) = self.open.get_mut(&id) else {
            return;
        };
        waiting.unsent -= 1;
        waiting.remaining += 1;
        if let Some(left) = &mut waiting.bytes_left {
            *left += bytes;
        }
        if waiting.ending.is_none() && !self.order.contains(&id) {
            self.order.push_front(id);
        }
    }

    /// An assigned message goes out now; where to, or `None` if the request is gone.
    pub(super) fn sent(&mut self, id: u64, now: Timestamp) -> Option<Bytes> {
        let waiting = self.open.get_mut(&id)?;
        waiting.unsent -= 1;
        waiting.sent_any = true;
        waiting.last_sent = now;
        Some(waiting.reply.clone())
    }

    /// Ends the request if it is complete; to be called when something of it was sent or given back.
    pub(super) fn settle(&mut self, id: u64, out: &mut Vec<PumpAction>) {
        let Some(waiting) = self.open.get(&id).filter(|waiting| waiting.unsent == 0) else {
            return;
        };
        let status = match waiting.ending {
            Some(Ending::Timeout) => Some(Status::RequestTimeout(waiting.unserved())),
            Some(Ending::NoMessages) => Some(Status::NoMessages),
            Some(Ending::TooLarge) => Some(Status::MessageSizeExceedsMaxBytes(waiting.unserved())),
            None if waiting.remaining > 0 => return,
            None => waiting.bytes_left.filter(|left| *left > 0).map(|_| Status::BatchCompleted(waiting.unserved())),
        };
        if let Some(closed) = self.open.remove(&id)
            && let Some(status) = status
        {
            out.push(PumpAction::Status { to: closed.reply, status });
        }
    }

    /// Assigns no more to the request and ends it as soon as nothing of it is unsent.
    pub(super) fn end_with(&mut self, id: u64, ending: Ending, out: &mut Vec<PumpAction>) {
        if let Some(waiting) = self.open.get_mut(&id) {
            waiting.ending.get_or_insert(ending);
        }
        self.order.retain(|have| *have != id);
        self.settle(id, out);
    }

    /// There is nothing more to get now: ends the requests that do not wait, those that got something with `partly`.
    pub(super) fn end_no_wait(&mut self, partly: Ending, out: &mut Vec<PumpAction>) {
        let ids: Vec<u64> =
            self.order.iter().copied().filter(|id| self.open.get(id).is_some_and(|waiting| waiting.no_wait)).collect();
        for id in ids {
            let Some(waiting) = self.open.get(&id) else {
                continue;
            };
            if waiting.sent_any || waiting.unsent > 0 {
                self.end_with(id, partly, out);
            } else if waiting.expires.is_none() {
                let to = waiting.reply.clone();
                self.remove(id);
                out.push(PumpAction::Status { to, status: Status::NoMessages });
            }
        }
    }

    /// Ends what expired and sends heartbeats that are due.
    pub(super) fn tick(&mut self, now: Timestamp, last: (ConsumerSeq, StreamSeq), out: &mut Vec<PumpAction>) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        let mut ids: Vec<u64> = self.open.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(waiting) = self.open.get_mut(&id) else {
                continue;
            };
            if waiting.ending.is_none() && waiting.expires.is_some_and(|expires| expires <= now) {
                self.end_with(id, Ending::Timeout, out);
                continue;
            }
            if waiting.heartbeat_ns.is_some_and(|ns| waiting.last_sent.plus_ns(ns) <= now) {
                waiting.last_sent = now;
                out.push(PumpAction::Status {
                    to: waiting.reply.clone(),
                    status: Status::IdleHeartbeat { last_consumer: last.0, last_stream: last.1 },
                });
            }
        }
        self.deadline = self.open.values().filter_map(Waiting::deadline).min();
    }

    pub(super) fn retain(&mut self, mut has_interest: impl FnMut(&[u8]) -> bool) {
        self.open.retain(|_, waiting| has_interest(&waiting.reply));
        let open = &self.open;
        self.order.retain(|id| open.contains_key(id));
    }

    pub(super) fn end_all(&mut self, arrivals: &[PullRequest], reason: EndReason, out: &mut Vec<PumpAction>) {
        let mut ids: Vec<u64> = self.open.keys().copied().collect();
        ids.sort_unstable();
        let open = ids.iter().filter_map(|id| self.open.get(id)).map(|waiting| (&waiting.reply, waiting.unserved()));
        let unread = arrivals.iter().map(|request| {
            let unserved = Unserved { messages: request.batch.max(1), bytes: request.max_bytes.unwrap_or(0) };
            (&request.reply, unserved)
        });
        out.extend(open.chain(unread).map(|(reply, unserved)| PumpAction::Status {
            to: reply.clone(),
            status: match reason {
                EndReason::ConsumerDeleted => Status::ConsumerDeleted,
                EndReason::LeadershipChange => Status::LeadershipChange(unserved),
                EndReason::ServerShutdown => Status::ServerShutdown(unserved),
            },
        }));
        self.open.clear();
        self.order.clear();
        self.deadline = None;
    }

    fn remove(&mut self, id: u64) {
        self.open.remove(&id);
        self.order.retain(|have| *have != id);
    }

    fn note_deadline(&mut self, deadline: Option<Timestamp>) {
        self.deadline = match (self.deadline, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}
