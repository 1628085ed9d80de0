//! An incremental digest of a stream: O(1) per change, the same in whatever order states were reached.

use crate::hash::mix64;
use crate::ids::{Generation, StreamSeq};

/// Wrapping sum over live messages of a mix of sequence and record CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(super) fn raw(self) -> u64 {
        self.0
    }

    pub(super) fn add(&mut self, seq: StreamSeq, crc: u32) {
        self.0 = self.0.wrapping_add(mix64(seq.get(), u64::from(crc)));
    }

    pub(super) fn remove(&mut self, seq: StreamSeq, crc: u32) {
        self.0 = self.0.wrapping_sub(mix64(seq.get(), u64::from(crc)));
    }

    pub(super) fn clear(&mut self) {
        self.0 = 0;
    }

    pub(super) fn read(self, first: StreamSeq, last: StreamSeq, generation: Generation) -> u64 {
        self.0.wrapping_add(mix64(first.get(), last.get())).wrapping_add(mix64(generation.get(), u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let (one, two) = (StreamSeq::new(1), StreamSeq::new(2));
        let mut a = Digest::default();
        a.add(one, 7);
        a.add(two, 8);
        let mut b = Digest::default();
        b.add(two, 8);
        b.add(StreamSeq::new(3), 9);
        b.add(one, 7);
        assert_ne!(a, b);
        b.remove(StreamSeq::new(3), 9);
        assert_eq!(a, b);
        let g = Generation::new(1);
        assert_ne!(a.read(one, two, g), a.read(two, two, g));
        assert_ne!(a.read(one, two, g), a.read(one, two, Generation::new(2)));
        let mut swapped = Digest::default();
        swapped.add(one, 8);
        swapped.add(two, 7);
        assert_ne!(a, swapped);
    }
}
