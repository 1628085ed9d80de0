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
use crate::ids::StreamSeq;

/// Where message bodies are: implemented by the store.
pub trait Records {
    /// The message with this sequence, as long as it is live or its removal is not yet covered by a
    /// checkpoint. `None` for a live message is damage.
    fn record(&self, seq: StreamSeq) -> Option<OwnedRecord>;
}

#[cfg(test)]
mod tests;
