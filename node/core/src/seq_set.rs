//! A set of sequences that is small when it can be.
//!
//! Most subjects hold one message (key-value), a contiguous run (a single-subject stream), or very
//! many. Each of these has its own form; a set moves on to a bigger form and never moves back, except
//! that an emptied set starts over.

use std::collections::VecDeque;

use roaring::RoaringTreemap;

use crate::ids::StreamSeq;

/// Up to this many sequences that are not contiguous stay in a sorted queue: 64 × 8 bytes is about
/// what one bitmap container costs.
const FEW_MAX: usize = 64;

/// A set of sequences. Appending is the common case and costs a few nanoseconds.
#[derive(Clone, Debug, Default)]
pub enum SeqSet {
    /// Nothing.
    #[default]
    Empty,
    /// Every sequence from the first to the second, both included.
    Range(u64, u64),
    /// A few, sorted.
    Few(Box<VecDeque<u64>>),
    /// Many.
    Many(Box<RoaringTreemap>),
}

impl SeqSet {
    /// Adds a sequence higher than all others. Lower ones are ignored (the set stays as it is).
    pub fn push_back(&mut self, seq: StreamSeq) {
        let seq = seq.get();
        match self {
            Self::Empty => *self = Self::Range(seq, seq),
            Self::Range(first, last) => {
                if seq == *last + 1 {
                    *last = seq;
                } else if seq > *last {
                    let (first, last) = (*first, *last);
                    *self = Self::scattered(first, last);
                    self.push_back(StreamSeq::new(seq));
                }
            }
            Self::Few(few) => {
                if few.back().is_some_and(|&last| seq <= last) {
                    return;
                }
                if few.len() < FEW_MAX {
                    few.push_back(seq);
                } else {
                    let mut many: RoaringTreemap = few.iter().copied().collect();
                    many.insert(seq);
                    *self = Self::Many(Box::new(many));
                }
            }
            Self::Many(many) => {
                many.insert(seq);
            }
        }
    }

    fn scattered(first: u64, last: u64) -> Self {
        if last - first < FEW_MAX as u64 {
            Self::Few(Box::new((first..=last).collect()))
        } else {
            let mut many = RoaringTreemap::new();
            many.insert_range(first..=last);
            Self::Many(Box::new(many))
        }
    }

    /// Removes a sequence; whether it was there.
    pub fn remove(&mut self, seq: StreamSeq) -> bool {
        let seq = seq.get();
        match self {
            Self::Empty => false,
            Self::Range(first, last) => {
                if seq < *first || seq > *last {
                    return false;
                }
                if first == last {
                    *self = Self::Empty;
                } else if seq == *first {
                    *first += 1;
                } else if seq == *last {
                    *last -= 1;
                } else {
                    *self = Self::scattered(*first, *last);
                    return self.remove(StreamSeq::new(seq));
                }
                true
            }
            Self::Few(few) => {
                let Ok(at) = few.binary_search(&seq) else {
                    return false;
                };
                few.remove(at);
                if few.is_empty() {
                    *self = Self::Empty;
                }
                true
            }
            Self::Many(many) => {
                let was = many.remove(seq);
                if was && many.is_empty() {
                    *self = Self::Empty;
                }
                was
            }
        }
    }

    /// The lowest.
    pub fn first(&self) -> Option<StreamSeq> {
        match self {
            Self::Empty => None,
            Self::Range(first, _) => Some(*first),
            Self::Few(few) => few.front().copied(),
            Self::Many(many) => many.min(),
        }
        .map(StreamSeq::new)
    }

    /// The highest.
    pub fn last(&self) -> Option<StreamSeq> {
        match self {
            Self::Empty => None,
            Self::Range(_, last) => Some(*last),
            Self::Few(few) => few.back().copied(),
            Self::Many(many) => many.max(),
        }
        .map(StreamSeq::new)
    }

    /// How many.
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Range(first, last) => last - first + 1,
            Self::Few(few) => few.len() as u64,
            Self::Many(many) => many.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Whether `seq` is in it.
    pub fn contains(&self, seq: StreamSeq) -> bool {
        let seq = seq.get();
        match self {
            Self::Empty => false,
            Self::Range(first, last) => (*first..=*last).contains(&seq),
            Self::Few(few) => few.binary_search(&seq).is_ok(),
            Self::Many(many) => many.contains(seq),
        }
    }

    /// How many are at or below `seq`.
    pub fn rank(&self, seq: StreamSeq) -> u64 {
        let seq = seq.get();
        match self {
            Self::Empty => 0,
            Self::Range(first, last) => (seq.min(*last) + 1).saturating_sub(*first),
            Self::Few(few) => few.partition_point(|&s| s <= seq) as u64,
            Self::Many(many) => many.rank(seq),
        }
    }

    /// How many are at or above `seq`.
    pub fn count_from(&self, seq: StreamSeq) -> u64 {
        match seq.get().checked_sub(1) {
            None => self.len(),
            Some(below) => self.len() - self.rank(StreamSeq::new(below)),
        }
    }

    /// The lowest at or above `seq`.
    pub fn next_from(&self, seq: StreamSeq) -> Option<StreamSeq> {
        let seq = seq.get();
        match self {
            Self::Empty => None,
            Self::Range(first, last) => (seq <= *last).then_some(seq.max(*first)),
            Self::Few(few) => few.get(few.partition_point(|&s| s < seq)).copied(),
            Self::Many(many) => {
                let below = seq.checked_sub(1).map_or(0, |below| many.rank(below));
                many.select(below)
            }
        }
        .map(StreamSeq::new)
    }

    /// The lowest above `seq`.
    pub fn next_after(&self, seq: StreamSeq) -> Option<StreamSeq> {
        seq.get().checked_add(1).and_then(|from| self.next_from(StreamSeq::new(from)))
    }

    /// The highest at or below `seq`.
    pub fn last_up_to(&self, seq: StreamSeq) -> Option<StreamSeq> {
        match self {
            Self::Empty => None,
            Self::Range(first, last) => (seq.get() >= *first).then_some(seq.get().min(*last)),
            Self::Few(few) => {
                few.partition_point(|&s| s <= seq.get()).checked_sub(1).and_then(|at| few.get(at).copied())
            }
            Self::Many(many) => many.rank(seq.get()).checked_sub(1).and_then(|at| many.select(at)),
        }
        .map(StreamSeq::new)
    }

    /// The `n`-th lowest, counted from zero.
    pub fn nth(&self, n: u64) -> Option<StreamSeq> {
        match self {
            Self::Empty => None,
            Self::Range(first, last) => first.checked_add(n).filter(|seq| seq <= last),
            Self::Few(few) => usize::try_from(n).ok().and_then(|n| few.get(n).copied()),
            Self::Many(many) => many.select(n),
        }
        .map(StreamSeq::new)
    }

    /// All of them in order.
    pub fn iter(&self) -> Box<dyn Iterator<Item = StreamSeq> + '_> {
        match self {
            Self::Empty => Box::new(std::iter::empty()),
            Self::Range(first, last) => Box::new((*first..=*last).map(StreamSeq::new)),
            Self::Few(few) => Box::new(few.iter().copied().map(StreamSeq::new)),
            Self::Many(many) => Box::new(many.iter().map(StreamSeq::new)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::SeqSet;
    use crate::ids::StreamSeq;

    fn check(set: &SeqSet, model: &BTreeSet<u64>, probe: u64) {
        let seq = StreamSeq::new(probe);
        let get = |s: Option<StreamSeq>| s.map(StreamSeq::get);
        assert_eq!(set.len(), model.len() as u64);
        assert_eq!(set.is_empty(), model.is_empty());
        assert_eq!(get(set.first()), model.first().copied());
        assert_eq!(get(set.last()), model.last().copied());
        assert_eq!(set.contains(seq), model.contains(&probe));
        assert_eq!(set.rank(seq), model.range(..=probe).count() as u64);
        assert_eq!(set.count_from(seq), model.range(probe..).count() as u64);
        assert_eq!(get(set.next_from(seq)), model.range(probe..).next().copied());
        assert_eq!(get(set.next_after(seq)), model.range(probe + 1..).next().copied());
        assert_eq!(get(set.last_up_to(seq)), model.range(..=probe).next_back().copied());
        assert_eq!(get(set.nth(probe)), model.iter().nth(probe as usize).copied());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn behaves_as_a_sorted_set(
            steps in proptest::collection::vec((0u64..4, any::<proptest::sample::Index>()), 1..400),
            probes in proptest::collection::vec(0u64..900, 4),
        ) {
            let (mut set, mut model, mut next) = (SeqSet::default(), BTreeSet::new(), 0u64);
            for (gap, pick) in steps {
                if gap == 3 && !model.is_empty() {
                    let gone = *model.iter().nth(pick.index(model.len())).unwrap();
                    assert!(set.remove(StreamSeq::new(gone)));
                    assert!(!set.remove(StreamSeq::new(gone)));
                    model.remove(&gone);
                } else {
                    next += 1 + gap / 2;
                    set.push_back(StreamSeq::new(next));
                    model.insert(next);
                }
                check(&set, &model, probes[0]);
            }
            for probe in probes {
                check(&set, &model, probe);
            }
            let all: Vec<u64> = set.iter().map(StreamSeq::get).collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_long_run_costs_two_numbers_until_it_breaks() {
        let mut set = SeqSet::default();
        for seq in 1..=1_000 {
            set.push_back(StreamSeq::new(seq));
        }
        assert!(matches!(set, SeqSet::Range(1, 1_000)));
        assert!(set.remove(StreamSeq::new(500)));
        assert!(matches!(set, SeqSet::Many(_)));
        assert_eq!(set.len(), 999);
    }
}
