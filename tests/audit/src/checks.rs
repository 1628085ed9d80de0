//! The checks themselves: no network here, only the ledger and what was read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use crate::digest::Digest;
use crate::ledger::{Entry, Ledger, MessageId, Outcome};
use crate::report::{Invariant, Report};

/// One message as a server gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub seq: u64,
    pub subject: String,
    /// Its `Nats-Msg-Id`, if it has one.
    pub msg_id: Option<String>,
    /// SHA-256 of the payload.
    pub payload: Digest,
    /// SHA-256 of subject, headers (sorted), time in nanoseconds, and payload.
    pub whole: Digest,
    /// Payload length in bytes.
    pub len: u64,
}

/// What a node reports of the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    pub messages: u64,
    pub bytes: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub num_deleted: u64,
    pub num_subjects: u64,
}

/// What a node reports of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerState {
    pub name: String,
    pub delivered_stream_seq: u64,
    pub delivered_consumer_seq: u64,
    pub ack_floor_stream_seq: u64,
    pub ack_floor_consumer_seq: u64,
}

/// An audit under way: fed with views, it gives a [`Report`] in the end.
pub struct Audit {
    run: Ledger,
    entries: HashMap<MessageId, Entry>,
    /// Sequences whose messages may be gone by right.
    removed: Vec<RangeInclusive<u64>>,
    /// Whether everything below a node's reported first sequence may be gone by right.
    limits: bool,
    /// The first content seen at each sequence, and the view it was seen in.
    base: HashMap<u64, (Digest, usize)>,
    lost: HashSet<MessageId>,
    duplicated: HashSet<MessageId>,
    reordered: HashSet<MessageId>,
    removed_by_right: HashSet<MessageId>,
    stored_unconfirmed: HashSet<MessageId>,
    report: Report,
}

impl Audit {
    /// Starts an audit of `ledger`. `removed` are sequences that were deleted or purged by right;
    /// with `limits`, a node's first sequence may also have moved up by the stream's limits.
    pub fn new(ledger: &Ledger, removed: Vec<RangeInclusive<u64>>, limits: bool) -> Audit {
        let entries: HashMap<_, _> = ledger.entries().into_iter().map(|entry| (entry.id, entry)).collect();
        let mut report = Report { sent: entries.len() as u64, confirmed: ledger.confirmed(), ..Report::default() };
        for text in ledger.contradictions() {
            report.find(Invariant::TwoContents, "", text);
        }
        let mut at: BTreeMap<u64, MessageId> = BTreeMap::new();
        let mut sorted: Vec<&Entry> = entries.values().collect();
        sorted.sort_by_key(|entry| entry.id);
        for entry in sorted {
            if let Outcome::Acked { seq, .. } = entry.outcome
                && let Some(other) = at.insert(seq, entry.id)
            {
                let text = format!("messages {other} and {} were both confirmed at sequence {seq}", entry.id);
                report.find(Invariant::TwoContents, "", text);
            }
        }
        Audit {
            run: ledger.clone(),
            entries,
            removed,
            limits,
            base: HashMap::new(),
            lost: HashSet::new(),
            duplicated: HashSet::new(),
            reordered: HashSet::new(),
            removed_by_right: HashSet::new(),
            stored_unconfirmed: HashSet::new(),
            report,
        }
    }

    /// A view that could not be read, or not to its end.
    pub fn unread(&mut self, view: &str, why: impl Into<String>) {
        self.report.find(Invariant::Unread, view, why);
    }

    /// Checks one complete view: everything read from one node in one way, in sequence order,
    /// and the state the node reported just before.
    pub fn view(&mut self, name: &str, state: &NodeState, messages: &[Stored]) {
        let index = self.report.views.len();
        self.report.views.push(name.to_owned());
        self.report.read += messages.len() as u64;

        let mut places: HashMap<MessageId, u64> = HashMap::with_capacity(messages.len());
        for stored in messages {
            self.compare(name, index, stored);
            let Some(id) = stored.msg_id.as_deref().and_then(|text| self.run.parse_msg_id(text)) else {
                continue;
            };
            if let Some(before) = places.insert(id, stored.seq) {
                self.duplicated.insert(id);
                let text = format!("message {id} is stored at sequences {before} and {}", stored.seq);
                self.report.find(Invariant::Duplicated, name, text);
                // Where it was confirmed decides whether it's lost; the other place is the copy.
                if matches!(self.entries.get(&id), Some(Entry { outcome: Outcome::Acked { seq, .. }, .. }) if *seq == before)
                {
                    places.insert(id, before);
                }
            }
            self.own(name, id, stored);
        }
        self.missing(name, state, &places);
        self.order(name, &places);
        self.gaps(name, state, messages, index);
    }

    /// I2 and I6: the same sequence, another content.
    fn compare(&mut self, view: &str, index: usize, stored: &Stored) {
        match self.base.entry(stored.seq) {
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert((stored.whole, index));
            }
            std::collections::hash_map::Entry::Occupied(slot) if slot.get().0 != stored.whole => {
                let other = self.report.views.get(slot.get().1).cloned().unwrap_or_default();
                let text = format!("sequence {} differs from what {other} holds", stored.seq);
                self.report.find(Invariant::ViewsDiffer, view, text);
            }
            std::collections::hash_map::Entry::Occupied(_) => {}
        }
    }

    /// A stored message of ours: is it what was sent, and where it was confirmed?
    fn own(&mut self, view: &str, id: MessageId, stored: &Stored) {
        let Some(entry) = self.entries.get(&id) else {
            let text = format!("sequence {} holds message {id}, which was never sent", stored.seq);
            self.report.find(Invariant::TwoContents, view, text);
            return;
        };
        if stored.payload != entry.digest || stored.subject != entry.subject {
            let text = format!("sequence {} holds message {id} with another payload or subject", stored.seq);
            self.report.find(Invariant::TwoContents, view, text);
            if matches!(entry.outcome, Outcome::Acked { .. }) {
                self.lost.insert(id);
            }
        }
        if !matches!(entry.outcome, Outcome::Acked { .. }) {
            self.stored_unconfirmed.insert(id);
        }
    }

    /// I1: confirmed messages the view lacks, or holds elsewhere only.
    fn missing(&mut self, view: &str, state: &NodeState, places: &HashMap<MessageId, u64>) {
        let mut missing = BTreeSet::new();
        for entry in self.entries.values() {
            let Outcome::Acked { seq, .. } = entry.outcome else {
                continue;
            };
            match places.get(&entry.id) {
                Some(&place) if place == seq => {}
                None if self.may_be_gone(seq, state) => {
                    self.removed_by_right.insert(entry.id);
                }
                place => {
                    missing.insert((seq, entry.id, place.copied()));
                }
            }
        }
        for (seq, id, place) in missing {
            self.lost.insert(id);
            let text = match place {
                None => format!("message {id}, confirmed at sequence {seq}, is not there"),
                Some(place) => {
                    format!("message {id}, confirmed at sequence {seq}, is at {place} instead")
                }
            };
            self.report.find(Invariant::Lost, view, text);
        }
    }

    fn may_be_gone(&self, seq: u64, state: &NodeState) -> bool {
        (self.limits && seq < state.first_seq) || self.removed.iter().any(|range| range.contains(&seq))
    }

    /// I5, among messages sent once and confirmed on the connection they were sent on: what was
    /// retried, or was under way when the connection changed, has no promised place.
    fn order(&mut self, view: &str, places: &HashMap<MessageId, u64>) {
        let mut ordered: BTreeMap<(u32, u64), Vec<(u64, u64)>> = BTreeMap::new();
        for (id, &place) in places {
            if let Some(&Entry { attempts: 1, connection: Some(connection), .. }) = self.entries.get(id) {
                ordered.entry((id.publisher, connection)).or_default().push((id.number, place));
            }
        }
        for ((publisher, _), mut list) in ordered {
            list.sort_unstable();
            for pair in list.windows(2) {
                let ((number, place), (next, next_place)) = (pair[0], pair[1]);
                if next_place < place {
                    self.reordered.insert(MessageId { publisher, number: next });
                    let text = format!(
                        "publisher {publisher}: message {number} is at {place}, the later {next} at {next_place}"
                    );
                    self.report.find(Invariant::Reordered, view, text);
                }
            }
        }
    }

    /// I6 the other way round (a sequence some view has and this one lacks) and I7.
    fn gaps(&mut self, view: &str, state: &NodeState, messages: &[Stored], index: usize) {
        let seqs: HashSet<u64> = messages.iter().map(|stored| stored.seq).collect();
        let mut absent: Vec<_> = self
            .base
            .iter()
            .filter(|(seq, (_, seen_in))| {
                *seen_in != index && (state.first_seq..=state.last_seq).contains(*seq) && !seqs.contains(*seq)
            })
            .map(|(&seq, &(_, seen_in))| (seq, seen_in))
            .collect();
        absent.sort_unstable();
        for (seq, seen_in) in absent {
            let other = self.report.views.get(seen_in).cloned().unwrap_or_default();
            self.report.find(
                Invariant::ViewsDiffer,
                view,
                format!("sequence {seq} is not there, but {other} holds it"),
            );
        }
        let subjects: HashSet<&str> = messages.iter().map(|stored| stored.subject.as_str()).collect();
        let span = if state.last_seq >= state.first_seq { state.last_seq - state.first_seq + 1 } else { 0 };
        let payload: u64 = messages.iter().map(|stored| stored.len).sum();
        let counts = [
            ("messages", state.messages, messages.len() as u64),
            ("num_subjects", state.num_subjects, subjects.len() as u64),
            ("num_deleted", state.num_deleted, span.saturating_sub(messages.len() as u64)),
        ];
        for (what, reported, counted) in counts {
            if reported != counted {
                self.report.find(
                    Invariant::WrongCount,
                    view,
                    format!("{what} is {reported}, a recount gives {counted}"),
                );
            }
        }
        if state.bytes < payload {
            let text = format!("bytes is {}, the payloads alone have {payload}", state.bytes);
            self.report.find(Invariant::WrongCount, view, text);
        }
    }

    /// I3: against what is confirmed, and against what earlier audits of this ledger saw.
    pub fn state(&mut self, node: &str, state: &NodeState) {
        let (first, last) = self.run.seen();
        let confirmed = self.run.highest_confirmed();
        if state.last_seq < confirmed {
            let text = format!("the last sequence is {}, but {confirmed} was confirmed", state.last_seq);
            self.report.find(Invariant::WentBack, node, text);
        }
        if state.last_seq < last {
            self.report.find(
                Invariant::WentBack,
                node,
                format!("the last sequence was {last}, now it's {}", state.last_seq),
            );
        }
        if state.first_seq < first {
            self.report.find(
                Invariant::WentBack,
                node,
                format!("the first sequence was {first}, now it's {}", state.first_seq),
            );
        }
    }

    /// I6 for the reported states: all nodes must report the same.
    pub fn states_equal(&mut self, states: &[(String, NodeState)]) {
        if let Some(((first, base), rest)) = states.split_first() {
            for (node, state) in rest.iter().filter(|(_, state)| state != base) {
                let text = format!("reports {state:?}, {first} reports {base:?}");
                self.report.find(Invariant::ViewsDiffer, node, text);
            }
        }
    }

    /// I8 for one consumer.
    pub fn consumer(&mut self, node: &str, consumer: &ConsumerState, state: &NodeState) {
        let ConsumerState { name, delivered_stream_seq, ack_floor_stream_seq, .. } = consumer;
        if *delivered_stream_seq > state.last_seq || *ack_floor_stream_seq > state.last_seq {
            let text = format!(
                "{name} has delivered up to {delivered_stream_seq} and acknowledged up to {ack_floor_stream_seq}, the stream ends at {}",
                state.last_seq
            );
            self.report.find(Invariant::Consumer, node, text);
        }
        if ack_floor_stream_seq > delivered_stream_seq
            || consumer.ack_floor_consumer_seq > consumer.delivered_consumer_seq
        {
            self.report.find(Invariant::Consumer, node, format!("{name} has acknowledged more than was delivered"));
        }
    }

    /// I8 for the audit's own consumer: a delivery that wasn't the expected one.
    pub(crate) fn delivery(&mut self, view: &str, text: impl Into<String>) {
        self.report.find(Invariant::Consumer, view, text);
    }

    /// The report. `seconds` is how long the audit took.
    pub fn finish(mut self, seconds: f64) -> Report {
        if self.report.views.is_empty() && self.report.counts.is_empty() {
            self.report.find(Invariant::Unread, "", "nothing was read");
        }
        self.report.lost = self.lost.len() as u64;
        self.report.duplicated = self.duplicated.len() as u64;
        self.report.reordered = self.reordered.len() as u64;
        self.report.removed = self.removed_by_right.difference(&self.lost).count() as u64;
        self.report.stored_unconfirmed = self.stored_unconfirmed.len() as u64;
        self.report.seconds = seconds;
        self.report
    }
}

#[cfg(test)]
mod tests;
