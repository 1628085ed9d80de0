//! AUDIT: an independent ledger of every message a server confirmed, and the verifier that reads
//! everything back and says what became of it.
//!
//! It knows nothing of any server's insides: only the NATS client protocol and the JetStream API,
//! so the same audit judges any server that speaks them. A [`Publisher`] sends messages, each with
//! a unique `Nats-Msg-Id`, retries the way an application would (same id), and writes each outcome
//! into a [`Ledger`] with its own SHA-256 of the payload. [`verify()`] then reads every sequence from
//! every node, four ways, and checks:
//!
//! | | |
//! |---|---|
//! | I1 | every confirmed message is readable at its confirmed sequence with its own payload |
//! | I2 | one sequence never holds two contents: across nodes, ways of reading, and confirmations |
//! | I3 | the last sequence never falls below a confirmed one; the first never moves back |
//! | I4 | a message is stored at most once, however often it was sent |
//! | I5 | the order of each publisher is kept |
//! | I6 | all views are equal: sequence, subject, headers, time, payload |
//! | I7 | the counts a stream reports equal a recount |
//! | I8 | no consumer's position is beyond the stream; a new consumer is given every message once |
//!
//! I9 (the same after a clean restart) and I10 (health never claimed more) are the caller's: call
//! [`verify()`] again, and compare with what the nodes said. A ledger remembers the sequences it has
//! seen, so a second audit also catches a stream that went backwards in between.

mod checks;
mod digest;
mod ledger;
mod message;
mod publisher;
mod reader;
mod report;
mod time;
mod verify;

pub use checks::{Audit, ConsumerState, NodeState, Stored};
pub use digest::Digest;
pub use ledger::{Entry, Ledger, LedgerError, MessageId, Outcome};
pub use publisher::{Published, Publisher, PublisherError, Until};
pub use reader::{ReadError, Way};
pub use report::{Finding, Invariant, Report};
pub use verify::{Verifier, VerifyError, verify};
