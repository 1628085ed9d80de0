//! Publishes like an application would, and writes the ledger.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message, StatusCode};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;
use tokio::time::MissedTickBehavior;

use crate::ledger::{Ledger, MessageId, Outcome};

/// When a publisher stops sending new messages. What is under way is still brought to an end.
#[derive(Debug, Clone, Default)]
pub struct Until {
    count: Option<u64>,
    stop: Option<Arc<AtomicBool>>,
}

impl Until {
    /// After `count` messages.
    pub fn count(count: u64) -> Until {
        Until { count: Some(count), stop: None }
    }

    /// When `stop` becomes true.
    pub fn stopped(stop: Arc<AtomicBool>) -> Until {
        Until { count: None, stop: Some(stop) }
    }

    /// After `count` messages, or earlier when `stop` becomes true.
    pub fn count_or_stopped(count: u64, stop: Arc<AtomicBool>) -> Until {
        Until { count: Some(count), stop: Some(stop) }
    }

    fn reached(&self, sent: u64) -> bool {
        self.count.is_some_and(|count| sent >= count)
            || self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// How one publisher's run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    pub confirmed: u64,
    /// Confirmed with `duplicate: true`: a retry the server recognised.
    pub recognised_retries: u64,
    pub refused: u64,
    pub unknown: u64,
    /// Attempts beyond the first, over all messages.
    pub retries: u64,
    /// The longest time between two confirmations (or the start and the first one): how long
    /// writes stood still.
    pub longest_gap: Duration,
    pub elapsed: Duration,
}

/// The client can't be used any more.
#[derive(Debug)]
pub struct PublisherError(String);

impl fmt::Display for PublisherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "publisher: {}", self.0)
    }
}

impl std::error::Error for PublisherError {}

/// One asynchronous publisher: many messages under way at once, in order, each retried under its
/// own id until answered or given up.
#[derive(Debug, Clone)]
pub struct Publisher {
    id: u32,
    payload: usize,
    concurrency: usize,
    rate: Option<f64>,
    ack_timeout: Duration,
    give_up: Duration,
}

/// Errors an application retries: the message is certainly not stored, and may be soon.
/// 10008 no leader, 10023 resources, 10039/10076 JetStream not available, 10158 the same id is
/// still under way, 10167 too many requests.
const RETRIED: [u64; 6] = [10008, 10023, 10039, 10076, 10158, 10167];

#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

enum Answer {
    Final(Outcome),
    TryAgain(Outcome),
}

impl Publisher {
    /// Publisher number `id` of a run; every publisher of a ledger needs its own number.
    /// 128-byte payloads, 256 under way, 2 s for an answer, 60 s before giving a message up.
    pub fn new(id: u32) -> Publisher {
        Publisher {
            id,
            payload: 128,
            concurrency: 256,
            rate: None,
            ack_timeout: Duration::from_secs(2),
            give_up: Duration::from_secs(60),
        }
    }

    /// Payload size in bytes; at least what the self-describing start of it takes.
    #[must_use]
    pub fn payload(mut self, bytes: usize) -> Publisher {
        self.payload = bytes;
        self
    }

    /// How many messages may be under way at once (at least 1).
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Publisher {
        self.concurrency = messages.max(1);
        self
    }

    /// At most this many new messages per second.
    #[must_use]
    pub fn rate(mut self, per_second: f64) -> Publisher {
        self.rate = (per_second > 0.0).then_some(per_second);
        self
    }

    /// How long to wait for an answer before sending the message again.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Publisher {
        self.ack_timeout = timeout;
        self
    }

    /// How long to retry a message before its outcome is called unknown. Keep it below the
    /// stream's duplicate window: a retry after it may be stored twice by right.
    #[must_use]
    pub fn give_up(mut self, after: Duration) -> Publisher {
        self.give_up = after;
        self
    }

    /// Publishes to `stream` until told to stop, and returns when every message has its outcome.
    /// `subject_of` gives the subject of the n-th message. Reconnects of `client` are survived:
    /// what had no answer is sent again, with the same id.
    ///
    /// # Errors
    /// If the client can't subscribe or is closed for good.
    pub async fn run(
        &self,
        client: &Client,
        stream: &str,
        ledger: &Ledger,
        mut subject_of: impl FnMut(u64) -> String,
        until: &Until,
    ) -> Result<Published, PublisherError> {
        let closed = |what: &str| PublisherError(format!("{what}: the client is closed"));
        let inbox = client.new_inbox();
        let mut replies = client.subscribe(format!("{inbox}.*")).await.map_err(|e| PublisherError(e.to_string()))?;
        // The subscription must be at the server before the first reply can be.
        client.flush().await.map_err(|e| PublisherError(e.to_string()))?;

        let statistics = client.statistics();
        let connection = || statistics.connects.load(Ordering::Relaxed);
        let mut flight = Flight::default();
        let mut done = Published::default();
        let (started, first) = (Instant::now(), ledger.next_number(self.id));
        let mut last_ack = started;
        let mut tick = tokio::time::interval(self.ack_timeout.min(Duration::from_millis(50)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);

        loop {
            let sent = ledger.next_number(self.id) - first;
            let stopped = until.reached(sent);
            if stopped && flight.is_empty() {
                break;
            }
            let allowed = self.rate.is_none_or(|rate| (sent as f64) < started.elapsed().as_secs_f64() * rate + 1.0);
            let retry = flight.next_retry(Instant::now());
            let fresh = retry.is_none() && !stopped && allowed && flight.waiting.len() < self.concurrency;
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    for id in flight.expire(Instant::now()) {
                        done.unknown += 1;
                        ledger.answer(id, connection(), Outcome::Unknown);
                    }
                    if let Some(id) = retry { flight.put_back(id); }
                }
                reply = replies.next() => {
                    let reply = reply.ok_or_else(|| closed("replies"))?;
                    if let Some(number) = reply.subject.rsplit('.').next().and_then(|token| token.parse().ok()) {
                        let id = MessageId { publisher: self.id, number };
                        if self.hear(&reply, id, connection(), stream, ledger, &mut flight, &mut done) {
                            done.longest_gap = done.longest_gap.max(last_ack.elapsed());
                            last_ack = Instant::now();
                        }
                    }
                    if let Some(id) = retry { flight.put_back(id); }
                }
                // Last, so that sending never keeps answers and deadlines from being looked at.
                () = std::future::ready(()), if retry.is_some() || fresh => {
                    let id = match retry {
                        Some(id) => { done.retries += 1; id }
                        None => {
                            let number = first + sent;
                            let payload = self.payload_of(ledger, number);
                            let id = ledger.open(self.id, subject_of(number), &payload);
                            flight.opened(id, Instant::now() + self.give_up);
                            id
                        }
                    };
                    let Some(subject) = ledger.attempt(id, connection()) else { continue };
                    let mut headers = HeaderMap::new();
                    headers.insert("Nats-Msg-Id", ledger.msg_id(id).as_str());
                    let payload = self.payload_of(ledger, id.number);
                    let reply = format!("{inbox}.{}", id.number);
                    // A client without a server takes what its buffer holds and then waits for room, perhaps for good.
                    let publish = client.publish_with_reply_and_headers(subject, reply, headers, payload);
                    if let Ok(sent) = tokio::time::timeout(self.ack_timeout, publish).await {
                        sent.map_err(|e| PublisherError(e.to_string()))?;
                    }
                    flight.sent(id, Instant::now() + self.ack_timeout);
                }
            }
        }
        done.elapsed = started.elapsed();
        Ok(done)
    }

    /// Takes one reply. True if it confirmed a message that was under way.
    #[expect(clippy::too_many_arguments, reason = "the parts of one loop turn, borrowed apart")]
    fn hear(
        &self,
        reply: &Message,
        id: MessageId,
        connection: u64,
        stream: &str,
        ledger: &Ledger,
        flight: &mut Flight,
        done: &mut Published,
    ) -> bool {
        match answer(reply, stream) {
            Answer::Final(outcome) => {
                let first_answer = flight.answered(id);
                let confirmed = match outcome {
                    Outcome::Acked { duplicate, .. } => {
                        done.confirmed += u64::from(first_answer);
                        done.recognised_retries += u64::from(first_answer && duplicate);
                        first_answer
                    }
                    _ => {
                        done.refused += u64::from(first_answer);
                        false
                    }
                };
                ledger.answer(id, connection, outcome);
                confirmed
            }
            Answer::TryAgain(outcome) => {
                ledger.answer(id, connection, outcome);
                flight.again(id, Instant::now() + Duration::from_millis(100));
                false
            }
        }
    }

    /// Run, publisher and number in clear, then bytes that follow from them: any mix-up of two
    /// messages or of two parts of one changes the digest.
    fn payload_of(&self, ledger: &Ledger, number: u64) -> Bytes {
        let mut payload = ledger.msg_id(MessageId { publisher: self.id, number }).into_bytes();
        payload.push(b' ');
        let mut state = (u64::from(self.id) << 40) ^ number ^ 0x9e37_79b9_7f4a_7c15;
        while payload.len() < self.payload {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let room = (self.payload - payload.len()).min(8);
            payload.extend_from_slice(&state.to_le_bytes()[..room]);
        }
        payload.into()
    }
}

fn answer(reply: &Message, stream: &str) -> Answer {
    if reply.status.is_some_and(|status| status == StatusCode::NO_RESPONDERS) {
        return Answer::TryAgain(Outcome::Unknown);
    }
    if let Some(status) = reply.status {
        let text = reply.description.as_deref().unwrap_or_default();
        return Answer::TryAgain(Outcome::Refused(format!("{status} {text}")));
    }
    match serde_json::from_slice::<Ack>(&reply.payload) {
        Ok(Ack { error: Some(error), .. }) => {
            let outcome = Outcome::Refused(format!("{} {}: {}", error.code, error.err_code, error.description));
            if RETRIED.contains(&error.err_code) { Answer::TryAgain(outcome) } else { Answer::Final(outcome) }
        }
        Ok(ack) if ack.stream == stream && ack.seq > 0 => {
            Answer::Final(Outcome::Acked { seq: ack.seq, duplicate: ack.duplicate })
        }
        Ok(ack) => {
            Answer::Final(Outcome::Refused(format!("an answer for stream {:?}, sequence {}", ack.stream, ack.seq)))
        }
        Err(error) => Answer::Final(Outcome::Refused(format!("an answer that is not one: {error}"))),
    }
}

/// The messages under way.
#[derive(Default)]
struct Flight {
    /// When to give each up, and when its present attempt is over (`None` while it waits to be sent again).
    waiting: HashMap<MessageId, (Instant, Option<Instant>)>,
    /// In the order in which attempts end: all attempts last equally long. Holds stale items.
    deadlines: VecDeque<(Instant, MessageId)>,
    /// To be sent again, each not before its time.
    retries: VecDeque<(Instant, MessageId)>,
}

impl Flight {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn opened(&mut self, id: MessageId, give_up: Instant) {
        self.waiting.insert(id, (give_up, None));
    }

    fn sent(&mut self, id: MessageId, deadline: Instant) {
        if let Some((_, attempt)) = self.waiting.get_mut(&id) {
            *attempt = Some(deadline);
            self.deadlines.push_back((deadline, id));
        }
    }

    /// True if it was under way until now.
    fn answered(&mut self, id: MessageId) -> bool {
        self.waiting.remove(&id).is_some()
    }

    fn again(&mut self, id: MessageId, not_before: Instant) {
        if let Some((_, attempt @ Some(_))) = self.waiting.get_mut(&id) {
            *attempt = None;
            self.retries.push_back((not_before, id));
        }
    }

    fn next_retry(&mut self, now: Instant) -> Option<MessageId> {
        while let Some(&(not_before, id)) = self.retries.front() {
            if !self.waiting.contains_key(&id) {
                self.retries.pop_front(); // answered meanwhile, by an earlier attempt
            } else if not_before <= now {
                self.retries.pop_front();
                return Some(id);
            } else {
                break;
            }
        }
        None
    }

    fn put_back(&mut self, id: MessageId) {
        self.retries.push_front((Instant::now(), id));
    }

    /// Ends attempts without an answer: most are queued again, those returned are given up.
    fn expire(&mut self, now: Instant) -> Vec<MessageId> {
        let mut given_up = Vec::new();
        while self.deadlines.front().is_some_and(|&(deadline, _)| deadline <= now) {
            let Some((deadline, id)) = self.deadlines.pop_front() else {
                break;
            };
            if self.waiting.get(&id).is_some_and(|&(_, attempt)| attempt == Some(deadline)) {
                self.again(id, now);
            }
        }
        self.waiting.retain(|&id, &mut (give_up, _)| {
            let keep = give_up > now;
            if !keep {
                given_up.push(id);
            }
            keep
        });
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> MessageId {
        MessageId { publisher: 1, number }
    }

    #[test]
    fn an_attempt_without_answer_is_sent_again_until_given_up() {
        let (mut flight, start) = (Flight::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        flight.opened(id(0), at(250));
        flight.sent(id(0), at(100));
        assert!(flight.expire(at(99)).is_empty());
        assert_eq!(flight.next_retry(at(99)), None);
        assert!(flight.expire(at(100)).is_empty());
        assert_eq!(flight.next_retry(at(100)), Some(id(0)));
        flight.sent(id(0), at(200));
        assert_eq!(flight.expire(at(250)), [id(0)]);
        assert!(flight.is_empty());
        assert_eq!(flight.next_retry(at(300)), None, "given up, so not sent again");
    }

    #[test]
    fn a_late_answer_cancels_the_retry() {
        let (mut flight, start) = (Flight::default(), Instant::now());
        flight.opened(id(0), start + Duration::from_secs(9));
        flight.sent(id(0), start);
        flight.expire(start);
        assert!(flight.answered(id(0)));
        assert_eq!(flight.next_retry(start), None);
        assert!(!flight.answered(id(0)), "a second answer is not a second confirmation");
    }

    #[test]
    fn payloads_differ_and_have_their_size() {
        let (publisher, ledger) = (Publisher::new(1).payload(200), Ledger::named("run"));
        let (a, b) = (publisher.payload_of(&ledger, 1), publisher.payload_of(&ledger, 2));
        assert_eq!((a.len(), b.len()), (200, 200));
        assert_ne!(a[100..], b[100..]);
        assert_eq!(a, publisher.payload_of(&ledger, 1));
    }

    #[test]
    fn until() {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Until::count_or_stopped(2, Arc::clone(&stop));
        assert!(!until.reached(1) && until.reached(2));
        stop.store(true, Ordering::Relaxed);
        assert!(until.reached(0));
    }
}
