//! The planner: from what is wanted and what was seen to the next safe step, or to what is awaited.
//!
//! ```text
//! Stream ──validate──▶ Desired ─┐
//!                               ├─ plan ─▶ Plan { step?, waiting } ─ lint ─▶ execute
//! answers ──assemble─▶ Observed ┘                 └──── status ─▶ StreamStatus
//! ```
//!
//! Nothing is remembered between two calls: every decision follows from the observation alone, so a
//! planner that restarts, or another that takes over, continues where the last one was. What is
//! unknown counts as unsafe. The operator, `headwater dev` and a bare cluster's meta leader all use
//! this crate; it does no IO and reads no clock.

// A panic here takes a node down, and the order of a hash map differs between replicas.
#![warn(clippy::unwrap_used, clippy::iter_over_hash_type)]

pub mod desired;
pub mod lint;
pub mod observed;
pub mod render;
pub mod request;
pub mod rollout;
pub mod safety;
pub mod status;
pub mod step;
pub mod time;
pub mod wire;

pub use desired::{Desired, Problem, Problems};
pub use lint::{Violation, lint};
pub use observed::{NodeAnswer, NodeView, Observed, Reach, ReplicaView, ServerStream, StreamView, assemble};
pub use request::{Request, request};
pub use rollout::plan;
pub use step::{Plan, Step, WaitingOn};
pub use time::Now;

/// The only account at this stage.
pub const ACCOUNT: &str = "$G";
