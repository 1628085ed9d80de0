//! The planner against a model of a cluster: transcripts to read, properties to try to break.

mod lint;
mod properties;
mod status;
mod transcripts;
mod world;
