//! Publishes at the stream's leader.

use std::sync::Arc;

use headwater_core::stream::{PubRefusal, Publish};

use super::acks::{AckTo, PendingAck};
use super::drive::{not_ready, refusal_json};
use super::forward::Fate;
use super::replica::{Inner, StreamReplica};

impl StreamReplica {
    /// Admits one message, or refuses it. `to` is answered when that may be known; `None` wants no answer.
    /// Returns false if this replica does not lead.
    pub(crate) fn publish(self: &Arc<Self>, subject: &[u8], headers: &[u8], payload: &[u8], to: Option<AckTo>) -> bool {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Inner { state, store, leading: Some(leading), .. } = inner else { return false };
        let no_ack = state.settings().no_ack;
        let now = crate::clock::now();
        let admitted = leading.admission.admit(state, store, Publish { subject, headers, payload, now });
        let to = to.filter(|_| !no_ack);
        match admitted {
            Ok(admitted) => {
                let seq = admitted.seq.get();
                let fate = if admitted.duplicate_of.is_some() { Fate::Duplicate { seq } } else { Fate::Stored { seq } };
                match (to, admitted.ordinal) {
                    (Some(to), Some(ordinal)) => leading.waiters(ordinal).acks.push(PendingAck { to, fate }),
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
        self.lock().leading.as_ref().is_some_and(|l| !l.admission.has_room() && !l.admission.is_halted())
    }
}
