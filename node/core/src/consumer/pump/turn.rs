//! One loop turn of a pump: what came in, what is due, who gets what; then one proposal for all of it.

use std::collections::BTreeMap;

use super::super::op::{ConsumerOp, SeqRun};
use super::super::state::ConsumerState;
use super::super::status::Status;
use super::super::view::MessageView;
use super::flight::delivered_runs;
use super::requests::Ending;
use super::{Ack, Assigned, ConsumerEvent, ConsumerPump, Cursor, PullRequest, PumpAction, Timers, Tracking};
use crate::ids::{StreamSeq, Timestamp};

/// Messages handed out in one turn; more is left for the next one, so that other work gets its share.
pub(super) const TURN_MAX: usize = 1024;
/// Sequences without a match that the cursor may be ahead before the log hears of it: a new leader repeats at most
/// that much looking.
const SKIP_AFTER: u64 = 65_536;
/// Proposals of one consumer in flight at most; further work waits and goes with the next one.
const IN_FLIGHT_MAX: usize = 32;

/// How long to leave the log alone after it refused something: it is full or about to change leaders.
const REFUSED_PAUSE_NS: u64 = 2_000_000;

/// Until it is looked again whether a message can be read that could not be. Its replica steps aside meanwhile.
const UNREADABLE_PAUSE_NS: u64 = 100_000_000;

/// A consumer that nobody uses lives this long, however short its `inactive_threshold`. nats-server adds up to that.
const INACTIVE_LEAST_NS: u64 = 1_000_000_000;

/// What a turn decided, before it becomes a proposal.
#[derive(Default)]
pub(super) struct Decided {
    pub(super) acks: Vec<Ack>,
    pub(super) replies: Vec<bytes::Bytes>,
    pub(super) acked: Vec<StreamSeq>,
    pub(super) ack_all: Option<StreamSeq>,
    pub(super) naks: BTreeMap<Timestamp, Vec<StreamSeq>>,
    pub(super) terminated: Vec<StreamSeq>,
    pub(super) progress: Vec<StreamSeq>,
    pub(super) exhausted: Vec<StreamSeq>,
    pub(super) settling: Vec<StreamSeq>,
    pub(super) events: Vec<ConsumerEvent>,
    pub(super) deliveries: Vec<Assigned>,
    pub(super) skip: Option<StreamSeq>,
    pub(super) delete: bool,
}

impl Decided {
    /// The operations, in the order in which they must be applied: room is made before it is used.
    fn ops(&self, pump: &ConsumerPump, now: Timestamp) -> Vec<ConsumerOp> {
        let id = pump.id;
        let runs = |seqs: &[StreamSeq]| SeqRun::collect(seqs.iter().copied());
        let mut ops = Vec::new();
        if let Some(through) = self.ack_all {
            ops.push(ConsumerOp::AckAll { id, through });
        }
        if !self.acked.is_empty() {
            ops.push(ConsumerOp::Ack { id, runs: runs(&self.acked) });
        }
        if !self.terminated.is_empty() {
            ops.push(ConsumerOp::Term { id, runs: runs(&self.terminated) });
        }
        if !self.exhausted.is_empty() {
            ops.push(ConsumerOp::Exhausted { id, runs: runs(&self.exhausted) });
        }
        for (due, seqs) in &self.naks {
            ops.push(ConsumerOp::Nak { id, due: *due, runs: runs(seqs) });
        }
        if !self.progress.is_empty() {
            ops.push(ConsumerOp::Progress { id, ts: now, runs: runs(&self.progress) });
        }
        if !self.deliveries.is_empty() {
            ops.push(ConsumerOp::Delivered { id, ts: now, runs: delivered_runs(&self.deliveries) });
        }
        if let Some(through) = self.skip {
            ops.push(ConsumerOp::Skip { id, through });
        }
        if self.delete {
            ops.push(ConsumerOp::Delete { id });
        }
        ops
    }
}

impl ConsumerPump {
    /// Does everything that can be done now and appends the actions to `out`.
    pub fn poll(&mut self, state: &ConsumerState, view: &dyn MessageView, now: Timestamp, out: &mut Vec<PumpAction>) {
        let mut local = self.local.take();
        let current = local.as_ref().unwrap_or(state);
        self.backlog = false;
        if std::mem::take(&mut self.refused) {
            self.hold_until = Some(now.plus_ns(REFUSED_PAUSE_NS));
        }
        self.hold_until = self.hold_until.filter(|until| *until > now);
        if self.resync && self.in_flight.is_empty() {
            self.resynchronize(current);
        }
        let may_propose = !self.is_blocked();
        let mut decided = Decided::default();
        if may_propose {
            self.take_acks(current, view, now, &mut decided, out);
            self.collect_due(current, now, &mut decided);
        }
        self.admit(current, view, now, out);
        if !self.requests.is_empty() {
            self.last_activity = now;
        }
        let last = (current.delivered().consumer, current.delivered().stream);
        self.requests.tick(now, last, out);
        if may_propose {
            self.serve(current, view, now, &mut decided, out);
            self.check_idle(current, now, &mut decided);
        }
        let ops = decided.ops(self, now);
        if ops.is_empty() {
            self.local = local;
            out.extend(decided.replies.into_iter().map(|to| PumpAction::AckReply { to }));
            return;
        }
        let token = self.enter_flight(decided, now, out);
        match &mut local {
            Some(local) => {
                let mut settled = Vec::new();
                for op in &ops {
                    local.apply_delta(op, view, &mut settled);
                }
                let deletes: Vec<ConsumerOp> =
                    ops.into_iter().filter(|op| matches!(op, ConsumerOp::Delete { .. })).collect();
                self.land(token, local, now, out);
                if !deletes.is_empty() {
                    // That the consumer exists is replicated, whatever its tracking.
                    let token = self.enter_flight(Decided { delete: true, ..Decided::default() }, now, out);
                    out.push(PumpAction::Propose { token, ops: deletes });
                }
            }
            None => out.push(PumpAction::Propose { token, ops }),
        }
        self.local = local;
    }

    /// Whether a new proposal must wait for one in flight.
    pub(super) fn is_blocked(&self) -> bool {
        let held = self.refused || self.hold_until.is_some();
        held || (self.resync && !self.in_flight.is_empty()) || self.in_flight.len() >= IN_FLIGHT_MAX
    }

    fn resynchronize(&mut self, state: &ConsumerState) {
        self.cursor = Cursor::at(state);
        self.timers = Timers::of(state);
        self.next_cseq = state.delivered().consumer.next();
        self.ready.clear();
        self.settling.clear();
        self.redelivering.clear();
        self.ack_all_through = StreamSeq::ZERO;
        for ack in self.refused_acks.drain(..).rev() {
            self.acks.push_front(ack);
        }
        self.resync = false;
    }

    /// Moves due messages to the ready queue, or gives them up.
    fn collect_due(&mut self, state: &ConsumerState, now: Timestamp, decided: &mut Decided) {
        while let Some(seq) = self.timers.pop_due(state, now) {
            let Some(entry) = state.pending(seq).filter(|_| self.is_free(seq)) else {
                continue;
            };
            if !state.config().is_exhausted(entry.deliveries) {
                self.ready.push_back(seq);
                continue;
            }
            decided.exhausted.push(seq);
            decided.events.push(ConsumerEvent::MaxDeliveries { seq, deliveries: entry.deliveries });
            self.settle_in(seq, decided);
        }
    }

    /// Nothing about this message is on its way.
    fn is_free(&self, seq: StreamSeq) -> bool {
        seq > self.ack_all_through && !self.settling.contains(&seq) && !self.redelivering.contains(&seq)
    }

    fn admit(&mut self, state: &ConsumerState, view: &dyn MessageView, now: Timestamp, out: &mut Vec<PumpAction>) {
        while let Some(request) = self.arrivals.pop_front() {
            let refusal = match self.requests.refusal(&request, state.config()) {
                Some(refusal) => Some(refusal),
                None => self.no_wait_refusal(&request, state, view).map(Some),
            };
            match refusal {
                None => self.requests.add(request, now),
                Some(None) => {}
                Some(Some(status)) => out.push(PumpAction::Status { to: request.reply, status }),
            }
        }
    }

    fn no_wait_refusal(
        &mut self,
        request: &PullRequest,
        state: &ConsumerState,
        view: &dyn MessageView,
    ) -> Option<Status> {
        if !request.no_wait {
            return None;
        }
        let available = self.cursor.pending(state, view) + self.ready.len() as u64;
        if available == 0 {
            let waits = request.expires_ns.is_some_and(|ns| ns > 0);
            return (!waits).then_some(Status::NoMessages);
        }
        (self.requests.wants() && available <= self.requests.demand()).then_some(Status::RequestsPending)
    }

    fn serve(
        &mut self,
        state: &ConsumerState,
        view: &dyn MessageView,
        now: Timestamp,
        decided: &mut Decided,
        out: &mut Vec<PumpAction>,
    ) {
        let paused = state.config().pause_until.is_some_and(|until| until > now);
        self.requests.set_paused(paused);
        if !paused {
            self.hand_out(state, view, now, decided, out);
        }
        if self.requests.wants() && !self.backlog {
            // The status that nats-server's clients see: it depends on how the consumer's deliveries are logged.
            let partly = match self.tracking {
                Tracking::LoggedFirst => Ending::Timeout,
                Tracking::LoggedAfter | Tracking::Local => Ending::NoMessages,
            };
            self.requests.end_no_wait(partly, out);
        }
        self.note_skip(state, decided);
    }

    /// Gives messages to requests, until one or the other runs out.
    fn hand_out(
        &mut self,
        state: &ConsumerState,
        view: &dyn MessageView,
        now: Timestamp,
        decided: &mut Decided,
        out: &mut Vec<PumpAction>,
    ) {
        let mut new_in_turn = 0;
        // What was written together is looked at together.
        let mut readable = StreamSeq::ZERO..=StreamSeq::ZERO;
        loop {
            let Some((request, waiting)) = self.requests.front() else {
                return;
            };
            if decided.deliveries.len() >= self.turn_max {
                self.backlog = true;
                return;
            }
            let bytes_left = waiting.bytes_left;
            let again = self.next_ready(state, now);
            let candidate = match again {
                Some(seq) => Some(seq),
                None if self.has_room(state, new_in_turn) => self.cursor.peek(state, view),
                None => None,
            };
            let Some(seq) = candidate else {
                return;
            };
            if !readable.contains(&seq) {
                // Handing it out would count as a delivery, which nobody gets.
                let Some(last) = view.readable_up_to(seq) else {
                    self.pause(now.plus_ns(UNREADABLE_PAUSE_NS));
                    return;
                };
                readable = seq..=last;
            }
            let bytes = match bytes_left {
                None => 0,
                Some(_) => match view.message_len(seq, state.config().headers_only) {
                    Some(len) => len + self.ack_subject_len(state, view, seq, again.is_none()),
                    None if again.is_some() => {
                        self.ready.pop_front();
                        continue;
                    }
                    None => {
                        self.cursor.step_over(seq);
                        continue;
                    }
                },
            };
            if bytes_left.is_some_and(|left| bytes > left) {
                self.requests.end_with(request, Ending::TooLarge, out);
                continue;
            }
            let (pending, deliveries) = if again.is_some() {
                self.ready.pop_front();
                self.redelivering.insert(seq);
                (self.cursor.pending(state, view), deliveries_with_this(state, seq))
            } else {
                new_in_turn += 1;
                (self.cursor.advance(seq, state, view), 1)
            };
            self.requests.assign_front(bytes);
            let cseq = self.next_cseq;
            self.next_cseq = cseq.next();
            decided.deliveries.push(Assigned { request, seq, cseq, deliveries, pending, bytes });
        }
    }

    /// The next message to send again.
    fn next_ready(&mut self, state: &ConsumerState, now: Timestamp) -> Option<StreamSeq> {
        while let Some(seq) = self.ready.front().copied() {
            let due = state.pending(seq).is_some_and(|entry| entry.due <= now);
            if due && self.is_free(seq) {
                return Some(seq);
            }
            self.ready.pop_front();
        }
        None
    }

    /// Whether `max_ack_pending` allows one more: what is pending once everything in flight is applied.
    fn has_room(&self, state: &ConsumerState, new_in_turn: usize) -> bool {
        let config = state.config();
        let Some(most) = config.max_ack_pending.filter(|_| config.tracks_acks()) else {
            return true;
        };
        let coming = state.pending_count() + self.new_in_flight + new_in_turn;
        ((coming - self.settling.len().min(coming)) as u64) < u64::from(most)
    }

    /// Length of the reply subject, which a request's `max_bytes` counts as part of the message, digit by digit:
    /// `$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<cseq>.<time>.<pending>`.
    fn ack_subject_len(&mut self, state: &ConsumerState, view: &dyn MessageView, seq: StreamSeq, is_new: bool) -> u64 {
        /// A time has 19 digits until the year 2286.
        const FIXED: usize = "$JS.ACK.......".len() + 19;
        let digits = |value: u64| value.checked_ilog10().unwrap_or(0) as usize + 1;
        let deliveries = if is_new { 1 } else { deliveries_with_this(state, seq) };
        // A new message is no longer behind itself.
        let pending = self.cursor.pending(state, view).saturating_sub(u64::from(is_new));
        let numbers = [u64::from(deliveries), seq.get(), self.next_cseq.get(), pending];
        let names = view.stream_name_len() + state.config().name.len();
        (FIXED + names + numbers.map(digits).iter().sum::<usize>()) as u64
    }

    fn note_skip(&self, state: &ConsumerState, decided: &mut Decided) {
        let looked_at = self.cursor.position().get().saturating_sub(1);
        let nothing_new = self.in_flight.is_empty() && !decided.deliveries.iter().any(Assigned::is_new);
        if nothing_new && looked_at.saturating_sub(state.delivered().stream.get()) >= SKIP_AFTER {
            decided.skip = Some(StreamSeq::new(looked_at));
        }
    }

    fn check_idle(&mut self, state: &ConsumerState, now: Timestamp, decided: &mut Decided) {
        let Some(threshold) = inactive_after(state) else {
            return;
        };
        let idle = self.requests.is_empty() && self.in_flight.is_empty() && decided.deliveries.is_empty();
        if idle && !self.deleting && now >= self.last_activity.plus_ns(threshold) {
            decided.delete = true;
        }
    }
}

/// After how long without use the consumer goes, if it does: not before whoever created it could hear of it.
pub(super) fn inactive_after(state: &ConsumerState) -> Option<u64> {
    state.config().inactive_threshold_ns.map(|threshold| threshold.max(INACTIVE_LEAST_NS))
}

/// The how manieth delivery it is if a message is sent again now.
fn deliveries_with_this(state: &ConsumerState, seq: StreamSeq) -> u32 {
    state.pending(seq).map_or(0, |entry| entry.deliveries).saturating_add(1).max(2)
}
