//! Which message comes next for the first time, and how many are left.

use std::collections::VecDeque;

use super::super::state::ConsumerState;
use super::super::view::MessageView;
use crate::ids::StreamSeq;

/// How much of the stream is counted: matching messages in `cursor..through`.
#[derive(Clone, Copy, Debug)]
struct Counted {
    count: u64,
    through: StreamSeq,
}

/// Walks forward over matching messages. While the "last per subject" part lasts, it walks a list instead.
#[derive(Debug)]
pub(super) struct Cursor {
    next: StreamSeq,
    /// Built on first use: sorted sequences of the initial set that are not delivered yet.
    initial: Option<VecDeque<StreamSeq>>,
    initial_through: Option<StreamSeq>,
    counted: Option<Counted>,
}

impl Cursor {
    /// Right behind what the state says was delivered.
    pub(super) fn at(state: &ConsumerState) -> Self {
        let next = state.delivered().stream.next();
        Self {
            next,
            initial: None,
            initial_through: state.last_per_subject_through().filter(|through| next <= *through),
            counted: None,
        }
    }

    /// The first sequence that is not dealt with.
    pub(super) fn position(&self) -> StreamSeq {
        self.next
    }

    /// The next message to deliver for the first time.
    pub(super) fn peek(&mut self, state: &ConsumerState, view: &dyn MessageView) -> Option<StreamSeq> {
        self.load_initial(state, view);
        if let Some(initial) = &mut self.initial {
            while let Some(seq) = initial.front() {
                if view.contains(*seq) {
                    return Some(*seq);
                }
                initial.pop_front();
            }
            self.end_initial();
        }
        let found = view.next_matching(&state.config().filters, self.next);
        if found.is_none() && view.next_seq() > self.next {
            // All looked at, so the next look starts at what is stored from now on.
            self.next = view.next_seq();
            self.counted = Some(Counted { count: 0, through: self.next });
        }
        found
    }

    /// The peeked message is on its way; returns how many are left behind it.
    pub(super) fn advance(&mut self, seq: StreamSeq, state: &ConsumerState, view: &dyn MessageView) -> u64 {
        let before = self.pending(state, view);
        match &mut self.initial {
            Some(initial) => {
                initial.pop_front();
                self.next = seq.next();
                if initial.is_empty() {
                    self.end_initial();
                }
            }
            None => {
                self.next = seq.next();
                if let Some(counted) = &mut self.counted {
                    counted.count = counted.count.saturating_sub(1);
                }
            }
        }
        before.saturating_sub(1)
    }

    /// A peeked message turned out to be gone: step over it.
    pub(super) fn step_over(&mut self, seq: StreamSeq) {
        match &mut self.initial {
            Some(initial) => {
                initial.pop_front();
            }
            None => {
                self.next = seq.next();
                self.counted = None;
            }
        }
    }

    /// Matching messages never delivered.
    pub(super) fn pending(&mut self, state: &ConsumerState, view: &dyn MessageView) -> u64 {
        self.load_initial(state, view);
        let filters = &state.config().filters;
        let from = self.tail_start();
        let next_seq = view.next_seq();
        let counted = match self.counted {
            Some(counted) if counted.through >= next_seq => counted,
            Some(counted) => {
                Counted { count: counted.count + view.count_matching(filters, counted.through), through: next_seq }
            }
            None => Counted { count: view.count_matching(filters, from), through: next_seq.max(from) },
        };
        self.counted = Some(counted);
        counted.count + self.initial.as_ref().map_or(0, |initial| initial.len() as u64)
    }

    /// Messages up to `last` were removed.
    pub(super) fn messages_removed(&mut self, last: StreamSeq) {
        if last >= self.tail_start() {
            self.counted = None;
        }
        if last >= self.next && self.initial.is_some() {
            // Rebuilt from what is still there.
            self.initial = None;
        }
    }

    /// The first message of the "last per subject" part, while it lasts and once it was looked up.
    pub(super) fn first_initial(&self) -> Option<StreamSeq> {
        self.initial.as_ref()?.front().copied()
    }

    fn tail_start(&self) -> StreamSeq {
        match self.initial_through {
            Some(through) => through.next(),
            None => self.next,
        }
    }

    fn load_initial(&mut self, state: &ConsumerState, view: &dyn MessageView) {
        let Some(through) = self.initial_through.filter(|_| self.initial.is_none()) else {
            return;
        };
        let mut initial = view.last_per_subject(&state.config().filters);
        initial.retain(|seq| *seq >= self.next && *seq <= through);
        initial.sort_unstable();
        self.initial = Some(initial.into());
    }

    fn end_initial(&mut self) {
        if let Some(through) = self.initial_through.take() {
            self.next = self.next.max(through.next());
        }
        self.initial = None;
    }
}
