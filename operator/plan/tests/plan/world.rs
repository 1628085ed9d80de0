//! A model of a cluster with one stream: as little as the planner can tell apart.
//!
//! Steps are taken as the node's log takes them: an older generation is refused, a relaxation holds
//! at its grant, a tightening holds when the replica has persisted past the barrier.

use std::collections::BTreeMap;

use headwater_crds::{ReplicaPhase, ReplicaRole, Stream};
use headwater_plan::wire::{
    Durability, DurabilityStep, DurabilityStepKind, GroupReport, Owner, RecoveryReport, Snapshot, StreamPut, Voter,
    Watermarks,
};
use headwater_plan::{
    Desired, NodeAnswer, Now, Observed, Plan, Request, ServerStream, StreamView, assemble, lint, plan, render, request,
};

pub(crate) const NAME: &str = "ORDERS";
const START_MS: i64 = 1_700_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) up: bool,
    pub(crate) phase: ReplicaPhase,
    pub(crate) persisted: u64,
    pub(crate) effective: Durability,
    pub(crate) generation: u64,
    pub(crate) granted: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) stream: Option<ServerStream>,
    pub(crate) leader: Option<String>,
    pub(crate) term: u64,
    pub(crate) desired: Durability,
    pub(crate) generation: u64,
    pub(crate) barrier: u64,
    pub(crate) committed: u64,
    pub(crate) now_ms: i64,
    made: u64,
}

pub(crate) fn manifest(spec: &str) -> Stream {
    serde_yaml::from_str(&format!(
        "apiVersion: headwater.dev/v1alpha1\nkind: Stream\nmetadata: {{name: orders, namespace: shop, uid: u1, generation: 1}}\nspec: {{name: {NAME}, subjects: ['orders.>'], {spec}}}"
    ))
    .unwrap()
}

pub(crate) fn wish(spec: &str) -> Desired {
    Desired::from_stream(&manifest(spec)).unwrap()
}

impl World {
    /// Nodes without a stream.
    pub(crate) fn empty(nodes: usize) -> Self {
        let durability = Durability::from_config(&serde_json::json!({}));
        let node = Node {
            up: true,
            phase: ReplicaPhase::Recovered,
            persisted: 0,
            effective: durability,
            generation: 1,
            granted: None,
        };
        Self {
            nodes: (1..=nodes).map(|n| (format!("n{n}"), node.clone())).collect(),
            stream: None,
            leader: None,
            term: 0,
            desired: durability,
            generation: 0,
            barrier: 0,
            committed: 0,
            now_ms: START_MS,
            made: 0,
        }
    }

    /// Three nodes with the stream that this wish makes.
    pub(crate) fn with(wish: &Desired, nodes: usize) -> Self {
        let mut world = Self::empty(nodes);
        let observed = world.observe();
        let plan = plan(wish, &observed, world.now());
        world.take(wish, &observed, &plan).unwrap();
        world
    }

    pub(crate) fn now(&self) -> Now {
        Now::from_unix_ms(self.now_ms)
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).unwrap()
    }

    pub(crate) fn elect(&mut self, name: &str) {
        self.term += 1;
        self.leader = Some(name.to_owned());
    }

    pub(crate) fn answers(&self) -> Vec<NodeAnswer> {
        self.nodes.iter().map(|(name, node)| self.answer(name, node)).collect()
    }

    fn answer(&self, name: &str, node: &Node) -> NodeAnswer {
        let number: u64 = name.trim_start_matches('n').parse().unwrap();
        let report = if node.up {
            Ok(RecoveryReport {
                cluster_id: "c".into(),
                node: name.to_owned(),
                node_id: number,
                boot_id: format!("boot-{name}"),
                groups: self.group(name, node).into_iter().collect(),
                space: None,
            })
        } else {
            Err("connection refused".to_owned())
        };
        NodeAnswer {
            name: name.to_owned(),
            url: format!("http://127.0.0.1:{}", 8_221 + number),
            pod: None,
            at: self.now(),
            report,
        }
    }

    fn group(&self, name: &str, node: &Node) -> Option<GroupReport> {
        let stream = self.stream.as_ref()?;
        // A stream with fewer replicas than nodes lives on the first of them.
        let voters: Vec<Voter> = self
            .nodes
            .iter()
            .take(stream.replicas())
            .map(|(name, node)| Voter {
                node: name.clone(),
                node_id: name.trim_start_matches('n').parse().unwrap(),
                effective: node.effective,
                generation: node.generation,
                granted: node.granted,
            })
            .collect();
        voters.iter().find(|voter| voter.node == name)?;
        let promise =
            voters.iter().map(|voter| voter.effective).reduce(|a, b| if a.tightens_to(b) { a } else { b }).unwrap();
        let leads = self.leader.as_deref() == Some(name);
        Some(GroupReport {
            group: 7,
            stream: NAME.into(),
            account: "$G".into(),
            role: if leads { ReplicaRole::Leader } else { ReplicaRole::Follower },
            leader: self.leader.clone(),
            term: self.term,
            watermarks: Watermarks {
                purged: 0,
                persisted: node.persisted,
                stored: node.persisted,
                applied: self.committed,
                committed: self.committed,
                accepted: self.committed,
                synced: self.committed,
                written: self.committed,
            },
            snapshot: Some(Snapshot {
                index: self.committed,
                r#async: node.persisted < self.committed,
                missing: self.committed - node.persisted,
            }),
            phase: node.phase,
            phase_why: None,
            effective: node.effective,
            desired: self.desired,
            promise,
            generation: self.generation,
            barrier: Some(self.barrier),
            quorum_acked_ms: leads.then_some(5),
            voters,
            learners: Vec::new(),
        })
    }

    pub(crate) fn entry(&self) -> StreamView {
        match &self.stream {
            Some(stream) => StreamView::Present(stream.clone()),
            None => StreamView::Absent,
        }
    }

    pub(crate) fn observe(&self) -> Observed {
        assemble("$G", NAME, &self.answers(), self.entry(), self.now())
    }

    /// Takes the plan's step.
    pub(crate) fn take(&mut self, wish: &Desired, seen: &Observed, plan: &Plan) -> Result<(), String> {
        let Some(step) = &plan.step else {
            return Ok(());
        };
        match request(step, wish, seen, 1) {
            Request::Put(put) => self.put(put),
            Request::Delete(delete) => {
                let current = self.stream.as_ref().map_or(0, |stream| stream.generation);
                if delete.generation != current {
                    return Err("stale_generation".into());
                }
                self.stream = None;
                self.leader = None;
                Ok(())
            }
            Request::Durability(step) => self.durability(&step),
            Request::Transfer(transfer) => {
                if self.leader.as_deref() != Some(transfer.from.as_str()) {
                    return Err("not_leader".into());
                }
                let to = transfer.to.unwrap();
                if !self.nodes[&to].up {
                    return Err("unreachable".into());
                }
                self.elect(&to);
                Ok(())
            }
        }
    }

    fn put(&mut self, put: StreamPut) -> Result<(), String> {
        let current = self.stream.as_ref().map_or(0, |stream| stream.generation);
        if put.generation != current {
            return Err("stale_generation".into());
        }
        let durability = Durability::from_config(&put.config);
        let created = match &self.stream {
            Some(stream) => stream.created.clone(),
            None => {
                self.made += 1;
                self.committed += 1;
                self.desired = durability;
                self.generation = 1;
                self.barrier = 0;
                for node in self.nodes.values_mut() {
                    node.effective = durability;
                    node.generation = 1;
                    node.granted = None;
                    node.persisted = self.committed;
                }
                let first = self.nodes.keys().next().unwrap().clone();
                self.elect(&first);
                format!("2026-01-01T00:00:{:02}Z", self.made)
            }
        };
        self.stream = Some(ServerStream { config: put.config, owner: put.owner, generation: current + 1, created });
        let kept = self.stream.as_ref().map_or(0, ServerStream::replicas);
        let stays = |leader: &String| self.nodes.keys().take(kept).any(|name| name == leader);
        if !self.leader.as_ref().is_some_and(stays) {
            let first = self.nodes.keys().next().unwrap().clone();
            self.elect(&first);
        }
        Ok(())
    }

    fn durability(&mut self, step: &DurabilityStep) -> Result<(), String> {
        match step.kind {
            DurabilityStepKind::Propose => {
                if step.generation <= self.generation {
                    return Err("stale_generation".into());
                }
                self.committed += 1;
                self.desired = step.desired.unwrap();
                self.generation = step.generation;
                self.barrier = self.committed;
                self.nodes.values_mut().for_each(|node| node.granted = None);
            }
            DurabilityStepKind::Grant => {
                if step.generation != self.generation {
                    return Err("stale_generation".into());
                }
                let busy = self.nodes.iter().find(|(_, node)| node.granted.is_some());
                let name = step.node.clone().unwrap();
                if busy.is_some_and(|(moving, _)| *moving != name) {
                    return Err("busy".into());
                }
                let (desired, generation) = (self.desired, self.generation);
                let node = self.node(&name);
                if node.effective.tightens_to(desired) {
                    node.granted = Some(generation);
                } else {
                    node.effective = desired;
                    node.generation = generation;
                }
            }
        }
        Ok(())
    }

    /// Time passes: publishes arrive, stores catch up by at most `persists` entries, moves complete.
    pub(crate) fn pass(&mut self, publishes: u64, persists: u64) {
        self.now_ms += 1_000;
        if self.leader.is_some() {
            self.committed += publishes;
        }
        let (committed, barrier) = (self.committed, self.barrier);
        let (desired, generation) = (self.desired, self.generation);
        for node in self.nodes.values_mut().filter(|node| node.up) {
            node.persisted = (node.persisted + persists).min(committed);
            if node.granted == Some(generation) && node.persisted >= barrier {
                node.effective = desired;
                node.generation = generation;
                node.granted = None;
            }
        }
    }

    /// Gives the stream away.
    pub(crate) fn set_owner(&mut self, owner: Option<Owner>) {
        self.stream.as_mut().unwrap().owner = owner;
    }

    /// A plain client changes stream metadata.
    pub(crate) fn set_metadata(&mut self, key: &str, value: &str) {
        let stream = self.stream.as_mut().unwrap();
        stream.config["metadata"][key] = value.into();
        stream.generation += 1;
    }
}

/// Runs plan after plan and writes down what happens.
pub(crate) struct Script {
    pub(crate) world: World,
    pub(crate) wish: Desired,
    pub(crate) text: String,
}

impl Script {
    pub(crate) fn new(world: World, wish: Desired) -> Self {
        Self { world, wish, text: String::new() }
    }

    pub(crate) fn note(&mut self, what: &str) {
        self.text.push_str(&format!("-- {what}\n"));
    }

    /// One plan, linted and taken.
    pub(crate) fn round(&mut self) -> Plan {
        let seen = self.world.observe();
        let plan = plan(&self.wish, &seen, self.world.now());
        lint(&self.wish, &seen, &plan, self.world.now()).unwrap();
        self.text.push_str(&render::plan(&plan));
        self.world.take(&self.wish, &seen, &plan).unwrap();
        plan
    }

    pub(crate) fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.round();
        }
    }

    /// Rounds with time between them until nothing is left to do.
    pub(crate) fn finish(&mut self, persists: u64) {
        for _ in 0..50 {
            if self.round().is_done() {
                return;
            }
            self.world.pass(10, persists);
        }
        panic!("never done:\n{}", self.text);
    }
}
