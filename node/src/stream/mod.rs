//! One stream on this node: replica, leader, store, consumers, and how they are opened and closed.

pub(crate) mod acks;
pub(crate) mod commands;
mod damage;
mod decode_any;
mod drive;
mod durability;
mod flush;
pub(crate) mod folders;
pub(crate) mod forward;
mod gate;
mod leading;
mod lifecycle;
mod local;
pub(crate) mod open;
pub(crate) mod outgoing;
mod publish;
mod pumps;
mod registry;
mod regroup;
pub(crate) mod rejoin;
pub(crate) mod replica;
pub(crate) mod report;
pub(crate) mod scrub;
pub(crate) mod snapshot;
mod tick;

pub use decode_any::decode_any;
pub(crate) use lifecycle::reconcile;
pub(crate) use registry::{Owner, Streams};
pub(crate) use replica::{Inner, StreamReplica};
