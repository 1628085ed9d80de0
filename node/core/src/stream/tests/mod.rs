//! Tests of admission and `apply` together, through a leader and replicas that share one log.

mod admission;
mod apply;
mod invariants;
mod model;
mod world;
