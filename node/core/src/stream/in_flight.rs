//! What the leader has sequenced and the state has not applied yet.

use std::collections::VecDeque;

use bytes::Bytes;

use super::dedup::DedupWindow;
use super::limits::Settings;
use crate::frame::{Frame, FrameBuilder, FrameKind};
use crate::ids::{Ordinal, StreamSeq};
use crate::subject_index::SubjectIndex;

/// A sealed frame on its way through the log.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ordinal: Ordinal,
    pub(super) kind: FrameKind,
    pub(super) frame: Bytes,
    /// Last message sequence up to and including this frame.
    pub(super) last_seq: StreamSeq,
    pub(super) net: Net,
}

/// What frames will change about a stream's totals, as far as admission can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Net {
    pub(super) messages: i64,
    pub(super) bytes: i64,
}

impl Net {
    pub(super) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    fn subtract(&mut self, other: Self) {
        self.messages -= other.messages;
        self.bytes -= other.bytes;
    }
}

/// Everything in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub(super) pending: VecDeque<Pending>,
    pub(super) pending_bytes: usize,
    pub(super) net: Net,
    /// Ids of messages in flight.
    pub(super) ids: DedupWindow,
    /// Id of the newest message in flight; the inner `None` if it has none.
    pub(super) last_msg_id: Option<(StreamSeq, Option<Box<[u8]>>)>,
    /// Subjects of messages in flight; kept only while someone needs them.
    subjects: Option<SubjectIndex>,
    /// Newest command that may remove messages.
    pub(super) removing: Option<Ordinal>,
    /// Newest settings on their way.
    pub(super) settings: Option<(Ordinal, Box<Settings>)>,
    /// The stream's removal is on its way.
    pub(super) stream_removal: Option<Ordinal>,
}

impl InFlight {
    pub(super) fn push(&mut self, pending: Pending) {
        self.pending_bytes += pending.frame.len();
        self.pending.push_back(pending);
    }

    /// Forgets frames that the state has applied.
    pub(super) fn applied(&mut self, ordinal: Ordinal) {
        while self.pending.front().is_some_and(|pending| pending.ordinal <= ordinal) {
            let Some(pending) = self.pending.pop_front() else {
                break;
            };
            self.pending_bytes -= pending.frame.len();
            self.net.subtract(pending.net);
            if pending.kind != FrameKind::Messages {
                continue;
            }
            self.ids.pop_through(pending.last_seq);
            if let Some(subjects) = &mut self.subjects {
                each_subject(&pending.frame, |subject, seq| {
                    subjects.remove(subject, seq);
                });
            }
            if self.last_msg_id.as_ref().is_some_and(|(seq, _)| *seq <= pending.last_seq) {
                self.last_msg_id = None;
            }
        }
        if self.removing.is_some_and(|removing| removing <= ordinal) {
            self.removing = None;
        }
        if self.settings.as_ref().is_some_and(|(at, _)| *at <= ordinal) {
            self.settings = None;
        }
        if self.stream_removal.is_some_and(|at| at <= ordinal) {
            self.stream_removal = None;
        }
    }

    /// Stops keeping subjects when nothing is in flight.
    pub(super) fn rest(&mut self) {
        self.subjects = None;
    }

    pub(super) fn note_subject(&mut self, subject: &[u8], seq: StreamSeq) {
        if let Some(subjects) = &mut self.subjects {
            subjects.push_back(subject, seq);
        }
    }

    /// Subjects of all messages in flight, the open frame's included. The first call walks the frames;
    /// from then on they are kept up to date.
    pub(super) fn subjects(&mut self, open: Option<&FrameBuilder>) -> &SubjectIndex {
        let pending = &self.pending;
        self.subjects.get_or_insert_with(|| {
            let mut subjects = SubjectIndex::new();
            for pending in pending.iter().filter(|p| p.kind == FrameKind::Messages) {
                each_subject(&pending.frame, |subject, seq| {
                    subjects.push_back(subject, seq);
                });
            }
            for (seq, subject) in open.iter().flat_map(|open| open.subjects()) {
                subjects.push_back(subject, seq);
            }
            subjects
        })
    }
}

fn each_subject(frame: &Bytes, mut see: impl FnMut(&[u8], StreamSeq)) {
    let frame = Frame::parse_trusted(frame.clone()).expect("admission sealed this frame itself");
    for record in frame.records() {
        see(record.subject(), record.seq);
    }
}
