//! Streams as the catalogue knows them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::node::NodeName;
use crate::ids::{Generation, GroupId, LogIndex, RaftNodeId, StreamId, Timestamp};

/// A stream's name within its account.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct StreamKey {
    /// The account, today `$G`.
    pub account: String,
    /// The name.
    pub name: String,
}

impl StreamKey {
    /// A key from its parts.
    pub fn new(account: impl Into<String>, name: impl Into<String>) -> Self {
        Self { account: account.into(), name: name.into() }
    }
}

/// One replica of a stream.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Replica {
    /// The node it lives on.
    pub node: NodeName,
    /// Its identity in the stream's group.
    pub raft_id: RaftNodeId,
}

/// A member that took the place of an earlier one on the same node: that one had lost, or might have lost, what it had
/// confirmed, or its disk is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Rejoined {
    /// The incarnation of the node.
    pub incarnation: RaftNodeId,
    /// It has caught up, and votes.
    pub votes: bool,
}

/// Where a group came from that a person has ordered to go on from one replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Regrouped {
    /// The group before it.
    pub from: GroupId,
    /// The member of that group whose log and files the group goes on from.
    pub source: RaftNodeId,
    /// The same replica's Raft id in this group, which it founds alone.
    pub founder: RaftNodeId,
}

/// The Kubernetes object that owns a stream.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Owner {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: a recreated object is another owner.
    #[serde(default)]
    pub uid: Option<String>,
}

/// Where a stream is in its life.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamState {
    /// It exists.
    #[default]
    Active,
    /// A removal record exists; nodes remove the data.
    Removing,
}

/// One stream.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct StreamEntry {
    /// The log index of its creation.
    pub id: StreamId,
    /// The Raft group that it lives in.
    pub group: GroupId,
    /// Account and name.
    pub key: StreamKey,
    /// Subject filters; never overlapping with those of another stream of the account.
    pub subjects: Vec<String>,
    /// Desired configuration as the JetStream API shows it, defaults filled in.
    pub config: serde_json::Value,
    /// Rises with every change of the configuration.
    pub generation: Generation,
    /// Where it lives; the first one is asked to lead.
    pub replicas: Vec<Replica>,
    /// Who manages it, if anybody.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// A replica took another's place since the creation. The group was founded before that, so nobody may found it
    /// again: new members with empty disks could outvote the one that holds the data.
    #[serde(default)]
    pub replaced: bool,
    /// Those of `replicas` that came after the creation: where they live, and whether they vote by now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rejoined: BTreeMap<RaftNodeId, Rejoined>,
    /// What its group was founded from, if a person ordered that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regrouped: Option<Regrouped>,
    /// The groups that it was in before: nothing in their logs counts any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub past_groups: BTreeSet<GroupId>,
    /// When it was created, by log time.
    pub created: Timestamp,
    /// Always [`StreamState::Active`] in [`super::Catalog::streams`].
    #[serde(default)]
    pub state: StreamState,
}

impl StreamEntry {
    /// The Raft ids of its replicas.
    pub fn raft_ids(&self) -> impl Iterator<Item = RaftNodeId> + use<'_> {
        self.replicas.iter().map(|replica| replica.raft_id)
    }

    /// The incarnation of the node that a replica is on.
    pub fn incarnation_of(&self, replica: &Replica) -> RaftNodeId {
        self.rejoined.get(&replica.raft_id).map_or(replica.raft_id, |rejoined| rejoined.incarnation)
    }
}

/// The record that a stream was removed. It stays until every replica's node said that the data is gone.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Removal {
    /// The stream as it was, `state` [`StreamState::Removing`].
    pub stream: StreamEntry,
    /// Index of the entry that removed it.
    pub index: LogIndex,
    /// When, by log time.
    pub removed: Timestamp,
    /// Nodes that have not confirmed.
    pub awaiting: BTreeSet<NodeName>,
}

/// What the catalogue says about a stream's data on one node's disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// A replica belongs here.
    Keep,
    /// The stream lives, but not here (moved away, or not here yet): keep until the move is complete.
    NotPlacedHere,
    /// A removal record exists: remove the data.
    Removed,
    /// The catalogue has never heard of it, or has long forgotten it: keep, never serve, tell an administrator.
    Unknown,
}
