//! The meta group: the catalogue of nodes and streams, replicated like any group, with one small file as its store.

pub(crate) mod bootstrap;
pub(crate) mod membership;
mod replica;
mod service;

pub(crate) use replica::MetaReplica;
pub(crate) use service::{Meta, MetaError};

use headwater_core::ids::GroupId;

/// The meta group's id.
pub(crate) const GROUP: GroupId = GroupId::new(headwater_core::catalog::META_GROUP);

/// Frame kinds of requests about the catalogue.
pub(crate) mod kind {
    /// An empty node asks to become a member: `hello JSON`.
    pub(crate) const JOIN: u8 = 0x24;
    /// A catalogue entry to write at the leader.
    pub(crate) const WRITE: u8 = 0x25;
    /// A member tells an empty node which cluster it is part of now.
    pub(crate) const FOUND: u8 = 0x27;
}
