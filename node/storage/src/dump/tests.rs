use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::catalog::{Addresses, Catalog, CatalogCommand, CatalogEntry, NodeName, Owner, Replica, StreamKey};
use headwater_core::consumer::{AckPolicy, ConsumerConfig, ConsumerOp, CreateConsumer, StartAt, encode_ops};
use headwater_core::durability::{Durability, SyncMode};
use headwater_core::frame::Frame;
use headwater_core::ids::{Generation, GroupId, LogIndex, LogPosition, RaftNodeId, StreamId, Term, Timestamp};
use headwater_core::stream::{Admission, BlockIndex, Command, Publish, Settings, StreamState};

use super::*;
use crate::blocks::{FlushWant, StoreLog, StoreOptions, StreamStore};
use crate::checkpoint::{CheckpointImage, MetaCheckpoint};
use crate::disk::{RealDisk, SimDisk};
use crate::hard_state;
use crate::replica_file::ReplicaFile;
use crate::wal::{AppendBatch, Need, Wal, WalEntry, WalOptions};

const MEMBERS: &[u8] = br#"{"at":null,"configs":[[77]],"nodes":[77]}"#;

fn at(index: u64) -> LogPosition {
    LogPosition { index: LogIndex::new(index), term: Term::new(1) }
}

/// A store with one stream, as the documents show it.
fn store() -> SimDisk {
    let disk = SimDisk::new();
    let root = PathBuf::from("/store");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    disk.create_dir_all(&root.join("meta")).unwrap();
    hard_state::tests::sample().save(&disk, &root).unwrap();
    let replica = ReplicaFile { raft_id: RaftNodeId::new(77), weakest: SyncMode::Interval, may_have_lost: false };
    replica.save(&disk, &root, StreamId::new(7)).unwrap();
    let options = WalOptions { segment_bytes: 16 << 10, ..WalOptions::default() };
    let (wal, _) = Wal::open_inline(Arc::clone(&shared), &root.join("wal"), options).unwrap();
    let dir = root.join("streams/7");
    let own = StoreOptions::new(StoreLog::Own);
    let settings = Settings { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..Settings::default() };
    let (first, created) = (Generation::new(1), Timestamp::new(1));
    let mut state =
        StreamState::new(StreamId::new(7), settings, "{}".into(), first, Durability::default(), created, None);
    let (mut store, _) = StreamStore::open(shared, &dir, StreamId::new(7), own, None, &mut state).unwrap();
    let group = GroupId::new(9);
    let mut vote = [0; 17];
    (vote[0], vote[8], vote[16]) = (1, 77, 1);
    wal.vote(group, Bytes::copy_from_slice(&vote), Box::new(|result| result.unwrap()));
    let append = |index, kind, payload: Bytes| {
        let entries = vec![WalEntry { index: LogIndex::new(index), term: Term::new(1), kind, payload }];
        wal.append(AppendBatch { group, entries, need: Need::Synced, done: Box::new(|result| result.unwrap()) });
    };
    append(1, 2, Bytes::from_static(MEMBERS));
    append(2, 0, Bytes::new());
    let mut admission = Admission::new(&state, Term::new(1));
    for index in 3..=6u64 {
        if index == 4 {
            let config =
                ConsumerConfig { name: "worker".into(), ack_policy: AckPolicy::Explicit, ..ConsumerConfig::default() };
            let create = CreateConsumer { config, config_json: "{}".into(), start: StartAt::AfterLast };
            let mut ops = Vec::new();
            encode_ops([&ConsumerOp::Create { ts: created, create: Box::new(create) }], &mut ops);
            admission.propose(&state, Command::Consumers(ops.into()), created).unwrap();
        } else if index > 4 {
            let now = Timestamp::new(index);
            let publish = Publish { subject: b"orders.new", headers: b"", payload: b"hello", now };
            admission.admit(&state, &store, publish).unwrap();
        }
        let (_, frame) = admission.seal().unwrap();
        append(index, 1, frame.clone());
        let frame = Frame::parse(frame).unwrap();
        store.push(LogIndex::new(index), frame.clone());
        state.apply(at(index), &frame, &store).unwrap();
        let image = CheckpointImage {
            group,
            applied: at(index),
            membership: Bytes::from_static(MEMBERS),
            snapshot: Bytes::new(),
            image: state.image().into(),
            digest: state.digest(),
        };
        let (want, image) = if index == 5 { (FlushWant::Checkpoint, Some(image)) } else { (FlushWant::Sync, None) };
        let job = store.take_job(want, image).unwrap();
        job.run(&disk, &|_, _| Ok(()), &mut |done| store.complete(done));
    }
    wal.committed(group, at(5));
    wal.truncate_after(group, Some(LogIndex::new(5))).unwrap();
    wal.purge(group, at(1)).unwrap();
    wal.shutdown().unwrap();
    disk
}

fn catalogue() -> MetaCheckpoint {
    let mut catalog = Catalog::default();
    let (node, raft_id) = (NodeName::new("n1"), RaftNodeId::new(77));
    let create = |name: &str, subject: &str| CatalogCommand::CreateStream {
        key: StreamKey::new("$G", name),
        subjects: vec![subject.into()],
        config: serde_json::json!({}),
        replicas: vec![Replica { node: node.clone(), raft_id }],
        owner: None::<Owner>,
    };
    let commands = [
        CatalogCommand::InitCluster { cluster_id: "c-1".into() },
        CatalogCommand::RegisterNode {
            name: node.clone(),
            incarnation: raft_id,
            addresses: Addresses { cluster: "10.0.0.1:6222".into(), ..Addresses::default() },
            boot_epoch: 3,
            last_boot_epoch: None,
            tags: Default::default(),
            zone: None,
        },
        create("ORDERS", "orders.>"),
        create("OLD", "old"),
        CatalogCommand::RemoveStream { id: StreamId::new(4), expected_owner: None },
        CatalogCommand::AcquireFence { holder: "operator".into(), ttl_ns: 1 },
    ];
    for (index, command) in (1..).zip(commands) {
        catalog.apply(LogIndex::new(index), &CatalogEntry::new(Timestamp::new(index), None, command));
    }
    MetaCheckpoint {
        applied: at(6),
        membership: Bytes::from_static(MEMBERS),
        snapshot: Bytes::new(),
        image: catalog.image().into(),
    }
}

/// A snapshot mark as the node writes it.
fn mark(term: u64, index: u64, persisted: u64, digest: u64) -> Vec<u8> {
    let mut bytes = b"HWSM\x01\0\0\0".to_vec();
    for number in [term, index, persisted, digest] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn put(disk: &SimDisk, path: &str, bytes: &[u8]) {
    let path = Path::new(path);
    disk.create_dir_all(path.parent().unwrap()).unwrap();
    let file = disk.open(path).or_else(|_| disk.create(path)).unwrap();
    file.set_len(0).unwrap();
    file.write_at(0, bytes).unwrap();
}

fn bytes_of(disk: &SimDisk, path: &str) -> Vec<u8> {
    read_file(disk, Path::new(path)).unwrap()
}

fn text(disk: &SimDisk, path: &str) -> String {
    inspect(disk, Path::new(path)).unwrap().text
}

fn shown_in(document: &str, dump: &str) -> bool {
    document.contains(&format!("```text\n{dump}```"))
}

/// The lines on one file.
fn section(dump: &str, name: &str) -> String {
    let lines = dump.lines().skip_while(|line| !line.starts_with(name));
    let lines = lines.enumerate().take_while(|(nth, line)| *nth == 0 || line.starts_with("  "));
    lines.map(|(_, line)| format!("{line}\n")).collect()
}

#[test]
fn the_documents_show_what_inspect_shows() {
    let disk = store();
    catalogue().publish(&disk, Path::new("/store/meta")).unwrap();
    let wal = text(&disk, "/store/wal");
    assert!(shown_in(include_str!("../../../../docs/formats/wal.md"), &wal), "{wal}");
    let blocks = text(&disk, "/store/streams/7/blocks");
    assert!(shown_in(include_str!("../../../../docs/formats/block.md"), &blocks), "{blocks}");
    let checkpoints = include_str!("../../../../docs/formats/checkpoint.md");
    let stream = text(&disk, "/store/streams/7/checkpoint");
    assert!(shown_in(checkpoints, &stream), "{stream}");
    let meta = text(&disk, "/store/meta/checkpoint");
    assert!(shown_in(checkpoints, &meta), "{meta}");
    put(&disk, "/store/streams/7/snapshot", &mark(1, 7, 5, 0x1234_5678_9abc_def0));
    let mark = text(&disk, "/store/streams/7/snapshot");
    assert!(shown_in(include_str!("../../../../docs/formats/snapshot.md"), &mark), "{mark}");
    let all = inspect(&disk, Path::new("/store")).unwrap();
    let hard_state = section(&all.text, "hard-state");
    assert!(shown_in(include_str!("../../../../docs/formats/hard-state.md"), &hard_state), "{hard_state}");
    let replica = section(&all.text, "replicas/7.replica");
    assert!(shown_in(include_str!("../../../../docs/formats/replica.md"), &replica), "{replica}");
    assert!(!all.is_damaged && !all.text.contains("DAMAGED") && !all.text.contains("BAD"), "{}", all.text);
}

#[test]
fn everything_a_store_may_hold_is_told() {
    let disk = SimDisk::new();
    let stream = bytes_of(&store(), "/store/streams/7/checkpoint");
    for name in ["/s/lock", "/s/hard-state.tmp", "/s/meta/installed", "/s/other", "/s/streams/7/checkpoint.tmp"] {
        put(&disk, name, b"");
    }
    put(&disk, "/s/meta.incoming/checkpoint", &catalogue().encode()[..40]);
    put(&disk, "/s/streams/7.incoming/checkpoint", &stream[..30]);
    put(&disk, "/s/streams/7.replaced/snapshot", &mark(1, 7, 7, 0xfeed));
    put(&disk, "/s/streams/7/snapshot", &mark(3, 90, 70, 0xfeed));
    put(&disk, "/s/streams/7/snapshot.new", b"HW");
    put(&disk, "/s/streams/8/snapshot", b"");
    put(&disk, "/s/wal/0000000002.spare", b"");
    let Dump { text, is_damaged } = inspect(&disk, Path::new("/s")).unwrap();
    let expected = "\
hard-state.tmp (0 bytes)
  left by a crash before it got its name; never read
lock (0 bytes)
  locked while a process uses the store; holds nothing
meta/installed (0 bytes)
  the state came as a snapshot from a peer: the log may end before it
meta.incoming/
  the last snapshot of the catalogue that came; the next one replaces it
meta.incoming/checkpoint (40 bytes)
  not whole: /s/meta.incoming/checkpoint is damaged at offset 16: expected a body of 894 bytes, found 16 bytes
other (0 bytes)
  no file of a store; not read
streams/7/checkpoint.tmp (0 bytes)
  left by a crash before it got its name; never read
streams/7/snapshot (44 bytes)
  state at 90@3, digest 000000000000feed
  persisted 70 when taken, async: needs 20 entries of the log
streams/7/snapshot.new (2 bytes)
  left by a crash before it got its name; never read
streams/7.incoming/
  a snapshot that was on its way; the next start removes it
streams/7.incoming/checkpoint (30 bytes)
  not whole: /s/streams/7.incoming/checkpoint is damaged at offset 16: expected a body of 1267 bytes, found 6 bytes
streams/7.replaced/
  what a snapshot replaces; a start puts it back if nothing whole is in its place
streams/7.replaced/snapshot (44 bytes)
  state at 7@1, digest 000000000000feed
  persisted 7 when taken
streams/8/snapshot (0 bytes)
  not whole: proves nothing, and costs nothing
log of 0 segments, end clean
wal/0000000002.spare (0 bytes)
  waits for its next life; not read
";
    assert_eq!(text, expected);
    assert!(!is_damaged, "what a crash may leave is not damage: {text}");
}

#[test]
fn a_single_file_is_shown_as_in_its_folder() {
    let disk = store();
    catalogue().publish(&disk, Path::new("/store/meta")).unwrap();
    put(&disk, "/store/streams/7/snapshot", &mark(1, 7, 5, 0xfeed));
    put(&disk, "/store/streams/7/installed", b"");
    let whole = text(&disk, "/store");
    let files = [
        "hard-state",
        "meta/checkpoint",
        "streams/7/blocks/0000000001.blk",
        "streams/7/checkpoint",
        "streams/7/installed",
        "streams/7/snapshot",
        "wal/0000000001.wal",
    ];
    for name in files {
        let one = inspect(&disk, &Path::new("/store").join(name)).unwrap();
        let (_, short) = format!("/{name}").rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert_eq!(one.text.replacen(&short, name, 1), section(&whole, name), "{name}");
        assert!(!one.is_damaged, "{}", one.text);
        if name.ends_with("installed") {
            continue;
        }
        put(&disk, "/elsewhere", &bytes_of(&disk, &format!("/store/{name}")));
        assert_eq!(text(&disk, "/elsewhere").replacen("elsewhere", &short, 1), one.text, "known by its first bytes");
    }
}

#[test]
fn an_index_of_a_block_is_told_in_a_line() {
    let disk = store();
    let path = "/store/streams/7/blocks/0000000001.idx";
    let block = bytes_of(&disk, "/store/streams/7/blocks/0000000001.blk");
    let frames = Bytes::from(block).slice(4096..);
    let index = BlockIndex::of_frames(StreamId::new(7), 1, 4096, &frames).unwrap().encode();
    put(&disk, path, &index);
    let line = "  of 4917 bytes of block 1 of stream 7: 2 messages in 2 frames, 1 subjects\n";
    assert!(text(&disk, "/store").contains(line), "{}", text(&disk, "/store"));
    put(&disk, path, &index[..20]);
    let torn = inspect(&disk, Path::new("/store")).unwrap();
    assert!(torn.text.contains("not used: ") && !torn.is_damaged, "{}", torn.text);
}

#[test]
fn a_single_file_on_a_real_disk() {
    let temp = tempfile::tempdir().unwrap();
    let (path, other) = (temp.path().join("snapshot"), temp.path().join("other"));
    RealDisk.create(&path).unwrap().write_at(0, &mark(3, 90, 70, 0xfeed)).unwrap();
    RealDisk.create(&other).unwrap();
    let one = inspect(&RealDisk, &path).unwrap();
    assert!(one.text.starts_with("snapshot (44 bytes)\n  state at 90@3"), "{}", one.text);
    assert!(matches!(inspect(&RealDisk, &other), Err(DumpError::UnknownFile { path }) if path == other));
    let missing = temp.path().join("missing");
    assert!(matches!(inspect(&RealDisk, &missing), Err(DumpError::Io { path, .. }) if path == missing));
}

#[test]
fn what_is_no_part_of_a_store_is_refused_by_its_path() {
    let disk = SimDisk::new();
    put(&disk, "/etc/passwd", b"root");
    let refused = |path: &str| chain(&inspect(&disk, Path::new(path)).unwrap_err());
    assert_eq!(
        refused("/etc/passwd"),
        "/etc/passwd is no file of a store: neither its name nor its first bytes say what it is"
    );
    assert_eq!(refused("/etc"), "/etc is no folder of a store: no file in it is one of a store");
    let missing = refused("/nowhere");
    assert!(missing.starts_with("/nowhere cannot be read: "), "{missing}");
}

#[test]
fn damage_is_shown_where_it_is_and_the_rest_is_read() {
    let disk = store();
    disk.flip_bit(Path::new("/store/hard-state"), 40, 0);
    disk.flip_bit(Path::new("/store/streams/7/checkpoint"), 30, 0);
    disk.flip_bit(Path::new("/store/streams/7/blocks/0000000001.blk"), 4096 + 200, 0);
    disk.flip_bit(Path::new("/store/wal/0000000001.wal"), 4096 + 60, 0);
    let Dump { text, is_damaged } = inspect(&disk, Path::new("/store")).unwrap();
    assert!(is_damaged);
    assert!(text.contains("hard-state (268 bytes)\n  DAMAGED: /store/hard-state is damaged"), "{text}");
    assert!(text.contains("  DAMAGED: /store/streams/7/checkpoint is damaged"), "{text}");
    assert!(text.contains("end DAMAGED: /store/wal/0000000001.wal is damaged at offset 4"), "{text}");
    for name in ["hard-state", "streams/7/checkpoint", "streams/7/blocks/0000000001.blk", "wal/0000000001.wal"] {
        let one = inspect(&disk, &Path::new("/store").join(name)).unwrap();
        assert!(one.is_damaged && one.text.contains("  DAMAGED: "), "{}", one.text);
    }
}

#[test]
fn a_torn_end_is_told_and_is_no_damage() {
    let disk = store();
    let block = "/store/streams/7/blocks/0000000001.blk";
    let mut bytes = bytes_of(&disk, block);
    let listed = bytes.len();
    bytes.extend_from_slice(b"half a frame");
    put(&disk, block, &bytes);
    let torn = inspect(&disk, Path::new(block)).unwrap();
    assert!(torn.text.contains("BAD frame") && !torn.is_damaged, "{}", torn.text);
    put(&disk, block, &bytes[..listed - 150]);
    assert!(inspect(&disk, Path::new(block)).unwrap().is_damaged, "the checkpoint counts more than that");
    disk.remove(Path::new(block)).unwrap();
    let gone = inspect(&disk, Path::new("/store/streams/7")).unwrap();
    assert!(gone.is_damaged && gone.text.contains("DAMAGED: no file blocks/0000000001.blk"), "{}", gone.text);
}

#[test]
fn nonsense_is_no_reason_to_panic() {
    let names = [
        "hard-state",
        "checkpoint",
        "snapshot",
        "0000000001.blk",
        "0000000001.idx",
        "0000000001.wal",
        "0000000002.spare",
        "other",
    ];
    let magics: [&[u8]; 7] = [b"", b"HWWALSEG", b"HWSBLOCK", b"HWBI\x01", b"HWSTRCKP", b"HWMETCKP", b"HWSM\x01\0\0\0"];
    for name in names {
        for magic in magics {
            for len in [0usize, 3, 44, 50, 5000] {
                let disk = SimDisk::new();
                put(&disk, "/store/lock", b"");
                let bytes: Vec<u8> = magic.iter().copied().chain(std::iter::repeat(0xa5)).take(len).collect();
                put(&disk, &format!("/store/{name}"), &bytes);
                let text = text(&disk, "/store");
                assert!(text.contains(name), "{text}");
                // Whether it is known or not.
                let _ = inspect(&disk, &Path::new("/store").join(name));
            }
        }
    }
}
