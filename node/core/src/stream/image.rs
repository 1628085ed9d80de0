//! The state image of a checkpoint, and the rebuild of what it leaves out.
//!
//! An image holds everything that cannot be derived from live messages. Subject index, TTLs and the ids of
//! live messages are rebuilt from block frames; counts and digest prove the result.
//!
//! | part | encoding |
//! |---|---|
//! | magic | `HWST` |
//! | version | u8 = 1 |
//! | head | length, JSON |
//! | last message id | tag u8, then length and bytes if 1 |
//! | deleted runs | count, then (gap, length) pairs as varints |
//! | ids of removed messages | count, then (id, seq, ts) |
//! | consumers | length, bytes |
//! | crc | CRC32C of all before, u32 |

use std::collections::BTreeSet;

use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};

use super::apply::SeqRange;
use super::consumers::ConsumerSet;
use super::dedup::{DedupWindow, IdEntry};
use super::digest::Digest;
use super::headers;
use super::limits::Settings;
use super::state::StreamState;
use crate::codec::{DecodeError, Reader, Writer};
use crate::durability::DurabilityState;
use crate::frame::{Frame, FrameKind, RecordFlags};
use crate::ids::{Generation, LogPosition, Ordinal, StreamId, StreamSeq, Term, Timestamp};
use crate::runs;
use crate::subject_index::SubjectIndex;

/// The version written today.
pub const IMAGE_VERSION: u8 = 1;
const MAGIC: &[u8; 4] = b"HWST";

/// Ids of removed messages that an image keeps at most, the newest. Their blocks may be gone, and without
/// them a publisher's retry after a restart could be stored twice; 65 536 ids are a few MiB.
const REMOVED_IDS_MAX: usize = 65_536;

/// Removed messages between the first and the last that an image may name: a bound on what a damaged one can allocate,
/// which is a few dozen bytes for each 65 536 of a run, in memory as here. A stream that overwrites 10 000 messages a
/// second behind one that stays gets there in 3 years.
const DELETED_MAX: u64 = 1 << 40;

/// A rebuilt state that is not the one its image describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the blocks hold {what} {found}, the checkpoint says {expected}")]
pub struct Mismatch {
    /// What differs.
    pub what: &'static str,
    /// What the image says.
    pub expected: u64,
    /// What the blocks hold.
    pub found: u64,
}

#[derive(Serialize, Deserialize)]
struct Head {
    id: StreamId,
    settings: Settings,
    config_json: String,
    generation: Generation,
    created: Timestamp,
    durability: DurabilityState,
    first_seq: StreamSeq,
    last_seq: StreamSeq,
    messages: u64,
    bytes: u64,
    last_ts: Timestamp,
    log_time: Timestamp,
    digest: u64,
    term: Term,
    ordinal: Ordinal,
    applied: LogPosition,
    removed: bool,
}

/// Counts taken while block frames come in.
#[derive(Debug, Default)]
pub(super) struct RebuildCounts {
    pub(super) next: StreamSeq,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) digest: Digest,
    ids: Vec<IdEntry>,
    /// Some frames cannot be read.
    pub(super) has_holes: bool,
    /// Sequences that did not come, in order. All of them are removed ones if there are no holes.
    passed_over: Vec<SeqRange>,
}

impl RebuildCounts {
    /// What comes next has this sequence.
    pub(super) fn pass_over(&mut self, to: StreamSeq) {
        let first = self.next.max(StreamSeq::FIRST);
        if self.has_holes && first < to {
            self.passed_over.push(SeqRange { first, last: StreamSeq::new(to.get() - 1) });
        }
    }
}

impl StreamState {
    /// The image. Equal states have equal images.
    pub fn image(&self) -> Vec<u8> {
        let head = Head {
            id: self.id,
            settings: self.settings.clone(),
            config_json: self.config_json.clone(),
            generation: self.generation,
            created: self.created,
            durability: self.durability.clone(),
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            messages: self.messages,
            bytes: self.bytes,
            last_ts: self.last_ts,
            log_time: self.log_time,
            digest: self.digest.raw(),
            term: self.term,
            ordinal: self.ordinal,
            applied: self.applied,
            removed: self.removed,
        };
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u8(IMAGE_VERSION);
        out.bytes(&serde_json::to_vec(&head).expect("numbers, strings and maps with number keys serialize"));
        match &self.last_msg_id {
            None => out.u8(0),
            Some(id) => {
                out.u8(1);
                out.bytes(id);
            }
        }
        write_runs(&self.deleted, &mut out);
        let mut removed: Vec<&IdEntry> =
            self.dedup.entries().rev().filter(|entry| !self.is_live(entry.seq)).take(REMOVED_IDS_MAX).collect();
        removed.reverse();
        out.varint(removed.len() as u64);
        for entry in removed {
            out.bytes(&entry.id);
            out.varint(entry.seq.get());
            out.varint(entry.ts.get());
        }
        out.bytes(&self.consumers.image());
        let crc = crc32c::crc32c(out.written());
        out.raw(&crc.to_le_bytes());
        out.finish()
    }

    /// Reads an image. The result must be given every message frame of the blocks
    /// ([`StreamState::rebuild`], oldest first) and then [`StreamState::finish_rebuild`].
    pub fn from_image(image: &[u8]) -> Result<Self, DecodeError> {
        let (content, crc) = image.split_last_chunk::<4>().ok_or(DecodeError::Truncated(image.len()))?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(DecodeError::Unknown("state image: crc mismatch"));
        }
        let mut read = Reader::new(content);
        if read.raw(4)? != MAGIC {
            return Err(DecodeError::Unknown("state image: magic"));
        }
        if read.u8()? != IMAGE_VERSION {
            return Err(DecodeError::Unknown("state image: version"));
        }
        let head: Head =
            serde_json::from_slice(read.bytes()?).map_err(|_| DecodeError::Unknown("state image: head"))?;
        let last_msg_id = match read.u8()? {
            0 => None,
            1 => Some(read.bytes()?.into()),
            _ => return Err(DecodeError::Unknown("state image: last message id")),
        };
        let deleted = read_runs(&mut read, head.first_seq, head.last_seq)?;
        let mut ids = Vec::new();
        for _ in 0..read.count()? {
            let id = read.bytes()?.into();
            let (seq, ts) = (StreamSeq::new(read.varint()?), Timestamp::new(read.varint()?));
            ids.push(IdEntry { id, seq, ts });
        }
        let consumers =
            ConsumerSet::from_image(read.bytes()?).map_err(|_| DecodeError::Unknown("state image: consumers"))?;
        read.end()?;
        let state = Self {
            id: head.id,
            settings: head.settings,
            config_json: head.config_json,
            generation: head.generation,
            created: head.created,
            durability: head.durability,
            first_seq: head.first_seq,
            last_seq: head.last_seq,
            messages: head.messages,
            bytes: head.bytes,
            last_ts: head.last_ts,
            log_time: head.log_time,
            last_msg_id,
            deleted,
            digest: Digest::from_raw(head.digest),
            subjects: SubjectIndex::new(),
            dedup: DedupWindow::default(),
            ttls: BTreeSet::new(),
            consumers,
            term: head.term,
            ordinal: head.ordinal,
            applied: head.applied,
            removed: head.removed,
            damaged: None,
            rebuild: Some(Box::new(RebuildCounts { ids, ..RebuildCounts::default() })),
        };
        state.check_counters()?;
        Ok(state)
    }

    fn check_counters(&self) -> Result<(), DecodeError> {
        let span = self.last_seq.get().checked_add(1).and_then(|end| end.checked_sub(self.first_seq.get()));
        let inside = |seq: u64| seq > self.first_seq.get() && seq <= self.last_seq.get();
        let fits = span.and_then(|span| span.checked_sub(self.deleted.len())) == Some(self.messages)
            && self.deleted.min().is_none_or(inside)
            && self.deleted.max().is_none_or(inside)
            && self.last_seq.is_countable()
            && self.ordinal.is_countable()
            && self.applied.is_countable();
        if fits { Ok(()) } else { Err(DecodeError::Unknown("state image: counters")) }
    }

    /// Takes in one frame found in the blocks. Frames must come oldest first; what is no message, not
    /// live, beyond the image, or was seen before, is passed over.
    pub fn rebuild(&mut self, frame: &Frame) {
        let header = frame.header();
        if header.kind != FrameKind::Messages || header.stream != self.id {
            return;
        }
        let Some(mut counts) = self.rebuild.take() else {
            return;
        };
        for record in frame.records() {
            if record.seq > self.last_seq || record.seq < counts.next {
                continue;
            }
            counts.pass_over(record.seq);
            counts.next = record.seq.next();
            if record.flags.has(RecordFlags::HAS_MSG_ID)
                && self.log_time.since_ns(record.ts) < self.settings.duplicate_window_ns
                && let Some(id) = headers::msg_id(record.headers())
            {
                counts.ids.push(IdEntry { id: id.into(), seq: record.seq, ts: record.ts });
            }
            if self.is_live(record.seq) {
                counts.messages += 1;
                counts.bytes += self.len_of(&record);
                counts.digest.add(record.seq, record.crc);
                self.index_derived(&record);
            }
        }
        self.rebuild = Some(counts);
    }

    /// Ends the rebuild and proves it. Returns how many messages are gone: none, unless there were
    /// [holes](super::Rebuild::hole).
    ///
    /// # Errors
    /// [`Mismatch`] if the live messages found are not those of the image: the replica needs repair.
    pub fn finish_rebuild(&mut self) -> Result<u64, Mismatch> {
        let Some(mut counts) = self.rebuild.take() else {
            return Ok(0);
        };
        let lost = if counts.has_holes { self.lose(&mut counts) } else { 0 };
        for (what, expected, found) in [
            ("messages", self.messages, counts.messages),
            ("bytes", self.bytes, counts.bytes),
            ("digest", self.digest.raw(), counts.digest.raw()),
        ] {
            if expected != found {
                self.rebuild = Some(counts);
                return Err(Mismatch { what, expected, found });
            }
        }
        let mut ids = counts.ids;
        ids.sort_by_key(|entry| entry.seq);
        ids.dedup_by_key(|entry| entry.seq);
        for IdEntry { id, seq, ts } in ids {
            self.dedup.insert(&id, seq, ts);
        }
        self.dedup.expire(self.log_time, self.settings.duplicate_window_ns);
        Ok(lost)
    }

    /// Removes the live messages that did not come.
    fn lose(&mut self, counts: &mut RebuildCounts) -> u64 {
        counts.pass_over(self.last_seq.next());
        let lost = self.messages.saturating_sub(counts.messages);
        (self.messages, self.bytes, self.digest) = (counts.messages, counts.bytes, counts.digest);
        for SeqRange { first, last } in &counts.passed_over {
            let first = (*first).max(self.first_seq);
            if first <= *last {
                self.deleted.insert_range(first.get()..=last.get());
                self.consumers.messages_removed(first, *last);
            }
        }
        if self.messages == 0 {
            self.first_seq = self.last_seq.next();
            self.deleted.clear();
        } else if self.deleted.remove(self.first_seq.get()) {
            self.advance_first();
        }
        lost
    }
}

/// Runs rather than a bitmap's own serialisation: the same set has one encoding, however it came about.
fn write_runs(set: &RoaringTreemap, out: &mut Writer) {
    let runs = runs::of(set);
    out.varint(runs.len() as u64);
    let mut end = 0;
    for (first, len) in runs {
        out.varint(first - end);
        out.varint(len);
        end = first + len;
    }
}

/// Reads the runs of a stream whose messages are `first..=last`: all of them lie behind the first.
fn read_runs(read: &mut Reader<'_>, first: StreamSeq, last: StreamSeq) -> Result<RoaringTreemap, DecodeError> {
    const BAD: DecodeError = DecodeError::Unknown("state image: deleted runs");
    let mut runs = Vec::new();
    let (mut end, mut total) = (0u64, 0u64);
    for _ in 0..read.count()? {
        let start = end.checked_add(read.varint()?).ok_or(BAD)?;
        let len = read.varint()?;
        end = start.checked_add(len).ok_or(BAD)?;
        total = total.saturating_add(len);
        if len == 0 || start <= first.get() || end - 1 > last.get() || total > DELETED_MAX {
            return Err(BAD);
        }
        runs.push(start..end);
    }
    // Only now, for even what a few bytes name can take much memory.
    let mut set = RoaringTreemap::new();
    for run in runs {
        set.insert_range(run);
    }
    Ok(set)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::limits::Limits;
    use super::*;
    use crate::consumer::{
        AckPolicy, ConsumerConfig, ConsumerEffects, ConsumerOp, CreateConsumer, DeliveredRun, SeqRun, StartAt,
        encode_ops,
    };
    use crate::durability::Durability;
    use crate::ids::{ConsumerSeq, LogIndex};

    /// The bytes of the example under `heading` of a page: two hex digits a byte up to two blanks, or JSON as it is.
    pub(in crate::stream) fn example(page: &str, heading: &str) -> Vec<u8> {
        let (_, rest) = page.split_once(&format!("## {heading}\n")).expect("the page has this heading");
        let (_, rest) = rest.split_once("```text\n").expect("an example follows it");
        let (block, _) = rest.split_once("```").expect("which ends");
        let byte = |digits: &str| u8::from_str_radix(digits, 16).expect("hex digits");
        let bytes = block.lines().map(|line| match line.starts_with('{') {
            true => line.as_bytes().to_vec(),
            false => line.split("  ").next().unwrap_or_default().split(' ').map(byte).collect(),
        });
        bytes.collect::<Vec<_>>().concat()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Messages 5, 6 and 9 are live; 7, with an id, and 8 are deleted.
    fn sample() -> StreamState {
        let settings = Settings {
            name: "ORDERS".into(),
            subjects: vec!["orders.>".into()],
            limits: Limits { max_msgs: Some(1000), ..Limits::default() },
            ..Settings::default()
        };
        let generation = Generation::new(2);
        let created = Timestamp::new(1_000);
        let mut state =
            StreamState::new(StreamId::new(7), settings, "{}".into(), generation, Durability::default(), created, None);
        (state.first_seq, state.last_seq) = (StreamSeq::new(5), StreamSeq::new(9));
        (state.messages, state.bytes) = (3, 135);
        (state.last_ts, state.log_time) = (Timestamp::new(9_000), Timestamp::new(9_500));
        state.last_msg_id = Some(Box::from(&b"m9"[..]));
        state.deleted.insert_range(7..=8);
        state.digest = Digest::from_raw(0xfeed);
        state.dedup.insert(b"m7", StreamSeq::new(7), Timestamp::new(7_000));
        (state.term, state.ordinal) = (Term::new(3), Ordinal::new(12));
        state.applied = LogPosition { term: Term::new(3), index: LogIndex::new(42) };
        state
    }

    #[test]
    fn the_image_is_these_bytes() {
        let page = include_str!("../../../../docs/formats/stream-image.md");
        let written = example(page, "Example");
        assert_eq!(hex(&sample().image()), hex(&written), "{}", String::from_utf8_lossy(&sample().image()));
        let read = StreamState::from_image(&written).unwrap();
        assert_eq!((read.first_seq, read.messages, read.deleted.len()), (StreamSeq::new(5), 3, 2));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_of_an_image_is_noticed() {
        let good = sample().image();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(StreamState::from_image(&bad).is_err(), "byte {at}");
            assert!(StreamState::from_image(&good[..at]).is_err(), "cut at {at}");
        }
    }

    /// Found by reading: few bytes must not ask for much memory.
    #[test]
    fn an_image_names_no_more_than_its_stream_can_have_removed() {
        let with = |change: &dyn Fn(&mut StreamState)| {
            let mut state = sample();
            change(&mut state);
            StreamState::from_image(&state.image()).map(|state| state.deleted.len())
        };
        assert_eq!(with(&|_| {}), Ok(2));
        assert_eq!(with(&|state| state.deleted = (6..=7).collect()), Ok(2));
        assert_eq!(with(&|state| state.deleted = (8..=9).collect()), Ok(2), "the last one may be gone");
        assert!(with(&|state| state.deleted = (5..=6).collect()).is_err(), "the first is live");
        assert!(with(&|state| state.deleted = (9..=10).collect()).is_err());
        let far = |len: u64| {
            move |state: &mut StreamState| {
                state.last_seq = StreamSeq::new(7 + len);
                state.deleted.insert_range(8..7 + len);
                state.messages = 3;
            }
        };
        assert_eq!(with(&far(1 << 30)), Ok(1 << 30), "a run is cheap, however long");
        assert!(with(&|state| state.last_seq = StreamSeq::new(u64::MAX)).is_err());
        assert!(with(&|state| state.ordinal = Ordinal::new(u64::MAX)).is_err());
        assert!(with(&|state| state.applied.index = LogIndex::new(u64::MAX)).is_err());
    }

    /// One consumer that got messages 5 and 6, acknowledged 5 and wants 6 later.
    fn consumer_ops() -> Vec<ConsumerOp> {
        let config = ConsumerConfig {
            name: "worker".into(),
            durable: true,
            ack_policy: AckPolicy::Explicit,
            ack_wait_ns: 30_000,
            ..ConsumerConfig::default()
        };
        let create = CreateConsumer { config, config_json: "{}".into(), start: StartAt::Next(StreamSeq::new(5)) };
        let id = crate::consumer::ConsumerId::new(1);
        let run = |seq| vec![SeqRun { seq: StreamSeq::new(seq), len: 1 }];
        let delivered = DeliveredRun { seq: StreamSeq::new(5), cseq: ConsumerSeq::new(1), len: 2 };
        vec![
            ConsumerOp::Create { ts: Timestamp::new(1_500), create: Box::new(create) },
            ConsumerOp::Delivered { id, ts: Timestamp::new(2_000), runs: vec![delivered] },
            ConsumerOp::Ack { id, runs: run(5) },
            ConsumerOp::Nak { id, due: Timestamp::new(4_000), runs: run(6) },
        ]
    }

    #[test]
    fn consumers_and_their_operations_are_these_bytes() {
        let page = include_str!("../../../../docs/formats/consumers.md");
        let mut ops = Vec::new();
        encode_ops(&consumer_ops(), &mut ops);
        let documented = example(page, "Example of operations");
        assert_eq!(hex(&ops), hex(&documented), "{}", String::from_utf8_lossy(&ops));
        let mut set = ConsumerSet::default();
        set.apply_body(&documented, &sample(), &mut ConsumerEffects::default()).unwrap();
        let documented = example(page, "Example of an image");
        assert_eq!(hex(&set.image()), hex(&documented), "{}", String::from_utf8_lossy(&set.image()));
        assert_eq!(ConsumerSet::from_image(&documented), Ok(set));
    }
}
