//! Applying entries: a function of the catalogue and the entry, nothing else.

use std::collections::{BTreeMap, BTreeSet};

use headwater_protocol::subject::{self, FilterSet};

use super::Catalog;
use super::command::{CatalogCommand, CatalogEntry, CatalogRefusal, CatalogResponse};
use super::compare::same_config;
use super::fence::FenceNumber;
use super::node::{NodeEntry, NodeName, NodeState};
use super::stream::{Owner, Regrouped, Rejoined, Removal, Replica, StreamEntry, StreamKey, StreamState};
use crate::ids::{Generation, GroupId, LogIndex, RaftNodeId, StreamId};

type Outcome = Result<CatalogResponse, CatalogRefusal>;

impl Catalog {
    /// Applies the entry at `index`. A refusal changes nothing but the applied index and the log's time.
    pub fn apply(&mut self, index: LogIndex, entry: &CatalogEntry) -> CatalogResponse {
        self.applied = index;
        self.clock = self.clock.max(entry.ts);
        self.decide(index, entry).unwrap_or_else(CatalogResponse::Refused)
    }

    fn decide(&mut self, index: LogIndex, entry: &CatalogEntry) -> Outcome {
        if let Some(number) = entry.fence {
            self.fence.check(number, self.clock)?;
        }
        match entry.command.clone() {
            CatalogCommand::InitCluster { cluster_id } => {
                Ok(CatalogResponse::Cluster { cluster_id: self.cluster_id.get_or_insert(cluster_id).clone() })
            }
            CatalogCommand::RegisterNode { name, incarnation, addresses, boot_epoch, last_boot_epoch, tags, zone } => {
                let reported = NodeEntry {
                    name,
                    incarnation,
                    past: BTreeSet::new(),
                    addresses,
                    boot_epoch,
                    tags,
                    zone,
                    state: NodeState::Active,
                    joined: self.clock,
                };
                self.register_node(reported, last_boot_epoch)
            }
            CatalogCommand::SetNodeState { name, state } => self.set_node_state(&name, state),
            CatalogCommand::CreateStream { key, subjects, config, replicas, owner } => {
                self.create_stream(index, key, subjects, config, replicas, owner)
            }
            CatalogCommand::UpdateStream { id, subjects, config, expected_generation, owner } => {
                self.update_stream(id, subjects, config, expected_generation, owner)
            }
            CatalogCommand::PlaceStream { id, replicas } => self.place_stream(id, replicas),
            CatalogCommand::RejoinReplica { id, node, from, to } => self.rejoin_replica(id, &node, from, to),
            CatalogCommand::MemberVotes { id, raft_id } => {
                let stream = self.streams.get_mut(&id).ok_or(CatalogRefusal::StreamNotFound)?;
                if let Some(rejoined) = stream.rejoined.get_mut(&raft_id) {
                    rejoined.votes = true;
                }
                Ok(CatalogResponse::Done)
            }
            CatalogCommand::RegroupStream { id, from, source, replicas } => {
                self.regroup_stream(id, from, source, replicas)
            }
            CatalogCommand::LoseNodes { incarnations } => {
                for node in self.nodes.values_mut().filter(|node| incarnations.contains(&node.incarnation)) {
                    node.past.insert(node.incarnation);
                }
                Ok(CatalogResponse::Done)
            }
            CatalogCommand::RemoveStream { id, expected_owner } => {
                self.remove_stream(index, id, expected_owner.as_ref())
            }
            CatalogCommand::ConfirmRemoval { id, node } => {
                self.confirm_removal(id, &node);
                Ok(CatalogResponse::Done)
            }
            CatalogCommand::AcquireFence { holder, ttl_ns } => {
                let number = self.fence.acquire(&holder, ttl_ns, self.clock)?;
                Ok(self.fenced(number))
            }
            CatalogCommand::RenewFence { number, ttl_ns } => {
                self.fence.renew(number, ttl_ns, self.clock)?;
                Ok(self.fenced(number))
            }
            CatalogCommand::ReleaseFence { number } => {
                self.fence.release(number)?;
                Ok(CatalogResponse::Done)
            }
        }
    }

    fn fenced(&self, number: FenceNumber) -> CatalogResponse {
        CatalogResponse::Fenced { number, expires: self.fence.expires }
    }

    fn register_node(&mut self, mut reported: NodeEntry, last_boot_epoch: Option<u64>) -> Outcome {
        self.admits(&reported.name, reported.incarnation, reported.boot_epoch, last_boot_epoch)?;
        let known = self.nodes.get(&reported.name);
        match known {
            Some(known) if known.incarnation == reported.incarnation => {
                reported.past = known.past.clone();
                reported.state = known.state;
            }
            _ => {
                if let Some(known) = known {
                    reported.past = known.past.clone();
                    reported.past.insert(known.incarnation);
                    // A removed node that comes back with a new disk joins anew; a draining one keeps draining.
                    if known.state == NodeState::Draining {
                        reported.state = NodeState::Draining;
                    }
                }
            }
        }
        if let Some(known) = known {
            reported.joined = known.joined;
        }
        self.nodes.insert(reported.name.clone(), reported);
        Ok(CatalogResponse::Done)
    }

    /// Whether a node may take part with the disk it has: `boot_epoch` is this boot's, `last_boot_epoch` the one before
    /// as that disk remembers it.
    ///
    /// # Errors
    /// [`CatalogRefusal::RolledBack`] for an older copy of a disk, [`CatalogRefusal::IncarnationReused`] for a disk that
    /// another has replaced, or that has changed its name, [`CatalogRefusal::NodeLost`] for one that was declared lost.
    pub fn admits(
        &self,
        name: &NodeName,
        incarnation: RaftNodeId,
        boot_epoch: u64,
        last_boot_epoch: Option<u64>,
    ) -> Result<(), CatalogRefusal> {
        match self.nodes.get(name) {
            Some(known) if known.incarnation == incarnation && known.is_lost() => Err(CatalogRefusal::NodeLost),
            Some(known) if known.incarnation == incarnation => {
                // A boot that the disk does not remember, and that is not this one, happened on a newer copy of it.
                let remembers = last_boot_epoch.is_none_or(|last| known.boot_epoch <= last);
                if boot_epoch < known.boot_epoch || (boot_epoch > known.boot_epoch && !remembers) {
                    let given = last_boot_epoch.unwrap_or(boot_epoch);
                    return Err(CatalogRefusal::RolledBack { given, known: known.boot_epoch });
                }
                Ok(())
            }
            _ if self.incarnations().contains(&incarnation) => Err(CatalogRefusal::IncarnationReused { incarnation }),
            _ => Ok(()),
        }
    }

    fn set_node_state(&mut self, name: &NodeName, state: NodeState) -> Outcome {
        let Some(node) = self.nodes.get_mut(name) else {
            return Err(CatalogRefusal::NodeNotFound { node: name.clone() });
        };
        if state == NodeState::Removed {
            let holds = |stream: &&StreamEntry| stream.replicas.iter().any(|replica| replica.node == *name);
            let streams = self.streams.values().filter(holds).count() as u64;
            if streams > 0 {
                return Err(CatalogRefusal::NodeInUse { streams });
            }
        }
        node.state = state;
        if state == NodeState::Removed {
            // Nobody waits for a node that is gone for good.
            let waiting: Vec<StreamId> = self.removals.keys().copied().collect();
            for id in waiting {
                self.confirm_removal(id, name);
            }
        }
        Ok(CatalogResponse::Done)
    }

    fn create_stream(
        &mut self,
        index: LogIndex,
        key: StreamKey,
        subjects: Vec<String>,
        config: serde_json::Value,
        replicas: Vec<Replica>,
        owner: Option<Owner>,
    ) -> Outcome {
        if let Some(existing) = self.stream_by_name(&key) {
            let same_owner = owner.is_none() || owner == existing.owner;
            return match same_config(&existing.config, &config) {
                true if same_owner => Ok(CatalogResponse::Existing { id: existing.id }),
                true => Err(CatalogRefusal::WrongOwner),
                false => Err(CatalogRefusal::StreamExists),
            };
        }
        self.check_subjects(&key, &subjects)?;
        self.check_replicas(&replicas, &[])?;
        let id = StreamId::new(index.get());
        let group = self.next_group();
        self.names.insert(key.clone(), id);
        self.streams.insert(
            id,
            StreamEntry {
                id,
                group,
                key,
                subjects,
                config,
                generation: Generation::new(1),
                replicas,
                owner,
                replaced: false,
                rejoined: BTreeMap::new(),
                regrouped: None,
                past_groups: BTreeSet::new(),
                created: self.clock,
                state: StreamState::Active,
            },
        );
        Ok(CatalogResponse::Created { id, group })
    }

    fn update_stream(
        &mut self,
        id: StreamId,
        subjects: Vec<String>,
        config: serde_json::Value,
        expected_generation: Option<Generation>,
        owner: Option<Owner>,
    ) -> Outcome {
        let stream = self.streams.get(&id).ok_or(CatalogRefusal::StreamNotFound)?;
        if let Some(expected) = expected_generation.filter(|expected| *expected != stream.generation) {
            return Err(CatalogRefusal::WrongGeneration { expected, current: stream.generation });
        }
        self.check_subjects(&stream.key, &subjects)?;
        let stream = self.streams.get_mut(&id).ok_or(CatalogRefusal::StreamNotFound)?;
        if stream.config != config || stream.subjects != subjects {
            stream.config = config;
            stream.subjects = subjects;
            stream.generation = stream.generation.next();
        }
        if owner.is_some() {
            stream.owner = owner;
        }
        Ok(CatalogResponse::Updated { generation: stream.generation })
    }

    fn place_stream(&mut self, id: StreamId, replicas: Vec<Replica>) -> Outcome {
        let stream = self.streams.get(&id).ok_or(CatalogRefusal::StreamNotFound)?;
        self.check_replicas(&replicas, &stream.replicas)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.replaced |= replicas.iter().any(|new| stream.replicas.iter().all(|old| old.raft_id != new.raft_id));
            let is_new = |new: &&Replica| stream.replicas.iter().all(|old| old.raft_id != new.raft_id);
            let without_vote = |new: &Replica| (new.raft_id, Rejoined { incarnation: new.raft_id, votes: false });
            let came: Vec<_> = replicas.iter().filter(is_new).map(without_vote).collect();
            stream.rejoined.retain(|id, _| replicas.iter().any(|replica| replica.raft_id == *id));
            stream.rejoined.extend(came);
            stream.replicas = replicas;
        }
        Ok(CatalogResponse::Done)
    }

    fn rejoin_replica(&mut self, id: StreamId, node: &NodeName, from: RaftNodeId, to: RaftNodeId) -> Outcome {
        let known = self.nodes.get(node).ok_or_else(|| CatalogRefusal::NodeNotFound { node: node.clone() })?;
        let incarnation = known.incarnation;
        let is_used = |stream: &StreamEntry| stream.replicas.iter().any(|replica| replica.raft_id == to);
        if self.incarnations().contains(&to) || self.streams.values().any(is_used) {
            return Err(CatalogRefusal::IncarnationReused { incarnation: to });
        }
        let stream = self.streams.get_mut(&id).ok_or(CatalogRefusal::StreamNotFound)?;
        // The others must be a majority that votes, or the group could not take this one in again.
        let without_vote = stream.rejoined.iter().filter(|(id, rejoined)| **id != from && !rejoined.votes).count();
        if without_vote >= stream.replicas.len().saturating_sub(1) / 2 {
            return Err(CatalogRefusal::TooManyRejoining { rejoining: without_vote as u64 });
        }
        let mut replicas = stream.replicas.iter_mut();
        let Some(replica) = replicas.find(|replica| replica.node == *node && replica.raft_id == from) else {
            return Err(CatalogRefusal::BadReplica { node: node.clone() });
        };
        replica.raft_id = to;
        stream.rejoined.remove(&from);
        stream.rejoined.insert(to, Rejoined { incarnation, votes: false });
        stream.replaced = true;
        Ok(CatalogResponse::Done)
    }

    fn regroup_stream(&mut self, id: StreamId, from: GroupId, source: RaftNodeId, replicas: Vec<Replica>) -> Outcome {
        let stream = self.streams.get(&id).ok_or(CatalogRefusal::StreamNotFound)?;
        if stream.group != from {
            return Err(CatalogRefusal::WrongGroup { current: stream.group });
        }
        let used: BTreeSet<RaftNodeId> = self.streams.values().flat_map(StreamEntry::raft_ids).collect();
        let used: BTreeSet<RaftNodeId> = used.union(&self.incarnations()).copied().collect();
        let mut given = BTreeSet::new();
        if let Some(again) = replicas.iter().find(|new| used.contains(&new.raft_id) || !given.insert(new.raft_id)) {
            return Err(CatalogRefusal::IncarnationReused { incarnation: again.raft_id });
        }
        let mut founder = None;
        let mut members = BTreeMap::new();
        for old in &stream.replicas {
            let mut on_node = replicas.iter().filter(|new| new.node == old.node);
            let (Some(new), None) = (on_node.next(), on_node.next()) else {
                return Err(CatalogRefusal::BadReplica { node: old.node.clone() });
            };
            if old.raft_id == source && self.hosts(stream, old) {
                founder = Some(new.raft_id);
            }
            let votes = old.raft_id == source;
            members.insert(new.raft_id, Rejoined { incarnation: stream.incarnation_of(old), votes });
        }
        if let Some(extra) = replicas.iter().find(|new| !members.contains_key(&new.raft_id)) {
            return Err(CatalogRefusal::BadReplica { node: extra.node.clone() });
        }
        let founder = founder.ok_or(CatalogRefusal::NotAMember { raft_id: source })?;
        let group = self.next_group();
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.past_groups.insert(from);
            stream.group = group;
            stream.replicas = replicas;
            stream.rejoined = members;
            stream.regrouped = Some(Regrouped { from, source, founder });
            stream.replaced = true;
        }
        Ok(CatalogResponse::Regrouped { group })
    }

    fn remove_stream(&mut self, index: LogIndex, id: StreamId, expected_owner: Option<&Owner>) -> Outcome {
        let Some(stream) = self.streams.get(&id) else {
            // Asked again, for instance after a lost reply.
            return match self.removals.contains_key(&id) {
                true => Ok(CatalogResponse::Done),
                false => Err(CatalogRefusal::StreamNotFound),
            };
        };
        if expected_owner.is_some() && expected_owner != stream.owner.as_ref() {
            return Err(CatalogRefusal::WrongOwner);
        }
        let mut stream = self.streams.remove(&id).ok_or(CatalogRefusal::StreamNotFound)?;
        self.names.remove(&stream.key);
        stream.state = StreamState::Removing;
        let awaiting = stream.replicas.iter().map(|replica| replica.node.clone()).collect();
        self.removals.insert(id, Removal { stream, index, removed: self.clock, awaiting });
        Ok(CatalogResponse::Done)
    }

    fn confirm_removal(&mut self, id: StreamId, node: &NodeName) {
        let Some(removal) = self.removals.get_mut(&id) else {
            return;
        };
        removal.awaiting.remove(node);
        if removal.awaiting.is_empty() {
            self.removals.remove(&id);
        }
    }

    fn check_subjects(&self, key: &StreamKey, subjects: &[String]) -> Result<(), CatalogRefusal> {
        let mut ours = FilterSet::new();
        for filter in subjects {
            if !subject::is_valid(filter.as_bytes()) || ours.overlapping(filter.as_bytes()).is_some() {
                return Err(CatalogRefusal::InvalidSubject { subject: filter.clone() });
            }
            ours.insert(filter.as_bytes());
        }
        match self.overlapping(key, &mut ours) {
            Some(other) => Err(CatalogRefusal::SubjectsOverlap { with: other.key.name.clone() }),
            None => Ok(()),
        }
    }

    /// The first other stream of the account that has a subject which overlaps with one of `ours`. One look-up for each
    /// subject of the account: this runs on every node, and again when the log is read.
    fn overlapping(&self, key: &StreamKey, ours: &mut FilterSet<'_>) -> Option<&StreamEntry> {
        let mut others = self.streams_of(&key.account).filter(|other| other.key != *key);
        others.find(|other| other.subjects.iter().any(|theirs| ours.overlapping(theirs.as_bytes()).is_some()))
    }

    /// New replicas must be on known nodes under their incarnation; those in `kept` may stay as they are.
    fn check_replicas(&self, replicas: &[Replica], kept: &[Replica]) -> Result<(), CatalogRefusal> {
        if replicas.is_empty() {
            return Err(CatalogRefusal::NoReplicas);
        }
        for (at, replica) in replicas.iter().enumerate() {
            let twice = replicas[..at].iter().any(|earlier| earlier.node == replica.node);
            let fits = self
                .nodes
                .get(&replica.node)
                .is_some_and(|node| node.state != NodeState::Removed && node.incarnation == replica.raft_id);
            if twice || !(fits || kept.contains(replica)) {
                return Err(CatalogRefusal::BadReplica { node: replica.node.clone() });
            }
        }
        Ok(())
    }
}
