//! What a stream is: its replicated state, the commands that change it, and the leader's sequencer.
//!
//! ```text
//! publish ─▶ Admission (leader) ─ frame ─▶ group's log ─▶ StreamState::apply (every replica)
//!              ▲  decides everything that may be refused        │ decides nothing but void or not
//!              └────────────── applied(ordinal) ────────────────┘
//! ```

mod admission;
mod apply;
mod block_index;
mod command;
mod consumers;
mod dedup;
mod digest;
mod headers;
mod image;
mod in_flight;
mod limits;
mod queries;
mod refusal;
mod remove;
mod state;
mod ttl;

pub use admission::{
    Admission, Admitted, FRAME_BYTES_TARGET, FRAME_COUNT_MAX, HEADERS_LEN_MAX, IN_FLIGHT_BYTES_MAX, Proposed, Publish,
    Refused,
};
pub use apply::{Applied, Damaged, Outcome, Rejection, SeqRange, StreamEvent, Void};
pub use block_index::{BlockIndex, BlockIndexBuilder, FrameEntry, Rebuild};
pub use command::{BeginBody, Command, ConfigChange, DeleteMessage, Expire, Purge, Remove, decode_command};
pub use consumers::StreamView;
pub use dedup::DedupWindow;
pub use image::{IMAGE_VERSION, Mismatch};
pub use limits::{Discard, Limits, Retention, Settings, StorageKind, stored_len};
pub use queries::StreamCounts;
pub use refusal::PubRefusal;
pub use state::StreamState;
pub use ttl::Ttl;

use crate::frame::OwnedRecord;
use crate::ids::{StreamSeq, Timestamp};

/// Where message bodies are: implemented by the store.
pub trait Records {
    /// The message with this sequence, as long as it is live or its removal is not yet covered by a
    /// checkpoint; `None` if it is not kept here.
    ///
    /// # Errors
    /// [`Damaged`] if it is kept and cannot be read: never to be taken for a message that is not there.
    fn record(&self, seq: StreamSeq) -> Result<Option<OwnedRecord>, Damaged>;

    /// As [`record`](Self::record), for several: the last one that was written together with it.
    ///
    /// # Errors
    /// [`Damaged`] if it is kept and cannot be read.
    fn readable_up_to(&self, seq: StreamSeq) -> Result<StreamSeq, Damaged> {
        self.record(seq).map(|_| seq)
    }

    /// What the index of its block knows of a message that cannot be read.
    fn outline(&self, seq: StreamSeq) -> Option<Outline> {
        let _ = seq;
        None
    }

    /// Bytes that a message counts for; 0 if nothing is known of it.
    fn stored_len(&self, storage: StorageKind, seq: StreamSeq) -> u64 {
        let lens = match self.record(seq) {
            Ok(record) => record.map(|r| (r.subject().len(), r.headers().len(), r.payload().len())),
            Err(_) => self.outline(seq).map(|o| (o.subject.len(), o.headers_len, o.payload_len)),
        };
        lens.map_or(0, |(subject, headers, payload)| stored_len(storage, subject, headers, payload))
    }
}

/// A message without its body: enough to remove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Its subject.
    pub subject: Box<[u8]>,
    /// Bytes of its header block.
    pub headers_len: usize,
    /// Bytes of its payload.
    pub payload_len: usize,
    /// CRC32C of its record.
    pub crc: u32,
    /// When its TTL is over, if it has one.
    pub deadline: Option<Timestamp>,
}

#[cfg(test)]
mod tests;
