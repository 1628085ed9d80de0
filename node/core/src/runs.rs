//! A set of sequences as runs: what images hold. The work is by runs, not by sequences.

use roaring::RoaringTreemap;

/// First and length of every run, ascending; two runs never touch.
pub(crate) fn of(set: &RoaringTreemap) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (high, part) in set.bitmaps() {
        let base = u64::from(high) << 32;
        let mut part = part.iter();
        while let Some(range) = part.next_range() {
            let first = base + u64::from(*range.start());
            let len = u64::from(*range.end()) - u64::from(*range.start()) + 1;
            match runs.last_mut() {
                Some((before, before_len)) if *before + *before_len == first => *before_len += len,
                _ => runs.push((first, len)),
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_runs_are_one_whatever_they_are_kept_in() {
        let mut set = RoaringTreemap::new();
        set.insert_range(5..3 << 32);
        set.insert(7 << 32);
        set.insert_range((3 << 32) + 1..=(3 << 32) + 9);
        assert_eq!(of(&set), [(5, (3 << 32) - 5), ((3 << 32) + 1, 9), (7 << 32, 1)]);
        assert_eq!(of(&RoaringTreemap::new()), []);
    }

    proptest! {
        #[test]
        fn runs_are_the_set(ranges in proptest::collection::vec((0u64..200_000, 1u64..70_000, any::<bool>()), 0..12)) {
            let mut set = RoaringTreemap::new();
            for (first, len, adds) in ranges {
                let range = first..first + len;
                if adds { set.insert_range(range) } else { set.remove_range(range) };
            }
            let mut again = RoaringTreemap::new();
            let mut end = None;
            for (first, len) in of(&set) {
                prop_assert!(len > 0 && end.is_none_or(|end| first > end));
                again.insert_range(first..first + len);
                end = Some(first + len);
            }
            prop_assert_eq!(again, set);
        }
    }
}
