//! When the file system of a node's store has too little room for more messages. Pure.
//!
//! Below the floor nothing new is taken in, so that the log has room for what keeps the node working: votes, deletes and
//! purges, checkpoints. It ends by itself a little above, so that it does not come and go with every file.

/// Free bytes below which nothing new is taken in, unless that is set: two segments of the log, and as much again as
/// half of one for what was taken in before and is still on its way into the stores.
pub const FLOOR_BYTES: u64 = 160 << 20;

/// The largest part of a file system that the floor takes unless it is set: a fourth.
const FLOOR_PART: u64 = 4;

/// How much above the floor it ends: an eighth of it.
const MARGIN_PART: u64 = 8;

/// What a file system says of itself, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free for the node.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// Whether there is room, with a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceGuard {
    floor: Option<u64>,
    is_low: bool,
}

impl SpaceGuard {
    /// A guard with this floor in bytes (0: none); `None` is [`FLOOR_BYTES`], or a fourth of the file system if that is
    /// less.
    pub const fn new(floor: Option<u64>) -> Self {
        Self { floor, is_low: false }
    }

    /// The floor on a file system of `total` bytes.
    pub fn floor(&self, total: u64) -> u64 {
        self.floor.unwrap_or_else(|| FLOOR_BYTES.min(total / FLOOR_PART))
    }

    /// Takes in what the file system says now; true if there is too little room from here on.
    pub fn observe(&mut self, room: Room) -> bool {
        let floor = self.floor(room.total);
        let enough = if self.is_low { floor + floor / MARGIN_PART } else { floor };
        self.is_low = room.free < enough;
        self.is_low
    }
}

/// Whether a stream takes messages: its leader and a majority of its voters must have room. `low` of `voters` have too
/// little, the leader among them if `leader_is_low`.
pub fn takes_messages(voters: usize, low: usize, leader_is_low: bool) -> bool {
    !leader_is_low && voters.saturating_sub(low) > voters / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_ends_a_little_above_where_it_began() {
        let mut guard = SpaceGuard::new(Some(800));
        let mut at = |free| guard.observe(Room { free, total: 10_000 });
        assert!(!at(800) && at(799));
        assert!(at(800) && at(899), "not yet");
        assert!(!at(900) && !at(800), "and the floor is the floor again");
    }

    #[test]
    fn the_floor_of_a_small_file_system_is_a_part_of_it() {
        let guard = SpaceGuard::new(None);
        assert_eq!(guard.floor(1 << 40), 160 * MIB);
        assert_eq!(guard.floor(400 * MIB), 100 * MIB);
        let mut none = SpaceGuard::new(Some(0));
        assert!(!none.observe(Room { free: 0, total: 1 }));
    }

    #[test]
    fn a_stream_needs_a_leader_and_a_majority_with_room() {
        assert!(takes_messages(3, 0, false) && takes_messages(3, 1, false));
        assert!(!takes_messages(3, 1, true), "it moves to one that has room");
        assert!(!takes_messages(3, 2, false));
        assert!(takes_messages(1, 0, false) && !takes_messages(1, 1, true));
        assert!(!takes_messages(2, 1, false) && takes_messages(5, 2, false) && !takes_messages(5, 3, false));
    }
}
