//! Reading a stream in order, as a consumer does.

use headwater_core::frame::{Frame, OwnedRecord};
use headwater_core::ids::StreamSeq;

use super::StreamStore;

/// A place in a stream. Keeps the frame it stands in, so that a step costs one slice.
#[derive(Debug, Clone)]
pub struct Cursor {
    next: StreamSeq,
    frame: Option<Frame>,
}

impl Cursor {
    /// Stands before `from`.
    #[must_use]
    pub fn new(from: StreamSeq) -> Self {
        Self { next: from, frame: None }
    }

    /// The sequence that the next step starts looking at.
    #[must_use]
    pub fn position(&self) -> StreamSeq {
        self.next
    }

    /// Moves to before `seq`.
    pub fn seek(&mut self, seq: StreamSeq) {
        self.next = seq;
    }

    /// The next record at or behind the cursor; `None` at the end, or at damage, which
    /// [`StreamStore::take_damage`] then has. Removed messages are returned as long as their block is there.
    pub fn next(&mut self, store: &StreamStore) -> Option<OwnedRecord> {
        let nth = match &self.frame {
            Some(frame) => nth_in(frame, self.next),
            None => None,
        };
        let nth = match nth {
            Some(nth) => nth,
            None => {
                let indexed = store.frames.get(store.find(self.next))?;
                let frame = store.load(indexed)?;
                self.next = self.next.max(indexed.base_seq);
                let nth = nth_in(&frame, self.next)?;
                self.frame = Some(frame);
                nth
            }
        };
        let record = self.frame.as_ref()?.owned_record(nth)?;
        self.next = self.next.next();
        Some(record)
    }
}

fn nth_in(frame: &Frame, seq: StreamSeq) -> Option<u32> {
    let nth = u32::try_from(seq.get().checked_sub(frame.header().base_seq.get())?).ok()?;
    (nth < frame.header().count).then_some(nth)
}
