//! What was stored and cannot be read: told, and what a replica with peers does about it.

use std::sync::Arc;
use std::time::Duration;

use headwater_core::ids::RaftNodeId;
use headwater_core::rejoin::{Next, Standing, decide};
use headwater_storage::FileError;
use headwater_storage::blocks::passes;

use super::rejoin;
use super::replica::{Inner, StreamReplica};

/// How often a damaged replica looks whether its peers can do without it.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// What a read has met.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) why: String,
    /// The same read may succeed later: out of file descriptors, for one.
    pub(crate) passes: bool,
}

impl Met {
    pub(super) fn of(error: FileError) -> Self {
        match &error {
            FileError::Io { source, .. } => Self { why: format!("{error}: {source}"), passes: passes(source) },
            FileError::Damaged { .. } => Self { why: error.to_string(), passes: false },
        }
    }
}

impl StreamReplica {
    /// What a read has met that is not as it was written, if anything: a message that is there and cannot be read must
    /// not be taken for one that is not.
    pub(crate) fn met_damage(&self, inner: &mut Inner) -> Option<Met> {
        let met = inner.store.take_damage().map(Met::of)?;
        if !met.passes {
            self.is_damaged(inner, &met.why);
        }
        Some(met)
    }

    /// Something of the files is not as it was written. The only copy goes on; a replica with peers does until these can
    /// do without it.
    pub(super) fn is_damaged(&self, inner: &mut Inner, why: &str) {
        if inner.hole.is_none() {
            tracing::error!(stream = self.spec.name, why, "what was stored cannot be read");
        }
        inner.hole = Some(why.to_owned());
        if self.is_replicated() {
            inner.phase.repairing();
        }
    }

    /// Has a damaged replica step aside, if it has peers.
    pub(super) fn heal_if_damaged(self: &Arc<Self>) {
        if self.is_replicated() && self.lock().hole.is_some() && self.starts_to_step_aside() {
            tokio::spawn(Arc::clone(self).step_aside());
        }
    }

    /// Waits until most others are sound, and fails: then it comes back as a new member. One goes after the other, so
    /// that a stream that is damaged in several places keeps its quorum, as long as nobody needs what is damaged.
    async fn step_aside(self: Arc<Self>) {
        let context = &self.context;
        let own = self.spec.raft_id;
        while !(self.is_stopped() || context.stopping.is_cancelled()) {
            tokio::time::sleep(ASK_EVERY).await;
            let Some(entry) = context.meta.read(|c| c.stream(self.spec.stream).cloned()) else { continue };
            let others = rejoin::ask(context, &entry, own).await;
            let is_whole =
                |id: &RaftNodeId| matches!(others.get(id), Some(Some(Standing::Sound { repairing: false, .. })));
            if let Some(whole) = entry.replicas.iter().find(|replica| self.leads() && is_whole(&replica.raft_id)) {
                // Who comes back fetches everything from the leader.
                let _again = self.hand_over(context, Some(&whole.node)).await;
            }
            let goes_first = |(id, other): (&RaftNodeId, &_)| {
                *id < own && matches!(other, Some(Standing::Sound { repairing: true, .. }))
            };
            if !others.iter().any(goes_first) && decide(own, Standing::Damaged, &others) == Next::Rejoin {
                let mut inner = self.lock();
                let why = inner.hole.clone().unwrap_or_default();
                return self.fail(&mut inner, why);
            }
        }
    }
}
