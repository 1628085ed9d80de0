//! Replication: openraft behind this one module. Its types appear nowhere else.
//!
//! A [`RaftGroup`] is one member of one group, running on the data thread. It stores its log in the node's shared WAL
//! and drives a [`Replica`], which owns the state and the files.

mod codec;
mod decode_any;
mod group;
mod heartbeats;
mod log_store;
mod machine;
mod network;
mod receiver;
pub(crate) mod refound;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod suite;
pub(crate) mod transfer;
mod types;

/// What of openraft's own logging is shown: it warns of every heartbeat and vote that a dead peer does not get, and what is
/// still sent to a group that has ended is an error to it. Links up and down are told once by the transport, and a group
/// that dies is told by its supervisor.
pub(crate) const LOG_FILTER: &str = "openraft=error,openraft::raft::raft_inner=off";

pub use decode_any::decode_any;
pub(crate) use group::{GroupKind, GroupParams, Proposed, RaftGroup, StartError, WriteError};
pub(crate) use log_store::EffectiveSync;
pub(crate) use machine::{Committed, Replica, SnapshotHead};
pub(crate) use network::{Directory, RaftNet, kind};
pub(crate) use receiver::Receiver;
pub(crate) use types::{GroupState, LEADER_LEASE_MS, LogPos, Members, Role};
