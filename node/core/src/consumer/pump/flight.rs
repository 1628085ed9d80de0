//! Proposals on their way through the log: what they hold back, and what happens when they land or are refused.

use super::super::op::DeliveredRun;
use super::super::state::ConsumerState;
use super::turn::Decided;
use super::{Assigned, ConsumerPump, Delivery, InFlight, PumpAction, Token, Tracking};
use crate::ids::{ConsumerSeq, Timestamp};

impl ConsumerPump {
    /// The proposal's entry was applied to `state`.
    pub fn applied(&mut self, token: Token, state: &ConsumerState, now: Timestamp, out: &mut Vec<PumpAction>) {
        let local = self.local.take();
        self.land(token, local.as_ref().unwrap_or(state), now, out);
        self.local = local;
    }

    /// The proposal's entry is void, and so is every one behind it: their tokens are refused as well, or were
    /// applied before. The acks are proposed again, the messages handed out again.
    pub fn refused(&mut self, token: Token) {
        let Some(flight) = self.take_flight(token) else {
            return;
        };
        for assigned in &flight.deliveries {
            self.requests.give_back(assigned.request, assigned.bytes);
        }
        self.refused_acks.extend(flight.acks);
        self.refused = true;
        self.deleting &= !flight.deletes;
        self.resync = true;
    }

    pub(super) fn enter_flight(&mut self, decided: Decided, now: Timestamp, out: &mut Vec<PumpAction>) -> Token {
        let Decided {
            acks,
            replies,
            acked: _,
            ack_all: _,
            naks,
            terminated: _,
            progress,
            exhausted: _,
            settling,
            events,
            deliveries,
            skip: _,
            delete,
        } = decided;
        self.next_token += 1;
        let token = Token(self.next_token);
        let new_count = deliveries.iter().filter(|assigned| assigned.is_new()).count();
        self.new_in_flight += new_count;
        self.deleting |= delete;
        let redelivering =
            deliveries.iter().filter(|assigned| !assigned.is_new()).map(|assigned| assigned.seq).collect();
        let timed = naks
            .into_values()
            .flatten()
            .chain(progress)
            .chain(deliveries.iter().map(|assigned| assigned.seq))
            .collect();
        let deliveries = if self.tracking == Tracking::LoggedAfter {
            for assigned in &deliveries {
                self.send(assigned, now, out);
            }
            Vec::new()
        } else {
            deliveries
        };
        self.in_flight.push_back(InFlight {
            token,
            deliveries,
            new_count,
            acks,
            replies,
            settling,
            redelivering,
            timed,
            events,
            deletes: delete,
        });
        token
    }

    fn take_flight(&mut self, token: Token) -> Option<InFlight> {
        let at = self.in_flight.iter().position(|flight| flight.token == token)?;
        let flight = self.in_flight.remove(at)?;
        self.new_in_flight -= flight.new_count;
        for seq in &flight.settling {
            self.settling.remove(seq);
        }
        for seq in &flight.redelivering {
            self.redelivering.remove(seq);
        }
        Some(flight)
    }

    pub(super) fn land(&mut self, token: Token, state: &ConsumerState, now: Timestamp, out: &mut Vec<PumpAction>) {
        let Some(flight) = self.take_flight(token) else {
            return;
        };
        let tracked = state.config().tracks_acks();
        if tracked {
            for seq in &flight.timed {
                if let Some(entry) = state.pending(*seq) {
                    self.timers.push(entry.due, *seq);
                }
            }
        }
        out.extend(flight.events.into_iter().map(PumpAction::Event));
        out.extend(flight.replies.into_iter().map(|to| PumpAction::AckReply { to }));
        for assigned in &flight.deliveries {
            let wanted = !tracked || state.pending(assigned.seq).is_some();
            if wanted {
                self.send(assigned, now, out);
            } else {
                // Acknowledged or removed while its entry was on its way.
                self.requests.give_back(assigned.request, assigned.bytes);
                self.requests.settle(assigned.request, out);
            }
        }
    }

    fn send(&mut self, assigned: &Assigned, now: Timestamp, out: &mut Vec<PumpAction>) {
        let Assigned { request, seq, cseq, deliveries, pending, bytes: _ } = *assigned;
        // Without the request the message is pending all the same, and comes back after its wait.
        if let Some(to) = self.requests.sent(request, now) {
            out.push(PumpAction::Deliver(Delivery { to, seq, cseq, deliveries, pending }));
            self.requests.settle(request, out);
        }
    }
}

/// The assigned messages as the log names them.
pub(super) fn delivered_runs(deliveries: &[Assigned]) -> Vec<DeliveredRun> {
    let mut runs: Vec<DeliveredRun> = Vec::new();
    for assigned in deliveries {
        let follows = |run: &DeliveredRun| {
            run.seq.get() + run.len == assigned.seq.get() && run.cseq.get() + run.len == assigned.cseq.get()
        };
        match runs.last_mut() {
            Some(run) if follows(run) => run.len += 1,
            _ => runs.push(DeliveredRun { seq: assigned.seq, cseq: ConsumerSeq::new(assigned.cseq.get()), len: 1 }),
        }
    }
    runs
}
