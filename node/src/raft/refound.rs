//! A group that goes on from one member's log alone, as a person has ordered: the log as it is, and an entry behind it
//! that makes that member the only voter. Opened on that log it elects itself, and commits all of it.
//!
//! All of this is blocking.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::sync_channel;

use bytes::Bytes;
use headwater_core::ids::{GroupId, LogIndex, Term};
use headwater_storage::wal::{AppendBatch, Done, Need, Wal, WalEntry};

use super::codec::{self, ENTRY_MEMBERS};
use super::types::*;

/// Bytes of a log that are copied at a time, and synced.
const COPY_BYTES: usize = 4 << 20;

/// Makes group `to`'s log what group `from`'s is behind `base`, where the files stand. What `to` has goes.
pub(crate) fn copy_log(wal: &Wal, from: GroupId, to: GroupId, base: Option<LogPos>) -> io::Result<()> {
    wal.drop_group(to).map_err(io::Error::other)?;
    if let Some(base) = base {
        wal.purge(to, base).map_err(io::Error::other)?;
    }
    let Some(log) = wal.group(from) else { return Ok(()) };
    let purged = log.purged.map(|at| at.index);
    if purged > base.map(|at| at.index) {
        return Err(io::Error::other(format!("the log of group {from} begins behind what the files hold")));
    }
    let Some(last) = log.last.filter(|last| Some(*last) > base) else { return Ok(()) };
    let mut next = base.map_or(log.first.unwrap_or(last.index), |base| base.index.next());
    while next <= last.index {
        let entries = wal.read(from, next..last.index.next(), COPY_BYTES).map_err(io::Error::other)?;
        let Some(end) = entries.last().map(|entry| entry.index) else {
            return Err(io::Error::other(format!("the log of group {from} has no entry {next}")));
        };
        append(wal, to, entries)?;
        next = end.next();
    }
    Ok(())
}

/// Makes `founder` the only voter of a group from the end of its log on, and `learners` members without a vote. The term
/// is higher than any that this log, or `seen`, a vote of the member's, knows of. Durable on return.
pub(crate) fn go_on_alone(
    wal: &Wal,
    group: GroupId,
    founder: u64,
    learners: &BTreeSet<u64>,
    seen: Option<Bytes>,
) -> io::Result<LogPos> {
    let last = wal.group(group).and_then(|log| log.last);
    let voted = match seen {
        Some(bytes) => codec::Reader(bytes).vote().map_err(io::Error::other)?.leader_id().term,
        None => 0,
    };
    let term = voted.max(last.map_or(0, |last| last.term.get())) + 1;
    wait(|done| wal.vote(group, codec::vote_bytes(&Vote::new(term, founder)), done))?;
    let members = Members {
        at: None,
        configs: vec![[founder].into()],
        nodes: learners.iter().copied().chain([founder]).collect(),
    };
    let payload = Bytes::from(serde_json::to_vec(&members).expect("plain data"));
    let index = last.map_or(LogIndex::new(0), |last| last.index.next());
    append(wal, group, vec![WalEntry { index, term: Term::new(term), kind: ENTRY_MEMBERS, payload }])?;
    Ok(log_pos(term, index.get()))
}

fn append(wal: &Wal, group: GroupId, entries: Vec<WalEntry>) -> io::Result<()> {
    wait(|done| wal.append(AppendBatch { group, entries, need: Need::Synced, done }))
}

fn wait(start: impl FnOnce(Done)) -> io::Result<()> {
    let (done, ended) = sync_channel(1);
    start(Box::new(move |result| {
        // The receiver waits for it.
        let _gone = done.send(result);
    }));
    ended.recv().map_err(io::Error::other)?.map_err(io::Error::other)
}
