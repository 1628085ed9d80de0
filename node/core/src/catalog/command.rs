//! Entries of the meta group's log, and what applying them answers. JSON with a version.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fence::{FenceNumber, FenceRefusal};
use super::node::{Addresses, NodeName, NodeState};
use super::stream::{Owner, Replica, StreamKey};
use crate::ids::{Generation, GroupId, RaftNodeId, StreamId, Timestamp};

const VERSION: u32 = 1;

/// A command as it stands in the log.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct CatalogEntry {
    /// Format version; a node refuses to apply one that it does not know.
    version: u32,
    /// The leader's time; the catalogue never goes back behind an earlier one.
    pub ts: Timestamp,
    /// If given, the command acts only under this fence. Plain NATS clients send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceNumber>,
    /// What to do.
    pub command: CatalogCommand,
}

/// Bytes that are not a catalogue entry of a known version.
#[derive(Debug, Error)]
pub enum MalformedCommand {
    /// Not the JSON it should be.
    #[error("malformed catalogue entry")]
    Json(#[from] serde_json::Error),
    /// From a newer version of this program.
    #[error("catalogue entry has version {found}, this program knows {VERSION}")]
    Version {
        /// The entry's version.
        found: u32,
    },
}

impl CatalogEntry {
    /// A command with the leader's time.
    pub fn new(ts: Timestamp, fence: Option<FenceNumber>, command: CatalogCommand) -> Self {
        Self { version: VERSION, ts, fence, command }
    }

    /// The bytes for the log.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("keys are strings, so this always serializes")
    }

    /// Reads bytes from the log.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedCommand> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(MalformedCommand::Version { found: version });
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// What to do.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogCommand {
    /// Mints the cluster id; the first one counts.
    InitCluster {
        /// A random id.
        cluster_id: String,
    },
    /// A node reports itself: first time, after a restart, with a new disk, with other addresses.
    RegisterNode {
        /// Its name.
        name: NodeName,
        /// Its incarnation; a new one pushes the former into the past.
        incarnation: RaftNodeId,
        /// Where it listens.
        addresses: Addresses,
        /// Number of this boot of the incarnation; rises.
        boot_epoch: u64,
        /// Number of the boot before it, by the node's disk.
        #[serde(default)]
        last_boot_epoch: Option<u64>,
        /// Labels.
        #[serde(default)]
        tags: BTreeSet<String>,
        /// Failure domain.
        #[serde(default)]
        zone: Option<String>,
    },
    /// Changes whether a node may get replicas.
    SetNodeState {
        /// The node.
        name: NodeName,
        /// The new state; `removed` needs that no stream is placed there.
        state: NodeState,
    },
    /// Creates a stream; its id is the entry's log index.
    CreateStream {
        /// Account and name.
        key: StreamKey,
        /// Subject filters, defaults filled in.
        subjects: Vec<String>,
        /// The full configuration, defaults filled in.
        config: serde_json::Value,
        /// Where it will live; see [`super::placement::place`].
        replicas: Vec<Replica>,
        /// Who manages it.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Changes a stream's configuration.
    UpdateStream {
        /// The stream.
        id: StreamId,
        /// Subject filters.
        subjects: Vec<String>,
        /// The full new configuration.
        config: serde_json::Value,
        /// If given, the generation that the change was made against.
        #[serde(default)]
        expected_generation: Option<Generation>,
        /// If given, the new owner.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Changes where a stream lives (the group's own membership change comes first).
    PlaceStream {
        /// The stream.
        id: StreamId,
        /// All replicas from now on.
        replicas: Vec<Replica>,
    },
    /// A replica that may have lost what it confirmed takes part again as somebody new.
    RejoinReplica {
        /// The stream.
        id: StreamId,
        /// The replica's node.
        node: NodeName,
        /// The replica's Raft id so far.
        from: RaftNodeId,
        /// The new one: random, never used before.
        to: RaftNodeId,
    },
    /// A replica that rejoined votes again.
    MemberVotes {
        /// The stream.
        id: StreamId,
        /// Its Raft id.
        raft_id: RaftNodeId,
    },
    /// The stream goes on from one of its replicas, as most are gone for good: in a new group, where every member has
    /// a new Raft id. Only a person orders this.
    RegroupStream {
        /// The stream.
        id: StreamId,
        /// The group it must be in now.
        from: GroupId,
        /// The member of that group that it goes on from.
        source: RaftNodeId,
        /// The replicas, on the same nodes, each under a new, random Raft id.
        replicas: Vec<Replica>,
    },
    /// Nodes are gone for good, as a person has declared: their incarnations are never valid again.
    LoseNodes {
        /// The incarnations.
        incarnations: BTreeSet<RaftNodeId>,
    },
    /// Removes a stream: the record without which no data is deleted.
    RemoveStream {
        /// The stream.
        id: StreamId,
        /// If given, the owner that it must have.
        #[serde(default)]
        expected_owner: Option<Owner>,
    },
    /// A node has removed a removed stream's data.
    ConfirmRemoval {
        /// The stream.
        id: StreamId,
        /// The node.
        node: NodeName,
    },
    /// Issues the next fence.
    AcquireFence {
        /// Who wants it.
        holder: String,
        /// For how long, in nanoseconds.
        ttl_ns: u64,
    },
    /// Prolongs a fence.
    RenewFence {
        /// The number.
        number: FenceNumber,
        /// For how long from now on, in nanoseconds.
        ttl_ns: u64,
    },
    /// Gives a fence back.
    ReleaseFence {
        /// The number.
        number: FenceNumber,
    },
}

/// What applying an entry did.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogResponse {
    /// Done, or nothing was left to do.
    Done,
    /// The cluster has this id (whether this entry minted it or an earlier one).
    Cluster {
        /// The id.
        cluster_id: String,
    },
    /// A stream was created.
    Created {
        /// Its id.
        id: StreamId,
        /// Its group.
        group: GroupId,
    },
    /// A stream with this name and an equal configuration exists.
    Existing {
        /// Its id.
        id: StreamId,
    },
    /// The stream's configuration now has this generation.
    Updated {
        /// The generation.
        generation: Generation,
    },
    /// The stream is in this group now.
    Regrouped {
        /// The group.
        group: GroupId,
    },
    /// A fence was issued or prolonged.
    Fenced {
        /// Its number.
        number: FenceNumber,
        /// Until when, by log time.
        expires: Timestamp,
    },
    /// Nothing changed.
    Refused(CatalogRefusal),
}

/// Why an entry changed nothing.
#[derive(Clone, Debug, Eq, PartialEq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogRefusal {
    /// The fence does not hold.
    #[error(transparent)]
    Fence(#[from] FenceRefusal),
    /// JetStream 10058.
    #[error("stream name already in use with a different configuration")]
    StreamExists,
    /// JetStream 10059.
    #[error("stream not found")]
    StreamNotFound,
    /// JetStream 10065.
    #[error("subjects overlap with an existing stream")]
    SubjectsOverlap {
        /// The other stream's name.
        with: String,
    },
    /// A subject filter is not one, or two of the stream's own overlap.
    #[error("invalid subject {subject:?}")]
    InvalidSubject {
        /// The filter.
        subject: String,
    },
    /// The change was made against another generation.
    #[error("stream has generation {current}, the change was made against {expected}")]
    WrongGeneration {
        /// What the change expected.
        expected: Generation,
        /// What is.
        current: Generation,
    },
    /// The stream is managed by somebody else.
    #[error("stream has another owner")]
    WrongOwner,
    /// A replica is on an unknown or removed node, or not under that node's incarnation, or one node has two.
    #[error("node {node} can not hold this replica")]
    BadReplica {
        /// The node.
        node: NodeName,
    },
    /// As many replicas as the stream can spare are without a vote already.
    #[error("{rejoining} of its replicas are rejoining already")]
    TooManyRejoining {
        /// How many.
        rejoining: u64,
    },
    /// A stream needs at least one replica.
    #[error("no replicas given")]
    NoReplicas,
    /// The stream has moved to another group meanwhile.
    #[error("stream is in group {current}")]
    WrongGroup {
        /// Its group.
        current: GroupId,
    },
    /// The node is not known.
    #[error("node {node} is not known")]
    NodeNotFound {
        /// The name.
        node: NodeName,
    },
    /// The incarnation was used before, by this node or another.
    #[error("incarnation {incarnation} was used before")]
    IncarnationReused {
        /// The incarnation.
        incarnation: RaftNodeId,
    },
    /// The node reported a higher boot epoch before: its disk was rolled back.
    #[error("its store was put back from an older copy: the copy remembers boot {given}, and boot {known} was seen")]
    RolledBack {
        /// What it reports.
        given: u64,
        /// What it reported before.
        known: u64,
    },
    /// A person has declared the incarnation lost, and the cluster has gone on without it.
    #[error("it was declared lost, and the cluster went on without it")]
    NodeLost,
    /// The replica that a group was to go on from is not one, or its disk is gone.
    #[error("there is no replica {raft_id} to go on from")]
    NotAMember {
        /// Its Raft id.
        raft_id: RaftNodeId,
    },
    /// The node still holds replicas.
    #[error("node still holds {streams} streams")]
    NodeInUse {
        /// How many.
        streams: u64,
    },
}

impl CatalogRefusal {
    /// Whether a node that is refused so can only come back with another disk.
    pub fn is_final_for_the_disk(&self) -> bool {
        matches!(self, Self::RolledBack { .. } | Self::IncarnationReused { .. } | Self::NodeLost)
    }

    /// The JetStream `err_code`, where there is one.
    pub fn err_code(&self) -> Option<u16> {
        match self {
            Self::StreamExists => Some(10058),
            Self::StreamNotFound => Some(10059),
            Self::SubjectsOverlap { .. } => Some(10065),
            Self::InvalidSubject { .. } => Some(10052),
            Self::BadReplica { .. } | Self::NoReplicas => Some(10005),
            _ => None,
        }
    }
}
