//! The leader's sequencer: everything that may be refused is decided here, against applied plus in-flight
//! state. What it lets through takes the next sequence and the next place in the log.

use std::collections::VecDeque;

use bytes::Bytes;
use headwater_protocol::subject;

use super::Records;
use super::apply::Rejection;
use super::command::{BeginBody, Command};
use super::headers::{BadHeader, PublishHeaders};
use super::in_flight::{InFlight, Net, Pending};
use super::limits::{Discard, Retention, Settings, stored_len};
use super::refusal::PubRefusal;
use super::state::StreamState;
use crate::frame::{FrameBuilder, FrameFull, FrameKind, HEADER_LEN, RECORD_HEADER_LEN, RecordFlags};
use crate::ids::{Ordinal, StreamId, StreamSeq, Term, Timestamp};

/// An open frame is sealed when the next message would bring it above this, in bytes.
pub const FRAME_BYTES_TARGET: usize = 256 << 10;
/// Most records of one frame.
pub const FRAME_COUNT_MAX: u32 = 4096;
/// Largest header block, in bytes.
pub const HEADERS_LEN_MAX: usize = 64 << 10;
/// Callers stop admitting above this many bytes in flight, per group.
pub const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;

/// A message to admit.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    /// Literal subject.
    pub subject: &'a [u8],
    /// Header block with its final blank line, or nothing.
    pub headers: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
    /// The leader's clock.
    pub now: Timestamp,
}

/// An admitted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Sequence to confirm.
    pub seq: StreamSeq,
    /// The confirmation waits until this entry may be confirmed. `None`: a duplicate of an applied message.
    pub ordinal: Option<Ordinal>,
    /// Set to `seq` if this was a duplicate: nothing was stored.
    pub duplicate_of: Option<StreamSeq>,
}

/// A refused message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub why: PubRefusal,
    /// The decision rests on entries in flight up to this one: the reply must not be sent before it may be
    /// confirmed, or it would reveal a position that can still be lost (I-5).
    pub after: Option<Ordinal>,
}

/// A command that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Its ordinal.
    pub ordinal: Ordinal,
}

#[derive(Debug)]
struct Open {
    builder: FrameBuilder,
    ordinal: Ordinal,
    net: Net,
}

/// The sequencer of one stream at its leader.
///
/// Make one per term when everything committed before that term is applied, and keep it for the term:
/// after a refused proposal use [`Admission::refused`] and [`Admission::reset`], which never reuse an
/// ordinal. Its first frame is a `Begin` that `apply` accepts only on the very state it was made from.
#[derive(Debug)]
pub struct Admission {
    stream: StreamId,
    term: Term,
    /// Ordinal of the next frame.
    next_ordinal: Ordinal,
    last_seq: StreamSeq,
    last_ts: Timestamp,
    open: Option<Open>,
    sealed: VecDeque<(Ordinal, Bytes)>,
    in_flight: InFlight,
    halted: bool,
}

impl Admission {
    /// Starts a term's sequencer.
    pub fn new(state: &StreamState, term: Term) -> Self {
        Self::start(state, term, Ordinal::new(1))
    }

    /// Starts over from applied state, after a refusal or a void `Begin`. Everything in flight is given
    /// up: a frame of it that is in the log after all is void there.
    pub fn reset(&mut self, state: &StreamState, term: Term) {
        // The Begin must come after every ordinal that this term has seen.
        let unused = if term == self.term { self.next_ordinal } else { Ordinal::new(1) };
        *self = Self::start(state, term, unused);
    }

    fn start(state: &StreamState, term: Term, unused: Ordinal) -> Self {
        let next_ordinal = match state.last_effective() {
            (same, ordinal) if same == term => unused.max(ordinal.next()),
            _ => unused,
        };
        let mut admission = Self {
            stream: state.id(),
            term,
            next_ordinal,
            last_seq: state.last_seq(),
            last_ts: state.last_ts().max(state.log_time()),
            open: None,
            sealed: VecDeque::new(),
            in_flight: InFlight::default(),
            halted: false,
        };
        admission.begin(state);
        admission
    }

    /// A proposal was refused. Nothing is admitted any more until [`Admission::reset`]. Returns the first
    /// and last ordinal that failed: the refused one and all behind it.
    pub fn refused(&mut self, ordinal: Ordinal) -> (Ordinal, Ordinal) {
        self.halted = true;
        self.open = None;
        self.sealed.clear();
        let last = Ordinal::new(self.next_ordinal.get().saturating_sub(1));
        (ordinal, last.max(ordinal))
    }

    /// Whether the sequencer waits for [`Admission::reset`].
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Term of this sequencer.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The last sequence given out.
    pub fn last_seq(&self) -> StreamSeq {
        self.last_seq
    }

    /// Bytes that are sequenced and not applied, the open frame included.
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight.pending_bytes + self.open.as_ref().map_or(0, |open| open.builder.len())
    }

    /// Whether more may be admitted.
    pub fn has_room(&self) -> bool {
        self.in_flight_bytes() < IN_FLIGHT_BYTES_MAX
    }

    /// Ordinal of the newest frame, open or sealed, that is not applied.
    pub fn newest_in_flight(&self) -> Option<Ordinal> {
        match &self.open {
            Some(open) => Some(open.ordinal),
            None => self.in_flight.pending.back().map(|pending| pending.ordinal),
        }
    }

    /// Takes note of what the state has applied. Every call that takes a state does this first.
    pub fn sync(&mut self, state: &StreamState) {
        let (term, ordinal) = state.last_effective();
        if term != self.term {
            return;
        }
        self.in_flight.applied(ordinal);
        if self.open.is_none() && self.in_flight.pending.is_empty() {
            self.in_flight.rest();
        }
    }

    /// The settings that will be in force when the next entry applies.
    fn settings<'a>(&'a self, state: &'a StreamState) -> &'a Settings {
        self.in_flight.settings.as_ref().map_or(state.settings(), |(_, settings)| settings)
    }

    fn take_ordinal(&mut self) -> Ordinal {
        let ordinal = self.next_ordinal;
        self.next_ordinal = ordinal.next();
        ordinal
    }

    fn begin(&mut self, state: &StreamState) {
        let (after_term, after_ordinal) = state.last_effective();
        let body = BeginBody { after_term, after_ordinal }.encode();
        self.push_command(FrameKind::Begin, &body).expect("16 bytes fit a frame");
    }

    fn push_command(&mut self, kind: FrameKind, body: &[u8]) -> Result<Ordinal, Rejection> {
        let mut builder =
            FrameBuilder::new(kind, self.stream, self.term, self.next_ordinal, self.last_seq.next(), self.last_ts);
        builder.reserve(RECORD_HEADER_LEN + body.len() + 8);
        builder.push_body(body).map_err(|_| Rejection::TooLarge)?;
        let ordinal = self.take_ordinal();
        self.push_sealed(ordinal, kind, builder.finish(), Net::default());
        Ok(ordinal)
    }

    fn push_sealed(&mut self, ordinal: Ordinal, kind: FrameKind, frame: Bytes, net: Net) {
        self.sealed.push_back((ordinal, frame.clone()));
        self.in_flight.push(Pending { ordinal, kind, frame, last_seq: self.last_seq, net });
    }

    fn seal_open(&mut self) {
        if let Some(Open { builder, ordinal, net }) = self.open.take() {
            self.push_sealed(ordinal, FrameKind::Messages, builder.finish(), net);
        }
    }

    /// The next frame to propose, in order; call until `None` once per loop turn.
    pub fn seal(&mut self) -> Option<(Ordinal, Bytes)> {
        if self.sealed.is_empty() {
            self.seal_open();
        }
        self.sealed.pop_front()
    }

    /// Gives a command its place, behind everything admitted so far. A purge is stamped with the last
    /// sequence, so that it never touches a newer message.
    pub fn propose(
        &mut self,
        state: &StreamState,
        mut command: Command,
        now: Timestamp,
    ) -> Result<Proposed, Rejection> {
        self.sync(state);
        if state.is_removed() || self.in_flight.stream_removal.is_some() {
            return Err(Rejection::Removed);
        }
        if self.halted {
            return Err(Rejection::NotReady);
        }
        let settings = self.settings(state);
        match &mut command {
            Command::Purge(_) | Command::DeleteMessage(_) if settings.sealed => {
                return Err(Rejection::Sealed);
            }
            Command::Purge(_) if settings.deny_purge => return Err(Rejection::PurgeDenied),
            Command::DeleteMessage(_) if settings.deny_delete => {
                return Err(Rejection::DeleteDenied);
            }
            Command::Purge(purge) => purge.up_to_last = self.last_seq,
            Command::Expire(expire) => {
                expire.now = expire.now.max(self.last_ts).max(now);
                self.last_ts = expire.now;
            }
            _ => {}
        }
        let removes = match &command {
            Command::Purge(_) | Command::DeleteMessage(_) | Command::Expire(_) => true,
            Command::Config(_) => true,
            Command::Consumers(_) => self.settings(state).retention != Retention::Limits,
            Command::Durability(_) | Command::Remove(_) => false,
        };
        self.last_ts = self.last_ts.max(now);
        self.seal_open();
        let ordinal = self.push_command(command.kind(), &command.encode())?;
        if removes {
            self.in_flight.removing = Some(ordinal);
        }
        match command {
            Command::Config(change) => {
                self.in_flight.settings = Some((ordinal, Box::new(change.settings)));
            }
            Command::Remove(_) => self.in_flight.stream_removal = Some(ordinal),
            _ => {}
        }
        Ok(Proposed { ordinal })
    }

    /// Admits a message into the open frame, or refuses it. A refused message takes no sequence.
    pub fn admit(
        &mut self,
        state: &StreamState,
        records: &dyn Records,
        publish: Publish<'_>,
    ) -> Result<Admitted, Refused> {
        self.sync(state);
        let found = PublishHeaders::scan(publish.headers);
        let ts = publish.now.max(self.last_ts);
        match self.decide(state, records, &publish, &found, ts) {
            Ok(Decision::Duplicate(admitted)) => Ok(admitted),
            Ok(Decision::Store { flags, net }) => {
                self.store(&publish, &found, ts, flags, net).map_err(|why| self.refuse(why))
            }
            Err(why) => Err(self.refuse(why)),
        }
    }

    fn refuse(&self, why: PubRefusal) -> Refused {
        let rests_on_state = match &why {
            PubRefusal::WrongLastSequence(_)
            | PubRefusal::WrongLastSequenceInFlight
            | PubRefusal::WrongLastMsgId(_)
            | PubRefusal::MaxMessages
            | PubRefusal::MaxBytes
            | PubRefusal::MaxMessagesPerSubject
            | PubRefusal::Sealed
            | PubRefusal::StreamNotFound => true,
            PubRefusal::NotReady
            | PubRefusal::NoRoom
            | PubRefusal::MessageTooLarge
            | PubRefusal::HeadersTooLarge
            | PubRefusal::WrongStream
            | PubRefusal::LastSubjectWithoutSequence
            | PubRefusal::Rollup(_)
            | PubRefusal::TtlInvalid
            | PubRefusal::TtlDisabled
            | PubRefusal::AtomicDisabled
            | PubRefusal::SourceHeader => false,
        };
        let after = if rests_on_state { self.newest_in_flight() } else { None };
        Refused { why, after }
    }

    fn decide(
        &mut self,
        state: &StreamState,
        records: &dyn Records,
        publish: &Publish<'_>,
        found: &PublishHeaders<'_>,
        ts: Timestamp,
    ) -> Result<Decision, PubRefusal> {
        if self.halted {
            return Err(PubRefusal::NotReady);
        }
        if state.is_removed() || self.in_flight.stream_removal.is_some() {
            return Err(PubRefusal::StreamNotFound);
        }
        let settings = self.settings(state);
        if settings.sealed {
            return Err(PubRefusal::Sealed);
        }
        let body_len = (publish.headers.len() + publish.payload.len()) as u64;
        if settings.limits.max_msg_size.is_some_and(|max| body_len > max) {
            return Err(PubRefusal::MessageTooLarge);
        }
        if publish.headers.len() > HEADERS_LEN_MAX {
            return Err(PubRefusal::HeadersTooLarge);
        }
        let mut flags = RecordFlags::NONE;
        if !publish.headers.is_empty() {
            if found.batch_id.is_some() {
                return Err(PubRefusal::AtomicDisabled);
            }
            if found.has_source {
                return Err(PubRefusal::SourceHeader);
            }
            if found.expected_stream.is_some_and(|name| name != settings.name.as_bytes()) {
                return Err(PubRefusal::WrongStream);
            }
            let window_ns = settings.duplicate_window_ns;
            // A known id is no excuse for a wrong sequence: whoever names one wants to hear where the stream is.
            self.check_subject_sequence(state, publish, found)?;
            self.check_last_sequence(found)?;
            if let Some(id) = found.msg_id {
                if window_ns > 0
                    && let Some(duplicate) = self.duplicate(state, id, ts, window_ns)
                {
                    return Ok(Decision::Duplicate(duplicate));
                }
                flags = flags.with(RecordFlags::HAS_MSG_ID);
            }
            self.check_last_msg_id(state, found)?;
            let settings = self.settings(state);
            flags = flags.with(rollup_flags(settings, found)?).with(ttl_flags(settings, found)?);
        }
        let net = self.check_limits(state, records, publish)?;
        Ok(Decision::Store { flags, net })
    }

    fn duplicate(&self, state: &StreamState, id: &[u8], ts: Timestamp, window_ns: u64) -> Option<Admitted> {
        if let Some(seq) = self.in_flight.ids.lookup(id, ts, window_ns) {
            let ordinal = self
                .in_flight
                .pending
                .iter()
                .find(|pending| pending.kind == FrameKind::Messages && seq <= pending.last_seq)
                .map(|pending| pending.ordinal)
                .or(self.open.as_ref().map(|open| open.ordinal));
            return Some(Admitted { seq, ordinal, duplicate_of: Some(seq) });
        }
        let seq = state.dedup().lookup(id, ts, window_ns)?;
        Some(Admitted { seq, ordinal: None, duplicate_of: Some(seq) })
    }

    fn check_last_sequence(&self, found: &PublishHeaders<'_>) -> Result<(), PubRefusal> {
        // A number that cannot be read is nobody's last sequence.
        let bad = found.bad == Some(BadHeader::LastSequence);
        if bad || found.expected_last_seq.is_some_and(|seq| seq != self.last_seq.get()) {
            return Err(PubRefusal::WrongLastSequence(self.last_seq));
        }
        Ok(())
    }

    fn check_last_msg_id(&self, state: &StreamState, found: &PublishHeaders<'_>) -> Result<(), PubRefusal> {
        let Some(expected) = found.expected_last_msg_id else { return Ok(()) };
        let last = match &self.in_flight.last_msg_id {
            Some((_, id)) => id.as_deref(),
            None => state.last_msg_id(),
        };
        if last == Some(expected) {
            return Ok(());
        }
        Err(PubRefusal::WrongLastMsgId(String::from_utf8_lossy(last.unwrap_or_default()).into_owned()))
    }

    fn check_subject_sequence(
        &mut self,
        state: &StreamState,
        publish: &Publish<'_>,
        found: &PublishHeaders<'_>,
    ) -> Result<(), PubRefusal> {
        let bad_subject_seq = found.bad == Some(BadHeader::LastSubjectSequence);
        let expected = found.expected_last_subject_seq;
        if expected.is_none() && !bad_subject_seq {
            return match found.expected_last_subject {
                Some(_) => Err(PubRefusal::LastSubjectWithoutSequence),
                None => Ok(()),
            };
        }
        // Something in flight may remove this subject's last message: what the check would find when the
        // message applies is not known yet.
        if self.in_flight.removing.is_some() {
            return Err(PubRefusal::WrongLastSequenceInFlight);
        }
        let subject = found.expected_last_subject.unwrap_or(publish.subject);
        let open = self.open.as_ref().map(|open| &open.builder);
        let in_flight = self.in_flight.subjects(open);
        let last = if subject::has_wildcards(subject) {
            let newest = StreamSeq::new(u64::MAX);
            in_flight.last_matching(&[subject], newest).or_else(|| state.last_matching(&[subject], newest))
        } else {
            in_flight.last_by_subject(subject).or_else(|| state.last_by_subject(subject))
        };
        let last = last.unwrap_or(StreamSeq::ZERO);
        if Some(last.get()) == expected { Ok(()) } else { Err(PubRefusal::WrongLastSequence(last)) }
    }

    /// Limits that refuse, and what the message will change about the totals.
    fn check_limits(
        &mut self,
        state: &StreamState,
        records: &dyn Records,
        publish: &Publish<'_>,
    ) -> Result<Net, PubRefusal> {
        let settings = self.settings(state);
        let limits = settings.limits;
        let len =
            stored_len(state.settings().storage, publish.subject.len(), publish.headers.len(), publish.payload.len());
        // Even discarding all that is older would not make room.
        if limits.max_bytes.is_some_and(|max| len > max) {
            return Err(PubRefusal::MaxBytes);
        }
        let mut net = Net { messages: 1, bytes: len as i64 };
        if settings.discard == Discard::Old {
            return Ok(net);
        }
        let per_subject = settings.discard_new_per_subject;
        if let Some(max) = limits.max_msgs_per_subject {
            let max = max.max(1);
            let open = self.open.as_ref().map(|open| &open.builder);
            let count_of = |set: Option<&crate::seq_set::SeqSet>| set.map_or(0, |set| set.len());
            let in_flight = count_of(self.in_flight.subjects(open).get(publish.subject));
            let stored = state.subjects().get(publish.subject);
            let total = count_of(stored) + in_flight;
            if total >= max {
                if per_subject {
                    return Err(PubRefusal::MaxMessagesPerSubject);
                }
                // The subject's oldest will go: the one after those that messages in flight push out.
                net.messages = 0;
                let evicted = stored.and_then(|set| set.nth(total - max));
                if let Some(evicted) = evicted.filter(|_| limits.max_bytes.is_some()) {
                    net.bytes -= records.stored_len(state.settings().storage, evicted) as i64;
                }
            }
        }
        let after =
            |total: u64, in_flight: i64, change: i64| i128::from(total) + i128::from(in_flight) + i128::from(change);
        let messages = after(state.messages(), self.in_flight.net.messages, net.messages);
        if net.messages > 0 && limits.max_msgs.is_some_and(|max| messages > i128::from(max)) {
            return Err(PubRefusal::MaxMessages);
        }
        let bytes = after(state.bytes(), self.in_flight.net.bytes, net.bytes);
        if net.bytes > 0 && limits.max_bytes.is_some_and(|max| bytes > i128::from(max)) {
            return Err(PubRefusal::MaxBytes);
        }
        Ok(net)
    }

    fn store(
        &mut self,
        publish: &Publish<'_>,
        found: &PublishHeaders<'_>,
        ts: Timestamp,
        flags: RecordFlags,
        net: Net,
    ) -> Result<Admitted, PubRefusal> {
        let record_len = RECORD_HEADER_LEN + publish.subject.len() + publish.headers.len() + publish.payload.len() + 6;
        if let Some(open) = &self.open
            && (open.builder.len() + record_len > FRAME_BYTES_TARGET || open.builder.count() >= FRAME_COUNT_MAX)
        {
            self.seal_open();
        }
        let seq = match self.push(publish, ts, flags, record_len) {
            Err(FrameFull::TooOld) => {
                self.seal_open();
                self.push(publish, ts, flags, record_len)
            }
            pushed => pushed,
        }
        .map_err(|_| PubRefusal::MessageTooLarge)?;
        debug_assert_eq!(seq, self.last_seq.next());
        self.last_seq = seq;
        self.last_ts = ts;
        self.in_flight.net.add(net);
        self.in_flight.note_subject(publish.subject, seq);
        if let Some(id) = found.msg_id {
            self.in_flight.ids.insert(id, seq, ts);
            self.in_flight.last_msg_id = Some((seq, Some(id.into())));
        } else {
            self.in_flight.last_msg_id = Some((seq, None));
        }
        let open = self.open.as_mut().expect("push left the frame open");
        open.net.add(net);
        let ordinal = open.ordinal;
        if flags.has(RecordFlags::ROLLUP_ALL) {
            self.in_flight.removing = Some(ordinal);
        }
        Ok(Admitted { seq, ordinal: Some(ordinal), duplicate_of: None })
    }

    fn push(
        &mut self,
        publish: &Publish<'_>,
        ts: Timestamp,
        flags: RecordFlags,
        record_len: usize,
    ) -> Result<StreamSeq, FrameFull> {
        if self.open.is_none() {
            let mut builder = FrameBuilder::new(
                FrameKind::Messages,
                self.stream,
                self.term,
                self.next_ordinal,
                self.last_seq.next(),
                ts,
            );
            builder.reserve(HEADER_LEN + record_len);
            let Publish { subject, headers, payload, .. } = *publish;
            let seq = builder.push_message(ts, subject, headers, payload, flags)?;
            let ordinal = self.take_ordinal();
            self.open = Some(Open { builder, ordinal, net: Net::default() });
            return Ok(seq);
        }
        let open = self.open.as_mut().expect("checked above");
        open.builder.push_message(ts, publish.subject, publish.headers, publish.payload, flags)
    }
}

enum Decision {
    Duplicate(Admitted),
    Store { flags: RecordFlags, net: Net },
}

fn rollup_flags(settings: &Settings, found: &PublishHeaders<'_>) -> Result<RecordFlags, PubRefusal> {
    let Some(value) = found.rollup else {
        return Ok(RecordFlags::NONE);
    };
    if !settings.allow_rollup || settings.deny_purge {
        return Err(PubRefusal::Rollup("rollup not permitted".to_owned()));
    }
    // nats-server takes any case, and tells what it refuses in lower case.
    match &value.to_ascii_lowercase()[..] {
        b"sub" => Ok(RecordFlags::ROLLUP_SUBJECT),
        b"all" => Ok(RecordFlags::ROLLUP_ALL),
        other => {
            let other = String::from_utf8_lossy(other);
            Err(PubRefusal::Rollup(format!("rollup value invalid: {other:?}")))
        }
    }
}

fn ttl_flags(settings: &Settings, found: &PublishHeaders<'_>) -> Result<RecordFlags, PubRefusal> {
    let bad = found.bad == Some(BadHeader::Ttl);
    if found.ttl.is_none() && !bad {
        return Ok(RecordFlags::NONE);
    }
    if !settings.allow_msg_ttl {
        return Err(PubRefusal::TtlDisabled);
    }
    if bad {
        return Err(PubRefusal::TtlInvalid);
    }
    Ok(RecordFlags::HAS_TTL)
}
