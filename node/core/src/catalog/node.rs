//! Nodes of the cluster.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ids::{RaftNodeId, Timestamp};

/// A node's configured name: stable over restarts and new disks.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName(String);

impl NodeName {
    /// Wraps a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for NodeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a node listens, as `host:port`.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Addresses {
    /// For NATS clients.
    pub client: String,
    /// For other nodes.
    pub cluster: String,
    /// Admin and monitoring.
    pub http: String,
}

/// Whether a node may get replicas.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Yes.
    #[default]
    Active,
    /// No new ones; those it has are to move away.
    Draining,
    /// It is gone for good.
    Removed,
}

/// One node.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its name.
    pub name: NodeName,
    /// Its current Raft identity.
    pub incarnation: RaftNodeId,
    /// Raft identities that are never valid again, for this node or another: earlier ones, and the current one if it was
    /// declared lost.
    #[serde(default)]
    pub past: BTreeSet<RaftNodeId>,
    /// Where it listens.
    pub addresses: Addresses,
    /// Boots of this incarnation, as last reported; a lower one is a rolled-back disk.
    pub boot_epoch: u64,
    /// Labels that placement can ask for.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// Failure domain that placement spreads over.
    #[serde(default)]
    pub zone: Option<String>,
    /// Whether it may get replicas.
    #[serde(default)]
    pub state: NodeState,
    /// When it first registered, by log time.
    pub joined: Timestamp,
}

impl NodeEntry {
    /// A person has declared this incarnation lost for good: it takes part in nothing again.
    pub fn is_lost(&self) -> bool {
        self.past.contains(&self.incarnation)
    }
}
