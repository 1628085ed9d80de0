//! Time as data: nobody in this crate reads a clock.

use serde::{Deserialize, Serialize};

/// Nanoseconds since the Unix epoch, as stamped by a leader or passed in by a caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch; also "nothing was stamped yet".
    pub const ZERO: Self = Self(0);

    /// From nanoseconds since the epoch.
    pub const fn new(ns: u64) -> Self {
        Self(ns)
    }

    /// From milliseconds since the epoch.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This moment plus `ns`, saturating at the end of time.
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to this moment; zero if `earlier` is later.
    pub const fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}
