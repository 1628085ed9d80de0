//! openraft's type configuration, and the project's own words for what crosses this module's edge.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use headwater_core::ids::{LogIndex, Term};
use openraft::impls::leader_id_std;
use openraft::raft::responder::Responder;
use serde::{Deserialize, Serialize};

/// The application part of a log entry: one frame (stream groups) or one catalogue command (meta group), as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command of {} bytes", self.0.len())
    }
}

/// What applying an entry answered; empty for stream groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply(pub(crate) Bytes);

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reply of {} bytes", self.0.len())
    }
}

type Callback<T> = Box<dyn FnOnce(Option<T>) + Send>;

/// Calls back exactly once: with the result, or with `None` if openraft dropped the request unanswered.
pub(crate) struct CallbackResponder<T>(Option<Callback<T>>);

impl<T> CallbackResponder<T> {
    pub(crate) fn new(callback: impl FnOnce(Option<T>) + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }
}

impl<T> Drop for CallbackResponder<T> {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback(None);
        }
    }
}

impl<T: Send + 'static> Responder<TypeConfig, T> for CallbackResponder<T> {
    fn on_complete(mut self, result: T) {
        if let Some(callback) = self.0.take() {
            callback(Some(result));
        }
    }
}

/// Standard Raft terms (one leader a term), nodes known by id only: addresses live in the catalogue.
#[derive(Debug, Clone, Copy, Default, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Command;
    type R = Reply;
    type NodeId = u64;
    type Node = openraft::EmptyNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Command, u64, openraft::EmptyNode>;
    type Entry = openraft::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    #[cfg(not(test))]
    type AsyncRuntime = openraft_rt_tokio::TokioRuntime;
    // Election timeouts, and the order of waking, follow from a seed.
    #[cfg(test)]
    type AsyncRuntime = openraft::rt::deterministic_rng::DeterministicRng<super::sim::Ordered>;
    type Responder<T>
        = CallbackResponder<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Starts a task that speaks to openraft.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    drop(<<TypeConfig as openraft::RaftTypeConfig>::AsyncRuntime as openraft::rt::AsyncRuntime>::spawn(task));
}

pub(super) type Raft = openraft::Raft<TypeConfig, super::machine::Machine>;
pub(super) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(super) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(super) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(super) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(super) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;

pub(crate) use headwater_core::ids::LogPosition as LogPos;

pub(crate) fn log_pos(term: u64, index: u64) -> LogPos {
    LogPos { term: Term::new(term), index: LogIndex::new(index) }
}

/// A group's membership and the entry that set it. Two configs mean a change is under way (joint consensus).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    pub(crate) at: Option<LogPos>,
    pub(crate) configs: Vec<BTreeSet<u64>>,
    pub(crate) nodes: BTreeSet<u64>,
}

impl Members {
    pub(crate) fn voters(&self) -> BTreeSet<u64> {
        self.configs.iter().flatten().copied().collect()
    }

    pub(crate) fn is_joint(&self) -> bool {
        self.configs.len() > 1
    }
}

/// A replica's part in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Leader,
    Follower,
    Candidate,
    Learner,
    Stopped,
}

/// A leader that no majority has answered for this long can change nothing, in milliseconds. Longer than an election
/// takes.
pub(super) const QUORUM_SILENT_MS: u64 = 3_000;

/// For this long after a quorum has last answered it nobody else can lead a stream, in milliseconds: shorter than
/// `election_timeout_min`.
pub(crate) const LEADER_LEASE_MS: u64 = 900;

/// One reading of a group's Raft state.
#[derive(Clone, Debug)]
pub(crate) struct GroupState {
    pub(crate) role: Role,
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
    /// The last log entry (`accepted`), committed and applied indexes; 0 when there is none.
    pub(crate) accepted: u64,
    pub(crate) committed: u64,
    /// Whether `committed` is what a leader told in this boot, not just what this member had saved.
    pub(crate) commit_known: bool,
    pub(crate) applied: u64,
    pub(crate) members: Members,
    /// At the leader: the last log index each other member is known to hold.
    pub(crate) matched: Vec<(u64, u64)>,
    /// At the leader: milliseconds since each other member last answered; none for one that never did.
    pub(crate) heard_ms: Vec<(u64, u64)>,
    /// Milliseconds since a quorum last answered the leader.
    pub(crate) quorum_ack_ms: Option<u64>,
}

impl GroupState {
    /// Whether this member leads and a majority answers it. A leader without one does not step down by itself.
    pub(crate) fn leads_a_majority(&self) -> bool {
        let is_heard = self.quorum_ack_ms.is_some_and(|ms| ms < QUORUM_SILENT_MS);
        self.role == Role::Leader && (self.members.voters().len() == 1 || is_heard)
    }

    /// Whether the group can take something in, as far as this member knows.
    pub(crate) fn has_leader(&self) -> bool {
        match self.role {
            Role::Leader => self.leads_a_majority(),
            _ => self.leader.is_some(),
        }
    }
}

pub(super) fn to_log_id(pos: LogPos) -> LogId {
    LogId::new(pos.term.get().into(), pos.index.get())
}

pub(super) fn from_log_id(id: &LogId) -> LogPos {
    log_pos(id.committed_leader_id().term, id.index())
}

pub(super) fn to_stored(members: &Members) -> StoredMembership {
    let nodes: std::collections::BTreeMap<u64, openraft::EmptyNode> =
        members.nodes.iter().map(|id| (*id, openraft::EmptyNode::new())).collect();
    StoredMembership::new(
        members.at.map(to_log_id),
        openraft::Membership::new_with_defaults(members.configs.clone(), nodes.into_keys()),
    )
}

pub(super) fn from_stored(stored: &StoredMembership) -> Members {
    Members {
        at: stored.log_id().as_ref().map(from_log_id),
        configs: stored.get_joint_config().clone(),
        nodes: stored.nodes().map(|(id, _)| *id).collect(),
    }
}
