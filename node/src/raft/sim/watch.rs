//! What must hold at every moment, on all nodes together. Each check says which invariant it stands for.

use std::collections::{BTreeMap, BTreeSet};

use headwater_core::ids::LogPosition;
use parking_lot::Mutex;

#[derive(Default)]
struct Seen {
    /// Term, content and digest of each applied entry.
    entries: BTreeMap<u64, (u64, u32, u64)>,
    leaders: BTreeMap<u64, u64>,
    broken: Vec<String>,
    /// Hash over everything that was applied, in order: two runs of a seed have the same.
    trace: u64,
    acked: BTreeMap<String, u64>,
    by_seq: BTreeMap<u64, String>,
    /// Sequences below this may have been purged.
    purging: u64,
    /// Sequences below this have been.
    purged: u64,
    deleting: BTreeSet<u64>,
    /// How often something happened that a run is to be good for.
    counts: BTreeMap<&'static str, usize>,
    /// What befell the cluster, for whoever looks into a failure.
    history: Vec<String>,
}

/// A failure shows this many of the last things that happened.
const HISTORY_SHOWN: usize = 40;

#[derive(Default)]
pub(super) struct Watch(Mutex<Seen>);

impl Watch {
    pub(super) fn broken(&self, why: String) {
        self.0.lock().broken.push(why);
    }

    pub(super) fn first_broken(&self) -> Option<String> {
        self.0.lock().broken.first().cloned()
    }

    pub(super) fn happened(&self, at_ms: u64, what: impl std::fmt::Display) {
        self.0.lock().history.push(format!("  {at_ms:6} ms  {what}"));
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.0.lock().counts.entry(what).or_default() += 1;
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.0.lock().counts.clone()
    }

    pub(super) fn history(&self) -> String {
        let seen = self.0.lock();
        seen.history[seen.history.len().saturating_sub(HISTORY_SHOWN)..].join("\n")
    }

    /// One history: what is applied at an index is applied there on every node, in every life, with the same result.
    pub(super) fn applied(&self, node: usize, at: LogPosition, entry: &[u8], digest: u64) {
        let mut seen = self.0.lock();
        let (term, crc) = (at.term.get(), crc32c::crc32c(entry));
        for n in [node as u64, at.index.get(), term, u64::from(crc), digest] {
            seen.trace = (seen.trace ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
        let known = *seen.entries.entry(at.index.get()).or_insert((term, crc, digest));
        if known != (term, crc, digest) {
            let why = format!("node {node}: entry {} is {:x?}, was {known:x?}", at.index, (term, crc, digest));
            seen.broken.push(why);
        }
    }

    /// A state that came from files is the one that its entries made.
    pub(super) fn state(&self, node: usize, at: LogPosition, digest: u64) -> Result<(), String> {
        match self.0.lock().entries.get(&at.index.get()) {
            Some((term, _, known)) if (*term, *known) == (at.term.get(), digest) => Ok(()),
            other => Err(format!("node {node}: files at {at:?} have digest {digest:x}, applied was {other:x?}")),
        }
    }

    /// At most one leader in a term.
    pub(super) fn leader(&self, term: u64, raft_id: u64) {
        let mut seen = self.0.lock();
        let known = *seen.leaders.entry(term).or_insert(raft_id);
        if known != raft_id {
            seen.broken.push(format!("term {term} has two leaders: {known} and {raft_id}"));
        }
    }

    /// A confirmation: one sequence per message, one message per sequence.
    pub(super) fn acked(&self, id: &str, seq: u64) {
        let mut seen = self.0.lock();
        if let Some(known) = seen.acked.insert(id.to_owned(), seq).filter(|known| *known != seq) {
            seen.broken.push(format!("{id} was confirmed at {known} and at {seq}"));
        }
        if let Some(known) = seen.by_seq.insert(seq, id.to_owned()).filter(|known| known != id) {
            seen.broken.push(format!("sequence {seq} was confirmed for {known} and for {id}"));
        }
    }

    pub(super) fn purging(&self, below: u64) {
        let mut seen = self.0.lock();
        seen.purging = seen.purging.max(below);
    }

    pub(super) fn purged(&self, below: u64) {
        let mut seen = self.0.lock();
        seen.purged = seen.purged.max(below);
    }

    pub(super) fn deleting(&self, seq: u64) {
        self.0.lock().deleting.insert(seq);
    }

    /// Everything confirmed is there, nothing confirmed as removed is, and every message once.
    pub(super) fn content(
        &self,
        node: usize,
        (first, last, live): &(u64, u64, Vec<(u64, String)>),
    ) -> Result<(), String> {
        let seen = self.0.lock();
        let found: BTreeMap<u64, &String> = live.iter().map(|(seq, id)| (*seq, id)).collect();
        for (id, seq) in &seen.acked {
            if *seq > *last {
                return Err(format!("node {node}: {id} was confirmed at {seq}, the stream ends at {last}"));
            }
            let may_be_gone = *seq < seen.purging || seen.deleting.contains(seq);
            match found.get(seq) {
                Some(there) if *there == id => {}
                None if may_be_gone => {}
                other => return Err(format!("node {node}: {id} was confirmed at {seq}, there is {other:?}")),
            }
        }
        if *first < seen.purged || live.iter().any(|(seq, _)| *seq < seen.purged) {
            return Err(format!("node {node}: purged below {}, the stream begins at {first}", seen.purged));
        }
        let mut once = BTreeSet::new();
        match live.iter().find(|(_, id)| !once.insert(id)) {
            Some((seq, id)) => Err(format!("node {node}: {id} is there twice, again at {seq}")),
            None => Ok(()),
        }
    }

    pub(super) fn confirmed(&self) -> usize {
        self.0.lock().acked.len()
    }

    pub(super) fn leader_count(&self) -> usize {
        self.0.lock().leaders.len()
    }

    pub(super) fn trace(&self) -> u64 {
        self.0.lock().trace
    }
}
