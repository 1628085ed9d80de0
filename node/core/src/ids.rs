//! Identities and positions, each its own type so that they cannot be mixed.
//!
//! No arithmetic crosses kinds: a sequence plus an index does not compile. Conversions are
//! `new` and `get`, spelled where they happen.

use serde::{Deserialize, Serialize};

pub use crate::clock::Timestamp;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw number.
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// The raw number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The one after this. Decoders refuse what no counting leads to ([`Self::is_countable`]), so there always
            /// is one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }

            /// Whether counting may have led here, as a decoder must ask of a number that is counted on from: half of all
            /// numbers last for 292 years at one a nanosecond.
            pub const fn is_countable(self) -> bool {
                self.0 <= u64::MAX / 2
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// Sequence of a message within its stream; the first is [`StreamSeq::FIRST`].
    StreamSeq
);
id!(
    /// Sequence of a delivery within its consumer.
    ConsumerSeq
);
id!(
    /// Index of an entry in a group's Raft log (an R1 stream counts its operations).
    LogIndex
);
id!(
    /// Raft term.
    Term
);
id!(
    /// Consecutive number the leader gives to each proposal of a term; see the void rule.
    Ordinal
);
id!(
    /// A Raft group.
    GroupId
);
id!(
    /// A stream: the catalogue's log index at its creation, never reused.
    StreamId
);
id!(
    /// A member of one Raft group: a random incarnation, never a name, never reused.
    RaftNodeId
);
id!(
    /// Version of a desired configuration; an older one is refused.
    Generation
);
id!(
    /// A length in bytes.
    ByteLen
);

impl StreamSeq {
    /// Sequence of the first message of a fresh stream.
    pub const FIRST: Self = Self(1);
    /// "Before the first": the last sequence of a stream that never stored anything.
    pub const ZERO: Self = Self(0);
}

/// Where an entry stands in its group's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// Term under which the entry was appended to the log.
    pub term: Term,
    /// Its index.
    pub index: LogIndex,
}

impl LogPosition {
    /// Whether counting may have led here, as a decoder must ask of a position that is counted on from.
    pub const fn is_countable(self) -> bool {
        self.term.is_countable() && self.index.is_countable()
    }
}

#[cfg(test)]
mod tests {
    use super::{LogIndex, StreamSeq};

    #[test]
    fn ids_print_and_serialize_as_their_number() {
        assert_eq!(StreamSeq::FIRST.next().to_string(), "2");
        assert_eq!(serde_json::to_string(&LogIndex::new(7)).unwrap(), "7");
        assert_eq!(serde_json::from_str::<LogIndex>("7").unwrap(), LogIndex::new(7));
    }
}
