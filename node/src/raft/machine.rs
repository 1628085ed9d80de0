//! openraft's state machine as a thin shell over [`Replica`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, TryStreamExt};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};

use super::types::*;

/// What an entry asks of the replica.
#[derive(Debug)]
pub(crate) enum Committed<'a> {
    /// A new leader's first entry.
    Blank,
    Command(&'a Bytes),
    Members(&'a Members),
}

/// The state *at `persisted`*: the only position a snapshot that leaves this replica ever has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotHead {
    pub(crate) at: LogPos,
    pub(crate) members: Members,
}

/// What travels as a snapshot.
pub(crate) enum SnapshotBody {
    /// At the sender: pinned files and the checkpoint that covers them.
    Pinned(Box<dyn crate::raft::transfer::Outgoing>),
    /// At the receiver: a complete, synced staging folder.
    Staged(crate::raft::transfer::Staged),
}

/// One group's replica on this node: the meta catalogue or a stream.
///
/// Implementers MUST apply entries in order, keep `recovered` at the state they would go on from, and never
/// report a snapshot beyond `persisted`.
pub(crate) trait Replica: Send + Sync + 'static {
    /// The position and membership that the files on disk stand at (`persisted`), as found at open.
    fn recovered(&self) -> (Option<LogPos>, Members);
    /// Applies one entry; the answer goes to the proposer, if it is here.
    fn apply(&self, at: LogPos, what: Committed<'_>) -> Bytes;
    /// One run of entries has been applied.
    fn applied_run(&self);
    /// The state at `persisted` now.
    fn snapshot(&self) -> Option<SnapshotHead>;
    /// Pins the files of the state at `persisted` for a transfer.
    fn pin(&self) -> io::Result<Option<(SnapshotHead, Box<dyn crate::raft::transfer::Outgoing>)>>;
    /// Replaces the state and its files by staged ones, which are completely on disk.
    fn install(&self, head: SnapshotHead, staged: crate::raft::transfer::Staged) -> BoxFuture<'_, io::Result<()>>;
    /// A snapshot on its way here cannot be written, for a reason that may pass.
    fn cannot_stage(&self, error: &io::Error);
    /// Resolves when there is room for what the next entries bring; `None` if there is.
    fn room(&self) -> Option<BoxFuture<'_, ()>>;
}

#[derive(Clone)]
pub(crate) struct Machine {
    replica: Arc<dyn Replica>,
    /// Position of the newest snapshot openraft was given.
    given: Option<LogPos>,
    /// The group was shut down. openraft's worker may still have work queued, and the replica is somebody else's by then.
    closed: Arc<AtomicBool>,
}

impl Machine {
    pub(super) fn new(replica: Arc<dyn Replica>, closed: Arc<AtomicBool>) -> Self {
        let given = replica.snapshot().map(|s| s.at);
        Self { replica, given, closed }
    }

    fn check_open(&self) -> io::Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(io::Error::other("the group was shut down")) } else { Ok(()) }
    }

    fn pinned(&self) -> io::Result<Option<Snap>> {
        Ok(self.replica.pin()?.map(|(head, body)| Snapshot { meta: meta(&head), snapshot: SnapshotBody::Pinned(body) }))
    }
}

type Snap = openraft::alias::SnapshotOf<TypeConfig, SnapshotBody>;

fn meta(head: &SnapshotHead) -> SnapshotMeta {
    SnapshotMeta { last_log_id: Some(to_log_id(head.at)), last_membership: to_stored(&head.members) }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = SnapshotBody;

    async fn build_snapshot(&mut self) -> io::Result<Snap> {
        self.pinned()?.ok_or_else(|| io::Error::other("nothing is persisted yet"))
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotBody;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let (at, members) = self.replica.recovered();
        Ok((at.map(to_log_id), to_stored(&members)))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            self.check_open()?;
            let at = from_log_id(&entry.log_id());
            let reply = match &entry.payload {
                EntryPayload::Blank => self.replica.apply(at, Committed::Blank),
                EntryPayload::Normal(command) => self.replica.apply(at, Committed::Command(&command.0)),
                EntryPayload::Membership(membership) => {
                    let stored = StoredMembership::new(Some(entry.log_id()), membership.clone());
                    self.replica.apply(at, Committed::Members(&from_stored(&stored)))
                }
            };
            if let Some(responder) = responder {
                responder.send(Reply(reply));
            }
        }
        self.replica.applied_run();
        if let Some(room) = self.replica.room() {
            room.await;
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Self> {
        let now = self.replica.snapshot()?.at;
        if !force && self.given.is_some_and(|given| given >= now) {
            return None;
        }
        self.given = Some(now);
        Some(self.clone())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, body: SnapshotBody) -> io::Result<()> {
        self.check_open()?;
        let at = meta.last_log_id.as_ref().map(from_log_id).ok_or_else(|| io::Error::other("a snapshot of nothing"))?;
        let head = SnapshotHead { at, members: from_stored(&meta.last_membership) };
        match body {
            SnapshotBody::Staged(staged) => self.replica.install(head, staged).await?,
            // openraft installs a stored snapshot that is ahead of the applied state at start; ours never is.
            SnapshotBody::Pinned(_) => return Err(io::Error::other("the stored snapshot is ahead of the store")),
        }
        self.given = Some(at);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snap>> {
        self.pinned()
    }
}
