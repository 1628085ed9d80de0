//! What was seen of one stream: from whom, when, and what could not be seen.
//!
//! Every voter has a [`ReplicaView`], whether its node answered or not: a missing answer is a fact
//! to plan with, not a gap to overlook.

use headwater_crds::{ReplicaPhase, ReplicaRole};
use serde_json::Value;

use crate::time::Now;
use crate::wire::{Durability, GroupReport, Owner, RecoveryReport, Snapshot, StreamReport, Watermarks};

/// An answer older than this is no answer (ms): three reports of a node that is asked every 5 s.
pub const ANSWER_AGE_MAX_MS: i64 = 15_000;
/// A leader that no quorum answered for this long (ms) does not confirm publishes; ten heartbeats
/// would do, this leaves room for a slow disk.
pub const QUORUM_ACK_AGE_MAX_MS: u64 = 10_000;

/// One node's answer, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeAnswer {
    /// Name by which the node is known to whoever asked; the node's own name wins if it answers.
    pub name: String,
    /// Where it was asked.
    pub url: String,
    /// Pod that runs it, if one is known.
    pub pod: Option<String>,
    /// When it answered, or failed to.
    pub at: Now,
    /// `GET /v1/recovery`.
    pub report: Result<RecoveryReport, String>,
}

/// Whether a node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It did, recently.
    Reachable,
    /// It did not.
    Unreachable {
        /// Why.
        why: String,
    },
}

impl Reach {
    /// Whether it answered.
    pub fn is_reachable(&self) -> bool {
        matches!(self, Self::Reachable)
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its admin URL.
    pub url: String,
    /// Pod that runs it.
    pub pod: Option<String>,
    /// Whether it answered.
    pub reach: Reach,
    /// Identity of its current start.
    pub boot_id: Option<String>,
    /// Its Raft incarnation.
    pub node_id: Option<u64>,
    /// When it answered, or failed to.
    pub at: Now,
}

/// Whether the stream exists, as the catalogue says.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamView {
    /// Nobody could say.
    Unknown {
        /// Why.
        why: String,
    },
    /// It does not exist.
    Absent,
    /// It exists.
    Present(ServerStream),
}

/// The catalogue's entry of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerStream {
    /// JetStream configuration, `headwater.` metadata included.
    pub config: Value,
    /// Whose it is.
    pub owner: Option<Owner>,
    /// Counts accepted configurations.
    pub generation: u64,
    /// When it was created (RFC 3339).
    pub created: String,
}

impl From<StreamReport> for ServerStream {
    fn from(report: StreamReport) -> Self {
        Self { config: report.config, owner: report.owner, generation: report.generation, created: report.created }
    }
}

impl ServerStream {
    /// Replicas the configuration asks for.
    pub fn replicas(&self) -> usize {
        self.config
            .get("num_replicas")
            .and_then(Value::as_u64)
            .and_then(|n| usize::try_from(n).ok())
            .map_or(1, |n| n.max(1))
    }
}

/// What the group's log says of a voter, as its leader has applied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Durability in force there.
    pub effective: Durability,
    /// Generation at which that was completed.
    pub generation: u64,
    /// Generation it was told to move to, while it moves.
    pub granted: Option<u64>,
}

/// One replica; its own answer where its node gave one.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaView {
    /// Name of its node.
    pub node: String,
    /// Pod that runs the node.
    pub pod: Option<String>,
    /// Whether it votes; learners do not.
    pub voter: bool,
    /// Whether the node answered, as the incarnation that votes.
    pub reach: Reach,
    /// When.
    pub at: Now,
    /// Identity of the node's current start.
    pub boot_id: Option<String>,
    /// Role it claims.
    pub role: ReplicaRole,
    /// Term it claims that in.
    pub term: Option<u64>,
    /// How far it has come.
    pub watermarks: Option<Watermarks>,
    /// Its newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// How far recovery has come.
    pub phase: ReplicaPhase,
    /// Why.
    pub phase_why: Option<String>,
    /// Durability it says is in force there.
    pub effective: Option<Durability>,
    /// What the log says of it.
    pub recorded: Option<Recorded>,
}

impl ReplicaView {
    /// A voter that nothing is known of.
    pub fn unknown(node: &str, why: &str, at: Now) -> Self {
        Self {
            node: node.to_owned(),
            pod: None,
            voter: true,
            reach: Reach::Unreachable { why: why.to_owned() },
            at,
            boot_id: None,
            role: ReplicaRole::Unknown,
            term: None,
            watermarks: None,
            snapshot: None,
            phase: ReplicaPhase::Unknown,
            phase_why: None,
            effective: None,
            recorded: None,
        }
    }

    /// Whether it answered and has recovered since its node started.
    pub fn is_sound(&self) -> bool {
        self.reach.is_reachable() && self.phase == ReplicaPhase::Recovered
    }

    /// Index up to which its store is in synced files.
    pub fn persisted(&self) -> Option<u64> {
        self.watermarks.map(|marks| marks.persisted)
    }
}

/// What the group's leader says of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Name of the leader.
    pub leader: String,
    /// Its term.
    pub term: u64,
    /// Durability the log wants.
    pub desired: Durability,
    /// Generation of that.
    pub generation: u64,
    /// Log index of that change.
    pub barrier: Option<u64>,
    /// What the group promises.
    pub promise: Durability,
    /// Highest committed index.
    pub committed: u64,
    /// Milliseconds since a quorum last answered the leader.
    pub quorum_acked_ms: Option<u64>,
}

/// Everything that was seen of one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Nodes that were asked.
    pub nodes: Vec<NodeView>,
    /// The catalogue's entry.
    pub stream: StreamView,
    /// The group, as its leader sees it; absent without a leader that answered.
    pub group: Option<GroupView>,
    /// Why `group` is absent.
    pub no_leader: Option<String>,
    /// One entry per voter and learner, by node name.
    pub replicas: Vec<ReplicaView>,
}

impl Observed {
    /// Nothing was seen.
    pub fn nothing(why: &str) -> Self {
        Self {
            nodes: Vec::new(),
            stream: StreamView::Unknown { why: why.to_owned() },
            group: None,
            no_leader: Some(why.to_owned()),
            replicas: Vec::new(),
        }
    }

    /// Name of the leader.
    pub fn leader(&self) -> Option<&str> {
        self.group.as_ref().map(|group| group.leader.as_str())
    }

    /// What the group promises.
    pub fn promise(&self) -> Option<Durability> {
        self.group.as_ref().map(|group| group.promise)
    }

    /// The replicas that vote.
    pub fn voters(&self) -> impl Iterator<Item = &ReplicaView> {
        self.replicas.iter().filter(|replica| replica.voter)
    }

    /// The replica on a node.
    pub fn replica(&self, node: &str) -> Option<&ReplicaView> {
        self.replicas.iter().find(|replica| replica.node == node)
    }

    /// Whether publishes are confirmed now, as far as can be seen.
    ///
    /// # Errors
    /// Why not.
    pub fn serves(&self) -> Result<(), String> {
        let Some(group) = &self.group else {
            return Err(self.no_leader.clone().unwrap_or_default());
        };
        if let Some(ms) = group.quorum_acked_ms
            && ms > QUORUM_ACK_AGE_MAX_MS
        {
            return Err(format!("no quorum has answered leader {} for {} s", group.leader, ms / 1_000));
        }
        let voters = self.voters().count();
        let able = self.voters().filter(|v| v.reach.is_reachable() && !failed(v.phase));
        let able = able.count();
        if able * 2 <= voters {
            return Err(format!("only {able} of {voters} voters are able to answer"));
        }
        Ok(())
    }
}

/// Whether a replica in this phase confirms nothing and will not by itself.
pub(crate) fn failed(phase: ReplicaPhase) -> bool {
    matches!(phase, ReplicaPhase::Failed | ReplicaPhase::Quarantined)
}

/// Puts the answers of all nodes together into what was seen of one stream.
///
/// The group's own facts come from its leader: the replica that claims to lead in the highest term,
/// if its node answered recently. Two claims in one term are a fault, and then there is no leader.
pub fn assemble(account: &str, stream: &str, answers: &[NodeAnswer], entry: StreamView, now: Now) -> Observed {
    let nodes: Vec<NodeView> = answers.iter().map(|answer| node_view(answer, now)).collect();
    let groups: Vec<(&NodeView, &RecoveryReport, &GroupReport)> = nodes
        .iter()
        .zip(answers)
        .filter(|(node, _)| node.reach.is_reachable())
        .filter_map(|(node, answer)| {
            let report = answer.report.as_ref().ok()?;
            Some((node, report, report.stream(account, stream)?))
        })
        .collect();

    let (leader, no_leader) = find_leader(&groups);
    let Some((_, _, lead)) = leader else {
        return Observed {
            replicas: without_leader(&nodes, &groups, now),
            nodes,
            stream: entry,
            group: None,
            no_leader,
        };
    };

    let mut replicas: Vec<ReplicaView> = Vec::new();
    for voter in &lead.voters {
        let mut view = replica_view(&voter.node, Some(voter.node_id), &nodes, &groups, now);
        view.recorded =
            Some(Recorded { effective: voter.effective, generation: voter.generation, granted: voter.granted });
        replicas.push(view);
    }
    for node in &lead.learners {
        let mut view = replica_view(node, None, &nodes, &groups, now);
        view.voter = false;
        replicas.push(view);
    }
    replicas.sort_by(|a, b| a.node.cmp(&b.node));
    let group = leader.map(|(node, _, lead)| GroupView {
        leader: node.name.clone(),
        term: lead.term,
        desired: lead.desired,
        generation: lead.generation,
        barrier: lead.barrier,
        promise: lead.promise,
        committed: lead.watermarks.committed,
        quorum_acked_ms: lead.quorum_acked_ms,
    });
    Observed { nodes, stream: entry, group, no_leader: None, replicas }
}

type Answering<'a> = (&'a NodeView, &'a RecoveryReport, &'a GroupReport);

fn node_view(answer: &NodeAnswer, now: Now) -> NodeView {
    let age_ms = now.since_ms(answer.at);
    let mut view = NodeView {
        name: answer.name.clone(),
        url: answer.url.clone(),
        pod: answer.pod.clone(),
        reach: Reach::Reachable,
        boot_id: None,
        node_id: None,
        at: answer.at,
    };
    match &answer.report {
        Err(why) => view.reach = Reach::Unreachable { why: why.clone() },
        Ok(report) => {
            view.name.clone_from(&report.node);
            view.boot_id = Some(report.boot_id.clone());
            view.node_id = Some(report.node_id);
            if age_ms > ANSWER_AGE_MAX_MS {
                let why = format!("its last answer is {} s old", age_ms / 1_000);
                view.reach = Reach::Unreachable { why };
            }
        }
    }
    view
}

fn find_leader<'a>(groups: &[Answering<'a>]) -> (Option<Answering<'a>>, Option<String>) {
    let claims = groups.iter().filter(|(_, _, group)| group.role == ReplicaRole::Leader);
    let Some(highest) = claims.clone().map(|(_, _, group)| group.term).max() else {
        let named = groups.iter().find_map(|(_, _, group)| group.leader.clone());
        let why = match named {
            Some(name) => format!("{name} is said to lead, and does not answer as leader"),
            None if groups.is_empty() => "no replica answers".to_owned(),
            None => "no replica leads".to_owned(),
        };
        return (None, Some(why));
    };
    // A replica that has heard of a later term knows that these claims are void.
    if let Some((node, _, group)) = groups.iter().find(|(_, _, group)| group.term > highest) {
        let why = format!("{} is in term {}, past every leader's", node.name, group.term);
        return (None, Some(why));
    }
    let mut claims = claims.filter(|(_, _, group)| group.term == highest);
    let first = claims.next().copied();
    if let Some((second, _, _)) = claims.next() {
        let first = first.map(|(node, _, _)| node.name.as_str()).unwrap_or_default();
        let why = format!("both {first} and {} claim term {highest}", second.name);
        return (None, Some(why));
    }
    (first, None)
}

/// Without a leader nobody can say who votes now: every replica that is named by anyone is listed,
/// and none has recorded facts, so that nothing is decided from them.
fn without_leader(nodes: &[NodeView], groups: &[Answering<'_>], now: Now) -> Vec<ReplicaView> {
    let mut names: Vec<&str> = groups
        .iter()
        .flat_map(|(node, _, group)| {
            let voters = group.voters.iter().map(|voter| voter.node.as_str());
            std::iter::once(node.name.as_str()).chain(voters)
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| replica_view(name, None, nodes, groups, now)).collect()
}

fn replica_view(
    name: &str,
    votes_as: Option<u64>,
    nodes: &[NodeView],
    groups: &[Answering<'_>],
    now: Now,
) -> ReplicaView {
    let Some(node) = nodes.iter().find(|node| node.name == name) else {
        return ReplicaView::unknown(name, "no node of that name was asked", now);
    };
    let mut view = ReplicaView {
        pod: node.pod.clone(),
        reach: node.reach.clone(),
        boot_id: node.boot_id.clone(),
        ..ReplicaView::unknown(name, "", node.at)
    };
    if !node.reach.is_reachable() {
        return view;
    }
    if let (Some(votes), Some(answers)) = (votes_as, node.node_id)
        && votes != answers
    {
        let why = format!("it runs as incarnation {answers}, and {votes} votes");
        view.reach = Reach::Unreachable { why };
        return view;
    }
    let Some((_, _, group)) = groups.iter().find(|(answering, _, _)| answering.name == name) else {
        view.reach = Reach::Unreachable { why: "it does not report this group".to_owned() };
        return view;
    };
    view.role = group.role;
    view.term = Some(group.term);
    view.watermarks = Some(group.watermarks);
    view.snapshot = group.snapshot;
    view.phase = group.phase;
    view.phase_why.clone_from(&group.phase_why);
    view.effective = Some(group.effective);
    view
}
