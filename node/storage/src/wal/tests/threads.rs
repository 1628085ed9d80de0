use std::time::Duration;

use super::*;
use crate::disk::RealDisk;

fn open_real(dir: &Path) -> (Wal, WalScan) {
    let options = WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() };
    Wal::open(Arc::new(RealDisk), dir, options).unwrap()
}

#[test]
fn many_threads_get_what_they_were_promised() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("wal");
    let (wal, _) = open_real(&dir);
    std::thread::scope(|scope| {
        for id in 1..=4u64 {
            let wal = wal.clone();
            scope.spawn(move || {
                for raw in 1..=200 {
                    let need = [Need::Memory, Need::Written, Need::Synced][(raw % 3) as usize];
                    let batch = |done| {
                        wal.append(AppendBatch { group: group(id), entries: vec![entry(id, raw, 1, 300)], need, done });
                    };
                    wait_for(batch).unwrap();
                    let reached = wal.watermarks(group(id));
                    match need {
                        Need::Memory => assert_eq!(reached.accepted, Some(index(raw))),
                        Need::Written => assert_eq!(reached.written, Some(index(raw))),
                        Need::Synced => assert_eq!(reached.synced, Some(index(raw))),
                    }
                    if raw % 50 == 0 {
                        wait_for(|done| wal.vote(group(id), Bytes::from(raw.to_string()), done)).unwrap();
                        wal.purge(group(id), at(raw - 10, 1)).unwrap();
                    }
                }
            });
        }
    });
    wal.shutdown().unwrap();
    let refused = append(&wal, 1, vec![entry(1, 201, 1, 1)], Need::Memory);
    assert_eq!(*refused.lock(), Some(Err(WalFailure::ShutDown)));
    drop(wal);
    let (wal, scan) = open_real(&dir);
    assert_eq!(scan.end, ScanEnd::Clean);
    for id in 1..=4 {
        let expected: Vec<WalEntry> = (191..=200).map(|raw| entry(id, raw, 1, 300)).collect();
        assert_eq!(read_all(&wal, id), expected);
        assert_eq!(wal.group(group(id)).unwrap().vote, Some(Bytes::from_static(b"200")));
    }
}

#[test]
fn an_interval_syncs_by_itself_and_only_then() {
    let temp = tempfile::tempdir().unwrap();
    let (wal, _) = open_real(&temp.path().join("wal"));
    wait_for(|done| {
        wal.append(AppendBatch { group: group(1), entries: vec![entry(1, 1, 1, 1)], need: Need::Written, done });
    })
    .unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(wal.watermarks(group(1)).synced, None, "nobody asked for a sync");
    wal.set_interval(group(1), Some(Duration::from_millis(5)));
    let deadline = Instant::now() + Duration::from_secs(20);
    while wal.watermarks(group(1)).synced != Some(index(1)) {
        assert!(Instant::now() < deadline, "the interval never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn dropping_the_last_handle_in_a_callback_does_not_hang() {
    let temp = tempfile::tempdir().unwrap();
    let (wal, _) = open_real(&temp.path().join("wal"));
    let (sender, receiver) = std::sync::mpsc::channel();
    let held = wal.clone();
    wal.append(AppendBatch {
        group: group(1),
        entries: vec![entry(1, 1, 1, 1)],
        need: Need::Synced,
        done: Box::new(move |result| {
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
            sender.send(result).unwrap();
        }),
    });
    drop(wal);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)).unwrap(), Ok(()));
}
