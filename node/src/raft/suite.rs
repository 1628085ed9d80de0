//! openraft's own storage suite, and what a member does when its store lags behind its log.
//!
//! The suite wants a store whose applied state is its state on disk, so it runs on a replica that persists inside
//! `apply`; the log store and the shell around the replica are the real ones. A lagging replica is what Headwater
//! has, and the positions it may be found in at start are the cases below.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use headwater_core::durability::SyncMode;
use headwater_core::ids::{GroupId, LogIndex};
use headwater_storage::checkpoint::MetaCheckpoint;
use headwater_storage::disk::{Disk, RealDisk, SimDisk, publish};
use headwater_storage::wal::{AppendBatch, Need, Wal, WalEntry, WalOptions};
use openraft::StorageError;
use openraft::storage::{EntryResponder, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::codec;
use super::group::{GroupKind, GroupParams, RaftGroup, StartError};
use super::log_store::{EffectiveSync, LogStore};
use super::machine::{Committed, Machine, Replica, SnapshotBody, SnapshotHead};
use super::network::{Directory, RaftNet};
use super::receiver::Receiver;
use super::transfer::{FileEntry, Outgoing, Staged};
use super::types::*;
use crate::transport::{BulkStream, LocalHello, NodeId, PeerHandler, PeerHello, Refusal, Respond, Target, Transport};

type Runtime = <TypeConfig as openraft::RaftTypeConfig>::AsyncRuntime;

const GROUP: GroupId = GroupId::new(7);

fn checkpoint(head: &SnapshotHead) -> MetaCheckpoint {
    MetaCheckpoint {
        applied: head.at,
        membership: Bytes::from(serde_json::to_vec(&head.members).unwrap()),
        snapshot: Bytes::new(),
        image: Bytes::new(),
    }
}

fn load(dir: &Path) -> Option<SnapshotHead> {
    let found = MetaCheckpoint::load(&RealDisk, dir).unwrap()?;
    Some(SnapshotHead { at: found.applied, members: serde_json::from_slice(&found.membership).unwrap() })
}

/// A replica whose whole state is a position and a membership, on disk before `apply` returns.
struct InApply(PathBuf);

impl Replica for InApply {
    fn recovered(&self) -> (Option<LogPos>, Members) {
        load(&self.0).map_or((None, Members::default()), |head| (Some(head.at), head.members))
    }

    fn apply(&self, at: LogPos, what: Committed<'_>) -> Bytes {
        let members = match what {
            Committed::Members(members) => members.clone(),
            _ => self.recovered().1,
        };
        checkpoint(&SnapshotHead { at, members }).publish(&RealDisk, &self.0).unwrap();
        Bytes::new()
    }

    fn applied_run(&self) {}

    fn snapshot(&self) -> Option<SnapshotHead> {
        load(&self.0)
    }

    fn pin(&self) -> io::Result<Option<(SnapshotHead, Box<dyn Outgoing>)>> {
        Ok(load(&self.0).map(|head| (head.clone(), Box::new(Pinned(checkpoint(&head).encode())) as Box<dyn Outgoing>)))
    }

    fn install(&self, head: SnapshotHead, staged: Staged) -> BoxFuture<'_, io::Result<()>> {
        assert_eq!(load(&staged.dir).as_ref(), Some(&head), "what was staged is what was announced");
        Box::pin(async move { checkpoint(&head).publish(&RealDisk, &self.0) })
    }

    fn cannot_stage(&self, _error: &io::Error) {}

    fn room(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

struct Pinned(Vec<u8>);

impl Outgoing for Pinned {
    fn files(&self) -> Vec<FileEntry> {
        vec![FileEntry { name: "checkpoint".to_owned(), bytes: self.0.len() as u64, identity: None }]
    }

    fn read(&self, _file: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.0[start..start + buf.len()]);
        Ok(())
    }
}

/// The real machine, with a wire in front of it: a snapshot arrives staged.
struct Wired {
    machine: Machine,
    staging: PathBuf,
}

type Snap = openraft::alias::SnapshotOf<TypeConfig, SnapshotBody>;

/// The suite also opens a purged log whose store holds nothing, and wants a snapshot of nothing then. A real member is
/// refused before openraft sees that (cases C and D below), so the machine itself has no such snapshot.
struct EvenOfNothing(Machine);

impl RaftSnapshotBuilder<TypeConfig> for EvenOfNothing {
    type SnapshotData = SnapshotBody;

    async fn build_snapshot(&mut self) -> io::Result<Snap> {
        if let (None, _) = self.0.applied_state().await? {
            let meta = SnapshotMeta { last_log_id: None, last_membership: to_stored(&Members::default()) };
            return Ok(Snap { meta, snapshot: SnapshotBody::Pinned(Box::new(Pinned(Vec::new()))) });
        }
        self.0.build_snapshot().await
    }
}

impl RaftStateMachine<TypeConfig> for Wired {
    type SnapshotData = SnapshotBody;
    type SnapshotBuilder = EvenOfNothing;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        self.machine.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        self.machine.apply(entries).await
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<EvenOfNothing> {
        match self.machine.try_create_snapshot_builder(force).await {
            Some(builder) => Some(EvenOfNothing(builder)),
            None => force.then(|| EvenOfNothing(self.machine.clone())),
        }
    }

    async fn get_snapshot_builder(&mut self) -> EvenOfNothing {
        EvenOfNothing(self.machine.get_snapshot_builder().await)
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, body: SnapshotBody) -> io::Result<()> {
        let body = match body {
            SnapshotBody::Pinned(pinned) => {
                RealDisk.create_dir_all(&self.staging)?;
                for (index, file) in pinned.files().iter().enumerate() {
                    let mut bytes = vec![0; usize::try_from(file.bytes).unwrap()];
                    pinned.read(index, 0, &mut bytes)?;
                    publish(&RealDisk, &self.staging.join(&file.name), &bytes)?;
                }
                SnapshotBody::Staged(Staged { dir: self.staging.clone() })
            }
            staged @ SnapshotBody::Staged(_) => staged,
        };
        self.machine.install_snapshot(meta, body).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snap>> {
        self.machine.get_current_snapshot().await
    }
}

/// Closes the WAL before its folder goes.
struct Store {
    wal: Wal,
    _dir: TempDir,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.wal.shutdown().unwrap();
    }
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, Wired, Store> for Builder {
    async fn build(&self) -> Result<(Store, LogStore, Wired), StorageError<TypeConfig>> {
        let dir = TempDir::new().unwrap();
        let (wal, _) = Wal::open(Arc::new(RealDisk), &dir.path().join("wal"), options()).unwrap();
        // The suite purges logs whose entries were never applied.
        let everything = Arc::new(|| LogIndex::new(u64::MAX));
        let sync = EffectiveSync::new(SyncMode::Always);
        let log = LogStore::open(wal.clone(), GROUP, None, sync, everything).unwrap();
        let machine = Machine::new(Arc::new(InApply(dir.path().to_owned())), Arc::default());
        let staging = dir.path().join("staging");
        Ok((Store { wal, _dir: dir }, log, Wired { machine, staging }))
    }
}

fn options() -> WalOptions {
    WalOptions { segment_bytes: 1 << 20, ..WalOptions::default() }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let test = Runtime::scope(0, test);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

#[test]
#[should_panic(expected = "purged to")]
fn a_log_is_never_purged_past_what_is_persisted() {
    let dir = TempDir::new().unwrap();
    let (wal, _) = Wal::open(Arc::new(RealDisk), &dir.path().join("wal"), options()).unwrap();
    let _stopped_at_the_end = Store { wal: wal.clone(), _dir: dir };
    let persisted = Arc::new(|| LogIndex::new(5));
    let mut log = LogStore::open(wal, GROUP, None, EffectiveSync::new(SyncMode::Always), persisted).unwrap();
    let purge = |index| to_log_id(log_pos(1, index));
    run(async {
        log.purge(purge(5)).await.unwrap();
        log.purge(purge(6)).await.unwrap();
    });
}

#[test]
fn openraft_storage_suite() {
    run(Suite::test_all(Builder)).unwrap();
}

/// A replica found at a position behind its log; it counts what it is told to apply and persists nothing.
struct Lagging {
    found: Option<SnapshotHead>,
    /// What it hands out as its snapshot: `found` in every replica that keeps the rules.
    stored: Option<SnapshotHead>,
    applied: Mutex<Vec<u64>>,
}

impl Replica for Lagging {
    fn recovered(&self) -> (Option<LogPos>, Members) {
        self.found.clone().map_or((None, Members::default()), |head| (Some(head.at), head.members))
    }

    fn apply(&self, at: LogPos, _what: Committed<'_>) -> Bytes {
        self.applied.lock().push(at.index.get());
        Bytes::new()
    }

    fn applied_run(&self) {}

    fn snapshot(&self) -> Option<SnapshotHead> {
        self.stored.clone()
    }

    fn pin(&self) -> io::Result<Option<(SnapshotHead, Box<dyn Outgoing>)>> {
        Ok(self.stored.clone().map(|head| (head, Box::new(Pinned(Vec::new())) as Box<dyn Outgoing>)))
    }

    fn install(&self, _head: SnapshotHead, _staged: Staged) -> BoxFuture<'_, io::Result<()>> {
        panic!("nothing is installed from the replica itself");
    }

    fn cannot_stage(&self, _error: &io::Error) {}

    fn room(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

/// A node that hosts the member of its own id.
struct Host {
    id: NodeId,
    receiver: Receiver,
}

impl PeerHandler for Host {
    fn local_hello(&self) -> LocalHello {
        serde_json::from_value(serde_json::json!({ "node_name": self.id.to_string(), "node_id": self.id })).unwrap()
    }
    fn on_hello(&self, _: &PeerHello) -> Result<(), Refusal> {
        Ok(())
    }
    fn on_banned(&self, _: &str) {}
    fn on_up(&self, _: &PeerHello) {}
    fn on_down(&self, node: NodeId) {
        self.receiver.on_down(node);
    }
    fn on_message(&self, from: NodeId, _: u8, body: Bytes) {
        self.receiver.on_close(from, body);
    }
    fn on_request(&self, from: NodeId, kind: u8, body: Bytes, respond: Respond) {
        // openraft wants a seed in tasks of tests.
        let take = async { self.receiver.on_request(from, kind, body, respond) };
        Runtime::scope(0, take).now_or_never().unwrap();
    }
    fn on_turn_end(&self, _: NodeId) {}
    fn on_bulk(&self, _: NodeId, _: BulkStream) {}
}

impl Directory for Host {
    fn node_of(&self, _: u64, raft_id: u64) -> Option<NodeId> {
        Some(raft_id)
    }
}

/// What a node finds after an unclean stop. Index 0 is the membership, every other entry a command.
struct Found {
    log_last: u64,
    purged: Option<u64>,
    committed: Option<u64>,
    persisted: u64,
    stored_snapshot: u64,
}

/// Starts a member of the group on a node of its own, which dials `targets`; also returns where that node listens.
async fn member(
    id: u64,
    wal: &Wal,
    replica: &Arc<Lagging>,
    targets: Vec<Target>,
) -> Result<(RaftGroup, SocketAddr), StartError> {
    let (listen, addr) = crate::transport::tests::listener();
    let receiver = Receiver::new();
    let host = Arc::new(Host { id, receiver: receiver.clone() });
    let transport = Transport::start(listen, Arc::clone(&host) as Arc<dyn PeerHandler>);
    transport.set_targets(targets);
    let group = RaftGroup::start(GroupParams {
        kind: GroupKind::Meta,
        group: GROUP,
        raft_id: id,
        wal: wal.clone(),
        sync: EffectiveSync::new(SyncMode::Always),
        replica: Arc::clone(replica) as Arc<dyn Replica>,
        net: RaftNet::new(transport, host),
        receiver,
        staging: PathBuf::from("/staging"),
        own_files: None,
    });
    Ok((group.await?, addr))
}

/// Starts the only member of the group.
async fn alone(wal: &Wal, replica: &Arc<Lagging>) -> Result<RaftGroup, StartError> {
    Ok(member(1, wal, replica, Vec::new()).await?.0)
}

/// A node that is back has its own links up before its peers have dialed it again. A leader there must not wait for
/// answers that have no way to it, while its heartbeats keep the others from standing for election.
#[test]
fn a_member_leads_over_the_links_that_its_node_dialed() {
    let wals = [(); 2].map(|()| Wal::open(Arc::new(SimDisk::new()), Path::new("/wal"), options()).unwrap().0);
    let replicas = [(); 2].map(|()| Arc::new(Lagging { found: None, stored: None, applied: Mutex::default() }));
    run(async {
        let (follower, addr) = member(2, &wals[1], &replicas[1], Vec::new()).await.unwrap();
        let to_follower = vec![crate::transport::tests::target("2", addr)];
        let (leader, _) = member(1, &wals[0], &replicas[0], to_follower).await.unwrap();
        // It cannot ask for votes, as it reaches nobody.
        follower.stand_for_election(false);
        leader.initialize([1, 2].into()).await.unwrap();
        crate::transport::tests::until("it commits", || leader.state().commit_known).await;
        for n in 0..3 {
            let written = leader.write(Bytes::from(vec![n])).await;
            assert!(written.is_ok(), "{written:?}");
        }
        crate::transport::tests::until("the follower has it all", || {
            *replicas[1].applied.lock() == *replicas[0].applied.lock()
        })
        .await;
        for group in [leader, follower] {
            assert_eq!(group.fatal(), None);
            group.shutdown().await;
        }
        for wal in wals {
            wal.shutdown().unwrap();
        }
    });
}

/// Starts a member on what was found, and runs it until it has applied `until`.
fn start(found: &Found, until: u64) -> Result<(Vec<u64>, GroupState, LogIndex), StartError> {
    let members = Members { at: Some(log_pos(1, 0)), configs: vec![[1].into()], nodes: [1].into() };
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let (wal, _) = Wal::open(disk, Path::new("/wal"), options()).unwrap();
    let vote = codec::vote_bytes(&Vote::new_committed(1, 1));
    wal.vote(GROUP, vote, Box::new(|done| done.unwrap()));
    let entries = (0..=found.log_last).map(|index| {
        let (kind, payload) = match index {
            0 => (codec::ENTRY_MEMBERS, Bytes::from(serde_json::to_vec(&members).unwrap())),
            _ => (codec::ENTRY_COMMAND, Bytes::from_static(b"m")),
        };
        WalEntry { index: LogIndex::new(index), term: log_pos(1, 0).term, kind, payload }
    });
    let entries = entries.collect();
    wal.append(AppendBatch { group: GROUP, entries, need: Need::Synced, done: Box::new(|done| done.unwrap()) });
    if let Some(index) = found.committed {
        wal.committed(GROUP, log_pos(1, index));
    }
    if let Some(index) = found.purged {
        wal.purge(GROUP, log_pos(1, index)).unwrap();
    }

    let head = |index: u64| Some(SnapshotHead { at: log_pos(1, index), members: members.clone() });
    let replica = Arc::new(Lagging {
        found: head(found.persisted),
        stored: head(found.stored_snapshot),
        applied: Mutex::default(),
    });
    run(async {
        let group = alone(&wal, &replica).await?;
        // The first entry of the member's own term proves what is committed: nothing before that counts as known.
        let before = group.state();
        assert!(!before.commit_known, "{before:?}");
        crate::transport::tests::until("the member leads and has applied", || {
            group.fatal().is_some() || (group.state().applied >= until && group.state().commit_known)
        })
        .await;
        assert_eq!(group.fatal(), None);
        let state = group.state();
        group.shutdown().await;
        let purged = wal.group(GROUP).and_then(|g| g.purged).map_or(LogIndex::new(0), |p| p.index);
        wal.shutdown().unwrap();
        Ok((replica.applied.lock().clone(), state, purged))
    })
}

/// Case A: the committed index was saved, so the tail is replayed before the member serves.
#[test]
fn saved_commit_replays_the_tail() {
    let found = Found { log_last: 101, purged: Some(42), committed: Some(101), persisted: 42, stored_snapshot: 42 };
    let (applied, state, purged) = start(&found, 102).unwrap();
    assert_eq!(applied, (43..=102).collect::<Vec<_>>(), "each entry once, in order, and the new leader's own");
    assert_eq!((state.role, state.committed), (Role::Leader, 102));
    assert_eq!(purged.get(), 42, "replaying persists nothing, so nothing more is purged");
}

/// Case B: it was not saved; the tail waits until a leader of today commits it.
#[test]
fn unsaved_commit_waits_for_a_leader() {
    let found = Found { log_last: 101, purged: Some(42), committed: None, persisted: 42, stored_snapshot: 42 };
    let (applied, state, purged) = start(&found, 102).unwrap();
    assert_eq!(applied, (43..=102).collect::<Vec<_>>());
    assert_eq!((state.committed, purged.get()), (102, 42));
}

/// Cases C and D: the log is purged past the store. openraft answers one with an error and the other with a panic at
/// the first apply; here both are refused before it is asked, naming the positions.
#[test]
fn log_purged_past_the_store_is_refused() {
    for committed in [Some(101), None] {
        let found = Found { log_last: 101, purged: Some(82), committed, persisted: 10, stored_snapshot: 10 };
        let refused = start(&found, 102).map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, StartError::PurgedPastPersisted { purged: 82, persisted: 10, .. }),
            "committed {committed:?}: {refused}"
        );
    }
}

/// Case E: openraft would take the store forward from a snapshot of its own. None is ever ahead of the store, so one
/// that claims to be is refused instead of believed.
#[test]
fn stored_snapshot_ahead_of_the_store_is_refused() {
    let found = Found { log_last: 101, purged: None, committed: Some(101), persisted: 10, stored_snapshot: 82 };
    let refused = start(&found, 102).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("the stored snapshot is ahead of the store"), "{refused}");
}

/// Case F: the log lost entries that the store has; it goes on behind the store.
#[test]
fn log_shorter_than_the_store_goes_on_behind_it() {
    let found = Found { log_last: 51, purged: None, committed: None, persisted: 101, stored_snapshot: 101 };
    let (applied, state, purged) = start(&found, 102).unwrap();
    assert_eq!(applied, [102], "nothing is applied twice");
    assert_eq!((state.accepted, purged.get()), (102, 101));
}

/// What a group keeps in the log for followers that are behind may be a lot. An idle one gives it up when it would keep the
/// segments of all others.
#[test]
fn an_idle_group_gives_up_what_it_keeps_for_followers() {
    const LAST: u64 = 60;
    let members = Members { at: Some(log_pos(1, 0)), configs: vec![[1].into()], nodes: [1].into() };
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let options = WalOptions { segment_bytes: 1 << 20, segments_target: 2, ..WalOptions::default() };
    let (wal, _) = Wal::open(disk, Path::new("/wal"), options).unwrap();
    let append = |group: GroupId, index: u64, kind: u8, payload: Bytes| {
        let entries = vec![WalEntry { index: LogIndex::new(index), term: log_pos(1, 0).term, kind, payload }];
        wal.append(AppendBatch { group, entries, need: Need::Synced, done: Box::new(|done| done.unwrap()) });
    };
    wal.vote(GROUP, codec::vote_bytes(&Vote::new_committed(1, 1)), Box::new(|done| done.unwrap()));
    append(GROUP, 0, codec::ENTRY_MEMBERS, Bytes::from(serde_json::to_vec(&members).unwrap()));
    for index in 1..=LAST {
        append(GROUP, index, codec::ENTRY_COMMAND, Bytes::from(vec![7; 100_000]));
    }
    let head = Some(SnapshotHead { at: log_pos(1, LAST), members });
    let replica = Arc::new(Lagging { found: head.clone(), stored: head, applied: Mutex::default() });
    run(async {
        let group = alone(&wal, &replica).await.unwrap();
        let busy = GroupId::new(8);
        let mut next = 1;
        let mut write = || {
            append(busy, next, codec::ENTRY_COMMAND, Bytes::from(vec![8; 400_000]));
            wal.purge(busy, log_pos(1, next)).unwrap();
            next += 1;
        };
        for _ in 0..40 {
            write();
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        crate::transport::tests::until("the group keeps the segments of the other", || wal.stats().segment_count > 15)
            .await;
        for _ in 0..200 {
            let pinned = wal.pinned_groups();
            if pinned.is_empty() && wal.stats().segment_count <= 4 {
                break;
            }
            let ours = pinned.iter().filter(|pinned| pinned.group == GROUP);
            for upto in ours.filter_map(|pinned| pinned.release_index) {
                group.purge_log(upto).await;
            }
            write();
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(wal.stats().segment_count <= 4, "{} segments are still kept", wal.stats().segment_count);
        assert!(wal.group(GROUP).unwrap().purged.unwrap().index.get() <= LAST, "no further than what is persisted");
        assert_eq!(group.fatal(), None);
        group.shutdown().await;
        wal.shutdown().unwrap();
    });
}
