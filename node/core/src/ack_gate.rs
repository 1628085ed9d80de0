//! Replies wait here until the watermark they were promised has passed them (I-5).

use std::collections::VecDeque;

use crate::ids::LogIndex;

/// Replies in log order. A reply at index `i` may leave when the gate's watermark is at or above `i`.
#[derive(Clone, Debug)]
pub struct AckGate<T> {
    waiting: VecDeque<(LogIndex, T)>,
    open_to: LogIndex,
}

impl<T> Default for AckGate<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), open_to: LogIndex::default() }
    }
}

impl<T> AckGate<T> {
    /// An empty gate, closed for everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a reply. Indexes should not go back; one that does waits for those before it, which is late,
    /// never early.
    pub fn push(&mut self, index: LogIndex, reply: T) {
        let index = self.waiting.back().map_or(index, |(last, _)| index.max(*last));
        self.waiting.push_back((index, reply));
    }

    /// Raises the watermark. It never falls: what was released stays released.
    pub fn open_to(&mut self, watermark: LogIndex) {
        self.open_to = self.open_to.max(watermark);
    }

    /// The next reply that may leave.
    pub fn pop(&mut self) -> Option<(LogIndex, T)> {
        if self.waiting.front()?.0 <= self.open_to { self.waiting.pop_front() } else { None }
    }

    /// Raises the watermark and hands out everything it releases, in order.
    pub fn release(&mut self, watermark: LogIndex) -> impl Iterator<Item = (LogIndex, T)> + '_ {
        self.open_to(watermark);
        std::iter::from_fn(|| self.pop())
    }

    /// Takes out every reply that waits, to be failed: their fate is not known.
    pub fn fail_all(&mut self) -> impl Iterator<Item = (LogIndex, T)> + '_ {
        self.waiting.drain(..)
    }

    /// The watermark.
    pub fn watermark(&self) -> LogIndex {
        self.open_to
    }

    /// Replies that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::AckGate;
    use crate::ids::LogIndex;

    #[test]
    fn nothing_leaves_before_its_watermark() {
        let mut gate = AckGate::new();
        for (index, reply) in [(3, 'a'), (4, 'b'), (4, 'c'), (7, 'd')] {
            gate.push(LogIndex::new(index), reply);
        }
        assert_eq!(gate.pop(), None);
        let out: String = gate.release(LogIndex::new(4)).map(|(_, reply)| reply).collect();
        assert_eq!(out, "abc");
        assert_eq!(gate.release(LogIndex::new(2)).count(), 0);
        assert_eq!(gate.watermark(), LogIndex::new(4));
        gate.push(LogIndex::new(4), 'e');
        assert_eq!(gate.pop(), None, "a late reply waits behind the one before it");
        let failed: Vec<_> = gate.fail_all().map(|(index, reply)| (index.get(), reply)).collect();
        assert_eq!(failed, [(7, 'd'), (7, 'e')]);
        assert!(gate.is_empty());
    }
}
