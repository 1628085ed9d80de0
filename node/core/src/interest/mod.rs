//! Who wants which subjects: the subscription index.

mod counted;
mod sublist;

pub use counted::{CountedSublist, Transition};
pub use sublist::{MatchResult, QueueGroup, Sublist};

#[cfg(test)]
mod tests;
