//! Whole-consumer tests: a small stream, the replicated set, a pump, and a log between them.

mod image;
mod model;
mod pump_rules;
mod state_rules;
mod world;
