//! Bytes on disk, and what survives a crash: the node's write-ahead log, the block store of each stream,
//! checkpoints, hard state, and the flusher that moves data from the first to the second.
//!
//! Everything is written against [`disk::Disk`]; only `disk/real.rs` names the operating system's files.
//! `docs/formats/` has the byte tables.

pub mod disk;
pub mod wal;
