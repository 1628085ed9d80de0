//! What a stream, a consumer, a subject index and a catalogue *are*, and what their durability means.
//!
//! Pure: no runtime, no file system, no clock, no randomness (invariant I-1). Time and bytes come in as
//! arguments, decisions go out as data.

// A panic here takes a node down, and the order of a hash map differs between replicas.
#![warn(clippy::unwrap_used, clippy::iter_over_hash_type)]

pub mod catalog;
pub mod clock;
pub mod codec;
pub mod consumer;
pub mod durability;
pub mod flush_policy;
pub mod frame;
pub mod hash;
pub mod ids;
pub mod interest;
pub mod recovery;
pub mod regroup;
pub mod rejoin;
mod runs;
pub mod seq_set;
pub mod space;
pub mod stream;
pub mod subject_index;
pub mod watermark;
