//! The catalogue: what the meta group's replicas agree on. Nodes and their incarnations, streams and where they
//! live, the fence, removals.
//!
//! It changes only by [`Catalog::apply`], from the log: same entries, same catalogue. It names *desired*
//! configuration; a stream's own log is where that takes effect. Data on disk may be removed only when
//! [`Catalog::verdict`] says [`Verdict::Removed`], which needs a removal record: a stream that the catalogue does not
//! know is unknown, not removed.

mod apply;
mod command;
mod compare;
mod fence;
mod image;
mod node;
pub mod placement;
mod stream;

use std::collections::{BTreeMap, BTreeSet};

pub use command::{CatalogCommand, CatalogEntry, CatalogRefusal, CatalogResponse, MalformedCommand};
pub use compare::same_config;
pub use fence::{Fence, FenceNumber, FenceRefusal};
pub use image::MalformedImage;
pub use node::{Addresses, NodeEntry, NodeName, NodeState};
pub use stream::{Owner, Regrouped, Rejoined, Removal, Replica, StreamEntry, StreamKey, StreamState, Verdict};

use headwater_protocol::subject;

use crate::ids::{GroupId, LogIndex, RaftNodeId, StreamId, Timestamp};

/// The group that keeps the catalogue itself; streams' groups follow from 1.
pub const META_GROUP: u64 = 0;

/// The catalogue's state.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Catalog {
    cluster_id: Option<String>,
    applied: LogIndex,
    /// Log time: the highest seen, so it never goes back.
    clock: Timestamp,
    nodes: BTreeMap<NodeName, NodeEntry>,
    streams: BTreeMap<StreamId, StreamEntry>,
    removals: BTreeMap<StreamId, Removal>,
    groups_given: u64,
    fence: Fence,
    /// Derived from `streams`.
    #[serde(skip)]
    names: BTreeMap<StreamKey, StreamId>,
}

impl Catalog {
    /// The cluster's id, minted once.
    pub fn cluster_id(&self) -> Option<&str> {
        self.cluster_id.as_deref()
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// The log's time.
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// The fence as it stands.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// A node, removed ones included.
    pub fn node(&self, name: &NodeName) -> Option<&NodeEntry> {
        self.nodes.get(name)
    }

    /// All nodes, removed ones included, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeEntry> {
        self.nodes.values()
    }

    /// The node whose current incarnation this is.
    pub fn node_by_incarnation(&self, incarnation: RaftNodeId) -> Option<&NodeEntry> {
        self.nodes.values().find(|node| node.incarnation == incarnation)
    }

    /// A live stream.
    pub fn stream(&self, id: StreamId) -> Option<&StreamEntry> {
        self.streams.get(&id)
    }

    /// A live stream by name.
    pub fn stream_by_name(&self, key: &StreamKey) -> Option<&StreamEntry> {
        self.streams.get(self.names.get(key)?)
    }

    /// All live streams, by id.
    pub fn streams(&self) -> impl Iterator<Item = &StreamEntry> {
        self.streams.values()
    }

    /// The live streams of one account, by name.
    pub fn streams_of<'a>(&'a self, account: &str) -> impl Iterator<Item = &'a StreamEntry> + use<'a> {
        let from = StreamKey::new(account, "");
        let account = from.account.clone();
        self.names
            .range(from..)
            .take_while(move |(key, _)| key.account == account)
            .filter_map(|(_, id)| self.streams.get(id))
    }

    /// The stream of an account whose subjects include this one.
    pub fn stream_for_subject(&self, account: &str, subject: &[u8]) -> Option<&StreamEntry> {
        self.streams_of(account).find(|stream| {
            let mut subjects = stream.subjects.iter();
            subjects.any(|filter| subject::matches(filter.as_bytes(), subject))
        })
    }

    /// Streams whose data some nodes have still to remove.
    pub fn removals(&self) -> impl Iterator<Item = &Removal> {
        self.removals.values()
    }

    /// Whether the disk that a replica was placed on is still its node's. True for a node that is not known yet.
    pub fn hosts(&self, stream: &StreamEntry, replica: &Replica) -> bool {
        let hosted = |node: &NodeEntry| node.incarnation == stream.incarnation_of(replica) && !node.is_lost();
        self.node(&replica.node).is_none_or(hosted)
    }

    /// What a node that holds data of this stream may do with it.
    pub fn verdict(&self, id: StreamId, node: &NodeName) -> Verdict {
        if let Some(stream) = self.streams.get(&id) {
            return match stream.replicas.iter().any(|replica| replica.node == *node) {
                true => Verdict::Keep,
                false => Verdict::NotPlacedHere,
            };
        }
        match self.removals.contains_key(&id) {
            true => Verdict::Removed,
            false => Verdict::Unknown,
        }
    }

    fn rebuild_names(&mut self) {
        self.names = self.streams.values().map(|stream| (stream.key.clone(), stream.id)).collect();
    }

    fn next_group(&mut self) -> GroupId {
        self.groups_given += 1;
        GroupId::new(META_GROUP + self.groups_given)
    }

    fn incarnations(&self) -> BTreeSet<RaftNodeId> {
        self.nodes.values().flat_map(|node| node.past.iter().copied().chain([node.incarnation])).collect()
    }
}

#[cfg(test)]
mod tests;
