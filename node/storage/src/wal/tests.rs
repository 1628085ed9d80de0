//! What the log promises, checked on the simulated disk and with threads on the real one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Term};
use parking_lot::Mutex;

use super::*;
use crate::disk::{Fault, SimDisk};

mod behaviour;
mod crash;
mod damage;
mod model;
mod threads;

fn dir() -> PathBuf {
    PathBuf::from("/store/wal")
}

fn small() -> WalOptions {
    WalOptions { segment_bytes: 16 << 10, cache_bytes_max: 4 << 10, segments_target: 3, ..WalOptions::default() }
}

fn group(id: u64) -> GroupId {
    GroupId::new(id)
}

fn index(raw: u64) -> LogIndex {
    LogIndex::new(raw)
}

fn at(raw: u64, term: u64) -> LogPosition {
    LogPosition { index: index(raw), term: Term::new(term) }
}

/// A payload that tells its entry, of a length that varies with it.
fn payload(group: u64, index: u64, term: u64, len: usize) -> Bytes {
    let mut text = format!("{group}/{index}/{term}:").into_bytes();
    let fill = (group ^ index ^ term) as u8;
    text.resize(text.len() + len, fill);
    Bytes::from(text)
}

fn entry(group: u64, raw: u64, term: u64, len: usize) -> WalEntry {
    WalEntry { index: index(raw), term: Term::new(term), kind: 1, payload: payload(group, raw, term, len) }
}

fn open(disk: &SimDisk) -> (Wal, WalScan) {
    Wal::open_inline(Arc::new(disk.clone()), &dir(), small()).unwrap()
}

fn append(wal: &Wal, id: u64, entries: Vec<WalEntry>, need: Need) -> Arc<Mutex<Option<Result<(), WalFailure>>>> {
    let slot = Arc::new(Mutex::new(None));
    let done = Arc::clone(&slot);
    wal.append(AppendBatch {
        group: group(id),
        entries,
        need,
        done: Box::new(move |result| {
            let before = done.lock().replace(result);
            assert!(before.is_none(), "a callback runs once");
        }),
    });
    slot
}

fn read_all(wal: &Wal, id: u64) -> Vec<WalEntry> {
    let Some(state) = wal.group(group(id)) else {
        return Vec::new();
    };
    let Some(first) = state.first else {
        return Vec::new();
    };
    wal.read(group(id), first..index(u64::MAX), usize::MAX).unwrap()
}
