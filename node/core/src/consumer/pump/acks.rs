//! What clients say of deliveries, turned into what the log will say.

use super::super::state::ConsumerState;
use super::super::view::MessageView;
use super::turn::Decided;
use super::{Ack, AckVerb, ConsumerEvent, ConsumerPump, PumpAction, settles_all};
use crate::ids::{StreamSeq, Timestamp};

impl ConsumerPump {
    /// Takes everything that came in since the last turn.
    pub(super) fn take_acks(
        &mut self,
        state: &ConsumerState,
        view: &dyn MessageView,
        now: Timestamp,
        decided: &mut Decided,
        out: &mut Vec<PumpAction>,
    ) {
        while let Some(ack) = self.acks.pop_front() {
            if let AckVerb::Next(request) = &ack.verb {
                let request = request.clone();
                self.arrivals.push_back(request);
            }
            let takes_effect = self.take_ack(&ack, state, view, now, decided);
            // A former leader may have sent what the log does not know as delivered: it will be sent again, so an ack of
            // it must not be confirmed.
            let unknown = ack.seq > state.delivered().stream && ack.seq >= self.cursor.position();
            if let Some(to) = ack.reply.as_ref().filter(|_| takes_effect || !unknown) {
                if takes_effect {
                    decided.replies.push(to.clone());
                } else if !decided.acks.is_empty() {
                    // It may repeat one of this turn, or one that is still on its way: confirmed with that one.
                    decided.replies.push(to.clone());
                    decided.acks.push(without_pull(ack));
                    continue;
                } else if let Some(flight) = self.in_flight.back_mut() {
                    flight.replies.push(to.clone());
                    flight.acks.push(without_pull(ack));
                    continue;
                } else {
                    out.push(PumpAction::AckReply { to: to.clone() });
                }
            }
            if takes_effect {
                decided.acks.push(without_pull(ack));
            }
        }
    }

    /// Whether the ack changes anything.
    fn take_ack(
        &mut self,
        ack: &Ack,
        state: &ConsumerState,
        view: &dyn MessageView,
        now: Timestamp,
        decided: &mut Decided,
    ) -> bool {
        let seq = ack.seq;
        if !state.config().tracks_acks() {
            return false;
        }
        let entry = state.pending(seq);
        let sent_ahead = entry.is_none() && seq > state.delivered().stream && seq < self.cursor.position();
        // A message that was removed before its delivery is applied never counts as pending, so nothing is freed by it.
        let sent_ahead = sent_ahead && view.contains(seq);
        let acked = matches!(ack.verb, AckVerb::Ack | AckVerb::Next(_));
        let deliveries = entry.map_or(1, |entry| entry.deliveries);
        // Where an ack settles everything up to it, a term does so too, as in nats-server.
        if (acked || matches!(ack.verb, AckVerb::Term { .. })) && settles_all(state.config()) {
            let through = seq.min(StreamSeq::new(self.cursor.position().get().saturating_sub(1)));
            if through <= self.ack_all_through || through <= state.ack_floor().stream {
                return false;
            }
            self.ack_all_through = through;
            decided.ack_all = Some(through);
            if let AckVerb::Term { reason } = &ack.verb {
                let reason = reason.clone();
                decided.events.push(ConsumerEvent::Terminated { seq, cseq: ack.cseq, deliveries, reason });
            }
            return true;
        }
        if entry.is_none() && !sent_ahead {
            let late = acked || matches!(ack.verb, AckVerb::Term { .. });
            if late && state.is_exhausted(seq) {
                decided.acked.push(seq);
                return true;
            }
            return false;
        }
        if self.settling.contains(&seq) {
            return false;
        }
        match &ack.verb {
            AckVerb::Ack | AckVerb::Next(_) => {
                decided.acked.push(seq);
                self.settle_in(seq, decided);
            }
            AckVerb::Term { reason } => {
                decided.terminated.push(seq);
                decided.events.push(ConsumerEvent::Terminated {
                    seq,
                    cseq: ack.cseq,
                    deliveries,
                    reason: reason.clone(),
                });
                self.settle_in(seq, decided);
            }
            AckVerb::Nak { delay_ns } => {
                // A message on its way to be sent again needs no further push.
                if self.redelivering.contains(&seq) {
                    return false;
                }
                let due = now.plus_ns(delay_ns.unwrap_or(0));
                decided.naks.entry(due).or_default().push(seq);
                decided.events.push(ConsumerEvent::Naked { seq, cseq: ack.cseq, deliveries });
            }
            AckVerb::Progress => decided.progress.push(seq),
        }
        true
    }

    pub(super) fn settle_in(&mut self, seq: StreamSeq, decided: &mut Decided) {
        self.settling.insert(seq);
        decided.settling.push(seq);
    }
}

/// The ack alone: a pull that came with it has arrived already.
fn without_pull(ack: Ack) -> Ack {
    let verb = match ack.verb {
        AckVerb::Next(_) => AckVerb::Ack,
        verb => verb,
    };
    Ack { verb, ..ack }
}
