//! The replicated state of one consumer.

use roaring::RoaringTreemap;

use super::config::{AckPolicy, ConsumerConfig};
use super::op::{CreateConsumer, DeliveredRun, SeqRun, StartAt};
use super::view::LiveMessages;
use super::window::{Pending, Window};
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

/// A place in a consumer's deliveries, counted by consumer and by stream. Zero is "before the first".
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SequencePair {
    /// Deliveries, redeliveries included.
    pub consumer: ConsumerSeq,
    /// Messages.
    pub stream: StreamSeq,
}

/// One consumer, alike on every replica at the same log index.
///
/// ```text
///            ack floor        delivered
///  ──settled────┤ pending/settled ├── not delivered yet ──▶ stream sequence
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConsumerState {
    pub(super) config: ConsumerConfig,
    pub(super) config_json: String,
    pub(super) created: Timestamp,
    pub(super) delivered: SequencePair,
    pub(super) last_delivered_at: Option<Timestamp>,
    /// Up to here only the last message of a subject is delivered.
    pub(super) last_per_subject_through: Option<StreamSeq>,
    pub(super) pending: Window,
    /// Messages that reached `max_deliver`: not delivered again, but kept by the stream's retention.
    pub(super) exhausted: RoaringTreemap,
}

impl ConsumerState {
    /// A consumer as its create entry makes it.
    pub fn new(create: &CreateConsumer, created: Timestamp, live: &dyn LiveMessages) -> Self {
        let last = before(live.next_seq());
        let (start_after, last_per_subject_through) = match create.start {
            StartAt::Next(next) => (before(next), None),
            StartAt::AfterLast => (last, None),
            StartAt::LastPerSubject => (StreamSeq::ZERO, Some(last)),
        };
        Self {
            config: create.config.clone(),
            config_json: create.config_json.clone(),
            created,
            delivered: SequencePair { consumer: ConsumerSeq::default(), stream: start_after },
            last_delivered_at: None,
            last_per_subject_through,
            pending: Window::default(),
            exhausted: RoaringTreemap::new(),
        }
    }

    /// What the state machine knows of its configuration.
    pub fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// The full configuration as the API shows it.
    pub fn config_json(&self) -> &str {
        &self.config_json
    }

    /// When it was created, by log time.
    pub fn created(&self) -> Timestamp {
        self.created
    }

    /// The last delivery.
    pub fn delivered(&self) -> SequencePair {
        self.delivered
    }

    /// When it last delivered, by log time.
    pub fn last_delivered_at(&self) -> Option<Timestamp> {
        self.last_delivered_at
    }

    /// Everything up to here is settled.
    pub fn ack_floor(&self) -> SequencePair {
        match self.pending.first() {
            Some(first) => SequencePair {
                consumer: ConsumerSeq::new(first.cseq.get().saturating_sub(1)),
                stream: before(first.seq),
            },
            None => self.delivered,
        }
    }

    /// Up to here only the last message of each subject is wanted (deliver policy "last per subject").
    pub fn last_per_subject_through(&self) -> Option<StreamSeq> {
        self.last_per_subject_through
    }

    /// The pending entry of a message.
    pub fn pending(&self, seq: StreamSeq) -> Option<&Pending> {
        self.pending.get(seq)
    }

    /// Every pending entry, by stream sequence.
    pub fn iter_pending(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter()
    }

    /// Number of pending entries.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Messages that were delivered more than once and are not settled, exhausted ones included.
    pub fn redelivered_count(&self) -> usize {
        self.pending.redelivered() + usize::try_from(self.exhausted.len()).unwrap_or(usize::MAX)
    }

    /// Whether the message reached `max_deliver` and was not settled after that.
    pub fn is_exhausted(&self, seq: StreamSeq) -> bool {
        self.exhausted.contains(seq.get())
    }

    /// Whether a stream that keeps messages for its consumers must keep this one for this consumer.
    pub fn needs(&self, seq: StreamSeq, subject: &[u8]) -> bool {
        if seq > self.delivered.stream {
            return self.config.filters.matches(subject);
        }
        self.pending.get(seq).is_some() || self.exhausted.contains(seq.get())
    }

    pub(super) fn set_config(&mut self, config: ConsumerConfig, config_json: String) {
        let waits_differ = self.config.ack_wait_ns != config.ack_wait_ns || self.config.backoff_ns != config.backoff_ns;
        self.config = config;
        self.config_json = config_json;
        if waits_differ {
            let config = &self.config;
            self.pending
                .update_all(|entry| entry.due = entry.delivered_at.plus_ns(config.wait_after_ns(entry.deliveries)));
        }
    }

    /// Messages handed out at `ts`. A message that no longer exists moves the sequences but is not pending: nobody
    /// could ever acknowledge it. With ack policy "none" `settled` gets every new one.
    pub(super) fn apply_delivered(
        &mut self,
        ts: Timestamp,
        runs: &[DeliveredRun],
        live: &dyn LiveMessages,
        settled: &mut Vec<SeqRun>,
    ) {
        self.last_delivered_at = self.last_delivered_at.max(Some(ts));
        for run in runs {
            for step in 0..run.len {
                let seq = StreamSeq::new(run.seq.get() + step);
                let cseq = ConsumerSeq::new(run.cseq.get() + step);
                self.delivered.consumer = self.delivered.consumer.max(cseq);
                if seq > self.delivered.stream {
                    self.delivered.stream = seq;
                    self.first_delivery(seq, cseq, ts, live, settled);
                } else {
                    self.redelivery(seq, ts);
                }
            }
        }
    }

    fn first_delivery(
        &mut self,
        seq: StreamSeq,
        cseq: ConsumerSeq,
        ts: Timestamp,
        live: &dyn LiveMessages,
        settled: &mut Vec<SeqRun>,
    ) {
        if !live.contains(seq) {
            return;
        }
        if self.config.ack_policy == AckPolicy::None {
            push_seq(settled, seq);
            return;
        }
        self.pending.insert(Pending {
            seq,
            cseq,
            delivered_at: ts,
            due: ts.plus_ns(self.config.wait_after_ns(1)),
            deliveries: 1,
        });
    }

    fn redelivery(&mut self, seq: StreamSeq, ts: Timestamp) {
        let config = &self.config;
        self.pending.update_range(seq, seq, |entry| {
            entry.deliveries = entry.deliveries.saturating_add(1);
            entry.delivered_at = ts;
            entry.due = ts.plus_ns(config.wait_after_ns(entry.deliveries));
        });
    }

    /// Messages are done, by ack or term; also one that was given up before.
    pub(super) fn apply_settled(&mut self, runs: &[SeqRun], settled: &mut Vec<SeqRun>) {
        for (run, last) in bounded(runs) {
            self.pending.remove_range(run.seq, last, |entry| push_seq(settled, entry.seq));
            take_range(&mut self.exhausted, run.seq, last, |seq| push_seq(settled, seq));
        }
    }

    /// Everything pending up to `through` is done.
    pub(super) fn apply_ack_all(&mut self, through: StreamSeq, settled: &mut Vec<SeqRun>) {
        let through = through.min(self.delivered.stream);
        self.pending.remove_range(StreamSeq::ZERO, through, |entry| push_seq(settled, entry.seq));
    }

    /// Messages are due at `due`.
    pub(super) fn apply_nak(&mut self, due: Timestamp, runs: &[SeqRun]) {
        for (run, last) in bounded(runs) {
            self.pending.update_range(run.seq, last, |entry| entry.due = due);
        }
    }

    /// The wait of these messages starts again at `ts`.
    pub(super) fn apply_progress(&mut self, ts: Timestamp, runs: &[SeqRun]) {
        let config = &self.config;
        for (run, last) in bounded(runs) {
            self.pending.update_range(run.seq, last, |entry| {
                entry.delivered_at = ts;
                entry.due = ts.plus_ns(config.wait_after_ns(entry.deliveries));
            });
        }
    }

    /// Messages reached `max_deliver`.
    pub(super) fn apply_exhausted(&mut self, runs: &[SeqRun]) {
        let exhausted = &mut self.exhausted;
        for (run, last) in bounded(runs) {
            self.pending.remove_range(run.seq, last, |entry| {
                exhausted.insert(entry.seq.get());
            });
        }
    }

    /// Nothing up to `through` is left to deliver for the first time.
    pub(super) fn apply_skip(&mut self, through: StreamSeq, live: &dyn LiveMessages) {
        let through = through.min(before(live.next_seq()));
        self.delivered.stream = self.delivered.stream.max(through);
    }

    /// Delivery starts over at `next`.
    pub(super) fn apply_reset(&mut self, next: StreamSeq) {
        self.pending.clear();
        self.exhausted.clear();
        self.last_per_subject_through = None;
        self.delivered = SequencePair { consumer: ConsumerSeq::default(), stream: before(next) };
    }

    /// Messages `first..=last` left the stream, whoever removed them: they must not hold up the consumer.
    pub(super) fn messages_removed(&mut self, first: StreamSeq, last: StreamSeq) {
        self.pending.remove_range(first, last, |_| {});
        take_range(&mut self.exhausted, first, last, |_| {});
    }

    /// Moves the consumer back with a stream that lost its tail; `true` if it had been ahead.
    pub(super) fn clamp(&mut self, next_seq: StreamSeq) -> bool {
        let last = before(next_seq);
        self.last_per_subject_through = self.last_per_subject_through.map(|through| through.min(last));
        if self.delivered.stream <= last {
            return false;
        }
        self.messages_removed(next_seq, StreamSeq::new(u64::MAX));
        self.delivered.stream = last;
        true
    }
}

/// The sequence before this one; zero before the first.
pub(super) fn before(seq: StreamSeq) -> StreamSeq {
    StreamSeq::new(seq.get().saturating_sub(1))
}

/// Appends a sequence to a list of runs, prolonging the last run where it fits.
pub(super) fn push_seq(runs: &mut Vec<SeqRun>, seq: StreamSeq) {
    match runs.last_mut() {
        Some(run) if run.seq.get() + run.len == seq.get() => run.len += 1,
        _ => runs.push(SeqRun { seq, len: 1 }),
    }
}

/// Every run with its last sequence; empty runs are left out.
fn bounded(runs: &[SeqRun]) -> impl Iterator<Item = (SeqRun, StreamSeq)> {
    runs.iter().filter_map(|run| {
        let more = run.len.checked_sub(1)?;
        Some((*run, StreamSeq::new(run.seq.get().saturating_add(more))))
    })
}

fn take_range(set: &mut RoaringTreemap, first: StreamSeq, last: StreamSeq, taken: impl FnMut(StreamSeq)) {
    let (first, last) = (first.get(), last.get());
    if first > last {
        return;
    }
    let mut found = set.iter();
    found.advance_to(first);
    found.take_while(|seq| *seq <= last).map(StreamSeq::new).for_each(taken);
    set.remove_range(first..=last);
}
