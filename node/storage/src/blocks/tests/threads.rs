use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::checkpoint::MetaCheckpoint;
use crate::disk::RealDisk;
use crate::flusher::Flusher;
use crate::wal::{AppendBatch, Need, Wal, WalEntry, WalOptions};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn the_flusher_serves_streams_with_and_without_a_log() {
    let temp = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let wal_options = WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() };
    let (wal, _) = Wal::open(Arc::clone(&disk), &temp.path().join("wal"), wal_options).unwrap();
    let flusher = Flusher::start(Arc::clone(&disk), wal.clone()).unwrap();
    let (sender, receiver) = channel();
    let open = |id: u64, log| {
        let dir = temp.path().join(format!("streams/{id}"));
        let checkpoint = Checkpoint::load(disk.as_ref(), &dir).unwrap();
        let stream = StreamId::new(id);
        let mut visit = Covered::default();
        StreamStore::open(Arc::clone(&disk), &dir, stream, StoreOptions::new(log), checkpoint.as_ref(), &mut visit)
            .unwrap()
            .0
    };
    let frame = |id: u64, op: u64| {
        let ts = Timestamp::new(op);
        let (stream, term) = (StreamId::new(id), Term::new(1));
        let mut frame = FrameBuilder::new(FrameKind::Messages, stream, term, Ordinal::new(op), seq(op), ts);
        frame.push_message(ts, b"s", b"", &payload(op, 500), RecordFlags::NONE).unwrap();
        Frame::parse(frame.finish()).unwrap()
    };
    let mut own: Vec<StreamStore> = (1..=3).map(|id| open(id, StoreLog::Own)).collect();
    let mut replicated = open(9, StoreLog::Wal);
    for op in 1..=50 {
        let entry = WalEntry { index: index(op), term: Term::new(1), kind: 1, payload: frame(9, op).bytes().clone() };
        wal.append(AppendBatch {
            group: GroupId::new(9),
            entries: vec![entry],
            need: Need::Written,
            done: Box::new(|result| result.unwrap()),
        });
        replicated.push(index(op), frame(9, op));
        for store in &mut own {
            store.push(index(op), frame(store.stream().get(), op));
            let sender = sender.clone();
            let job = store.take_job(FlushWant::Sync, None).unwrap();
            flusher.submit(job, Box::new(move |done| sender.send(done).unwrap()));
        }
        for _ in 0..own.len() {
            let done = receiver.recv_timeout(PATIENCE).unwrap();
            let store = own.iter_mut().find(|store| store.stream() == done.stream).unwrap();
            store.complete(done);
            assert_eq!(store.synced(), Some(index(op)));
        }
    }
    let job = replicated.take_job(FlushWant::Checkpoint, Some(image(50))).unwrap();
    let other = sender.clone();
    flusher.submit(job, Box::new(move |done| other.send(done).unwrap()));
    for _ in 0..2 {
        replicated.complete(receiver.recv_timeout(PATIENCE).unwrap());
    }
    assert_eq!(replicated.persisted(), Some(index(50)));
    assert_eq!(wal.watermarks(GroupId::new(9)).synced, Some(index(50)), "the log first, then the checkpoint");
    let job = own[0].take_job(FlushWant::Checkpoint, Some(image(50))).unwrap();
    flusher.submit(job, Box::new(move |done| sender.send(done).unwrap()));
    for _ in 0..2 {
        own[0].complete(receiver.recv_timeout(PATIENCE).unwrap());
    }
    assert_eq!(own[0].persisted(), Some(index(50)));
    let meta_dir = temp.path().join("meta");
    disk.create_dir_all(&meta_dir).unwrap();
    let meta = MetaCheckpoint {
        applied: LogPosition { index: index(5), term: Term::new(1) },
        membership: Bytes::new(),
        snapshot: Bytes::new(),
        image: Bytes::from_static(b"catalogue"),
    };
    let (meta_sender, meta_receiver) = channel();
    flusher.submit_meta(
        meta_dir.clone(),
        GroupId::new(1),
        meta.clone(),
        Box::new(move |result| meta_sender.send(result).unwrap()),
    );
    assert_eq!(meta_receiver.recv_timeout(PATIENCE).unwrap(), Ok(index(5)));
    assert_eq!(MetaCheckpoint::load(disk.as_ref(), &meta_dir).unwrap(), Some(meta));
    drop(flusher);
    drop((own, replicated));
    for (id, log) in [(1, StoreLog::Own), (2, StoreLog::Own), (9, StoreLog::Wal)] {
        assert_eq!(contents(&open(id, log)), expected(1..=50, 500), "stream {id}");
    }
}
