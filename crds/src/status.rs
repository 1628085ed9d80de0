//! `Stream.status`: what the stream promises now, and where each replica stands.
//!
//! All indexes are Raft log indexes of the stream's group. What is not known is absent, never zero.

#![expect(unreachable_pub, reason = "the schema derive repeats each type, with its visibility, inside a function")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::stream::SyncMode;

/// What is known about a stream.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StreamStatus {
    /// The `metadata.generation` this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the stream in JetStream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Node that leads the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// What the stream promises now: its weakest voter's durability, not the wish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<DurabilityStatus>,
    /// Whether stores lag behind the log, and how far a change of that has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<FlushStatus>,
    /// Highest committed index that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub commit_index: Option<i64>,
    /// Largest applied minus persisted index of a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_persist_lag: Option<i64>,
    /// One entry per replica, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub replicas: Vec<ReplicaStatus>,
    /// The step being taken; written before it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationStatus>,
    /// The last configuration the server accepted from this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied: Option<LastApplied>,
    /// What holds of the stream, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// A durability setting: when a publish is confirmed, and whether the store may lag behind the log.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DurabilityStatus {
    /// When a publish is confirmed.
    pub sync_mode: SyncMode,
    /// Time between syncs, with `interval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub sync_interval: Option<String>,
    /// Whether the store may lag behind the log.
    pub allow_async_flush: bool,
}

/// Whether stores lag behind the log.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FlushStatus {
    /// `Async`: some voter's store may lag. `Draining`: a change to sync is under way. `Sync`: none lags.
    pub mode: FlushMode,
    /// Why `allowAsyncFlush` has no effect here, if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Index up to which every store must be persisted before the change is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub barrier_index: Option<i64>,
    /// When the change was first seen under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
    /// Replicas persisted past the barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas_past_barrier: Option<i32>,
    /// Replicas that must get there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas_total: Option<i32>,
}

/// See [`FlushStatus::mode`].
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    Async,
    Sync,
    Draining,
}

/// Where one replica stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// Name of the node that keeps the replica.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Pod of that node, if it runs in this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Role in the group.
    pub role: ReplicaRole,
    /// Effects up to here are in the store's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub applied_index: Option<i64>,
    /// Effects up to here are in the store's synced files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub persisted_index: Option<i64>,
    /// Log bytes up to here are synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub synced_index: Option<i64>,
    /// The newest snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotStatus>,
    /// How far recovery has come since the node started.
    pub phase: ReplicaPhase,
    /// Why the replica is in that phase, or why nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The durability the group's log wants here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<DurabilityStatus>,
    /// The durability in force here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective: Option<DurabilityStatus>,
    /// Identity of the node's current start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// When the node last answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub observed_at: Option<String>,
}

/// A snapshot; `async` if the data on disk is behind it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Index the snapshot stands for.
    #[schemars(range(min = 0))]
    pub index: i64,
    /// Whether the snapshot is ahead of the data on disk, so that a start replays the log up to it.
    pub r#async: bool,
    /// Entries between the data on disk and the snapshot.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub missing: i64,
}

/// Role of a replica in its group.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRole {
    Leader,
    Follower,
    Candidate,
    Learner,
    Unknown,
}

/// How far recovery has come; latched per start of the node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaPhase {
    Unknown,
    LoadingSnapshot,
    ReplayingLog,
    CatchingUp,
    Persisting,
    Recovered,
    Repairing,
    Quarantined,
    Failed,
}

impl ReplicaPhase {
    /// The spelling used everywhere alike.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::LoadingSnapshot => "LoadingSnapshot",
            Self::ReplayingLog => "ReplayingLog",
            Self::CatchingUp => "CatchingUp",
            Self::Persisting => "Persisting",
            Self::Recovered => "Recovered",
            Self::Repairing => "Repairing",
            Self::Quarantined => "Quarantined",
            Self::Failed => "Failed",
        }
    }
}

/// The step being taken.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// Name of the step, such as `GrantDurability`.
    #[schemars(length(max = 64))]
    pub r#type: String,
    /// The node it concerns, if one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Generation the step was planned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub generation: Option<i64>,
    /// Fencing number the step carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub fence: Option<i64>,
    /// When the step was first written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub started_at: Option<String>,
}

/// The last configuration the server accepted from this object.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LastApplied {
    /// Fingerprint of the configuration (16 hex digits).
    #[schemars(length(max = 128))]
    pub config_hash: String,
    /// When it was first seen in force.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// When the server created the stream; a later value means that the stream was made anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
}
