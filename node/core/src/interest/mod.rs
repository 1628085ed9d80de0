//! Who wants which subjects: the subscription index and the rules of subjects and filters.

mod counted;
mod sublist;
pub mod subject;

pub use counted::{CountedSublist, Transition};
pub use sublist::{MatchResult, QueueGroup, Sublist};

#[cfg(test)]
mod tests;
