//! A stream in memory with one consumer, its pump, and a log whose entries the test applies or refuses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::consumer::*;
use crate::ids::{StreamSeq, Timestamp};

pub(super) const SECOND: u64 = 1_000_000_000;

/// Messages of a stream: sequence → subject, stored time. Everything is searched the slow way.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    pub(super) stored: BTreeMap<u64, (String, u64)>,
    pub(super) last: u64,
    /// By the replica that leads.
    pub(super) unreadable: BTreeSet<u64>,
}

/// Subject, headers and payload of every message are that long.
pub(super) const MESSAGE_LEN: u64 = 100;
/// The stream's name.
pub(super) const STREAM: &str = "ORDERS";

impl Messages {
    pub(super) fn publish(&mut self, subject: &str, ts: u64) -> u64 {
        self.last += 1;
        self.stored.insert(self.last, (subject.to_owned(), ts));
        self.last
    }

    fn matching<'a>(&'a self, filters: &'a Filters) -> impl DoubleEndedIterator<Item = u64> + 'a {
        self.stored.iter().filter(|(_, (subject, _))| filters.matches(subject.as_bytes())).map(|(seq, _)| *seq)
    }
}

impl LiveMessages for Messages {
    fn next_seq(&self) -> StreamSeq {
        StreamSeq::new(self.last + 1)
    }

    fn contains(&self, seq: StreamSeq) -> bool {
        self.stored.contains_key(&seq.get())
    }
}

impl MessageView for Messages {
    fn next_matching(&self, filters: &Filters, from: StreamSeq) -> Option<StreamSeq> {
        self.matching(filters).find(|seq| *seq >= from.get()).map(StreamSeq::new)
    }

    fn count_matching(&self, filters: &Filters, from: StreamSeq) -> u64 {
        self.matching(filters).filter(|seq| *seq >= from.get()).count() as u64
    }

    fn last_matching(&self, filters: &Filters) -> Option<StreamSeq> {
        self.matching(filters).next_back().map(StreamSeq::new)
    }

    fn last_per_subject(&self, filters: &Filters) -> Vec<StreamSeq> {
        let last: BTreeMap<&str, u64> = self.matching(filters).map(|seq| (self.stored[&seq].0.as_str(), seq)).collect();
        last.into_values().map(StreamSeq::new).collect()
    }

    fn first_at_or_after(&self, at: Timestamp) -> StreamSeq {
        let found = self.stored.iter().find(|(_, (_, ts))| *ts >= at.get());
        found.map_or(self.next_seq(), |(seq, _)| StreamSeq::new(*seq))
    }

    fn message_len(&self, seq: StreamSeq, _headers_only: bool) -> Option<u64> {
        self.contains(seq).then_some(MESSAGE_LEN)
    }

    fn readable_up_to(&self, seq: StreamSeq) -> Option<StreamSeq> {
        (!self.unreadable.contains(&seq.get())).then_some(seq)
    }

    fn stream_name_len(&self) -> usize {
        STREAM.len()
    }
}

pub(super) struct World {
    pub(super) messages: Messages,
    pub(super) set: ConsumerSet,
    pub(super) id: ConsumerId,
    pub(super) pump: ConsumerPump,
    pub(super) now: u64,
    /// Proposals not applied yet.
    pub(super) log: VecDeque<(Token, Vec<ConsumerOp>)>,
    pub(super) actions: Vec<PumpAction>,
    pub(super) effects: ConsumerEffects,
    refused: bool,
}

pub(super) fn explicit() -> ConsumerConfig {
    ConsumerConfig {
        name: "C".to_owned(),
        durable: true,
        ack_policy: AckPolicy::Explicit,
        ack_wait_ns: 30 * SECOND,
        max_ack_pending: Some(1000),
        max_waiting: Some(512),
        ..ConsumerConfig::default()
    }
}

pub(super) fn request(reply: &str, batch: u32) -> PullRequest {
    PullRequest {
        reply: Bytes::copy_from_slice(reply.as_bytes()),
        batch,
        no_wait: false,
        expires_ns: None,
        max_bytes: None,
        heartbeat_ns: None,
    }
}

impl World {
    pub(super) fn new(config: ConsumerConfig, tracking: Tracking) -> Self {
        Self::over(Messages::default(), config, tracking)
    }

    pub(super) fn over(messages: Messages, config: ConsumerConfig, tracking: Tracking) -> Self {
        let mut set = ConsumerSet::default();
        let mut effects = ConsumerEffects::default();
        let create = ConsumerOp::Create {
            ts: Timestamp::new(SECOND),
            create: Box::new(CreateConsumer {
                start: StartAt::resolve(&config, &messages),
                config,
                config_json: "{}".to_owned(),
            }),
        };
        set.apply(&create, &messages, &mut effects);
        let CreateOutcome::Created(id) = effects.created[0] else {
            panic!("not created: {effects:?}");
        };
        let pump = ConsumerPump::start(id, tracking, set.get(id).unwrap(), Timestamp::new(SECOND));
        Self {
            messages,
            set,
            id,
            pump,
            now: SECOND,
            log: VecDeque::new(),
            actions: Vec::new(),
            effects,
            refused: false,
        }
    }

    pub(super) fn state(&self) -> &ConsumerState {
        self.set.get(self.id).unwrap()
    }

    pub(super) fn publish(&mut self, count: u64) {
        for _ in 0..count {
            self.messages.publish("s", self.now);
        }
    }

    pub(super) fn pull(&mut self, request: PullRequest) {
        self.pump.pull(request, Timestamp::new(self.now));
    }

    pub(super) fn ack(&mut self, seq: u64, verb: AckVerb) {
        self.ack_with_reply(seq, verb, None);
    }

    pub(super) fn ack_with_reply(&mut self, seq: u64, verb: AckVerb, reply: Option<&str>) {
        let ack = Ack {
            seq: StreamSeq::new(seq),
            cseq: crate::ids::ConsumerSeq::new(1),
            verb,
            reply: reply.map(|reply| Bytes::copy_from_slice(reply.as_bytes())),
        };
        self.pump.on_ack(ack, Timestamp::new(self.now));
    }

    pub(super) fn wait(&mut self, ns: u64) {
        self.now += ns;
    }

    /// One poll; proposals go to the log.
    pub(super) fn poll(&mut self) {
        let mut out = Vec::new();
        let state = self.set.get(self.id).unwrap();
        self.pump.poll(state, &self.messages, Timestamp::new(self.now), &mut out);
        for action in out {
            match action {
                PumpAction::Propose { token, ops } => self.log.push_back((token, ops)),
                other => self.actions.push(other),
            }
        }
    }

    /// Applies the oldest proposal, by way of its bytes.
    pub(super) fn apply_one(&mut self) -> bool {
        let Some((token, ops)) = self.log.pop_front() else {
            return false;
        };
        let mut body = Vec::new();
        encode_ops(&ops, &mut body);
        self.set.apply_body(&body, &self.messages, &mut self.effects).unwrap();
        if let Some(state) = self.set.get(self.id) {
            self.pump.applied(token, state, Timestamp::new(self.now), &mut self.actions);
        }
        true
    }

    pub(super) fn refuse_all(&mut self) {
        self.refused = true;
        for (token, _) in std::mem::take(&mut self.log) {
            self.pump.refused(token);
        }
    }

    pub(super) fn remove(&mut self, first: u64, last: u64) {
        self.messages.stored.retain(|seq, _| *seq < first || *seq > last);
        let (first, last) = (StreamSeq::new(first), StreamSeq::new(last));
        self.set.messages_removed(first, last);
        self.pump.messages_removed(first, last);
    }

    /// A new leader: what was on its way is lost, the pump starts afresh.
    pub(super) fn fail_over(&mut self) {
        self.log.clear();
        self.pump.end(EndReason::LeadershipChange, &mut self.actions);
        let state = self.set.get(self.id).unwrap();
        self.pump = ConsumerPump::start(self.id, self.pump.tracking(), state, Timestamp::new(self.now));
    }

    /// Polls and applies until nothing is on its way; returns what came out.
    pub(super) fn settle(&mut self) -> Vec<PumpAction> {
        loop {
            self.poll();
            let deadline = self.set.get(self.id).and_then(|state| self.pump.next_deadline(state));
            // After a refusal the pump pauses for a moment.
            let patience = if self.refused { 2_000_000 } else { 0 };
            let at_once = deadline.is_some_and(|deadline| deadline.get() <= self.now + patience);
            self.now = self.now.max(deadline.filter(|_| at_once).map_or(0, Timestamp::get));
            if !self.apply_one() && !at_once {
                self.refused = false;
                return std::mem::take(&mut self.actions);
            }
            if self.set.get(self.id).is_none() {
                return std::mem::take(&mut self.actions);
            }
        }
    }

    pub(super) fn info(&mut self) -> ConsumerInfo {
        let state = self.set.get(self.id).unwrap();
        self.pump.info(state, &self.messages, Timestamp::new(self.now))
    }
}

/// Sequence and delivery count of what was delivered.
pub(super) fn delivered(actions: &[PumpAction]) -> Vec<(u64, u32)> {
    actions
        .iter()
        .filter_map(|action| match action {
            PumpAction::Deliver(delivery) => Some((delivery.seq.get(), delivery.deliveries)),
            _ => None,
        })
        .collect()
}

/// Inbox and status text of every status message.
pub(super) fn statuses(actions: &[PumpAction]) -> Vec<String> {
    actions
        .iter()
        .filter_map(|action| match action {
            PumpAction::Status { to, status } => {
                let block = status.header_block();
                let first = block.lines().next().unwrap().trim_start_matches("NATS/1.0 ");
                Some(format!("{} {first}", String::from_utf8_lossy(to)))
            }
            _ => None,
        })
        .collect()
}
