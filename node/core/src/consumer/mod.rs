//! Pull consumers: the state every replica keeps, and the pump that the leader alone runs.
//!
//! ```text
//!  pull, acks ─▶ ConsumerPump (leader) ─ Propose(ops) ─▶ group's log ─▶ ConsumerSet::apply (all replicas)
//!                     │    ▲                                                   │
//!   messages, status ◀┘    └──────────────── applied(token) ◀──────────────────┘
//! ```
//!
//! [`ConsumerSet`] changes only by [`ConsumerOp`]s out of the log, so replicas agree. [`ConsumerPump`] owns what
//! may be lost with a leader: waiting requests, timers, deliveries whose entry is still on its way.

mod codec;
mod config;
mod from_api;
mod image;
mod op;
mod pump;
mod set;
mod state;
mod status;
mod view;
mod window;

pub use codec::Malformed;
pub use config::{AckPolicy, ConsumerConfig, DeliverPolicy, Filters, UpdateRefusal};
pub use from_api::Unsupported;
pub use op::{
    ConsumerId, ConsumerOp, CreateConsumer, DeliveredRun, SeqRun, StartAt, UpdateConsumer, decode_ops, encode_ops,
};
pub use pump::{
    Ack, AckVerb, ConsumerEvent, ConsumerInfo, ConsumerPump, Delivery, EndReason, PullRequest, PumpAction,
    StreamTraits, Token, Tracking,
};
pub use set::{ConsumerEffects, ConsumerSet, CreateOutcome};
pub use state::{ConsumerState, SequencePair};
pub use status::Status;
pub use view::{LiveMessages, MessageView};
pub use window::Pending;

#[cfg(test)]
mod tests;
