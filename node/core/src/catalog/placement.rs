//! Where a new stream's replicas go: a pure choice, the same for the same catalogue.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::Catalog;
use super::node::{NodeEntry, NodeName, NodeState};
use super::stream::{Replica, StreamKey};

/// What a stream asks of its nodes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PlacementRequest {
    /// Replicas wanted, at least 1.
    pub replicas: usize,
    /// Tags that every node must have.
    pub tags: BTreeSet<String>,
    /// Nodes that keep their replica.
    pub keep: Vec<NodeName>,
    /// Nodes that must not be chosen (unreachable ones, say).
    pub avoid: BTreeSet<NodeName>,
    /// Node that should lead, if it is chosen.
    pub preferred: Option<NodeName>,
}

/// Not enough nodes (JetStream 10005).
#[derive(Clone, Debug, Eq, PartialEq, Error)]
#[error("no suitable nodes: {wanted} replicas wanted, {found} nodes fit")]
pub struct NoSuitableNodes {
    /// Replicas wanted.
    pub wanted: usize,
    /// Nodes that fit.
    pub found: usize,
}

/// Chooses nodes: kept ones first, then zones not used yet, then fewest replicas, then by a hash of stream and node,
/// so that equal nodes share evenly. The first of the result is asked to lead: the one that leads least.
pub fn place(catalog: &Catalog, key: &StreamKey, request: &PlacementRequest) -> Result<Vec<Replica>, NoSuitableNodes> {
    let wanted = request.replicas.max(1);
    let load = Load::of(catalog);
    let mut candidates: Vec<&NodeEntry> = catalog
        .nodes()
        .filter(|node| {
            let kept = request.keep.contains(&node.name) && node.state != NodeState::Removed;
            kept || (node.state == NodeState::Active
                && !node.is_lost()
                && node.tags.is_superset(&request.tags)
                && !request.avoid.contains(&node.name))
        })
        .collect();
    let found = candidates.len();
    let mut chosen: Vec<&NodeEntry> = Vec::new();
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    while chosen.len() < wanted {
        let best = candidates.iter().enumerate().min_by_key(|(_, node)| {
            let zone_used = node.zone.as_deref().map_or(0, |zone| zones.get(zone).copied().unwrap_or(0));
            (
                !request.keep.contains(&node.name),
                zone_used,
                load.replicas(&node.name),
                spread(key, &node.name),
                &node.name,
            )
        });
        let Some((at, _)) = best else {
            return Err(NoSuitableNodes { wanted, found });
        };
        let node = candidates.swap_remove(at);
        if let Some(zone) = node.zone.as_deref() {
            *zones.entry(zone).or_default() += 1;
        }
        chosen.push(node);
    }
    chosen.sort_by_key(|node| {
        (
            request.preferred.as_ref() != Some(&node.name),
            load.leads(&node.name),
            spread(key, &node.name),
            node.name.clone(),
        )
    });
    Ok(chosen.into_iter().map(|node| Replica { node: node.name.clone(), raft_id: node.incarnation }).collect())
}

/// Replicas and wished-for leaderships per node.
struct Load<'a> {
    counts: BTreeMap<&'a NodeName, (usize, usize)>,
}

impl<'a> Load<'a> {
    fn of(catalog: &'a Catalog) -> Self {
        let mut counts: BTreeMap<&NodeName, (usize, usize)> = BTreeMap::new();
        for stream in catalog.streams() {
            for (at, replica) in stream.replicas.iter().enumerate() {
                let count = counts.entry(&replica.node).or_default();
                count.0 += 1;
                count.1 += usize::from(at == 0);
            }
        }
        Self { counts }
    }

    fn replicas(&self, node: &NodeName) -> usize {
        self.counts.get(node).map_or(0, |count| count.0)
    }

    fn leads(&self, node: &NodeName) -> usize {
        self.counts.get(node).map_or(0, |count| count.1)
    }
}

/// FNV-1a over account, stream and node: any fixed hash does, it only breaks ties.
fn spread(key: &StreamKey, node: &NodeName) -> u64 {
    let parts = [key.account.as_str(), "/", key.name.as_str(), "/", node.as_str()];
    parts
        .iter()
        .flat_map(|part| part.bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
