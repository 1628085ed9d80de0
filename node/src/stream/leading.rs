//! A leader's view of one stream: the sequencer, and everyone who waits for an entry in flight.

use std::collections::{BTreeMap, VecDeque};

use headwater_core::consumer::{ConsumerId, ConsumerPump, Token};
use headwater_core::ids::{Generation, Ordinal, StreamSeq, Term, Timestamp};
use headwater_core::stream::{Admission, Applied, Rejection, StreamState};
use tokio::sync::oneshot;

use super::acks::PendingAck;

/// What became of a command.
#[derive(Debug)]
pub(crate) enum CommandFate {
    /// Applied, and as safe as the stream promises.
    Applied(Box<Applied>),
    /// The state machine refused it.
    Rejected(Rejection),
    /// Nobody leads here any more, or its entry was void: it may be tried again.
    Lost,
}

/// A command's proposer.
pub(crate) type CommandWaiter = oneshot::Sender<CommandFate>;

/// Everyone who waits for one frame.
#[derive(Default)]
pub(crate) struct InFlight {
    pub(crate) acks: Vec<PendingAck>,
    pub(crate) command: Option<CommandWaiter>,
    pub(crate) tokens: Vec<(ConsumerId, Token)>,
}

/// State that exists only while this replica leads.
pub(crate) struct Leading {
    pub(crate) term: Term,
    pub(crate) admission: Admission,
    in_flight: VecDeque<(Ordinal, InFlight)>,
    /// Frames given to Raft whose fate is open. A sequencer starts over only when there are none: an earlier frame
    /// may be in the log although a later one was refused.
    pub(crate) outstanding: usize,
    pub(crate) pumps: BTreeMap<ConsumerId, ConsumerPump>,
    /// An `Expire` entry is on its way.
    pub(crate) expiring: bool,
    /// When the next message expires, by what that follows from.
    pub(crate) next_expiry: Option<(ExpiryFacts, Option<Timestamp>)>,
}

/// What the next expiry follows from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpiryFacts {
    pub(crate) first_seq: StreamSeq,
    /// The first message of an empty stream gets the sequence that is its first already.
    pub(crate) is_empty: bool,
    /// Of the configuration.
    pub(crate) generation: Generation,
    /// The nearest deadline of a message of its own.
    pub(crate) next_ttl: Option<Timestamp>,
}

impl Leading {
    pub(crate) fn new(state: &StreamState, term: Term) -> Self {
        Self {
            term,
            admission: Admission::new(state, term),
            in_flight: VecDeque::new(),
            outstanding: 0,
            pumps: BTreeMap::new(),
            expiring: false,
            next_expiry: None,
        }
    }

    /// Where those who wait for `ordinal` are kept.
    pub(crate) fn waiters(&mut self, ordinal: Ordinal) -> &mut InFlight {
        // Nearly always the newest frame, so look from the back.
        let at = self.in_flight.iter().rposition(|(o, _)| *o <= ordinal);
        let at = match at {
            Some(i) if self.in_flight[i].0 == ordinal => i,
            Some(i) => {
                self.in_flight.insert(i + 1, (ordinal, InFlight::default()));
                i + 1
            }
            None => {
                self.in_flight.push_front((ordinal, InFlight::default()));
                0
            }
        };
        &mut self.in_flight[at].1
    }

    /// Takes those who wait for frames up to `ordinal`, oldest first.
    pub(crate) fn take_through(&mut self, ordinal: Ordinal) -> Vec<(Ordinal, InFlight)> {
        let n = self.in_flight.iter().take_while(|(o, _)| *o <= ordinal).count();
        self.in_flight.drain(..n).collect()
    }

    /// Takes those who wait for `ordinal` and later ones.
    pub(crate) fn take_from(&mut self, ordinal: Ordinal) -> Vec<(Ordinal, InFlight)> {
        let keep = self.in_flight.iter().take_while(|(o, _)| *o < ordinal).count();
        self.in_flight.drain(keep..).collect()
    }

    /// Takes everyone.
    pub(crate) fn take_all(&mut self) -> Vec<(Ordinal, InFlight)> {
        self.in_flight.drain(..).collect()
    }
}
