//! The watermarks of one replica of one group, always by these names.
//!
//! ```text
//! purged ≤ persisted ≤ stored ≤ applied ≤ committed ≤ accepted     synced ≤ written ≤ accepted
//!                                                                 persisted ≤ synced
//! ```

use serde::{Deserialize, Serialize};

use crate::ids::LogIndex;

/// Raft log indexes (an R1 stream counts its operations under the same names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermarks {
    /// No longer in the log.
    pub purged: LogIndex,
    /// Effects are in the store's files, synced, under a checkpoint.
    pub persisted: LogIndex,
    /// Store bytes are handed to the kernel.
    pub stored: LogIndex,
    /// Effects are in the store's memory.
    pub applied: LogIndex,
    /// A quorum has it, as far as this replica knows.
    pub committed: LogIndex,
    /// Taken into the log's queue.
    pub accepted: LogIndex,
    /// Log bytes are synced.
    pub synced: LogIndex,
    /// Log bytes are handed to the kernel.
    pub written: LogIndex,
}

/// Two watermarks in the wrong order (I-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{lower_name} {lower} is above {upper_name} {upper}")]
pub struct Violation {
    /// Name of the one that must not be above.
    pub lower_name: &'static str,
    /// Its value.
    pub lower: LogIndex,
    /// Name of the other.
    pub upper_name: &'static str,
    /// Its value.
    pub upper: LogIndex,
}

impl Watermarks {
    /// Checks the order of a replica that has files (I-4).
    pub fn check(&self) -> Result<(), Violation> {
        ordered("purged", self.purged, "persisted", self.persisted)?;
        ordered("persisted", self.persisted, "stored", self.stored)?;
        ordered("stored", self.stored, "applied", self.applied)?;
        ordered("applied", self.applied, "committed", self.committed)?;
        ordered("committed", self.committed, "accepted", self.accepted)?;
        ordered("synced", self.synced, "written", self.written)?;
        ordered("written", self.written, "accepted", self.accepted)?;
        ordered("persisted", self.persisted, "synced", self.synced)
    }
}

fn ordered(
    lower_name: &'static str,
    lower: LogIndex,
    upper_name: &'static str,
    upper: LogIndex,
) -> Result<(), Violation> {
    if lower <= upper { Ok(()) } else { Err(Violation { lower_name, lower, upper_name, upper }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Watermarks {
        let at = LogIndex::new;
        Watermarks {
            purged: at(1),
            persisted: at(2),
            stored: at(3),
            applied: at(4),
            committed: at(5),
            accepted: at(8),
            synced: at(2),
            written: at(7),
        }
    }

    #[test]
    fn a_sound_order_passes() {
        assert_eq!(sound().check(), Ok(()));
        assert_eq!(Watermarks::default().check(), Ok(()));
    }

    #[test]
    fn each_inversion_is_named() {
        type Break = fn(&mut Watermarks);
        let cases: [(Break, &str); 8] = [
            (|w| w.purged = LogIndex::new(3), "purged 3 is above persisted 2"),
            (|w| w.persisted = LogIndex::new(4), "persisted 4 is above stored 3"),
            (|w| w.stored = LogIndex::new(5), "stored 5 is above applied 4"),
            (|w| w.applied = LogIndex::new(6), "applied 6 is above committed 5"),
            (|w| w.committed = LogIndex::new(9), "committed 9 is above accepted 8"),
            (|w| w.synced = LogIndex::new(8), "synced 8 is above written 7"),
            (|w| w.written = LogIndex::new(9), "written 9 is above accepted 8"),
            (|w| w.synced = LogIndex::new(1), "persisted 2 is above synced 1"),
        ];
        for (break_it, text) in cases {
            let mut marks = sound();
            break_it(&mut marks);
            assert_eq!(marks.check().unwrap_err().to_string(), text);
        }
    }
}
