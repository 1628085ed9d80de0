//! Consumer operations as they stand in the log.
//!
//! One log entry carries many operations of many consumers: each is a tag byte, the consumer's id and varints;
//! sequences are delta-coded runs, because most deliveries and acks are consecutive. Create and update carry JSON.
//!
//! | tag | operation | after tag and id |
//! |---|---|---|
//! | 1 | create (id absent) | ts, JSON bytes |
//! | 2 | update | JSON bytes |
//! | 3 | delete | – |
//! | 4 | delivered | ts, runs of (stream seq, consumer seq, length) |
//! | 5 | ack | runs of (stream seq, length) |
//! | 6 | ack all | through |
//! | 7 | nak | due, runs |
//! | 8 | term | runs |
//! | 9 | progress | ts, runs |
//! | 10 | exhausted | runs |
//! | 11 | skip | through |
//! | 12 | reset | next |

use serde::{Deserialize, Serialize};

use super::codec::{Malformed, Reader, put_bytes, put_u64};
use super::config::ConsumerConfig;
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};

/// A consumer of one stream: given at creation and never reused there, so a late operation of a deleted consumer
/// cannot hit its namesake.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConsumerId(u64);

impl ConsumerId {
    /// Wraps a number that [`Self::get`] gave.
    pub fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Where delivery starts, resolved by the leader as far as it must be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartAt {
    /// At this sequence.
    Next(StreamSeq),
    /// After the last message stored when the entry is applied.
    AfterLast,
    /// The last message per subject among those stored when the entry is applied, then on.
    LastPerSubject,
}

/// Creates a consumer.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct CreateConsumer {
    /// What the state machine needs.
    pub config: ConsumerConfig,
    /// The full configuration as the API shows it; opaque here.
    pub config_json: String,
    /// Where it starts.
    pub start: StartAt,
}

/// Replaces a consumer's configuration.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct UpdateConsumer {
    /// What the state machine needs.
    pub config: ConsumerConfig,
    /// The full configuration as the API shows it; opaque here.
    pub config_json: String,
}

/// `len` consecutive messages, delivered with as many consecutive consumer sequences.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeliveredRun {
    /// The first message.
    pub seq: StreamSeq,
    /// The consumer sequence of that delivery.
    pub cseq: ConsumerSeq,
    /// At least 1.
    pub len: u64,
}

/// `len` consecutive messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SeqRun {
    /// The first message.
    pub seq: StreamSeq,
    /// At least 1.
    pub len: u64,
}

impl SeqRun {
    /// Every sequence of the run.
    pub fn iter(self) -> impl Iterator<Item = StreamSeq> {
        (self.seq.get()..self.seq.get().saturating_add(self.len)).map(StreamSeq::new)
    }

    /// Sorts `seqs` and cuts them into runs; duplicates are dropped.
    pub fn collect(seqs: impl IntoIterator<Item = StreamSeq>) -> Vec<Self> {
        let mut seqs: Vec<StreamSeq> = seqs.into_iter().collect();
        seqs.sort_unstable();
        seqs.dedup();
        let mut runs: Vec<Self> = Vec::new();
        for seq in seqs {
            match runs.last_mut() {
                Some(run) if run.seq.get() + run.len == seq.get() => run.len += 1,
                _ => runs.push(Self { seq, len: 1 }),
            }
        }
        runs
    }
}

/// One change of the replicated state of consumers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ConsumerOp {
    /// A new consumer, created at `ts`.
    Create { ts: Timestamp, create: Box<CreateConsumer> },
    /// A new configuration.
    Update { id: ConsumerId, update: Box<UpdateConsumer> },
    /// The consumer is gone.
    Delete { id: ConsumerId },
    /// Messages were handed out at `ts`, first or again.
    Delivered { id: ConsumerId, ts: Timestamp, runs: Vec<DeliveredRun> },
    /// Messages are done.
    Ack { id: ConsumerId, runs: Vec<SeqRun> },
    /// All messages delivered up to `through` are done.
    AckAll { id: ConsumerId, through: StreamSeq },
    /// Messages are due again at `due`.
    Nak { id: ConsumerId, due: Timestamp, runs: Vec<SeqRun> },
    /// Messages must not be delivered again.
    Term { id: ConsumerId, runs: Vec<SeqRun> },
    /// Messages are being worked on: their wait starts again at `ts`.
    Progress { id: ConsumerId, ts: Timestamp, runs: Vec<SeqRun> },
    /// Messages reached `max_deliver` unacknowledged.
    Exhausted { id: ConsumerId, runs: Vec<SeqRun> },
    /// Nothing up to `through` is left to deliver for the first time.
    Skip { id: ConsumerId, through: StreamSeq },
    /// Delivery starts over at `next`; everything pending is forgotten.
    Reset { id: ConsumerId, next: StreamSeq },
}

const CREATE: u8 = 1;
const UPDATE: u8 = 2;
const DELETE: u8 = 3;
const DELIVERED: u8 = 4;
const ACK: u8 = 5;
const ACK_ALL: u8 = 6;
const NAK: u8 = 7;
const TERM: u8 = 8;
const PROGRESS: u8 = 9;
const EXHAUSTED: u8 = 10;
const SKIP: u8 = 11;
const RESET: u8 = 12;

impl ConsumerOp {
    /// The consumer it is about; a create has none yet.
    pub fn id(&self) -> Option<ConsumerId> {
        match self {
            Self::Create { .. } => None,
            Self::Update { id, .. }
            | Self::Delete { id }
            | Self::Delivered { id, .. }
            | Self::Ack { id, .. }
            | Self::AckAll { id, .. }
            | Self::Nak { id, .. }
            | Self::Term { id, .. }
            | Self::Progress { id, .. }
            | Self::Exhausted { id, .. }
            | Self::Skip { id, .. }
            | Self::Reset { id, .. } => Some(*id),
        }
    }

    fn tag(&self) -> u8 {
        match self {
            Self::Create { .. } => CREATE,
            Self::Update { .. } => UPDATE,
            Self::Delete { .. } => DELETE,
            Self::Delivered { .. } => DELIVERED,
            Self::Ack { .. } => ACK,
            Self::AckAll { .. } => ACK_ALL,
            Self::Nak { .. } => NAK,
            Self::Term { .. } => TERM,
            Self::Progress { .. } => PROGRESS,
            Self::Exhausted { .. } => EXHAUSTED,
            Self::Skip { .. } => SKIP,
            Self::Reset { .. } => RESET,
        }
    }

    /// Appends the encoded operation.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.tag());
        if let Some(id) = self.id() {
            put_u64(out, id.get());
        }
        match self {
            Self::Create { ts, create } => {
                put_u64(out, ts.get());
                put_json(out, create);
            }
            Self::Update { update, .. } => put_json(out, update),
            Self::Delete { .. } => {}
            Self::Delivered { ts, runs, .. } => {
                put_u64(out, ts.get());
                put_delivered(out, runs);
            }
            Self::Ack { runs, .. } | Self::Term { runs, .. } | Self::Exhausted { runs, .. } => put_runs(out, runs),
            Self::AckAll { through, .. } | Self::Skip { through, .. } => put_u64(out, through.get()),
            Self::Nak { due: at, runs, .. } | Self::Progress { ts: at, runs, .. } => {
                put_u64(out, at.get());
                put_runs(out, runs);
            }
            Self::Reset { next, .. } => put_u64(out, next.get()),
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let tag = from.u8("operation tag")?;
        if tag == CREATE {
            let ts = Timestamp::new(from.u64("create time")?);
            return Ok(Self::Create { ts, create: Box::new(read_json(from, "create")?) });
        }
        let id = ConsumerId(from.u64("consumer id")?);
        Ok(match tag {
            UPDATE => Self::Update { id, update: Box::new(read_json(from, "update")?) },
            DELETE => Self::Delete { id },
            DELIVERED => {
                Self::Delivered { id, ts: Timestamp::new(from.u64("delivery time")?), runs: read_delivered(from)? }
            }
            ACK => Self::Ack { id, runs: read_runs(from)? },
            ACK_ALL => Self::AckAll { id, through: StreamSeq::new(from.u64("ack all")?) },
            NAK => Self::Nak { id, due: Timestamp::new(from.u64("nak due")?), runs: read_runs(from)? },
            TERM => Self::Term { id, runs: read_runs(from)? },
            PROGRESS => Self::Progress { id, ts: Timestamp::new(from.u64("progress time")?), runs: read_runs(from)? },
            EXHAUSTED => Self::Exhausted { id, runs: read_runs(from)? },
            SKIP => Self::Skip { id, through: StreamSeq::new(from.u64("skip")?) },
            RESET => Self::Reset { id, next: StreamSeq::new(from.u64("reset")?) },
            _ => return Err(from.fail("operation tag")),
        })
    }
}

/// Messages in one delivered run at most; a leader cuts its turns far below this.
const DELIVERED_RUN_MAX: u64 = 1 << 20;

/// Encodes operations for the body of one `Consumers` record.
pub fn encode_ops<'a>(ops: impl IntoIterator<Item = &'a ConsumerOp>, out: &mut Vec<u8>) {
    for op in ops {
        op.encode(out);
    }
}

/// Decodes what [`encode_ops`] wrote.
pub fn decode_ops(body: &[u8]) -> Result<Vec<ConsumerOp>, Malformed> {
    let mut from = Reader::new(body);
    let mut ops = Vec::new();
    while !from.is_empty() {
        ops.push(ConsumerOp::decode(&mut from)?);
    }
    Ok(ops)
}

fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    let json = serde_json::to_vec(value).expect("strings and numbers always serialize");
    put_bytes(out, &json);
}

fn read_json<T: for<'de> Deserialize<'de>>(from: &mut Reader<'_>, what: &'static str) -> Result<T, Malformed> {
    let json = from.bytes(what)?;
    serde_json::from_slice(json).map_err(|_| from.fail(what))
}

/// Differences may be negative (redeliveries go back), so they are zigzag-coded modulo 2^64.
fn put_delta(out: &mut Vec<u8>, before: u64, value: u64) {
    let delta = value.wrapping_sub(before) as i64;
    put_u64(out, ((delta << 1) ^ (delta >> 63)) as u64);
}

fn read_delta(from: &mut Reader<'_>, before: u64, what: &'static str) -> Result<u64, Malformed> {
    let coded = from.u64(what)?;
    let delta = (coded >> 1) ^ (coded & 1).wrapping_neg();
    Ok(before.wrapping_add(delta))
}

fn read_len(from: &mut Reader<'_>, first: u64, what: &'static str) -> Result<u64, Malformed> {
    let len = from.u64(what)?;
    if len == 0 || first.checked_add(len).is_none() {
        return Err(from.fail(what));
    }
    Ok(len)
}

pub(super) fn put_runs(out: &mut Vec<u8>, runs: &[SeqRun]) {
    put_u64(out, runs.len() as u64);
    let mut before = 0;
    for run in runs {
        put_delta(out, before, run.seq.get());
        put_u64(out, run.len);
        before = run.seq.get().wrapping_add(run.len);
    }
}

pub(super) fn read_runs(from: &mut Reader<'_>) -> Result<Vec<SeqRun>, Malformed> {
    let count = from.count("run count", 2)?;
    let mut runs = Vec::with_capacity(count);
    let mut before = 0;
    for _ in 0..count {
        let seq = read_delta(from, before, "run start")?;
        let len = read_len(from, seq, "run length")?;
        runs.push(SeqRun { seq: StreamSeq::new(seq), len });
        before = seq + len;
    }
    Ok(runs)
}

fn put_delivered(out: &mut Vec<u8>, runs: &[DeliveredRun]) {
    put_u64(out, runs.len() as u64);
    let (mut seq, mut cseq) = (0, 0);
    for run in runs {
        put_delta(out, seq, run.seq.get());
        put_delta(out, cseq, run.cseq.get());
        put_u64(out, run.len);
        seq = run.seq.get().wrapping_add(run.len);
        cseq = run.cseq.get().wrapping_add(run.len);
    }
}

fn read_delivered(from: &mut Reader<'_>) -> Result<Vec<DeliveredRun>, Malformed> {
    let count = from.count("delivery count", 3)?;
    let mut runs = Vec::with_capacity(count);
    let (mut before_seq, mut before_cseq) = (0, 0);
    for _ in 0..count {
        let seq = read_delta(from, before_seq, "delivered seq")?;
        let cseq = read_delta(from, before_cseq, "delivered consumer seq")?;
        let len = read_len(from, seq.max(cseq), "delivered length")?;
        if len > DELIVERED_RUN_MAX {
            return Err(from.fail("delivered length"));
        }
        runs.push(DeliveredRun { seq: StreamSeq::new(seq), cseq: ConsumerSeq::new(cseq), len });
        before_seq = seq + len;
        before_cseq = cseq + len;
    }
    Ok(runs)
}
