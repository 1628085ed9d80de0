//! Reads a stream back from every node and hands it to the checks.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use async_nats::Client;

use crate::checks::{Audit, NodeState};
use crate::ledger::Ledger;
use crate::reader::{Reader, Way};
use crate::report::Report;

/// The audit couldn't even begin.
#[derive(Debug)]
pub struct VerifyError(String);

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "audit: {}", self.0)
    }
}

impl std::error::Error for VerifyError {}

/// How to read a stream back.
#[derive(Debug, Clone)]
pub struct Verifier {
    ways: Vec<Way>,
    removed: Vec<RangeInclusive<u64>>,
    limits: bool,
    patience: Duration,
}

impl Default for Verifier {
    fn default() -> Verifier {
        Verifier { ways: Way::ALL.to_vec(), removed: Vec::new(), limits: false, patience: Duration::from_secs(15) }
    }
}

impl Verifier {
    /// All four ways; nothing may be gone; 15 s for a request before it counts as unread.
    pub fn new() -> Verifier {
        Verifier::default()
    }

    /// Only these ways of reading. Single gets cost a round trip per message and node: for
    /// hundreds of thousands of messages, [`Way::DirectBatch`] and [`Way::Consumer`] read the same
    /// in a fraction of the time.
    #[must_use]
    pub fn ways(mut self, ways: &[Way]) -> Verifier {
        self.ways = ways.to_vec();
        self
    }

    /// Sequences that were deleted or purged by right.
    #[must_use]
    pub fn removed(mut self, seqs: RangeInclusive<u64>) -> Verifier {
        self.removed.push(seqs);
        self
    }

    /// The stream's limits may have removed its oldest messages.
    #[must_use]
    pub fn limits_may_remove(mut self) -> Verifier {
        self.limits = true;
        self
    }

    /// How long to keep trying one request.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Verifier {
        self.patience = patience;
        self
    }

    /// Reads `stream` from every one of `nodes` (a name and a client connected to that node only)
    /// and checks it against `ledger`. Nobody may publish to the stream meanwhile.
    ///
    /// # Errors
    /// If no node was given. What can't be read is a finding of the report, not an error.
    pub async fn verify(
        &self,
        nodes: &[(String, Client)],
        stream: &str,
        ledger: &Ledger,
    ) -> Result<Report, VerifyError> {
        if nodes.is_empty() {
            return Err(VerifyError("no node to read from".into()));
        }
        let started = Instant::now();
        let mut audit = Audit::new(ledger, self.removed.clone(), self.limits);
        let mut states = Vec::new();
        for (name, client) in nodes {
            let reader = Reader { client, stream, patience: self.patience };
            match reader.info().await {
                Err(why) => audit.unread(name, format!("stream info: {why}")),
                Ok((config, state)) => {
                    audit.state(name, &state);
                    self.node(&mut audit, &reader, name, config.allow_direct, &state).await;
                    states.push((name.clone(), state));
                }
            }
        }
        audit.states_equal(&states);
        for (_, state) in &states {
            ledger.note_seen(state.first_seq, state.last_seq);
        }
        Ok(audit.finish(started.elapsed().as_secs_f64()))
    }

    async fn node(&self, audit: &mut Audit, reader: &Reader<'_>, node: &str, direct: bool, state: &NodeState) {
        match reader.consumers().await {
            Err(why) => audit.unread(node, format!("consumer list: {why}")),
            Ok(consumers) => consumers.iter().for_each(|consumer| audit.consumer(node, consumer, state)),
        }
        for &way in self.ways.iter().filter(|way| direct || !way.needs_direct()) {
            let view = format!("{node}, {way}");
            match reader.read(way, state).await {
                Err(why) => audit.unread(&view, why.to_string()),
                Ok(out) => {
                    for oddity in out.oddities {
                        audit.delivery(&view, oddity);
                    }
                    audit.view(&view, state, &out.messages);
                }
            }
        }
    }
}

/// Reads `stream` back through one client, all four ways, and checks it against `ledger`.
/// [`Verifier`] does the same for several nodes, and takes options.
///
/// # Errors
/// As [`Verifier::verify`].
pub async fn verify(client: &Client, stream: &str, ledger: &Ledger) -> Result<Report, VerifyError> {
    Verifier::new().verify(&[("client".to_owned(), client.clone())], stream, ledger).await
}
