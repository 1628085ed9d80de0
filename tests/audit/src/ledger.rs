//! The ledger: what was sent, and what the server said to it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A message of one publisher. Its text form, with the run's name before it, is the `Nats-Msg-Id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MessageId {
    /// Which publisher sent it.
    pub publisher: u32,
    /// Its place in that publisher's order, from 0.
    pub number: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.publisher, self.number)
    }
}

impl FromStr for MessageId {
    type Err = ();

    fn from_str(text: &str) -> Result<MessageId, ()> {
        let (publisher, number) = text.split_once('.').ok_or(())?;
        Ok(MessageId { publisher: publisher.parse().map_err(|_| ())?, number: number.parse().map_err(|_| ())? })
    }
}

/// What the server said to one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Confirmed at this sequence; `duplicate` if the server recognised a retry.
    Acked { seq: u64, duplicate: bool },
    /// Refused, in the server's words. The message must not be expected, nor is it forbidden:
    /// an earlier attempt whose answer was lost may have been stored.
    Refused(String),
    /// No answer, in the end. It may be stored, at most once.
    Unknown,
}

/// One message in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: MessageId,
    pub subject: String,
    /// SHA-256 of the payload, by our own reckoning at the time of sending.
    pub digest: Digest,
    /// Nanoseconds since 1970 at the first attempt.
    pub sent_at: u64,
    /// How often it was sent; order is only promised for messages sent once.
    pub attempts: u32,
    /// The connection it was sent and confirmed on (a count of connects), if that was one and the
    /// same; order is only promised within one.
    pub connection: Option<u64>,
    pub outcome: Outcome,
}

#[derive(Debug, Default)]
struct Inner {
    publishers: BTreeMap<u32, Vec<Entry>>,
    confirmed: u64,
    /// Contradictions seen while publishing: the server confirmed one id at two sequences.
    contradictions: Vec<String>,
    /// Highest first and last sequence any audit of this ledger has seen.
    seen: (u64, u64),
}

/// What a file can't be read as.
#[derive(Debug)]
pub enum LedgerError {
    Io(io::Error),
    /// Line number and what is wrong with it.
    Format(usize, String),
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerError::Io(error) => write!(f, "ledger file: {error}"),
            LedgerError::Format(line, why) => write!(f, "ledger file, line {line}: {why}"),
        }
    }
}

impl std::error::Error for LedgerError {}

impl From<io::Error> for LedgerError {
    fn from(error: io::Error) -> LedgerError {
        LedgerError::Io(error)
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    run: String,
    seen: (u64, u64),
    contradictions: Vec<String>,
}

/// The shared ledger of one run. Cloning gives another handle to the same ledger.
#[derive(Debug, Clone)]
pub struct Ledger {
    run: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::new()
    }
}

impl Ledger {
    /// An empty ledger whose message ids no other run uses.
    pub fn new() -> Ledger {
        Ledger::named(format!("{:x}-{:x}", std::process::id(), now()))
    }

    /// An empty ledger with a run name of the caller's, which prefixes every message id.
    pub fn named(run: impl Into<String>) -> Ledger {
        Ledger { run: run.into().into(), inner: Arc::default() }
    }

    /// The `Nats-Msg-Id` of a message.
    pub fn msg_id(&self, id: MessageId) -> String {
        format!("{}.{id}", self.run)
    }

    /// The message a `Nats-Msg-Id` belongs to, if it's one of this run's.
    pub fn parse_msg_id(&self, text: &str) -> Option<MessageId> {
        text.strip_prefix(&*self.run)?.strip_prefix('.')?.parse().ok()
    }

    /// How many messages are confirmed so far.
    pub fn confirmed(&self) -> u64 {
        self.lock().confirmed
    }

    /// How many messages were sent so far, confirmed or not.
    pub fn sent(&self) -> u64 {
        self.lock().publishers.values().map(|entries| entries.len() as u64).sum()
    }

    /// The highest confirmed sequence, 0 if none.
    pub fn highest_confirmed(&self) -> u64 {
        let inner = self.lock();
        let acked = inner.publishers.values().flatten().filter_map(|entry| match entry.outcome {
            Outcome::Acked { seq, .. } => Some(seq),
            _ => None,
        });
        acked.max().unwrap_or(0)
    }

    /// A copy of every entry, by publisher and number.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().publishers.values().flatten().cloned().collect()
    }

    /// What the server contradicted itself in while we published.
    pub fn contradictions(&self) -> Vec<String> {
        self.lock().contradictions.clone()
    }

    /// Highest first and last sequence any audit has seen.
    pub(crate) fn seen(&self) -> (u64, u64) {
        self.lock().seen
    }

    /// Remembers a first and last sequence, so that a later audit notices going backwards.
    pub(crate) fn note_seen(&self, first: u64, last: u64) {
        let mut inner = self.lock();
        inner.seen = (inner.seen.0.max(first), inner.seen.1.max(last));
    }

    /// Adds a message about to be sent for the first time; its outcome is unknown until told.
    pub(crate) fn open(&self, publisher: u32, subject: String, payload: &[u8]) -> MessageId {
        let mut inner = self.lock();
        let entries = inner.publishers.entry(publisher).or_default();
        let id = MessageId { publisher, number: entries.len() as u64 };
        let digest = Digest::of(payload);
        entries.push(Entry {
            id,
            subject,
            digest,
            sent_at: now(),
            attempts: 0,
            connection: None,
            outcome: Outcome::Unknown,
        });
        id
    }

    /// The number the next message of this publisher gets.
    pub(crate) fn next_number(&self, publisher: u32) -> u64 {
        self.lock().publishers.get(&publisher).map_or(0, |entries| entries.len() as u64)
    }

    /// Notes one more attempt, on connection `connection`. Returns the subject to send it to.
    pub(crate) fn attempt(&self, id: MessageId, connection: u64) -> Option<String> {
        self.with(id, |entry| {
            entry.attempts += 1;
            entry.connection = (entry.attempts == 1).then_some(connection);
            entry.subject.clone()
        })
    }

    /// Notes the server's answer, heard on connection `connection`. An answer never replaces a
    /// confirmation; a second confirmation must name the same sequence.
    pub(crate) fn answer(&self, id: MessageId, connection: u64, outcome: Outcome) {
        let mut inner = self.lock();
        let Some(entry) = inner.entry(id) else { return };
        match (&entry.outcome, &outcome) {
            (&Outcome::Acked { seq: before, .. }, &Outcome::Acked { seq, .. }) if before != seq => {
                let text = format!("message {id} was confirmed at sequence {before}, then at {seq}");
                inner.contradictions.push(text);
            }
            (Outcome::Acked { .. }, _) => {}
            (_, Outcome::Acked { .. }) => {
                entry.connection = entry.connection.filter(|&sent_on| sent_on == connection);
                entry.outcome = outcome;
                inner.confirmed += 1;
            }
            _ => entry.outcome = outcome,
        }
    }

    /// Writes the ledger as JSON lines: a head, then one entry per line.
    ///
    /// # Errors
    /// Any error of the writer.
    pub fn write_to(&self, mut out: impl Write) -> Result<(), LedgerError> {
        let inner = self.lock();
        let head = Head { run: self.run.to_string(), seen: inner.seen, contradictions: inner.contradictions.clone() };
        serde_json::to_writer(&mut out, &head).map_err(io::Error::from)?;
        for entry in inner.publishers.values().flatten() {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, entry).map_err(io::Error::from)?;
        }
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    /// Reads what [`Ledger::write_to`] wrote.
    ///
    /// # Errors
    /// Any error of the reader, or the line that isn't an entry or is out of its publisher's order.
    pub fn read_from(input: impl BufRead) -> Result<Ledger, LedgerError> {
        let mut lines = input.lines().enumerate();
        let (_, head) = lines.next().ok_or_else(|| LedgerError::Format(1, "the file is empty".into()))?;
        let head: Head = serde_json::from_str(&head?).map_err(|e| LedgerError::Format(1, e.to_string()))?;
        let mut inner = Inner { seen: head.seen, contradictions: head.contradictions, ..Inner::default() };
        for (i, line) in lines {
            let entry: Entry = serde_json::from_str(&line?).map_err(|e| LedgerError::Format(i + 1, e.to_string()))?;
            inner.confirmed += u64::from(matches!(entry.outcome, Outcome::Acked { .. }));
            let entries = inner.publishers.entry(entry.id.publisher).or_default();
            if entry.id.number != entries.len() as u64 {
                return Err(LedgerError::Format(i + 1, format!("message {} is out of order", entry.id)));
            }
            entries.push(entry);
        }
        Ok(Ledger { run: head.run.into(), inner: Arc::new(Mutex::new(inner)) })
    }

    fn with<T>(&self, id: MessageId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.lock().entry(id).map(change)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No panic happens under the lock, and the data would still be whole if one did.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn entry(&mut self, id: MessageId) -> Option<&mut Entry> {
        self.publishers.get_mut(&id.publisher)?.get_mut(usize::try_from(id.number).ok()?)
    }
}

#[expect(clippy::disallowed_methods, reason = "the ledger is kept outside any node; it has no other clock")]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(seq: u64) -> Outcome {
        Outcome::Acked { seq, duplicate: false }
    }

    #[test]
    fn a_retry_counts_once_and_loses_its_place_in_the_order() {
        let ledger = Ledger::named("run");
        let id = ledger.open(1, "s".into(), b"x");
        ledger.attempt(id, 1);
        ledger.answer(id, 1, Outcome::Unknown);
        ledger.attempt(id, 2);
        ledger.answer(id, 2, Outcome::Acked { seq: 9, duplicate: true });
        ledger.answer(id, 2, acked(9));
        let entries = ledger.entries();
        assert_eq!((ledger.confirmed(), entries.len()), (1, 1));
        assert_eq!((entries[0].attempts, entries[0].connection), (2, None));
        assert!(ledger.contradictions().is_empty());
    }

    #[test]
    fn confirmed_twice_at_different_sequences_is_a_contradiction() {
        let ledger = Ledger::named("run");
        let id = ledger.open(1, "s".into(), b"x");
        ledger.attempt(id, 1);
        ledger.answer(id, 1, acked(9));
        ledger.answer(id, 1, acked(10));
        assert_eq!(ledger.contradictions().len(), 1);
        ledger.answer(id, 1, Outcome::Refused("late".into()));
        assert_eq!(ledger.entries()[0].outcome, acked(9), "a confirmation stands");
    }

    #[test]
    fn confirmed_on_another_connection_is_outside_the_order() {
        let ledger = Ledger::named("run");
        let id = ledger.open(1, "s".into(), b"x");
        ledger.attempt(id, 1);
        ledger.answer(id, 2, acked(1));
        assert_eq!(ledger.entries()[0].connection, None);
    }

    #[test]
    fn ids_belong_to_their_run() {
        let ledger = Ledger::named("run-a");
        let id = MessageId { publisher: 3, number: 14 };
        assert_eq!(ledger.parse_msg_id(&ledger.msg_id(id)), Some(id));
        assert_eq!(Ledger::named("run").parse_msg_id(&ledger.msg_id(id)), None);
        assert_eq!(ledger.parse_msg_id("run-a.3"), None);
    }

    #[test]
    fn a_file_brings_back_the_same_ledger() {
        let ledger = Ledger::named("run");
        for n in 0..3 {
            let id = ledger.open(1, format!("s.{n}"), &[n]);
            ledger.attempt(id, 1);
            ledger.answer(id, 1, acked(u64::from(n) + 1));
        }
        ledger.note_seen(1, 3);
        let mut file = Vec::new();
        ledger.write_to(&mut file).unwrap();
        let back = Ledger::read_from(file.as_slice()).unwrap();
        assert_eq!(back.entries(), ledger.entries());
        assert_eq!((back.confirmed(), back.seen(), back.highest_confirmed()), (3, (1, 3), 3));

        let mut lines: Vec<_> = file.split(|&b| b == b'\n').collect();
        lines.swap(1, 2);
        assert!(matches!(Ledger::read_from(lines.join(&b'\n').as_slice()), Err(LedgerError::Format(2, _))));
        assert!(Ledger::read_from(&b""[..]).is_err());
    }
}
