//! A stream with one replica: no log behind it. What its sequencer seals is applied at once and goes straight to the
//! store; answers wait there as `syncMode` asks ([`super::gate`]).

use std::sync::Arc;

use headwater_core::ids::{LogIndex, LogPosition, Term};

use super::leading::Leading;
use super::replica::StreamReplica;

/// The term of every entry of a stream without a log.
pub(crate) const LOCAL_TERM: Term = Term::new(1);

impl StreamReplica {
    /// Starts leading: there is nobody else.
    pub(crate) fn lead_locally(self: &Arc<Self>) {
        let mut inner = self.lock();
        if inner.failed.is_some() {
            return;
        }
        inner.leading = Some(Leading::new(&inner.state, LOCAL_TERM));
        self.start_pumps(&mut inner);
        self.set_leads(true);
        drop(inner);
        self.context.claim_leadership(self.spec.stream, LOCAL_TERM.get());
        self.seal_locally();
        self.context.catalogue_changed();
    }

    /// Applies everything sealed: once per turn, so that one frame gathers a turn's messages.
    pub(crate) fn seal_locally(self: &Arc<Self>) {
        let mut inner = self.lock();
        while let Some((_, frame)) = inner.leading.as_mut().and_then(|l| l.admission.seal()) {
            let index = LogIndex::new(inner.state.applied().index.get() + 1);
            self.apply_frame(&mut inner, LogPosition { term: LOCAL_TERM, index }, &frame);
        }
        self.flush_if_due(&mut inner);
        drop(inner);
        self.pump_wake.notify_one();
    }

    /// Runs until the replica is closed or has failed.
    pub(crate) async fn drive_locally(self: &Arc<Self>) {
        self.lead_locally();
        // Closing stops the replica too.
        while self.lock().failed.is_none() {
            self.wake.notified().await;
            self.seal_locally();
        }
    }
}
