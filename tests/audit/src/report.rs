//! What an audit found.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Which promise a finding is about; the numbers of the crate's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Invariant {
    /// I1: a confirmed message can't be read where it was confirmed.
    Lost,
    /// I2: one sequence holds two contents.
    TwoContents,
    /// I3: a sequence went backwards.
    WentBack,
    /// I4: a message is stored twice.
    Duplicated,
    /// I5: a publisher's order is broken.
    Reordered,
    /// I6: two views differ.
    ViewsDiffer,
    /// I7: a reported count isn't the recount.
    WrongCount,
    /// I8: a consumer is beyond the stream, or wasn't given every message once.
    Consumer,
    /// The audit couldn't read something, so it can't vouch for it.
    Unread,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub invariant: Invariant,
    /// Node and way of reading, or empty if it concerns no single view.
    pub view: String,
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.text)?;
        if self.view.is_empty() { Ok(()) } else { write!(f, " ({})", self.view) }
    }
}

/// The result of an audit. Its text form is what `headwater demo` and the tests print.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Messages in the ledger.
    pub sent: u64,
    pub confirmed: u64,
    /// Confirmed messages that some view lacks or holds with another content.
    pub lost: u64,
    /// Messages stored more than once in some view.
    pub duplicated: u64,
    /// Messages stored before an earlier one of their publisher.
    pub reordered: u64,
    /// Confirmed messages that limits or deletes had removed by right.
    pub removed: u64,
    /// Unconfirmed messages that were found stored all the same, which is allowed.
    pub stored_unconfirmed: u64,
    /// Messages read over all views.
    pub read: u64,
    /// Views compared: each node, each way of reading.
    pub views: Vec<String>,
    pub seconds: f64,
    /// The first few findings of each kind; `counts` has them all.
    pub findings: Vec<Finding>,
    pub counts: BTreeMap<Invariant, u64>,
}

/// Findings kept per kind; more would only repeat.
const KEPT: u64 = 10;

impl Report {
    /// True if nothing at all is wrong, and everything could be read.
    pub fn is_clean(&self) -> bool {
        self.counts.is_empty()
    }

    /// Notes a finding.
    pub(crate) fn find(&mut self, invariant: Invariant, view: &str, text: impl Into<String>) {
        let count = self.counts.entry(invariant).or_default();
        *count += 1;
        if *count <= KEPT {
            self.findings.push(Finding { invariant, view: view.to_owned(), text: text.into() });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "confirmed {}, lost {}, duplicated {}, reordered {}",
            self.confirmed, self.lost, self.duplicated, self.reordered
        )?;
        writeln!(
            f,
            "sent {}, removed by right {}, stored unconfirmed {}; {} messages read in {} views, {:.1} s",
            self.sent,
            self.removed,
            self.stored_unconfirmed,
            self.read,
            self.views.len(),
            self.seconds
        )?;
        for (invariant, count) in &self.counts {
            writeln!(f, "{invariant:?}: {count}")?;
        }
        self.findings.iter().try_for_each(|finding| writeln!(f, "  {finding}"))
    }
}
