//! Who wants which subjects: the subscription index and the rules of subjects and filters.

mod counted;
pub mod subject;
mod sublist;

pub use counted::{CountedSublist, Transition};
pub use sublist::{MatchResult, QueueGroup, Sublist};

#[cfg(test)]
mod tests;
