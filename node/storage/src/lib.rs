//! Bytes on disk, and what survives a crash: the node's write-ahead log, the block store of each stream,
//! checkpoints, hard state, and the flusher that moves data from the first to the second.
//!
//! Everything is written against [`disk::Disk`]; only `disk/real.rs` names the operating system's files.
//! `docs/formats/` has the byte tables.

// A panic here takes a node down, and the order of a hash map differs between replicas.
#![warn(clippy::unwrap_used, clippy::iter_over_hash_type)]

pub mod blocks;
pub mod checkpoint;
pub mod disk;
pub mod dump;
mod envelope;
pub mod flusher;
pub mod hard_state;
pub mod replica_file;
mod signed_json;
pub mod wal;

pub use envelope::FileError;
