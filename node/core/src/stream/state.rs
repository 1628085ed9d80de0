//! The replicated state of one stream, without message bodies.

use std::collections::BTreeSet;

use roaring::RoaringTreemap;

use super::consumers::ConsumerSet;
use super::dedup::DedupWindow;
use super::digest::Digest;
use super::image::RebuildCounts;
use super::limits::Settings;
use crate::durability::{Durability, DurabilityState};
use crate::ids::{Generation, LogPosition, Ordinal, StreamId, StreamSeq, Term, Timestamp};
use crate::subject_index::SubjectIndex;

/// What every replica of a stream agrees on at a log position.
///
/// ```text
///   first_seq          last_seq
///      │  live, or in `deleted`  │
/// ─────┴─────────────────────────┴──▶ sequences       messages = last − first + 1 − deleted
/// ```
///
/// `last_seq` never goes back, whatever is removed. An empty stream has `first_seq = last_seq + 1`.
#[derive(Debug)]
pub struct StreamState {
    pub(super) id: StreamId,
    pub(super) settings: Settings,
    pub(super) config_json: String,
    pub(super) generation: Generation,
    pub(super) created: Timestamp,
    pub(super) durability: DurabilityState,

    pub(super) first_seq: StreamSeq,
    pub(super) last_seq: StreamSeq,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) last_ts: Timestamp,
    /// The latest time the log has stated: of a message or of an `Expire`.
    pub(super) log_time: Timestamp,
    pub(super) last_msg_id: Option<Box<[u8]>>,
    /// Removed sequences between the first and the last; never at or below the first live one.
    pub(super) deleted: RoaringTreemap,
    pub(super) digest: Digest,

    /// Derived, rebuilt from block frames.
    pub(super) subjects: SubjectIndex,
    /// Derived (but for ids of removed messages), rebuilt from block frames.
    pub(super) dedup: DedupWindow,
    /// Derived: when messages with a TTL are due.
    pub(super) ttls: BTreeSet<(Timestamp, StreamSeq)>,

    pub(super) consumers: ConsumerSet,

    pub(super) term: Term,
    pub(super) ordinal: Ordinal,
    pub(super) applied: LogPosition,
    pub(super) removed: bool,
    /// A live message that could not be read when it had to be: nothing is applied any more.
    pub(super) damaged: Option<StreamSeq>,
    /// Set between `from_image` and `finish_rebuild`.
    pub(super) rebuild: Option<Box<RebuildCounts>>,
}

impl StreamState {
    /// A fresh stream. `first_seq` above 1 makes the first message take that sequence.
    pub fn new(
        id: StreamId,
        settings: Settings,
        config_json: String,
        generation: Generation,
        durability: Durability,
        created: Timestamp,
        first_seq: Option<StreamSeq>,
    ) -> Self {
        let first_seq = first_seq.unwrap_or(StreamSeq::FIRST).max(StreamSeq::FIRST);
        Self {
            id,
            settings,
            config_json,
            generation,
            created,
            durability: DurabilityState::new(durability, generation),
            first_seq,
            last_seq: StreamSeq::new(first_seq.get() - 1),
            messages: 0,
            bytes: 0,
            last_ts: Timestamp::ZERO,
            log_time: Timestamp::ZERO,
            last_msg_id: None,
            deleted: RoaringTreemap::new(),
            digest: Digest::default(),
            subjects: SubjectIndex::new(),
            dedup: DedupWindow::default(),
            ttls: BTreeSet::new(),
            consumers: ConsumerSet::default(),
            term: Term::default(),
            ordinal: Ordinal::default(),
            applied: LogPosition::default(),
            removed: false,
            damaged: None,
            rebuild: None,
        }
    }

    /// The stream's id.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The settings that decide about messages.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The configuration as the API shows it.
    pub fn config_json(&self) -> &str {
        &self.config_json
    }

    /// Generation of the configuration in force.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// When the stream was created.
    pub fn created(&self) -> Timestamp {
        self.created
    }

    /// Desired and effective durability.
    pub fn durability(&self) -> &DurabilityState {
        &self.durability
    }

    /// The lowest live sequence, or one past the last if there is none.
    pub fn first_seq(&self) -> StreamSeq {
        self.first_seq
    }

    /// The highest sequence ever stored; it never goes back.
    pub fn last_seq(&self) -> StreamSeq {
        self.last_seq
    }

    /// Live messages.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Their bytes, as [`super::stored_len`] counts.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Time of the last stored message; zero before the first.
    pub fn last_ts(&self) -> Timestamp {
        self.last_ts
    }

    /// The latest time the log has stated.
    pub fn log_time(&self) -> Timestamp {
        self.log_time
    }

    /// Id of the last stored message, if it had one.
    pub fn last_msg_id(&self) -> Option<&[u8]> {
        self.last_msg_id.as_deref()
    }

    /// Removed sequences between the first and the last.
    pub fn deleted(&self) -> &RoaringTreemap {
        &self.deleted
    }

    /// Which live messages each subject has.
    pub fn subjects(&self) -> &SubjectIndex {
        &self.subjects
    }

    /// The duplicate window.
    pub fn dedup(&self) -> &DedupWindow {
        &self.dedup
    }

    /// The consumers.
    pub fn consumers(&self) -> &ConsumerSet {
        &self.consumers
    }

    /// Term and ordinal of the last effective entry.
    pub fn last_effective(&self) -> (Term, Ordinal) {
        (self.term, self.ordinal)
    }

    /// The last applied log position, void entries included.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    /// Whether a removal record was applied: nothing is stored any more.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// The live message that could not be read when it had to be, if that happened.
    pub fn damaged(&self) -> Option<StreamSeq> {
        self.damaged
    }

    /// Identifies the live messages, sequences and configuration. Equal states have equal digests.
    pub fn digest(&self) -> u64 {
        self.digest.read(self.first_seq, self.last_seq, self.generation)
    }

    /// Whether this message exists.
    pub fn is_live(&self, seq: StreamSeq) -> bool {
        self.messages > 0 && seq >= self.first_seq && seq <= self.last_seq && !self.deleted.contains(seq.get())
    }
}
