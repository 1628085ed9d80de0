//! Real values for seeds: a stream's life, a catalogue, a store on a simulated disk.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use headwater_core::catalog::{
    Addresses, Catalog, CatalogCommand, CatalogEntry, NodeName, NodeState, Owner, Replica, StreamKey,
};
use headwater_core::consumer::{
    AckPolicy, ConsumerConfig, ConsumerId, ConsumerOp, CreateConsumer, DeliveredRun, SeqRun, StartAt, UpdateConsumer,
    encode_ops,
};
use headwater_core::durability::{Durability, DurabilityCommand, FlushMode, SyncMode};
use headwater_core::frame::Frame;
use headwater_core::frame::OwnedRecord;
use headwater_core::ids::{
    ConsumerSeq, Generation, GroupId, LogIndex, LogPosition, RaftNodeId, StreamId, StreamSeq, Term, Timestamp,
};
use headwater_core::stream::{
    Admission, Command, ConfigChange, Damaged, DeleteMessage, Expire, Publish, Purge, Records, Remove, Settings,
    StreamState,
};
use headwater_storage::blocks::{FlushWant, StoreLog, StoreOptions, StreamStore};
use headwater_storage::checkpoint::{CheckpointImage, MetaCheckpoint};
use headwater_storage::disk::{Disk, SimDisk};
use headwater_storage::hard_state::HardState;
use headwater_storage::replica_file::ReplicaFile;
use headwater_storage::wal::{AppendBatch, Need, Wal, WalEntry, WalOptions};

pub(crate) const STREAM: StreamId = StreamId::new(7);
pub(crate) const GROUP: GroupId = GroupId::new(9);
pub(crate) const MEMBERS: &[u8] = br#"{"at":null,"configs":[[77]],"nodes":[77]}"#;

/// Message bodies are nowhere: what looks for one finds it damaged.
pub(crate) struct NoRecords;

impl Records for NoRecords {
    fn record(&self, seq: StreamSeq) -> Result<Option<OwnedRecord>, Damaged> {
        Err(Damaged { seq })
    }
}

pub(crate) fn position(index: u64) -> LogPosition {
    LogPosition { index: LogIndex::new(index), term: Term::new(1) }
}

pub(crate) fn fresh_state() -> StreamState {
    let settings = Settings {
        name: "ORDERS".into(),
        subjects: vec!["orders.>".into()],
        duplicate_window_ns: 1_000,
        allow_rollup: true,
        allow_msg_ttl: true,
        ..Settings::default()
    };
    let generation = Generation::new(1);
    StreamState::new(STREAM, settings, "{}".into(), generation, Durability::default(), Timestamp::new(1), None)
}

/// Operations of one consumer through its life.
pub(crate) fn consumer_ops() -> Vec<ConsumerOp> {
    let config = ConsumerConfig {
        name: "worker".into(),
        durable: true,
        ack_policy: AckPolicy::Explicit,
        ack_wait_ns: 30_000,
        ..ConsumerConfig::default()
    };
    let create =
        CreateConsumer { config: config.clone(), config_json: "{}".into(), start: StartAt::Next(StreamSeq::new(1)) };
    let update = UpdateConsumer { config: ConsumerConfig { max_deliver: Some(3), ..config }, config_json: "{}".into() };
    let id = ConsumerId::new(1);
    let runs = |seq, len| vec![SeqRun { seq: StreamSeq::new(seq), len }];
    let ts = Timestamp::new(2_000);
    let delivered = vec![DeliveredRun { seq: StreamSeq::new(1), cseq: ConsumerSeq::new(1), len: 3 }];
    vec![
        ConsumerOp::Create { ts, create: Box::new(create) },
        ConsumerOp::Update { id, update: Box::new(update) },
        ConsumerOp::Delivered { id, ts, runs: delivered },
        ConsumerOp::Ack { id, runs: runs(1, 1) },
        ConsumerOp::Nak { id, due: Timestamp::new(4_000), runs: runs(2, 1) },
        ConsumerOp::Progress { id, ts, runs: runs(2, 2) },
        ConsumerOp::Exhausted { id, runs: runs(3, 1) },
        ConsumerOp::Term { id, runs: runs(2, 1) },
        ConsumerOp::AckAll { id, through: StreamSeq::new(2) },
        ConsumerOp::Skip { id, through: StreamSeq::new(4) },
        ConsumerOp::Reset { id, next: StreamSeq::new(2) },
        ConsumerOp::Delete { id },
    ]
}

pub(crate) fn commands() -> Vec<Command> {
    let mut ops = Vec::new();
    encode_ops(&consumer_ops()[..8], &mut ops);
    let settings = Settings { name: "ORDERS".into(), subjects: vec!["orders.*".into()], ..Settings::default() };
    let generation = Generation::new(2);
    let desired = Durability { flush: FlushMode::Async, ..Durability::default() };
    vec![
        Command::Consumers(ops.into()),
        Command::DeleteMessage(DeleteMessage { seq: StreamSeq::new(2), erase: true }),
        Command::Purge(Purge { filter: Some("orders.1".into()), keep: Some(1), ..Purge::default() }),
        Command::Expire(Expire { now: Timestamp::new(50), max_count: 10 }),
        Command::Config(Box::new(ConfigChange { settings, config_json: "{}".into(), generation })),
        Command::Durability(DurabilityCommand::Change { desired, generation, voters: [RaftNodeId::new(77)].into() }),
        Command::Durability(DurabilityCommand::Grant { generation, replica: RaftNodeId::new(77) }),
        Command::Durability(DurabilityCommand::Complete { generation, replica: RaftNodeId::new(77) }),
        Command::Durability(DurabilityCommand::Forget { replica: RaftNodeId::new(77) }),
        Command::Remove(Remove { generation: Generation::new(3) }),
    ]
}

/// The frames of a stream's life, and the state after each.
pub(crate) fn life() -> Vec<(Bytes, StreamState)> {
    let mut life = Vec::new();
    let mut state = fresh_state();
    let mut admission = Admission::new(&state, Term::new(1));
    let mut commands = commands().into_iter();
    let headers: [&[u8]; 3] =
        [b"", b"NATS/1.0\r\nNats-Msg-Id: 7\r\nNats-TTL: 2s\r\n\r\n", b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"];
    for index in 1.. {
        let now = Timestamp::new(index * 10);
        if index <= 4 {
            for nth in 0..index {
                let subject = format!("orders.{nth}");
                let headers = headers[(nth % 3) as usize];
                let publish = Publish { subject: subject.as_bytes(), headers, payload: b"hello", now };
                let _ = admission.admit(&state, &NoRecords, publish);
            }
        } else {
            let Some(command) = commands.next() else { break };
            let _ = admission.propose(&state, command, now);
        }
        let Some((_, frame)) = admission.seal() else { continue };
        let parsed = Frame::parse(frame.clone()).expect("a sealed frame");
        let _ = state.apply(position(index), &parsed, &NoRecords);
        admission.sync(&state);
        let image = state.image();
        let mut copy = StreamState::from_image(&image).expect("an image");
        let _ = copy.finish_rebuild();
        life.push((frame, copy));
    }
    life
}

pub(crate) fn frames() -> &'static [Bytes] {
    static FRAMES: LazyLock<Vec<Bytes>> = LazyLock::new(|| life().into_iter().map(|(frame, _)| frame).collect());
    &FRAMES
}

pub(crate) fn catalogue_entries() -> Vec<CatalogEntry> {
    let (node, raft_id) = (NodeName::new("n1"), RaftNodeId::new(77));
    let replica = Replica { node: node.clone(), raft_id };
    let owner = Owner { namespace: "default".into(), name: "orders".into(), uid: None };
    let create = |name: &str, subject: &str| CatalogCommand::CreateStream {
        key: StreamKey::new("$G", name),
        subjects: vec![subject.into()],
        config: serde_json::json!({"name": name}),
        replicas: vec![replica.clone()],
        owner: Some(owner.clone()),
    };
    let commands = [
        CatalogCommand::InitCluster { cluster_id: "c-1".into() },
        CatalogCommand::RegisterNode {
            name: node.clone(),
            incarnation: raft_id,
            addresses: Addresses { cluster: "10.0.0.1:6222".into(), ..Addresses::default() },
            boot_epoch: 3,
            last_boot_epoch: Some(2),
            tags: ["ssd".to_owned()].into(),
            zone: Some("a".into()),
        },
        create("ORDERS", "orders.>"),
        create("OLD", "old"),
        CatalogCommand::SetNodeState { name: node.clone(), state: NodeState::Draining },
        CatalogCommand::UpdateStream {
            id: StreamId::new(3),
            subjects: vec!["orders.*".into()],
            config: serde_json::json!({"name": "ORDERS"}),
            expected_generation: Some(Generation::new(1)),
            owner: None,
        },
        CatalogCommand::PlaceStream { id: StreamId::new(3), replicas: vec![replica] },
        CatalogCommand::RejoinReplica {
            id: StreamId::new(3),
            node: node.clone(),
            from: raft_id,
            to: RaftNodeId::new(900),
        },
        CatalogCommand::MemberVotes { id: StreamId::new(3), raft_id: RaftNodeId::new(900) },
        CatalogCommand::RegroupStream {
            id: StreamId::new(3),
            from: GroupId::new(1),
            source: RaftNodeId::new(900),
            replicas: vec![Replica { node: node.clone(), raft_id: RaftNodeId::new(901) }],
        },
        CatalogCommand::LoseNodes { incarnations: [RaftNodeId::new(77)].into() },
        CatalogCommand::RemoveStream { id: StreamId::new(4), expected_owner: None },
        CatalogCommand::ConfirmRemoval { id: StreamId::new(4), node },
        CatalogCommand::AcquireFence { holder: "operator".into(), ttl_ns: 5_000 },
    ];
    (1..).zip(commands).map(|(ts, command)| CatalogEntry::new(Timestamp::new(ts), None, command)).collect()
}

pub(crate) fn catalogue() -> Catalog {
    static CATALOGUE: LazyLock<Catalog> = LazyLock::new(new_catalogue);
    CATALOGUE.clone()
}

fn new_catalogue() -> Catalog {
    let mut catalog = Catalog::default();
    for (index, entry) in (1..).zip(catalogue_entries()) {
        catalog.apply(LogIndex::new(index), &entry);
    }
    catalog
}

pub(crate) fn hard_state() -> HardState {
    HardState {
        cluster_id: Some("c-1".into()),
        node_name: "n1".into(),
        node_incarnation: 77,
        boot_epoch: 3,
        os_boot_id: "b-9".into(),
        mount_id: "259:1".into(),
        clean_stop: false,
        weak_since: Some(Timestamp::new(1_700_000_000_000_000_000)),
        log_segment: 4,
        refused: None,
        lost: [78].into(),
    }
}

pub(crate) fn replica_file() -> ReplicaFile {
    ReplicaFile { raft_id: RaftNodeId::new(77), weakest: SyncMode::Interval, may_have_lost: false }
}

pub(crate) fn meta_checkpoint() -> MetaCheckpoint {
    MetaCheckpoint {
        applied: position(13),
        membership: Bytes::from_static(MEMBERS),
        snapshot: Bytes::new(),
        image: catalogue().image().into(),
    }
}

/// A store with one stream in `/store`, each a copy of its own.
pub(crate) fn store() -> SimDisk {
    static STORE: LazyLock<SimDisk> = LazyLock::new(new_store);
    STORE.fork()
}

fn new_store() -> SimDisk {
    let disk = SimDisk::new();
    let root = PathBuf::from("/store");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    disk.create_dir_all(&root.join("meta")).expect("a simulated disk");
    hard_state().save(&disk, &root).expect("a simulated disk");
    replica_file().save(&disk, &root, STREAM).expect("a simulated disk");
    meta_checkpoint().publish(&disk, &root.join("meta")).expect("a simulated disk");
    let options = WalOptions { segment_bytes: 16 << 10, ..WalOptions::default() };
    let (wal, _) = Wal::open_inline(Arc::clone(&shared), &root.join("wal"), options).expect("a new log");
    let own = StoreOptions::new(StoreLog::Own);
    let (mut store, _) =
        StreamStore::open(shared, &root.join("streams/7"), STREAM, own, None, &mut crate::blocks::Seen::default())
            .expect("a new store");
    let mut vote = [0; 17];
    (vote[0], vote[8], vote[16]) = (1, 77, 1);
    wal.vote(GROUP, Bytes::copy_from_slice(&vote), Box::new(|_| {}));
    for (index, (frame, state)) in (1..).zip(life()) {
        let entry = WalEntry { index: LogIndex::new(index), term: Term::new(1), kind: 1, payload: frame.clone() };
        wal.append(AppendBatch { group: GROUP, entries: vec![entry], need: Need::Synced, done: Box::new(|_| {}) });
        store.push(LogIndex::new(index), Frame::parse(frame).expect("a sealed frame"));
        let image = CheckpointImage {
            group: GROUP,
            applied: position(index),
            membership: Bytes::from_static(MEMBERS),
            snapshot: Bytes::new(),
            image: state.image().into(),
            digest: state.digest(),
        };
        let (want, image) = if index == 4 { (FlushWant::Checkpoint, Some(image)) } else { (FlushWant::Sync, None) };
        if let Some(job) = store.take_job(want, image) {
            job.run(&disk, &|_, _| Ok(()), &mut |done| store.complete(done));
        }
    }
    wal.committed(GROUP, position(4));
    wal.purge(GROUP, position(1)).expect("an index that is there");
    wal.shutdown().expect("a simulated disk");
    disk
}
