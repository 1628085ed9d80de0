//! A leader, its log, and replicas that apply it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::invariants;
use crate::durability::Durability;
use crate::frame::{Frame, FrameKind, OwnedRecord};
use crate::ids::{Generation, LogIndex, LogPosition, StreamId, StreamSeq, Term, Timestamp};
use crate::stream::{
    Admission, Admitted, Applied, BlockIndex, BlockIndexBuilder, Command, ConfigChange, Damaged, Outline, PubRefusal,
    Publish, Rebuild, Records, Settings, StreamState,
};

/// Bodies by sequence, for ever.
#[derive(Default, Clone)]
pub(super) struct Store(BTreeMap<u64, OwnedRecord>, BTreeSet<u64>);

impl Records for Store {
    fn record(&self, seq: StreamSeq) -> Result<Option<OwnedRecord>, Damaged> {
        let is_damaged = self.1.contains(&seq.get());
        if is_damaged { Err(Damaged { seq }) } else { Ok(self.0.get(&seq.get()).cloned()) }
    }

    fn outline(&self, seq: StreamSeq) -> Option<Outline> {
        let record = self.0.get(&seq.get())?.as_record();
        Some(Outline {
            subject: record.subject().into(),
            headers_len: record.headers().len(),
            payload_len: record.payload().len(),
            crc: record.crc,
            deadline: crate::stream::headers::deadline(&record),
        })
    }
}

impl Store {
    pub(super) fn lose(&mut self, seq: u64) {
        self.0.remove(&seq);
    }

    /// The message cannot be read any more; the index of its block knows what it was.
    pub(super) fn damage(&mut self, seq: u64) {
        self.1.insert(seq);
    }
}

pub(super) struct Replica {
    pub(super) state: StreamState,
    pub(super) store: Store,
    frames: Vec<Frame>,
    /// Blocks whose index was enough.
    pub(super) restarted_by_index: u64,
}

pub(super) fn fresh(settings: &Settings) -> StreamState {
    StreamState::new(
        StreamId::new(7),
        settings.clone(),
        "{}".to_owned(),
        Generation::new(1),
        Durability::default(),
        Timestamp::new(1),
        None,
    )
}

impl Replica {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { state: fresh(settings), store: Store::default(), frames: Vec::new(), restarted_by_index: 0 }
    }

    pub(super) fn apply(&mut self, at: LogPosition, bytes: &Bytes) -> Applied {
        let frame = Frame::parse(bytes.clone()).unwrap();
        let before = (self.state.first_seq(), self.state.last_seq());
        let applied = self.state.apply(at, &frame, &self.store).unwrap();
        if applied.stored.is_some() {
            for i in 0..frame.header().count {
                let record = frame.owned_record(i).unwrap();
                self.store.0.insert(record.seq().get(), record);
            }
            self.frames.push(frame);
        }
        invariants::assert_consistent(&self.state);
        let after = (self.state.first_seq(), self.state.last_seq());
        invariants::assert_advanced(before, after);
        applied
    }

    /// Writes the image, reads it back and rebuilds from every frame ever stored, once frame by frame and once from
    /// blocks of a few frames by their indexes.
    pub(super) fn restart(&mut self) {
        let mut back = self.rebuilt(|back, frames| frames.iter().for_each(|frame| back.rebuild(frame)));
        self.assert_same(&back);
        let mut by_index = 0;
        back = self.rebuilt(|back, frames| {
            for frames in frames.chunks(3) {
                let mut index = BlockIndexBuilder::new(back.id(), 1);
                let mut offset = 4096;
                for frame in frames {
                    index.add(offset, frame);
                    offset += frame.header().len;
                }
                let index = index.finish(u64::from(offset)).unwrap();
                assert_eq!(BlockIndex::decode(&index.encode()).unwrap(), index);
                if back.block(&index, true) {
                    by_index += 1;
                } else {
                    frames.iter().for_each(|frame| back.rebuild(frame));
                }
            }
        });
        self.assert_same(&back);
        self.restarted_by_index += by_index;
        self.state = back;
    }

    /// Those with messages, as blocks keep them.
    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    fn rebuilt(&self, read: impl FnOnce(&mut StreamState, &[Frame])) -> StreamState {
        let mut back = StreamState::from_image(&self.state.image()).unwrap();
        read(&mut back, &self.frames);
        back.finish_rebuild().unwrap();
        back
    }

    fn assert_same(&self, back: &StreamState) {
        assert_eq!(back.digest(), self.state.digest());
        assert_eq!(back.counts(), self.state.counts());
        assert_eq!(back.subjects().subjects_matching(b">"), self.state.subjects().subjects_matching(b">"));
        assert_eq!(back.dedup().len(), self.state.dedup().len());
        assert_eq!(back.ttls, self.state.ttls);
        assert_eq!(back.image(), self.state.image());
    }
}

pub(super) struct World {
    pub(super) leader: Replica,
    pub(super) admission: Admission,
    pub(super) log: Vec<(LogPosition, Bytes)>,
    pub(super) term: u64,
    pub(super) now: u64,
}

impl World {
    pub(super) fn new(settings: Settings) -> Self {
        let leader = Replica::new(&settings);
        let admission = Admission::new(&leader.state, Term::new(1));
        let mut world = Self { leader, admission, log: Vec::new(), term: 1, now: 1_000 };
        world.drain();
        world
    }

    pub(super) fn append(&mut self, bytes: &Bytes) -> Applied {
        let at = LogPosition { term: Term::new(self.term), index: LogIndex::new(self.log.len() as u64 + 1) };
        self.log.push((at, bytes.clone()));
        self.leader.apply(at, bytes)
    }

    /// Commits and applies everything that was admitted.
    pub(super) fn drain(&mut self) -> Vec<Applied> {
        let mut all = Vec::new();
        while let Some((_, bytes)) = self.admission.seal() {
            all.push(self.append(&bytes));
        }
        self.admission.sync(&self.leader.state);
        assert_eq!(self.admission.in_flight_bytes(), 0);
        assert_eq!(self.admission.last_seq(), self.leader.state.last_seq());
        all
    }

    /// Another leader of a new term; what was not drained is lost.
    pub(super) fn new_term(&mut self) {
        self.term += 1;
        self.admission = Admission::new(&self.leader.state, Term::new(self.term));
    }

    pub(super) fn publish(
        &mut self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: &[u8],
    ) -> Result<Admitted, PubRefusal> {
        let headers = block(headers);
        let publish =
            Publish { subject: subject.as_bytes(), headers: &headers, payload, now: Timestamp::new(self.now) };
        self.admission.admit(&self.leader.state, &self.leader.store, publish).map_err(|refused| refused.why)
    }

    pub(super) fn seq(&mut self, subject: &str, headers: &[(&str, &str)]) -> u64 {
        self.publish(subject, headers, b"x").unwrap().seq.get()
    }

    pub(super) fn propose(&mut self, command: Command) -> Applied {
        self.admission.propose(&self.leader.state, command, Timestamp::new(self.now)).unwrap();
        self.drain().pop().unwrap()
    }

    pub(super) fn configure(&mut self, settings: Settings) -> Applied {
        let generation = self.leader.state.generation().next();
        let config_json = "{}".to_owned();
        self.propose(Command::Config(Box::new(ConfigChange { settings, config_json, generation })))
    }

    pub(super) fn live(&self) -> Vec<u64> {
        self.leader.state.live_from(StreamSeq::FIRST).map(StreamSeq::get).collect()
    }

    /// A second replica that applies the same log is the same, to the byte.
    pub(super) fn check_replicas(&self, settings: &Settings) {
        let mut other = Replica::new(settings);
        for (at, bytes) in &self.log {
            other.apply(*at, bytes);
            let again = other.apply(*at, bytes);
            assert!(again.is_void(), "an entry applies once");
        }
        assert_eq!(other.state.digest(), self.leader.state.digest());
        assert_eq!(other.state.counts(), self.leader.state.counts());
        assert_eq!(other.state.image(), self.leader.state.image());
        let kinds = self.log.iter().map(|(_, bytes)| Frame::parse(bytes.clone()).unwrap().header().kind);
        assert!(kinds.filter(|kind| *kind == FrameKind::Begin).count() >= 1);
    }
}

pub(super) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    if headers.is_empty() {
        return Vec::new();
    }
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("NATS/1.0\r\n{lines}\r\n").into_bytes()
}
