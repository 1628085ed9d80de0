//! One member of one Raft group: start, propose, change members, observe, stop.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex};
use headwater_storage::wal::Wal;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::network::{NetSnapshot, RaftNetworkFactory};
use openraft::{ServerState, SnapshotPolicy};
use tokio::sync::oneshot;

use super::log_store::{EffectiveSync, LogStore};
use super::machine::{Machine, Replica, SnapshotBody};
use super::network::{Factory, RaftNet};
use super::receiver::{Incoming, Member, Receiver, Told};
use super::types::*;

/// Timing differs: the catalogue must fail over before the streams that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupKind {
    Meta,
    Stream,
}

/// Log entries kept behind `persisted`, so that a follower that was briefly away catches up from the log: at most 64 MiB
/// of them, as a frame is at most 256 KiB, unless single messages are larger. Who was away for longer gets the blocks
/// that it does not have. Given up where they keep the log's segments of all others.
const LOG_ENTRIES_TO_KEEP: u64 = 256;

/// After a start of all nodes nobody has a leader. The members ask for votes one after the other, so long apart, rather
/// than each after an election timeout.
const EARLY_TURN: Duration = Duration::from_millis(120);
/// By then election timeouts have begun to pass.
const EARLY_ROUNDS: u32 = 3;

fn config(kind: GroupKind, group: GroupId, log_entries_to_keep: u64) -> openraft::Config {
    // heartbeat + heartbeat_min_interval + heartbeat·13/64 must stay below election_timeout_min:
    // meta 200+100+41 < 700, stream 400+300+82 < 1000.
    let (heartbeat, min_interval, min, max) = match kind {
        GroupKind::Meta => (200, 100, 700, 1200),
        GroupKind::Stream => (400, 300, 1000, 1500),
    };
    openraft::Config {
        cluster_name: format!("group-{group}"),
        heartbeat_interval: heartbeat,
        heartbeat_min_interval: Some(min_interval),
        election_timeout_min: min,
        election_timeout_max: max,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(false),
        quorum_loss_probe_interval: None,
        // Checkpoints trigger snapshots: a snapshot is never taken by log volume alone.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: log_entries_to_keep,
        purge_batch_size: (log_entries_to_keep / 4).max(1),
        max_payload_entries: 256,
        max_append_entries: Some(1024),
        api_channel_size: Some(1024),
        notification_channel_size: Some(1024),
        state_machine_channel_size: Some(256),
        ..openraft::Config::default()
    }
}

/// What a group member is started from.
pub(crate) struct GroupParams {
    pub(crate) kind: GroupKind,
    pub(crate) group: GroupId,
    pub(crate) raft_id: u64,
    pub(crate) wal: Wal,
    pub(crate) sync: Arc<EffectiveSync>,
    pub(crate) replica: Arc<dyn Replica>,
    pub(crate) net: RaftNet,
    pub(crate) receiver: Receiver,
    pub(crate) staging: PathBuf,
    /// Where the replica's own files are, if a snapshot may take over blocks of them.
    pub(crate) own_files: Option<PathBuf>,
}

/// Why a member did not start. The data is left as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(
        "the log of group {group} was purged up to {purged}, past the store's {persisted}: entries between are gone with \
         the checkpoint that covered them"
    )]
    PurgedPastPersisted { group: GroupId, purged: u64, persisted: u64 },
    #[error("group {group} did not start: {why}")]
    Raft { group: GroupId, why: String },
}

/// The fate of one proposal.
#[derive(Debug)]
pub(crate) enum Proposed {
    Applied,
    /// Refused before it was appended: it has no effect, now or later.
    Refused,
    /// It may or may not take effect.
    Unknown,
}

/// Why a write did not complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("not the leader")]
    NotLeader,
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// What openraft stands on at one member.
pub(super) struct Storage {
    pub(super) kind: GroupKind,
    pub(super) group: GroupId,
    pub(super) raft_id: u64,
    pub(super) wal: Wal,
    pub(super) sync: Arc<EffectiveSync>,
    pub(super) replica: Arc<dyn Replica>,
    /// Set when the member is shut down.
    pub(super) closed: Arc<AtomicBool>,
    /// How many log entries are kept behind `persisted`.
    pub(super) log_entries_to_keep: u64,
}

/// Starts openraft on a member's storage and `net`.
pub(super) async fn open_raft<N>(storage: Storage, net: N) -> Result<Raft, StartError>
where
    N: RaftNetworkFactory<TypeConfig>,
    N::Network: NetSnapshot<TypeConfig, SnapshotData = SnapshotBody>,
{
    let Storage { kind, group, raft_id, wal, sync, replica, closed, log_entries_to_keep } = storage;
    let fail = |why: String| StartError::Raft { group, why };

    // openraft turns one violation of this into an error and another into a panic at the first apply.
    let persisted = replica.recovered().0.map_or(0, |p| p.index.get());
    let found = wal.group(group);
    let purged = found.as_ref().and_then(|f| f.purged).map_or(0, |p| p.index.get());
    if purged > persisted {
        return Err(StartError::PurgedPastPersisted { group, purged, persisted });
    }

    let files = Arc::clone(&replica);
    let persisted = Arc::new(move || files.snapshot().map_or(LogIndex::new(0), |head| head.at.index));
    let log = LogStore::open(wal, group, found.as_ref(), sync, persisted).map_err(|e| fail(e.to_string()))?;
    let config = config(kind, group, log_entries_to_keep).validate().map_err(|e| fail(e.to_string()))?;
    let machine = Machine::new(replica, closed);
    Raft::new(raft_id, Arc::new(config), net, log, machine).await.map_err(|e| fail(e.to_string()))
}

#[derive(Clone)]
pub(crate) struct RaftGroup {
    raft: Raft,
    receiver: Receiver,
    group: GroupId,
    raft_id: u64,
    told: Arc<Told>,
    /// Last index of the log when the member was opened.
    opened_at: u64,
    closed: Arc<AtomicBool>,
}

impl RaftGroup {
    /// Opens the member. Replays `(persisted, committed]` before it returns, if the committed index was saved.
    pub(crate) async fn start(params: GroupParams) -> Result<Self, StartError> {
        let GroupParams { kind, group, raft_id, wal, sync, replica, net, receiver, staging, own_files } = params;
        let net = Factory { net, group: group.get() };
        let closed = Arc::<AtomicBool>::default();
        let member = Arc::clone(&replica);
        let log_entries_to_keep = LOG_ENTRIES_TO_KEEP;
        let storage =
            Storage { kind, group, raft_id, wal, sync, replica, closed: Arc::clone(&closed), log_entries_to_keep };
        let raft = open_raft(storage, net).await?;
        let told = Arc::<Told>::default();
        let opened_at = raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
        let incoming = Incoming::new(staging, own_files);
        receiver.add(
            group.get(),
            Member { id: raft_id, raft: raft.clone(), replica: member, told: Arc::clone(&told), incoming },
        );
        Ok(Self { raft, receiver, group, raft_id, told, opened_at, closed })
    }

    pub(crate) fn raft_id(&self) -> u64 {
        self.raft_id
    }

    /// Founds the group with these voters. Only the first call on an empty group has an effect.
    pub(crate) async fn initialize(&self, voters: BTreeSet<u64>) -> Result<(), String> {
        let members: std::collections::BTreeMap<u64, openraft::EmptyNode> =
            voters.into_iter().map(|v| (v, openraft::EmptyNode::new())).collect();
        match self.raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => Ok(()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// How long ago a leader was last heard in this boot.
    pub(crate) fn leader_heard(&self) -> Option<Duration> {
        self.told.heard_for()
    }

    /// Whether this member may ask for votes. It grants them, and follows, in any case.
    pub(crate) fn stand_for_election(&self, may: bool) {
        self.raft.runtime_config().elect(may);
    }

    /// Asks for votes in this member's turn for as long as no leader was heard since the start and it `may`; who has the
    /// first turn differs from group to group. A pre-vote: where there is a leader, or a member knows more, nothing
    /// comes of it.
    pub(crate) async fn stand_early(self, may: impl Fn() -> bool + Send) {
        let voters: Vec<u64> =
            self.raft.metrics().borrow_watched().membership_config.membership().voter_ids().collect();
        let (Some(place), Ok(count)) = (voters.iter().position(|id| *id == self.raft_id), u32::try_from(voters.len()))
        else {
            return;
        };
        let turn = (place as u64 + self.group.get()) % u64::from(count.max(1));
        let mut wait = EARLY_TURN * (1 + u32::try_from(turn).unwrap_or(0));
        for _ in 0..EARLY_ROUNDS {
            tokio::time::sleep(wait).await;
            let led = self.state().role == Role::Leader || self.told.is_recent(EARLY_TURN * EARLY_ROUNDS * count);
            if led || !may() || self.raft.trigger().elect(true).await.is_err() {
                return;
            }
            wait = EARLY_TURN * count;
        }
    }

    pub(crate) async fn is_initialized(&self) -> bool {
        self.raft.is_initialized().await.unwrap_or(false)
    }

    /// Proposes a frame for exactly this term; `done` is called once, on the data thread.
    pub(crate) async fn propose(&self, term: u64, frame: Bytes, done: impl FnOnce(Proposed) + Send + 'static) {
        let responder = CallbackResponder::new(move |result: Option<openraft::raft::ClientWriteResult<TypeConfig>>| {
            done(match result {
                Some(Ok(_)) => Proposed::Applied,
                Some(Err(ClientWriteError::ForwardToLeader(_))) => Proposed::Refused,
                Some(Err(_)) | None => Proposed::Unknown,
            });
        });
        if let Err(error) = self.raft.write(Command(frame)).responder(responder).with_leader(term).await {
            tracing::warn!(group = %self.group, %error, "the group does not take proposals");
        }
    }

    /// Writes one command and waits until it is applied here.
    pub(crate) async fn write(&self, command: Bytes) -> Result<Bytes, WriteError> {
        let (tx, rx) = oneshot::channel();
        let responder = CallbackResponder::new(move |result| {
            // The waiter may have timed out.
            let _gone = tx.send(result);
        });
        self.raft.write(Command(command)).responder(responder).await.map_err(|e| WriteError::Unknown(e.to_string()))?;
        match rx.await {
            Ok(Some(Ok(response))) => Ok(response.data.0),
            Ok(Some(Err(ClientWriteError::ForwardToLeader(_)))) => Err(WriteError::NotLeader),
            Ok(Some(Err(e))) => Err(WriteError::Unknown(e.to_string())),
            Ok(None) | Err(_) => Err(WriteError::Unknown("the group stopped".to_owned())),
        }
    }

    pub(crate) fn state(&self) -> GroupState {
        let m = self.raft.metrics().borrow_watched().clone();
        let index = |id: &Option<LogId>| id.as_ref().map_or(0, openraft::LogId::index);
        let committed = index(&m.local_committed).max(index(&m.cluster_committed)).max(self.told.commit());
        let of_term = m.cluster_committed.as_ref().is_some_and(|id| id.committed_leader_id().term == m.current_term);
        GroupState {
            role: match m.state {
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            // openraft remembers the last leader for as long as nobody stands for election.
            leader: m
                .current_leader
                .filter(|id| *id == self.raft_id || self.told.is_recent(Duration::from_millis(QUORUM_SILENT_MS))),
            term: m.current_term,
            accepted: m.last_log_index.unwrap_or(0),
            committed,
            commit_known: match m.state {
                // A leader that restarted within its term goes on leading with the commit index it had saved.
                ServerState::Leader => of_term && committed >= self.opened_at,
                _ => m.current_leader.is_some() && self.told.commit() > 0,
            },
            applied: index(&m.last_applied),
            members: from_stored(&m.membership_config),
            matched: m
                .replication
                .iter()
                .flatten()
                .map(|(id, at)| (*id, at.as_ref().map_or(0, openraft::LogId::index)))
                .collect(),
            heard_ms: m
                .heartbeat
                .iter()
                .flatten()
                .filter_map(|(id, at)| Some((*id, elapsed_ms(&**at.as_ref()?))))
                .collect(),
            quorum_ack_ms: m.last_quorum_acked.map(|at| elapsed_ms(&*at)),
        }
    }

    /// Resolves when role, leader, term or membership may have changed; `false` once the group is gone.
    pub(crate) fn watch(&self) -> GroupWatch {
        GroupWatch(self.raft.server_metrics())
    }

    /// The group's Raft task stopped with an error.
    pub(crate) fn fatal(&self) -> Option<String> {
        self.raft.metrics().borrow_watched().running_state.as_ref().err().map(ToString::to_string)
    }

    /// A checkpoint was published: openraft may purge the log up to it.
    pub(crate) async fn persisted_moved(&self) {
        // Fails only when the group stopped; its supervisor sees that.
        let _stopped = self.raft.trigger().snapshot().await;
    }

    /// Purges the log up to `upto`, as far as it is persisted: also what is otherwise kept for followers that are behind,
    /// who get a snapshot then.
    pub(crate) async fn purge_log(&self, upto: LogIndex) {
        // Fails only when the group stopped; its supervisor sees that.
        let _stopped = self.raft.trigger().purge_log(upto.get()).await;
    }

    pub(crate) async fn add_learner(&self, id: u64) -> Result<(), String> {
        self.raft.add_learner(id, openraft::EmptyNode::new(), false).await.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Makes exactly `voters` the voters; members that are not among them leave.
    pub(crate) async fn set_voters(&self, voters: BTreeSet<u64>) -> Result<(), String> {
        self.raft
            .change_membership(ChangeMembers::ReplaceAllVoters(voters), false)
            .await
            .map(|_| ())
            .map_err(|e| e.to_string())
    }

    /// Removes learners that no longer belong.
    pub(crate) async fn remove_learners(&self, ids: BTreeSet<u64>) -> Result<(), String> {
        self.raft.change_membership(ChangeMembers::RemoveNodes(ids), false).await.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Asks `to` to take over; returns whether this member has stopped leading within `wait`.
    pub(crate) async fn transfer_leader(&self, to: u64, wait: Duration) -> Result<bool, String> {
        self.raft.trigger().transfer_leader(to).await.map_err(|e| e.to_string())?;
        let id = self.raft_id;
        let moved = self
            .raft
            .wait(Some(wait))
            .metrics(move |m| m.current_leader.is_some_and(|l| l != id), "leader moved")
            .await;
        Ok(moved.is_ok())
    }

    pub(crate) async fn shutdown(&self) {
        self.receiver.remove(self.group.get());
        self.closed.store(true, Ordering::Release);
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(group = %self.group, %error, "the group's task had died");
        }
    }
}

fn elapsed_ms(at: &impl openraft::Instant) -> u64 {
    u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// See [`RaftGroup::watch`].
pub(crate) struct GroupWatch(
    openraft::alias::WatchReceiverOf<TypeConfig, openraft::metrics::RaftServerMetrics<TypeConfig>>,
);

impl GroupWatch {
    pub(crate) async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}
