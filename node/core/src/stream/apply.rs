//! `apply`: one log entry onto the state. It decides nothing but whether the entry is void, and is a function of state
//! and entry only (I-10).

use super::command::{BeginBody, Command, ConfigChange, Expire, Purge, decode_command};
use super::limits::Discard;
use super::remove::{Removals, Source};
use super::state::StreamState;
use super::ttl::Ttl;
use super::{Records, headers};
use crate::consumer::ConsumerEffects;
use crate::durability::DurabilityOutcome;
use crate::frame::{Frame, FrameKind, Record, RecordFlags};
use crate::ids::{Generation, LogPosition, RaftNodeId, StreamSeq};
use crate::subject_index::{SubjectSlot, is_everything};

/// Sequences from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqRange {
    /// Lowest.
    pub first: StreamSeq,
    /// Highest.
    pub last: StreamSeq,
}

/// Why an entry had no effect, the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Void {
    /// Its index was applied before: replay is exactly once.
    AlreadyApplied,
    /// The frame belongs to another stream.
    OtherStream,
    /// It was framed under another term than it was logged, or its term has no `Begin` yet.
    Term,
    /// Its ordinal is not the last one's successor.
    Ordinal,
    /// Its `Begin` built on a state that is not this one.
    Fence,
    /// Its messages do not continue the stream.
    Sequence,
    /// The stream is removed.
    Removed,
}

/// Why a command that took its place in the log changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Its body cannot be read.
    #[error("the command cannot be read")]
    Malformed,
    /// There is no such message.
    #[error("no message found")]
    NotFound,
    /// A newer configuration is in force.
    #[error("generation {given} is older than {current}")]
    Stale {
        /// Generation in the command.
        given: Generation,
        /// Generation in force.
        current: Generation,
    },
    /// A durability command that cannot be, see [`DurabilityOutcome`].
    #[error("durability: {0}")]
    Durability(DurabilityOutcome),
    /// Single deletes are denied.
    #[error("message delete not permitted")]
    DeleteDenied,
    /// Purges are denied.
    #[error("stream purge not permitted")]
    PurgeDenied,
    /// The stream is sealed.
    #[error("invalid operation on sealed stream")]
    Sealed,
    /// The stream is removed.
    #[error("stream not found")]
    Removed,
    /// The sequencer waits for the state to catch up with the log.
    #[error("JetStream system temporarily unavailable")]
    NotReady,
    /// A frame cannot hold the command.
    #[error("the command is too large")]
    TooLarge,
}

/// What an entry came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had no effect.
    Void(Void),
    /// It took effect.
    Done,
    /// It took its place, and changed nothing.
    Rejected(Rejection),
}

/// Something that happened beyond messages stored and removed.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// A leader's sequencer started.
    Began,
    /// Settings or configuration changed.
    Configured(Generation),
    /// The bytes of a removed message must be overwritten.
    Erase(StreamSeq),
    /// Durability state changed; see [`StreamState::durability`].
    Durability,
    /// Consumer operations were applied.
    Consumers(ConsumerEffects),
    /// The stream is removed.
    Removed,
}

/// Result of [`StreamState::apply`].
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// What the entry came to.
    pub outcome: Outcome,
    /// Messages it stored. The frame goes to the store exactly if this is set.
    pub stored: Option<SeqRange>,
    /// Sequences it removed; a range may span some that were removed before.
    pub removed: Vec<SeqRange>,
    /// Live messages it removed.
    pub removed_count: u64,
    /// What else happened.
    pub events: Vec<StreamEvent>,
}

/// A live message could not be read although it had to be. The state is of no use any more: the replica
/// must be repaired from its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {seq} is live and cannot be read")]
pub struct Damaged {
    /// The message.
    pub seq: StreamSeq,
}

impl StreamState {
    /// Applies the entry at `at`. Deterministic: state, entry and live records decide everything.
    ///
    /// # Errors
    /// [`Damaged`] if a live message cannot be read; every later call then fails the same way.
    ///
    /// # Panics
    /// If the state came from an image and [`StreamState::finish_rebuild`] was not called.
    pub fn apply(&mut self, at: LogPosition, frame: &Frame, records: &dyn Records) -> Result<Applied, Damaged> {
        assert!(self.rebuild.is_none(), "apply at {} before finish_rebuild", at.index);
        if let Some(seq) = self.damaged {
            return Err(Damaged { seq });
        }
        if at.index <= self.applied.index {
            return Ok(Applied::void(Void::AlreadyApplied));
        }
        self.applied = at;
        if let Some(void) = self.admit_entry(at, frame) {
            return Ok(Applied::void(void));
        }
        let mut done = Done::default();
        let result = match frame.header().kind {
            FrameKind::Messages => self.apply_messages(frame, records, &mut done),
            FrameKind::Begin => {
                done.events.push(StreamEvent::Began);
                Ok(Outcome::Done)
            }
            kind => match frame.body().map(|body| decode_command(kind, body)) {
                Some(Ok(command)) => self.apply_command(at, command, &Source { frame: None, records }, &mut done),
                _ => Ok(Outcome::Rejected(Rejection::Malformed)),
            },
        };
        self.tell_consumers(&done);
        match result {
            Ok(outcome) => Ok(Applied {
                outcome,
                stored: done.stored,
                removed: done.removals.ranges,
                removed_count: done.removals.count,
                events: done.events,
            }),
            Err(damaged) => {
                self.damaged = Some(damaged.seq);
                Err(damaged)
            }
        }
    }

    /// Moves past an entry that carries no frame and says nothing of the stream.
    pub fn skip(&mut self, at: LogPosition) {
        self.applied = self.applied.max(at);
    }

    /// Takes in the group's membership, as the entry at `at` has it.
    pub fn members_changed(&mut self, at: LogPosition, is_member: impl Fn(RaftNodeId) -> bool) {
        if at > self.applied {
            self.durability.keep_members(is_member);
        }
        self.skip(at);
    }

    /// The void rule. On `None` the entry has its place: term and ordinal moved on.
    fn admit_entry(&mut self, at: LogPosition, frame: &Frame) -> Option<Void> {
        let header = frame.header();
        if header.stream != self.id {
            return Some(Void::OtherStream);
        }
        if self.removed {
            return Some(Void::Removed);
        }
        if header.term != at.term {
            return Some(Void::Term);
        }
        if header.kind == FrameKind::Begin {
            let built_on = frame.body().and_then(|body| BeginBody::decode(body).ok());
            let here = BeginBody { after_term: self.term, after_ordinal: self.ordinal };
            if built_on != Some(here) || header.base_seq != self.last_seq.next() {
                return Some(Void::Fence);
            }
        } else {
            if header.term != self.term {
                return Some(Void::Term);
            }
            if header.ordinal != self.ordinal.next() {
                return Some(Void::Ordinal);
            }
            if header.kind == FrameKind::Messages
                && (header.base_seq != self.last_seq.next() || header.base_ts < self.last_ts)
            {
                return Some(Void::Sequence);
            }
        }
        self.term = header.term;
        self.ordinal = header.ordinal;
        None
    }

    fn apply_messages(&mut self, frame: &Frame, records: &dyn Records, done: &mut Done) -> Result<Outcome, Damaged> {
        let header = frame.header();
        let source = Source { frame: Some(frame), records };
        let limits = self.settings.limits;
        let limited = limits.max_msgs.is_some() || limits.max_bytes.is_some() || limits.max_msgs_per_subject.is_some();
        let mut last_flags = RecordFlags::NONE;
        for record in frame.records() {
            let slot = self.store(&record);
            last_flags = record.flags;
            if limited || record.flags.bits() & ROLLUPS != 0 {
                self.make_room(&record, slot, &source, &mut done.removals)?;
            }
        }
        if header.count == 0 {
            return Ok(Outcome::Done);
        }
        let last = frame.get(header.count - 1);
        let id = match last {
            Some(record) if last_flags.has(RecordFlags::HAS_MSG_ID) => headers::msg_id(record.headers()),
            _ => None,
        };
        if self.last_msg_id.as_deref() != id {
            self.last_msg_id = id.map(Into::into);
        }
        self.log_time = self.log_time.max(self.last_ts);
        self.dedup.expire(self.log_time, self.settings.duplicate_window_ns);
        done.stored = Some(SeqRange { first: header.base_seq, last: self.last_seq });
        self.drop_unwanted(&source, done)?;
        Ok(Outcome::Done)
    }

    /// Adds a message to counters and indexes.
    fn store(&mut self, record: &Record<'_>) -> SubjectSlot {
        if self.messages == 0 {
            self.first_seq = record.seq;
        }
        self.last_seq = record.seq;
        self.last_ts = record.ts;
        self.messages += 1;
        self.bytes += self.len_of(record);
        self.digest.add(record.seq, record.crc);
        if record.flags.has(RecordFlags::HAS_MSG_ID)
            && let Some(id) = headers::msg_id(record.headers())
        {
            self.dedup.insert(id, record.seq, record.ts);
        }
        self.index_derived(record)
    }

    /// Adds a live message to what is derived from live messages alone.
    pub(super) fn index_derived(&mut self, record: &Record<'_>) -> SubjectSlot {
        if let Some(deadline) = headers::deadline(record) {
            self.ttls.insert((deadline, record.seq));
        }
        self.subjects.push_back(record.subject(), record.seq)
    }

    /// Enforces rollups and limits after a stored message. The message itself never goes.
    fn make_room(
        &mut self,
        record: &Record<'_>,
        slot: SubjectSlot,
        source: &Source<'_>,
        removals: &mut Removals,
    ) -> Result<(), Damaged> {
        let before = StreamSeq::new(record.seq.get() - 1);
        let limits = self.settings.limits;
        if record.flags.has(RecordFlags::ROLLUP_ALL) {
            self.remove_front(before, source, removals, |_| true)?;
        } else if record.flags.has(RecordFlags::ROLLUP_SUBJECT) {
            self.trim_subject(slot, 1, source, removals)?;
        }
        if let Some(max) = limits.max_msgs_per_subject {
            self.trim_subject(slot, max.max(1), source, removals)?;
        }
        if self.settings.discard == Discard::Old {
            self.enforce_totals(before, source, removals)?;
        }
        Ok(())
    }

    fn trim_subject(
        &mut self,
        slot: SubjectSlot,
        keep: u64,
        source: &Source<'_>,
        removals: &mut Removals,
    ) -> Result<(), Damaged> {
        while self.subjects.at(slot).len() > keep {
            let Some(oldest) = self.subjects.at(slot).first() else {
                break;
            };
            self.remove_one(oldest, source, removals)?;
        }
        Ok(())
    }

    fn enforce_totals(
        &mut self,
        bound: StreamSeq,
        source: &Source<'_>,
        removals: &mut Removals,
    ) -> Result<(), Damaged> {
        let limits = self.settings.limits;
        if let Some(max) = limits.max_msgs {
            self.remove_front(bound, source, removals, |state| state.messages > max)?;
        }
        if let Some(max) = limits.max_bytes {
            self.remove_front(bound, source, removals, |state| state.bytes > max)?;
        }
        Ok(())
    }

    fn apply_command(
        &mut self,
        at: LogPosition,
        command: Command,
        source: &Source<'_>,
        done: &mut Done,
    ) -> Result<Outcome, Damaged> {
        match command {
            Command::Expire(expire) => self.apply_expire(expire, source, &mut done.removals),
            Command::Purge(purge) => self.apply_purge(&purge, source, &mut done.removals),
            Command::DeleteMessage(delete) => {
                if !self.is_live(delete.seq) {
                    return Ok(Outcome::Rejected(Rejection::NotFound));
                }
                self.remove_one(delete.seq, source, &mut done.removals)?;
                if delete.erase {
                    done.events.push(StreamEvent::Erase(delete.seq));
                }
                Ok(Outcome::Done)
            }
            Command::Config(change) => self.apply_config(*change, source, done),
            Command::Consumers(ops) => self.apply_consumers(&ops, source, done),
            Command::Durability(command) => Ok(match self.durability.apply(at.index, &command) {
                DurabilityOutcome::Done => {
                    done.events.push(StreamEvent::Durability);
                    Outcome::Done
                }
                refused => Outcome::Rejected(Rejection::Durability(refused)),
            }),
            Command::Remove(_) => {
                self.removed = true;
                done.events.push(StreamEvent::Removed);
                Ok(Outcome::Done)
            }
        }
    }

    fn apply_expire(
        &mut self,
        expire: Expire,
        source: &Source<'_>,
        removals: &mut Removals,
    ) -> Result<Outcome, Damaged> {
        self.log_time = self.log_time.max(expire.now);
        let now = self.log_time;
        self.dedup.expire(now, self.settings.duplicate_window_ns);
        let most = u64::from(expire.max_count);
        while removals.count < most {
            let Some(&(deadline, seq)) = self.ttls.first() else {
                break;
            };
            if deadline > now {
                break;
            }
            if self.is_live(seq) {
                self.remove_one(seq, source, removals)?;
            }
            self.ttls.remove(&(deadline, seq));
        }
        let Some(max_age_ns) = self.settings.limits.max_age_ns else {
            return Ok(Outcome::Done);
        };
        // Times never go back, so the first message that is young enough ends the search.
        let mut next = self.next_live(StreamSeq::FIRST);
        while let Some(seq) = next
            && removals.count < most
        {
            let (old, kept) = source
                .with(seq, |record| {
                    let has_ttl = record.flags.has(RecordFlags::HAS_TTL);
                    let kept = has_ttl && headers::ttl(record.headers()) == Some(Ttl::Never);
                    (record.ts.plus_ns(max_age_ns) <= now, kept)
                })
                .or_else(|damaged| {
                    // It goes when those behind it go.
                    let near = || self.time_of(seq, source.records).plus_ns(max_age_ns) <= now;
                    source.records.outline(seq).map(|_| (near(), false)).ok_or(damaged)
                })?;
            if !old {
                break;
            }
            if !kept {
                self.remove_one(seq, source, removals)?;
            }
            next = self.next_live(seq.next());
        }
        Ok(Outcome::Done)
    }

    fn apply_purge(&mut self, purge: &Purge, source: &Source<'_>, removals: &mut Removals) -> Result<Outcome, Damaged> {
        let newest = purge.up_to_last.min(self.last_seq);
        // On the wire a zero is an absent field.
        let bound = match purge.seq.map(StreamSeq::get) {
            None | Some(0) => newest,
            Some(seq) => newest.min(StreamSeq::new(seq - 1)),
        };
        let keep = purge.keep.unwrap_or(0);
        let filter = purge.filter.as_deref().unwrap_or("").as_bytes();
        if is_everything(filter) {
            if bound == self.last_seq && keep == 0 {
                self.remove_all(removals);
                return Ok(Outcome::Done);
            }
            let covered = self.live_count_up_to(bound);
            let goal = removals.count + covered.saturating_sub(keep);
            while removals.count < goal {
                self.remove_one(self.first_seq, source, removals)?;
            }
            return Ok(Outcome::Done);
        }
        let mut covered: Vec<StreamSeq> =
            self.subjects.by_filter(filter).flat_map(|(_, seqs)| seqs.iter().take_while(|seq| *seq <= bound)).collect();
        covered.sort_unstable();
        covered.truncate(covered.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX)));
        for seq in covered {
            self.remove_one(seq, source, removals)?;
        }
        Ok(Outcome::Done)
    }

    fn apply_config(&mut self, change: ConfigChange, source: &Source<'_>, done: &mut Done) -> Result<Outcome, Damaged> {
        if change.generation < self.generation {
            let (given, current) = (change.generation, self.generation);
            return Ok(Outcome::Rejected(Rejection::Stale { given, current }));
        }
        let ConfigChange { mut settings, config_json, generation } = change;
        // Storage cannot change, and the count of bytes depends on it.
        if self.generation != Generation::default() {
            settings.storage = self.settings.storage;
        }
        self.settings = settings;
        self.config_json = config_json;
        self.generation = generation;
        self.dedup.expire(self.log_time, self.settings.duplicate_window_ns);
        if let Some(max) = self.settings.limits.max_msgs_per_subject
            && !(self.settings.discard == Discard::New && self.settings.discard_new_per_subject)
        {
            let mut excess: Vec<StreamSeq> = self
                .subjects
                .iter()
                .filter(|(_, seqs)| seqs.len() > max)
                .flat_map(|(_, seqs)| seqs.iter().take((seqs.len() - max) as usize))
                .collect();
            excess.sort_unstable();
            for seq in excess {
                self.remove_one(seq, source, &mut done.removals)?;
            }
        }
        if self.settings.discard == Discard::Old {
            self.enforce_totals(self.last_seq, source, &mut done.removals)?;
        }
        done.events.push(StreamEvent::Configured(generation));
        Ok(Outcome::Done)
    }
}

const ROLLUPS: u8 = RecordFlags::ROLLUP_SUBJECT.bits() | RecordFlags::ROLLUP_ALL.bits();

/// What an entry has done so far.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) stored: Option<SeqRange>,
    pub(super) removals: Removals,
    pub(super) events: Vec<StreamEvent>,
}

impl Applied {
    fn void(why: Void) -> Self {
        Self { outcome: Outcome::Void(why), stored: None, removed: Vec::new(), removed_count: 0, events: Vec::new() }
    }

    /// Whether the entry had no effect.
    pub fn is_void(&self) -> bool {
        matches!(self.outcome, Outcome::Void(_))
    }
}
