//! Using the catalogue: reading it here, writing it at its leader, wherever that is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_core::catalog::{Catalog, CatalogCommand, CatalogEntry, CatalogResponse, FenceNumber};

use super::MetaReplica;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::raft::{GroupState, RaftGroup, Role, WriteError};
use crate::transport::{NodeId, Transport};

/// How long a write looks for a leader before it gives up.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(100);

/// Why a catalogue write has no known result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetaError {
    #[error("the catalogue has no leader")]
    NoLeader,
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// The catalogue as this node uses it.
#[derive(Clone)]
pub(crate) struct Meta {
    pub(crate) replica: Arc<MetaReplica>,
    /// The member, and what ends the task that follows it.
    raft: Arc<Mutex<Option<(RaftGroup, CancellationToken)>>>,
    transport: Transport,
}

impl Meta {
    pub(crate) fn new(replica: Arc<MetaReplica>, transport: Transport) -> Self {
        Self { replica, raft: Arc::default(), transport }
    }

    /// The member runs. The token is cancelled when it is stopped to be opened anew.
    pub(crate) fn started(&self, raft: RaftGroup) -> CancellationToken {
        let followed = CancellationToken::new();
        let before = self.raft.lock().replace((raft, followed.clone()));
        assert!(before.is_none(), "the meta member was started twice");
        followed
    }

    /// Stops the member, so that it can be opened anew on its log.
    pub(crate) async fn stop_member(&self) {
        let stopped = self.raft.lock().take();
        if let Some((raft, followed)) = stopped {
            followed.cancel();
            raft.shutdown().await;
        }
    }

    pub(crate) fn raft(&self) -> Option<RaftGroup> {
        self.raft.lock().as_ref().map(|(raft, _)| raft.clone())
    }

    pub(crate) fn state(&self) -> Option<GroupState> {
        self.raft().map(|raft| raft.state())
    }

    pub(crate) fn leads(&self) -> bool {
        self.state().is_some_and(|s| s.role == Role::Leader)
    }

    /// The leader's node id; Raft ids of the meta group are node incarnations.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.state().and_then(|s| s.leader)
    }

    pub(crate) fn read<T>(&self, f: impl FnOnce(&Catalog) -> T) -> T {
        self.replica.read(f)
    }

    /// Writes one command at the leader and returns what applying it answered there.
    pub(crate) async fn write(
        &self,
        fence: Option<FenceNumber>,
        command: CatalogCommand,
    ) -> Result<CatalogResponse, MetaError> {
        let deadline = tokio::time::Instant::now() + WRITE_PATIENCE;
        loop {
            let entry = Bytes::from(CatalogEntry::new(crate::clock::now(), fence, command.clone()).encode());
            match self.write_once(entry).await {
                Ok(body) => {
                    return serde_json::from_slice(&body).map_err(|e| MetaError::Unknown(e.to_string()));
                }
                Err(MetaError::NoLeader) if tokio::time::Instant::now() < deadline => tokio::time::sleep(RETRY).await,
                Err(e) => return Err(e),
            }
        }
    }

    async fn write_once(&self, entry: Bytes) -> Result<Bytes, MetaError> {
        let raft = self.raft().ok_or(MetaError::NoLeader)?;
        if self.leads() {
            return self.write_here(&raft, entry).await;
        }
        let leader = self.leader().ok_or(MetaError::NoLeader)?;
        match self.transport.request(leader, super::kind::WRITE, &[entry], WRITE_PATIENCE).await {
            Ok(body) => match body.split_first() {
                Some((1, _)) => Ok(body.slice(1..)),
                _ => Err(MetaError::NoLeader),
            },
            Err(e) => Err(MetaError::Unknown(e.to_string())),
        }
    }

    async fn write_here(&self, raft: &RaftGroup, entry: Bytes) -> Result<Bytes, MetaError> {
        match raft.write(entry).await {
            Ok(body) => Ok(body),
            Err(WriteError::NotLeader) => Err(MetaError::NoLeader),
            Err(WriteError::Unknown(why)) => Err(MetaError::Unknown(why)),
        }
    }

    /// A WRITE request from another node: `1 | response`, or `0` if this node does not lead.
    pub(crate) async fn serve_write(&self, entry: Bytes) -> Result<Vec<Bytes>, String> {
        let Some(raft) = self.raft() else { return Ok(vec![Bytes::from_static(&[0])]) };
        match self.write_here(&raft, entry).await {
            Ok(body) => Ok(vec![Bytes::from_static(&[1]), body]),
            Err(MetaError::NoLeader) => Ok(vec![Bytes::from_static(&[0])]),
            Err(MetaError::Unknown(why)) => Err(why),
        }
    }

    /// The incarnations that are current, for membership.
    pub(crate) fn current_nodes(&self) -> BTreeSet<NodeId> {
        self.read(|c| {
            c.nodes()
                .filter(|n| n.state != headwater_core::catalog::NodeState::Removed && !n.is_lost())
                .map(|n| n.incarnation.get())
                .collect()
        })
    }
}
