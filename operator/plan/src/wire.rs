//! The admin API's JSON: what nodes answer and what they are asked to do.
//!
//! Readers ignore keys they do not know, so that a newer node can say more. Every mutating body
//! carries the `fence` it was planned under; the meta group refuses a lower one.

use headwater_crds::{ReplicaPhase, ReplicaRole, Storage, SyncMode, jetstream};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET /v1/recovery`: what one node knows of every group it keeps a replica of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Identity of the cluster, minted once.
    pub cluster_id: String,
    /// The node's name.
    pub node: String,
    /// The node's Raft incarnation; a number above 2^53, so text in JSON.
    #[serde(with = "id_text")]
    pub node_id: u64,
    /// Identity of this start of the node.
    pub boot_id: String,
    /// One entry per group with a replica here; the meta group's `stream` is empty.
    pub groups: Vec<GroupReport>,
    /// Room on the store's file system; absent before the first look.
    #[serde(default)]
    pub space: Option<StoreSpace>,
}

/// Room on the file system of a node's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSpace {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that must be free for new messages and streams.
    pub min_free_bytes: u64,
    /// Whether there is too little: new messages and streams are refused. It ends a little above `min_free_bytes`.
    pub is_low: bool,
}

impl RecoveryReport {
    /// The report of a stream's group, if a replica of it is here.
    pub fn stream(&self, account: &str, stream: &str) -> Option<&GroupReport> {
        self.groups.iter().find(|group| group.account == account && group.stream == stream)
    }
}

/// One group, as the replica on the answering node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Group id.
    pub group: u64,
    /// Name of the stream; empty for the meta group.
    pub stream: String,
    /// Account of the stream.
    pub account: String,
    /// Role of this replica.
    pub role: ReplicaRole,
    /// Name of the leader this replica follows.
    #[serde(default)]
    pub leader: Option<String>,
    /// Raft term.
    pub term: u64,
    /// How far this replica has come.
    pub watermarks: Watermarks,
    /// Its newest snapshot.
    #[serde(default)]
    pub snapshot: Option<Snapshot>,
    /// How far recovery has come since the node started.
    pub phase: ReplicaPhase,
    /// Why it is in that phase.
    #[serde(default)]
    pub phase_why: Option<String>,
    /// Durability in force at this replica.
    pub effective: Durability,
    /// Durability the group's log wants.
    pub desired: Durability,
    /// What the group promises: its weakest voter's durability.
    pub promise: Durability,
    /// Generation of `desired`.
    pub generation: u64,
    /// Log index of that change: a replica that tightens must have persisted up to here.
    #[serde(default)]
    pub barrier: Option<u64>,
    /// Milliseconds since a quorum last answered; known at the leader only.
    #[serde(default)]
    pub quorum_acked_ms: Option<u64>,
    /// Voters of the group, with what the log says of each.
    #[serde(default)]
    pub voters: Vec<Voter>,
    /// Names of nodes that learn: replicas that do not count yet.
    #[serde(default)]
    pub learners: Vec<String>,
}

/// One voter, as the group's log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voter {
    /// The node's name.
    pub node: String,
    /// The incarnation that votes.
    #[serde(with = "id_text")]
    pub node_id: u64,
    /// Durability in force there.
    pub effective: Durability,
    /// Generation at which that was completed.
    pub generation: u64,
    /// Generation it was told to move to, while it moves.
    #[serde(default)]
    pub granted: Option<u64>,
}

/// Log indexes of one replica, in the words of the architecture page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermarks {
    /// No longer in the log.
    pub purged: u64,
    /// In the store's synced files, under a checkpoint.
    pub persisted: u64,
    /// Handed to the kernel by the store.
    pub stored: u64,
    /// In the store's memory.
    pub applied: u64,
    /// Known to be committed.
    pub committed: u64,
    /// In the log's memory.
    pub accepted: u64,
    /// Log bytes synced.
    pub synced: u64,
    /// Log bytes handed to the kernel.
    pub written: u64,
}

/// A snapshot; `async` if `persisted` was behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Index it stands for.
    pub index: u64,
    /// Whether it is ahead of the data on disk.
    pub r#async: bool,
    /// Entries between the data on disk and the snapshot.
    #[serde(default)]
    pub missing: u64,
}

/// A durability setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Durability {
    /// When a publish is confirmed.
    pub sync_mode: SyncMode,
    /// Time between syncs, with `interval` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_interval_ms: Option<u64>,
    /// Whether the store may lag behind the log.
    pub allow_async_flush: bool,
}

impl Durability {
    /// The setting in a JetStream configuration's metadata; absent keys mean the defaults.
    pub fn from_config(config: &Value) -> Self {
        let sync_mode = jetstream::sync_mode(config);
        Self {
            sync_mode,
            sync_interval_ms: match sync_mode {
                SyncMode::Interval => jetstream::sync_interval_ms(config),
                SyncMode::Always | SyncMode::NoWait => None,
            },
            allow_async_flush: jetstream::allow_async_flush(config),
        }
    }

    /// How this setting acts on a stream of that storage and size.
    ///
    /// Settings that differ only where they have no effect are the same setting in force.
    #[must_use]
    pub fn acting(self, storage: Storage, replicas: usize) -> Self {
        let allow_async_flush = if storage == Storage::Memory || replicas <= 1 {
            false
        } else {
            self.allow_async_flush || self.sync_mode == SyncMode::NoWait
        };
        let sync_interval_ms = match self.sync_mode {
            SyncMode::Interval => self.sync_interval_ms,
            SyncMode::Always | SyncMode::NoWait => None,
        };
        Self { sync_mode: self.sync_mode, sync_interval_ms, allow_async_flush }
    }

    /// Rank per promise; smaller is stronger.
    fn ranks(self) -> (u8, u64, u8) {
        let mode = match self.sync_mode {
            SyncMode::Always => 0,
            SyncMode::Interval => 1,
            SyncMode::NoWait => 2,
        };
        (mode, self.sync_interval_ms.unwrap_or(0), u8::from(self.allow_async_flush))
    }

    /// Whether moving from `self` to `to` strengthens any promise, so that a replica must drain
    /// before the new setting holds there. A pure relaxation holds at once.
    pub fn tightens_to(self, to: Self) -> bool {
        let (mode, interval, flush) = self.ranks();
        let (to_mode, to_interval, to_flush) = to.ranks();
        to_mode < mode || to_flush < flush || (to_mode == mode && to_interval < interval)
    }
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.sync_mode)?;
        if let Some(ms) = self.sync_interval_ms {
            write!(f, "({})", headwater_crds::GoDuration::from_millis(ms))?;
        }
        f.write_str(if self.allow_async_flush { "+async" } else { "+sync" })
    }
}

/// Whose a stream is: the object that created or adopted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object when it last wrote. Another UID under the same name is still the same
    /// owner: an object that was deleted and applied again gets its data back.
    #[serde(default)]
    pub uid: String,
    /// Whether the stream was there before its owner: then unset fields keep the stream's values.
    #[serde(default)]
    pub adopted: bool,
}

impl Owner {
    /// Whether both name the same object, whenever it was created.
    pub fn same(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.name == other.name
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `GET /v1/streams/{account}/{name}`: the catalogue's entry; 404 if there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Account.
    pub account: String,
    /// Name.
    pub name: String,
    /// JetStream configuration, `headwater.` metadata included.
    pub config: Value,
    /// Whose it is; absent for one that plain clients made.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Counts accepted configurations, from 1.
    pub generation: u64,
    /// When it was created (RFC 3339).
    pub created: String,
}

/// `PUT /v1/streams/{account}/{name}`: creates or changes a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamPut {
    /// The whole JetStream configuration.
    pub config: Value,
    /// Whose it becomes.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Generation of the entry that this change was planned from: 0 to create. Another one is
    /// refused (`stale_generation`), so a plan never overwrites what it has not seen.
    pub generation: u64,
    /// Fencing number.
    pub fence: u64,
}

/// `DELETE /v1/streams/{account}/{name}`: deletes a stream and its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDelete {
    /// Who deletes; refused if the stream is somebody else's.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Generation of the entry that the decision was made from; another one is refused.
    pub generation: u64,
    /// Fencing number.
    pub fence: u64,
}

/// `POST /v1/streams/{account}/{name}/durability/step`: one step of a durability change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilityStep {
    /// Generation of the change. A proposal's is the next one; an older one is refused.
    pub generation: u64,
    /// The replica that may move; with `grant` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What to do.
    pub kind: DurabilityStepKind,
    /// The new setting; with `propose` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Durability>,
    /// Fencing number.
    pub fence: u64,
}

/// Kinds of durability steps. Replicas report completion themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityStepKind {
    /// Put a new desired setting, and with it a barrier, into the group's log.
    Propose,
    /// Let one replica move to it.
    Grant,
}

/// `POST /v1/leadership/transfer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadershipTransfer {
    /// Account of the stream.
    pub account: String,
    /// The stream; absent for every group that `from` leads.
    #[serde(default)]
    pub stream: Option<String>,
    /// Node that leads now; refused if it does not.
    pub from: String,
    /// Node that shall lead; absent lets `from` choose.
    #[serde(default)]
    pub to: Option<String>,
    /// Fencing number.
    pub fence: u64,
}

/// `POST /v1/groups/{id}/recover`: the group goes on from the replicas that are left. Only a person asks for this, and
/// without a fence: the catalogue, which issues them, may be what has to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecover {
    /// Names of the nodes that are left; the one whose log reaches furthest is gone on from.
    pub voters: Vec<String>,
    /// Without it nothing is changed, and the answer says what would be lost.
    #[serde(default)]
    pub accept_loss: bool,
    /// Go on although another node that answers has more.
    #[serde(default)]
    pub force: bool,
}

/// The answer to [`GroupRecover`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecovered {
    /// Whether it was done.
    pub done: bool,
    /// The group that was asked about.
    pub group: u64,
    /// The group that goes on in its place; the catalogue's keeps its number.
    #[serde(default)]
    pub goes_on_as: Option<u64>,
    /// Name of the stream; empty for the catalogue.
    pub stream: String,
    /// The node it goes on from.
    pub source: String,
    /// The end of that node's log.
    pub last_index: u64,
    /// The term of that entry.
    pub last_term: u64,
    /// Nodes that are given up: they come back as new members, or, of the catalogue's group, only with an empty disk.
    pub given_up: Vec<String>,
    /// Entries that are known to have been confirmed, and that are lost.
    pub missing_entries: u64,
    /// Milliseconds since that node last heard from the group; absent if not since it started.
    #[serde(default)]
    pub heard_ms: Option<u64>,
    /// What may be lost, for people.
    pub may_be_lost: String,
}

/// `POST /v1/maintenance`: keeps leadership away from the node; ends with its boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maintenance {
    /// How long; 0 ends it.
    pub ttl_ms: u64,
    /// Fencing number.
    pub fence: u64,
}

/// `POST /v1/fence`: asks for the next fencing number, or extends one's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRequest {
    /// Who asks.
    pub holder: String,
    /// How long it stays live without another request.
    pub ttl_ms: u64,
}

/// The fence in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Its number; mutating calls with a lower one are refused.
    pub number: u64,
    /// Whose it is.
    #[serde(default)]
    pub holder: String,
    /// How long it stays live.
    #[serde(default)]
    pub ttl_ms: u64,
}

/// `GET /v1/restart-check`: whether restarting the node is safe now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartCheck {
    /// Whether it is.
    pub safe: bool,
    /// Why not, per group.
    #[serde(default)]
    pub blocked: Vec<RestartRisk>,
}

/// Why a restart would hurt a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRisk {
    /// Group id.
    pub group: u64,
    /// Name of the stream; empty for the meta group.
    pub stream: String,
    /// Account of the stream.
    pub account: String,
    /// The risk.
    pub why: String,
}

/// Body of every answer with status 4xx or 5xx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Word for programs, such as `stale_fence`.
    pub code: String,
    /// Sentence for people.
    pub message: String,
}

/// 64-bit ids as text: many JSON readers round numbers above 2^53. Numbers are read too.
mod id_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's `with` passes a reference")]
    pub(super) fn serialize<S: Serializer>(id: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Id {
        Number(u64),
        Text(String),
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Id::deserialize(from)? {
            Id::Number(id) => Ok(id),
            Id::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durability(sync_mode: SyncMode, ms: Option<u64>, allow_async_flush: bool) -> Durability {
        Durability { sync_mode, sync_interval_ms: ms, allow_async_flush }
    }

    #[test]
    fn any_strengthening_is_a_tightening() {
        let strict = durability(SyncMode::Always, None, false);
        let fast = durability(SyncMode::Always, None, true);
        let slow = durability(SyncMode::Interval, Some(1_000), false);
        let quick = durability(SyncMode::Interval, Some(100), false);
        let loose = durability(SyncMode::NoWait, None, true);
        for (from, to, tightens) in [
            (strict, fast, false),
            (fast, strict, true),
            (slow, quick, true),
            (quick, slow, false),
            (strict, loose, false),
            (loose, slow, true),
            (fast, slow, true),
            (strict, strict, false),
            (strict, slow, false),
        ] {
            assert_eq!(from.tightens_to(to), tightens, "{from} to {to}");
        }
    }

    #[test]
    fn a_setting_without_effect_equals_its_opposite() {
        let (yes, no) = (durability(SyncMode::Always, None, true), durability(SyncMode::Always, None, false));
        assert_eq!(yes.acting(Storage::File, 1), no.acting(Storage::File, 1));
        assert_eq!(yes.acting(Storage::Memory, 3), no.acting(Storage::Memory, 3));
        assert_ne!(yes.acting(Storage::File, 3), no.acting(Storage::File, 3));
    }

    #[test]
    fn ids_are_text_and_read_as_either() {
        let voter = Voter {
            node: "n1".into(),
            node_id: u64::MAX,
            effective: durability(SyncMode::Always, None, true),
            generation: 1,
            granted: None,
        };
        let json = serde_json::to_value(&voter).unwrap();
        assert_eq!(json["node_id"], "18446744073709551615");
        assert_eq!(serde_json::from_value::<Voter>(json.clone()).unwrap(), voter);
        let mut number = json;
        number["node_id"] = 7.into();
        assert_eq!(serde_json::from_value::<Voter>(number).unwrap().node_id, 7);
    }
}
