//! The client of a node's admin API, for everybody who carries out plans: the operator, `headwater dev` and `demo`.
//!
//! A crate of its own, because the plan is pure and must not know HTTP. What a refusal means is decided here, once:
//! [`FailureClass`].

mod client;
mod error;

pub use client::{AdminClient, AdminToken, Member};
pub use error::{ClientError, FailureClass};
