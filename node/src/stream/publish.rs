//! Publishes at the stream's leader.

use std::sync::Arc;

use headwater_core::frame::FrameKind;
use headwater_core::stream::{IN_FLIGHT_BYTES_MAX, PubRefusal, Publish};

use super::acks::{AckTo, PendingAck};
use super::drive::{not_ready, refusal_json};
use super::forward::Fate;
use super::gate::Answers;
use super::replica::{DIRTY_BYTES_MAX, Inner, StreamReplica};

impl StreamReplica {
    /// Admits one message, or refuses it. `to` is answered when that may be known; `None` wants no answer.
    /// Returns false if this replica does not lead.
    pub(crate) fn publish(self: &Arc<Self>, subject: &[u8], headers: &[u8], payload: &[u8], to: Option<AckTo>) -> bool {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Inner { state, store, leading: Some(leading), gate, .. } = inner else { return false };
        let no_ack = state.settings().no_ack;
        if leading.admission.in_flight_bytes() >= 2 * IN_FLIGHT_BYTES_MAX
            || store.dirty_bytes() >= 2 * DIRTY_BYTES_MAX
            || self.log_is_stuck()
        {
            // Publishers were asked to wait and could not any longer: nothing commits, or nothing gets to the disk.
            if let Some(to) = to.filter(|_| !no_ack) {
                self.acks.answer(&to, &not_ready());
            }
            return true;
        }
        if self.lacks_room() {
            if let Some(to) = to.filter(|_| !no_ack) {
                self.acks.answer(&to, &Fate::Refused(refusal_json(&PubRefusal::NoRoom)));
            }
            return true;
        }
        let now = crate::clock::now();
        let admitted = leading.admission.admit(state, store, Publish { subject, headers, payload, now });
        let to = to.filter(|_| !no_ack);
        match admitted {
            Ok(admitted) => {
                let seq = admitted.seq.get();
                let fate = if admitted.duplicate_of.is_some() { Fate::Duplicate { seq } } else { Fate::Stored { seq } };
                match (to, admitted.ordinal) {
                    (Some(to), Some(ordinal)) => leading.waiters(ordinal).acks.push(PendingAck { to, fate }),
                    // The message it repeats is applied, and may still wait to be as safe as the stream promises.
                    (Some(to), None) if gate.is_shut() => {
                        let need = self.answer_need(inner, FrameKind::Messages);
                        let answers = Answers { acks: vec![PendingAck { to, fate }], ..Answers::default() };
                        inner.gate.push(inner.state.applied().index, need, answers);
                    }
                    (Some(to), None) => self.acks.answer(&to, &fate),
                    (None, _) => {}
                }
                drop(guard);
                self.wake.notify_one();
            }
            Err(refused) => {
                let Some(to) = to else { return true };
                let fate = match refused.why {
                    PubRefusal::NotReady => not_ready(),
                    why => Fate::Refused(refusal_json(&why)),
                };
                match refused.after {
                    Some(ordinal) => leading.waiters(ordinal).acks.push(PendingAck { to, fate }),
                    None => self.acks.answer(&to, &fate),
                }
            }
        }
        true
    }

    /// Whether publishers must wait: too much is in flight here.
    pub(crate) fn is_full(&self) -> bool {
        let inner = self.lock();
        let waits = |l: &super::leading::Leading| {
            !l.admission.has_room() && !l.admission.is_halted() || inner.store.dirty_bytes() >= DIRTY_BYTES_MAX
        };
        inner.leading.as_ref().is_some_and(waits)
    }
}
