//! The leader's part of a consumer: who waits, what is due, what is on its way through the log.
//!
//! The shell calls [`ConsumerPump::pull`] and [`ConsumerPump::on_ack`] as requests come in, then once per loop turn
//! [`ConsumerPump::poll`]. Each `Propose` action carries a [`Token`]; the shell puts the operations into a
//! `Consumers` entry and, **directly after** applying that entry to the replicated state, calls
//! [`ConsumerPump::applied`], or [`ConsumerPump::refused`] if the entry is void. Each token is reported once.
//!
//! What the log decides and what it does not is the pump's [`Tracking`].

mod acks;
mod cursor;
mod flight;
mod requests;
mod timers;
mod turn;

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashSet;

use self::cursor::Cursor;
use self::requests::Requests;
use self::timers::Timers;
use super::config::{AckPolicy, ConsumerConfig, DeliverPolicy};
use super::op::{ConsumerId, ConsumerOp, StartAt};
use super::state::{ConsumerState, SequencePair};
use super::status::Status;
use super::view::MessageView;
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

/// How deliveries and acks relate to the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tracking {
    /// A message is sent only when the entry that says so is applied.
    LoggedFirst,
    /// Messages are sent at once; the entry follows. After a failover some may be delivered again.
    LoggedAfter,
    /// The leader keeps the state in memory; another leader starts at the consumer's beginning.
    Local,
}

/// What matters of the stream for [`Tracking::of`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StreamTraits {
    /// More than one replica.
    pub replicated: bool,
    /// Messages stay until a limit removes them, whatever consumers do.
    pub limits_retention: bool,
}

impl Tracking {
    /// The rule: consumers decide about removal in interest and work-queue streams, so there everything is logged.
    /// Elsewhere a consumer that asked for memory, or for one replica of a replicated stream, is local.
    pub fn of(config: &ConsumerConfig, stream: StreamTraits) -> Self {
        let modest = config.mem_storage || (stream.replicated && config.replicas == 1);
        if stream.limits_retention && modest {
            return Self::Local;
        }
        if stream.replicated && config.tracks_acks() {
            return Self::LoggedFirst;
        }
        Self::LoggedAfter
    }
}

/// Names one proposal of one pump.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Token(u64);

/// A pull request, parsed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PullRequest {
    /// Where messages and status go.
    pub reply: Bytes,
    /// Messages wanted; 0 counts as 1.
    pub batch: u32,
    /// Do not wait for messages that are not there yet.
    pub no_wait: bool,
    /// How long the request stays open; `None` is until it is served.
    pub expires_ns: Option<u64>,
    /// Bytes at most.
    pub max_bytes: Option<u64>,
    /// Send a heartbeat after this much silence.
    pub heartbeat_ns: Option<u64>,
}

/// What a client says of a delivery.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AckVerb {
    /// Done.
    Ack,
    /// Again, now or after this many nanoseconds.
    Nak { delay_ns: Option<u64> },
    /// Being worked on.
    Progress,
    /// Never again.
    Term { reason: Option<String> },
    /// Done, and a pull request (its `reply` is the ack's reply subject).
    Next(PullRequest),
}

/// An acknowledgement as it came in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ack {
    /// The message.
    pub seq: StreamSeq,
    /// The delivery.
    pub cseq: ConsumerSeq,
    /// What it says.
    pub verb: AckVerb,
    /// Where the confirmation goes; not used by [`AckVerb::Next`].
    pub reply: Option<Bytes>,
}

/// A message to send now. The ack subject is made of these numbers and the message's stored time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Delivery {
    /// The inbox of the request that it serves.
    pub to: Bytes,
    /// The message.
    pub seq: StreamSeq,
    /// Its consumer sequence.
    pub cseq: ConsumerSeq,
    /// The how manieth delivery of this message, from 1.
    pub deliveries: u32,
    /// Matching messages behind this one that were never delivered.
    pub pending: u64,
}

/// Something others may want to know (advisories).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ConsumerEvent {
    /// A message reached `max_deliver` unacknowledged.
    MaxDeliveries { seq: StreamSeq, deliveries: u32 },
    /// A client refused a message for now.
    Naked { seq: StreamSeq, cseq: ConsumerSeq, deliveries: u32 },
    /// A client refused a message for good.
    Terminated { seq: StreamSeq, cseq: ConsumerSeq, deliveries: u32, reason: Option<String> },
}

/// What the shell has to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PumpAction {
    /// Put these operations into the log, in order, as one proposal.
    Propose { token: Token, ops: Vec<ConsumerOp> },
    /// Send a message.
    Deliver(Delivery),
    /// Send a status message.
    Status { to: Bytes, status: Status },
    /// Send an empty message: the ack took effect.
    AckReply { to: Bytes },
    /// Publish an advisory.
    Event(ConsumerEvent),
}

/// Why a pump ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EndReason {
    /// The consumer (or its stream) is gone.
    ConsumerDeleted,
    /// This node does not lead the group any more.
    LeadershipChange,
    /// This node stops.
    ServerShutdown,
}

/// The consumer as ConsumerInfo shows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConsumerInfo {
    /// The last delivery.
    pub delivered: SequencePair,
    /// When that was.
    pub last_delivered_at: Option<Timestamp>,
    /// Everything up to here is settled.
    pub ack_floor: SequencePair,
    /// When this leader last saw an ack.
    pub last_ack_at: Option<Timestamp>,
    /// Delivered and not settled.
    pub num_ack_pending: u64,
    /// Delivered more than once and not settled.
    pub num_redelivered: u64,
    /// Open pull requests.
    pub num_waiting: u64,
    /// Matching messages never delivered.
    pub num_pending: u64,
    /// The pause's end, if deliveries are paused.
    pub paused_until: Option<Timestamp>,
}

/// A delivery decided on and not yet sent.
#[derive(Clone, Copy, Debug)]
struct Assigned {
    request: u64,
    seq: StreamSeq,
    cseq: ConsumerSeq,
    deliveries: u32,
    pending: u64,
    /// Bytes taken from the request's limit.
    bytes: u64,
}

impl Assigned {
    fn is_new(&self) -> bool {
        self.deliveries == 1
    }
}

/// A proposal that is on its way through the log.
#[derive(Debug)]
struct InFlight {
    token: Token,
    /// Empty when they were sent at once.
    deliveries: Vec<Assigned>,
    new_count: usize,
    /// Kept so that a refused proposal can be made again.
    acks: Vec<Ack>,
    replies: Vec<Bytes>,
    settling: Vec<StreamSeq>,
    redelivering: Vec<StreamSeq>,
    /// Messages whose due time this proposal sets.
    timed: Vec<StreamSeq>,
    events: Vec<ConsumerEvent>,
    deletes: bool,
}

/// See the module's description.
#[derive(Debug)]
pub struct ConsumerPump {
    id: ConsumerId,
    tracking: Tracking,
    /// The whole state of a [`Tracking::Local`] consumer.
    local: Option<ConsumerState>,
    cursor: Cursor,
    next_cseq: ConsumerSeq,
    requests: Requests,
    arrivals: VecDeque<PullRequest>,
    acks: VecDeque<Ack>,
    refused_acks: Vec<Ack>,
    timers: Timers,
    ready: VecDeque<StreamSeq>,
    in_flight: VecDeque<InFlight>,
    new_in_flight: usize,
    /// Pending messages with an ack, term or give-up in flight.
    settling: HashSet<StreamSeq>,
    redelivering: HashSet<StreamSeq>,
    ack_all_through: StreamSeq,
    next_token: u64,
    resync: bool,
    /// Something was refused since the last poll.
    refused: bool,
    hold_until: Option<Timestamp>,
    /// Messages handed out in one turn at most.
    turn_max: usize,
    backlog: bool,
    deleting: bool,
    last_activity: Timestamp,
    last_ack_at: Option<Timestamp>,
}

impl ConsumerPump {
    /// Starts pumping for a consumer whose state is `state`, all earlier entries applied.
    pub fn start(id: ConsumerId, tracking: Tracking, state: &ConsumerState, now: Timestamp) -> Self {
        Self {
            id,
            tracking,
            local: (tracking == Tracking::Local).then(|| state.clone()),
            cursor: Cursor::at(state),
            next_cseq: state.delivered().consumer.next(),
            requests: Requests::default(),
            arrivals: VecDeque::new(),
            acks: VecDeque::new(),
            refused_acks: Vec::new(),
            timers: Timers::of(state),
            ready: VecDeque::new(),
            in_flight: VecDeque::new(),
            new_in_flight: 0,
            settling: HashSet::new(),
            redelivering: HashSet::new(),
            ack_all_through: StreamSeq::ZERO,
            next_token: 0,
            resync: false,
            refused: false,
            hold_until: None,
            turn_max: turn::TURN_MAX,
            backlog: false,
            deleting: false,
            last_activity: now,
            last_ack_at: None,
        }
    }

    /// The consumer.
    pub fn id(&self) -> ConsumerId {
        self.id
    }

    /// How deliveries relate to the log.
    pub fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// The state that counts: the leader's own for a local consumer, else the replicated one.
    pub fn state<'a>(&'a self, replicated: &'a ConsumerState) -> &'a ConsumerState {
        self.local.as_ref().unwrap_or(replicated)
    }

    /// Takes a pull request; [`Self::poll`] answers it.
    pub fn pull(&mut self, request: PullRequest, now: Timestamp) {
        self.last_activity = now;
        self.arrivals.push_back(request);
    }

    /// Takes an acknowledgement; [`Self::poll`] acts on it.
    pub fn on_ack(&mut self, ack: Ack, now: Timestamp) {
        self.last_activity = now;
        self.last_ack_at = Some(now);
        self.acks.push_back(ack);
    }

    /// Decides nothing more until then: clients have enough to read for now.
    pub fn pause(&mut self, until: Timestamp) {
        self.hold_until = self.hold_until.max(Some(until));
    }

    /// Hands out at most this many messages in one turn (at least one, and never more than the pump's own limit).
    pub fn limit_turn(&mut self, messages: usize) {
        self.turn_max = messages.clamp(1, turn::TURN_MAX);
    }

    /// Closes requests whose inbox nobody listens to any more.
    pub fn retain_requests(&mut self, now: Timestamp, has_interest: impl FnMut(&[u8]) -> bool) {
        if !self.requests.is_empty() {
            self.last_activity = now;
        }
        self.requests.retain(has_interest);
    }

    /// Messages `first..=last` left the stream; to be called when the replicated state is told.
    pub fn messages_removed(&mut self, first: StreamSeq, last: StreamSeq) {
        if let Some(local) = &mut self.local {
            local.messages_removed(first, last);
        }
        self.settling.retain(|seq| *seq < first || *seq > last);
        self.cursor.messages_removed(last);
    }

    /// An update entry of this consumer was applied.
    pub fn config_changed(&mut self, state: &ConsumerState) {
        if let Some(local) = &mut self.local {
            local.set_config(state.config().clone(), state.config_json().to_owned());
        }
        self.resync = true;
    }

    /// A reset entry of this consumer was applied.
    pub fn position_reset(&mut self, state: &ConsumerState) {
        if let Some(local) = &mut self.local {
            *local = state.clone();
        }
        self.ready.clear();
        self.resync = true;
    }

    /// Ends all requests. The pump is not usable afterwards.
    pub fn end(&mut self, reason: EndReason, out: &mut Vec<PumpAction>) {
        let arrivals: Vec<PullRequest> = self.arrivals.drain(..).collect();
        self.requests.end_all(&arrivals, reason, out);
    }

    /// When [`Self::poll`] has something to do without further input; [`Timestamp::ZERO`] is "at once".
    pub fn next_deadline(&self, state: &ConsumerState) -> Option<Timestamp> {
        let state = self.state(state);
        if !self.arrivals.is_empty() || self.refused {
            return Some(Timestamp::ZERO);
        }
        if self.is_blocked() {
            let held = self.hold_until;
            return [self.requests.deadline(), held].into_iter().flatten().min();
        }
        if self.backlog || self.resync || !self.acks.is_empty() {
            return Some(Timestamp::ZERO);
        }
        let config = state.config();
        let inactive = turn::inactive_after(state)
            .filter(|_| self.requests.is_empty() && self.in_flight.is_empty() && !self.deleting)
            .map(|threshold| self.last_activity.plus_ns(threshold));
        let paused = config.pause_until.filter(|_| !self.requests.is_empty() && self.requests.paused());
        [self.requests.deadline(), self.timers.next(state), inactive, paused].into_iter().flatten().min()
    }

    /// The consumer's figures now.
    pub fn info(&mut self, state: &ConsumerState, view: &dyn MessageView, now: Timestamp) -> ConsumerInfo {
        let local = self.local.take();
        let current = local.as_ref().unwrap_or(state);
        let num_pending = self.cursor.pending(current, view);
        // Nothing before the first message that it may get will ever be delivered: that much is behind it already.
        let mut behind = StreamSeq::ZERO;
        if current.delivered().consumer == ConsumerSeq::default()
            && let Some(first) = self.cursor.first_initial()
        {
            behind = StreamSeq::new(first.get().saturating_sub(1));
        }
        let from_there = |pair: SequencePair| SequencePair { stream: pair.stream.max(behind), ..pair };
        let info = ConsumerInfo {
            delivered: from_there(current.delivered()),
            last_delivered_at: current.last_delivered_at(),
            ack_floor: from_there(current.ack_floor()),
            last_ack_at: self.last_ack_at,
            num_ack_pending: current.pending_count() as u64,
            num_redelivered: current.redelivered_count() as u64,
            num_waiting: (self.requests.len() + self.arrivals.len()) as u64,
            num_pending,
            paused_until: current.config().pause_until.filter(|until| *until > now),
        };
        self.local = local;
        info
    }
}

impl StartAt {
    /// Where a consumer with this configuration starts, as far as the leader must look it up.
    pub fn resolve(config: &ConsumerConfig, view: &dyn MessageView) -> Self {
        match config.deliver_policy {
            DeliverPolicy::All => Self::Next(StreamSeq::FIRST),
            DeliverPolicy::New => Self::AfterLast,
            DeliverPolicy::Last => match view.last_matching(&config.filters) {
                Some(last) => Self::Next(last),
                None => Self::AfterLast,
            },
            DeliverPolicy::ByStartSequence(seq) => Self::Next(seq.max(StreamSeq::FIRST)),
            DeliverPolicy::ByStartTime(at) => Self::Next(view.first_at_or_after(at)),
            DeliverPolicy::LastPerSubject => Self::LastPerSubject,
        }
    }
}

fn settles_all(config: &ConsumerConfig) -> bool {
    config.ack_policy == AckPolicy::All
}
