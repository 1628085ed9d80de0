//! The checkpoint image of a stream's consumers: version byte, then varints (see `codec`).
//!
//! ```text
//! version u8 = 1 | ids given | count | count × consumer
//! consumer: id | create JSON | created | delivered consumer, stream | last delivered (0 none) |
//!           last-per-subject through + 1 (0 none) | exhausted runs | pending count | pending
//! pending:  seq − previous seq | cseq | delivered at | due − delivered at (zigzag) | deliveries
//! ```

use roaring::RoaringTreemap;

use super::codec::{Malformed, Reader, put_bytes, put_u64};
use super::op::{ConsumerId, SeqRun, UpdateConsumer, put_runs, read_runs};
use super::set::ConsumerSet;
use super::state::{ConsumerState, SequencePair};
use super::window::{Pending, Window};
use crate::ids::{ConsumerSeq, StreamSeq, Timestamp};
use crate::runs;

const VERSION: u8 = 1;
/// Exhausted messages of one consumer that an image may name: a bound on what a damaged one can allocate, which is a
/// few dozen bytes for each 65 536 of a run.
pub(super) const EXHAUSTED_MAX: u64 = 1 << 32;

impl ConsumerSet {
    /// Everything, in a form that [`Self::from_image`] reads. Equal sets have equal images.
    pub fn image(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_u64(&mut out, self.ids_given);
        put_u64(&mut out, self.consumers.len() as u64);
        for (id, state) in &self.consumers {
            put_u64(&mut out, id.get());
            put_consumer(&mut out, state);
        }
        out
    }

    /// Reads an image.
    pub fn from_image(image: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(image);
        if from.u8("image version")? != VERSION {
            return Err(from.fail("image version"));
        }
        let mut set = Self { ids_given: from.u64("ids given")?, ..Self::default() };
        // Ids are counted on from.
        if set.ids_given > u64::MAX / 2 {
            return Err(from.fail("ids given"));
        }
        for _ in 0..from.count("consumer count", 8)? {
            let id = ConsumerId::new(from.u64("consumer id")?);
            let state = read_consumer(&mut from)?;
            let name_taken = set.names.insert(state.config.name.clone(), id).is_some();
            if name_taken || id.get() > set.ids_given || set.consumers.insert(id, state).is_some() {
                return Err(from.fail("consumer identity"));
            }
        }
        if !from.is_empty() {
            return Err(from.fail("image end"));
        }
        Ok(set)
    }
}

fn put_consumer(out: &mut Vec<u8>, state: &ConsumerState) {
    let ConsumerState {
        config,
        config_json,
        created,
        delivered,
        last_delivered_at,
        last_per_subject_through,
        pending,
        exhausted,
    } = state;
    let configs = UpdateConsumer { config: config.clone(), config_json: config_json.clone() };
    let json = serde_json::to_vec(&configs).expect("strings and numbers always serialize");
    put_bytes(out, &json);
    put_u64(out, created.get());
    put_u64(out, delivered.consumer.get());
    put_u64(out, delivered.stream.get());
    put_u64(out, last_delivered_at.map_or(0, Timestamp::get));
    put_u64(out, last_per_subject_through.map_or(0, |through| through.get().saturating_add(1)));
    let exhausted = runs::of(exhausted).into_iter().map(|(first, len)| SeqRun { seq: StreamSeq::new(first), len });
    put_runs(out, &exhausted.collect::<Vec<_>>());
    put_u64(out, pending.len() as u64);
    let mut before = 0;
    for entry in pending.iter() {
        put_u64(out, entry.seq.get() - before);
        before = entry.seq.get();
        put_u64(out, entry.cseq.get());
        put_u64(out, entry.delivered_at.get());
        let wait = entry.due.get().wrapping_sub(entry.delivered_at.get()) as i64;
        put_u64(out, ((wait << 1) ^ (wait >> 63)) as u64);
        put_u64(out, u64::from(entry.deliveries));
    }
}

fn read_consumer(from: &mut Reader<'_>) -> Result<ConsumerState, Malformed> {
    let json = from.bytes("consumer config")?;
    let UpdateConsumer { config, config_json } =
        serde_json::from_slice(json).map_err(|_| from.fail("consumer config"))?;
    let created = Timestamp::new(from.u64("created")?);
    let delivered = SequencePair {
        consumer: ConsumerSeq::new(from.u64("delivered consumer seq")?),
        stream: StreamSeq::new(from.u64("delivered stream seq")?),
    };
    if delivered.consumer.get() == u64::MAX || delivered.stream.get() == u64::MAX {
        return Err(from.fail("delivered"));
    }
    let last_delivered_at = Some(from.u64("last delivery")?).filter(|at| *at > 0).map(Timestamp::new);
    let last_per_subject_through = from.u64("last per subject")?.checked_sub(1).map(StreamSeq::new);
    let exhausted_runs = read_runs(from)?;
    let exhausted_most = delivered.stream.get();
    let exhausted_count = exhausted_runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.len));
    let too_high = exhausted_runs.iter().any(|run| run.seq.get() + run.len > exhausted_most.saturating_add(1));
    if too_high || exhausted_count > EXHAUSTED_MAX {
        return Err(from.fail("exhausted"));
    }
    let mut exhausted = RoaringTreemap::new();
    for run in exhausted_runs {
        exhausted.insert_range(run.seq.get()..run.seq.get() + run.len);
    }
    Ok(ConsumerState {
        config,
        config_json,
        created,
        delivered,
        last_delivered_at,
        last_per_subject_through,
        pending: read_pending(from, delivered)?,
        exhausted,
    })
}

fn read_pending(from: &mut Reader<'_>, delivered: SequencePair) -> Result<Window, Malformed> {
    let mut pending = Window::default();
    let mut before = 0u64;
    for _ in 0..from.count("pending count", 5)? {
        let step = from.u64("pending seq")?;
        before = before.checked_add(step).filter(|_| step > 0).ok_or_else(|| from.fail("pending seq"))?;
        let cseq = ConsumerSeq::new(from.u64("pending consumer seq")?);
        // What is pending was delivered; floors and counts rely on it.
        if before > delivered.stream.get() || cseq > delivered.consumer {
            return Err(from.fail("pending beyond what was delivered"));
        }
        let delivered_at = from.u64("pending time")?;
        let coded = from.u64("pending due")?;
        let wait = (coded >> 1) ^ (coded & 1).wrapping_neg();
        let deliveries = from.u32("pending deliveries")?;
        if deliveries == 0 {
            return Err(from.fail("pending deliveries"));
        }
        pending.insert(Pending {
            seq: StreamSeq::new(before),
            cseq,
            delivered_at: Timestamp::new(delivered_at),
            due: Timestamp::new(delivered_at.wrapping_add(wait)),
            deliveries,
        });
    }
    Ok(pending)
}
