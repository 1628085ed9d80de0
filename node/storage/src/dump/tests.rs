use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use headwater_core::frame::{FrameBuilder, FrameKind, RecordFlags};
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Ordinal, StreamSeq, Term, Timestamp};

use super::*;
use crate::blocks::{FlushWant, StoreLog, StoreOptions, StreamStore};
use crate::checkpoint::CheckpointImage;
use crate::disk::SimDisk;
use crate::hard_state;
use crate::wal::{AppendBatch, Need, WalEntry, WalOptions};

/// A store with one stream, as the documents show it.
fn store() -> SimDisk {
    let disk = SimDisk::new();
    let root = PathBuf::from("/store");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    disk.create_dir_all(&root.join("meta")).unwrap();
    hard_state::tests::sample().save(&disk, &root).unwrap();
    let options = WalOptions { segment_bytes: 16 << 10, ..WalOptions::default() };
    let (wal, _) = Wal::open_inline(Arc::clone(&shared), &root.join("wal"), options).unwrap();
    let dir = root.join("streams/7");
    let own = StoreOptions::new(StoreLog::Own);
    let (mut store, _) = StreamStore::open(shared, &dir, StreamId::new(7), own, None, &mut |_| {}).unwrap();
    let group = GroupId::new(9);
    let at = |index: u64| LogPosition { index: LogIndex::new(index), term: Term::new(1) };
    wal.vote(group, Bytes::from_static(b"vote"), Box::new(|result| result.unwrap()));
    for op in 1..=3u64 {
        let (ts, seq) = (Timestamp::new(op), StreamSeq::new(op));
        let mut frame =
            FrameBuilder::new(FrameKind::Messages, StreamId::new(7), Term::new(1), Ordinal::new(op), seq, ts);
        frame.push_message(ts, b"orders.new", b"", b"hello", RecordFlags::NONE).unwrap();
        let frame = frame.finish();
        wal.append(AppendBatch {
            group,
            entries: vec![WalEntry { index: LogIndex::new(op), term: Term::new(1), kind: 1, payload: frame.clone() }],
            need: Need::Synced,
            done: Box::new(|result| result.unwrap()),
        });
        store.push(LogIndex::new(op), Frame::parse(frame).unwrap());
        let image = CheckpointImage {
            group,
            applied: at(op),
            membership: Bytes::from_static(b"members"),
            snapshot: Bytes::new(),
            image: Bytes::from_static(b"state"),
            digest: 0xfeed,
        };
        let (want, image) = if op == 2 { (FlushWant::Checkpoint, Some(image)) } else { (FlushWant::Sync, None) };
        let job = store.take_job(want, image).unwrap();
        job.run(&disk, &|_, _| Ok(()), &mut |done| store.complete(done));
    }
    wal.committed(group, at(2));
    wal.truncate_after(group, Some(LogIndex::new(2))).unwrap();
    wal.purge(group, at(1)).unwrap();
    wal.shutdown().unwrap();
    disk
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
    let wal = inspect(&disk, Path::new("/store/wal"));
    assert!(shown_in(include_str!("../../../../docs/formats/wal.md"), &wal), "{wal}");
    let blocks = inspect(&disk, Path::new("/store/streams/7/blocks"));
    assert!(shown_in(include_str!("../../../../docs/formats/block.md"), &blocks), "{blocks}");
    let stream = inspect(&disk, Path::new("/store/streams/7"));
    let checkpoint = section(&stream, "checkpoint");
    assert!(shown_in(include_str!("../../../../docs/formats/checkpoint.md"), &checkpoint), "{checkpoint}");
    let all = inspect(&disk, Path::new("/store"));
    let hard_state = section(&all, "hard-state");
    assert!(shown_in(include_str!("../../../../docs/formats/hard-state.md"), &hard_state), "{hard_state}");
    assert!(!all.contains("DAMAGED") && !all.contains("BAD"), "{all}");
}

#[test]
fn damage_is_shown_where_it_is_and_the_rest_is_read() {
    let disk = store();
    disk.flip_bit(Path::new("/store/hard-state"), 40, 0);
    disk.flip_bit(Path::new("/store/streams/7/checkpoint"), 30, 0);
    disk.flip_bit(Path::new("/store/streams/7/blocks/0000000001.blk"), 4096 + 200, 0);
    disk.flip_bit(Path::new("/store/wal/0000000001.wal"), 4096 + 60, 0);
    let text = inspect(&disk, Path::new("/store"));
    assert!(text.contains("hard-state (268 bytes)\n  DAMAGED"), "{text}");
    assert!(text.contains("streams/7/checkpoint (120 bytes)\n  DAMAGED"), "{text}");
    assert!(text.contains("BAD frame"), "{text}");
    assert!(text.contains("BAD record"), "{text}");
    assert!(text.contains("end DAMAGED: /store/wal/0000000001.wal is damaged at offset 4"), "{text}");
}

#[test]
fn nonsense_is_no_reason_to_panic() {
    let disk = SimDisk::new();
    let root = Path::new("/store");
    disk.create_dir_all(root).unwrap();
    for name in ["hard-state", "checkpoint", "0000000001.blk", "0000000001.wal", "0000000002.spare", "other"] {
        for len in [0usize, 3, 50, 5000] {
            let file = disk.open(&root.join(name)).or_else(|_| disk.create(&root.join(name))).unwrap();
            file.set_len(0).unwrap();
            file.write_at(0, &vec![0xa5; len]).unwrap();
            let text = inspect(&disk, root);
            assert!(text.contains(name), "{text}");
        }
    }
    assert!(inspect(&disk, Path::new("/nowhere")).contains("cannot be listed"));
}
