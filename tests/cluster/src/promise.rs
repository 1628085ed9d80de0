//! What a fault may take of what was acknowledged: the table of `docs/operations/durability.md` as a function.

use std::time::Duration;

/// How a stream's publishes are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    Always,
    /// Synced every [`SYNC_INTERVAL`].
    Interval,
    NoWait,
}

/// The `syncInterval` of every stream here.
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Always, Mode::Interval, Mode::NoWait];

    /// As streams are told it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Always => "always",
            Mode::Interval => "interval",
            Mode::NoWait => "noWait",
        }
    }
}

/// A stream's settings that could have to do with what is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Durable {
    pub mode: Mode,
    pub async_flush: bool,
    pub replicas: usize,
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// `kill -9`: the kernel still has what was written.
    Kill,
    /// Power: what was not synced is gone.
    Power,
}

/// What may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    Nothing,
    /// At most what came in the last [`SYNC_INTERVAL`]; a suffix, the same on every replica.
    LastInterval,
    /// A suffix without a bound, the same on every replica.
    Suffix,
}

/// What a stream may lose when `hit` of its replicas are hit at one moment. Neither the number of replicas, but for
/// what a majority is, nor `async_flush` changes it, nor whether another replica was behind.
pub fn promise(stream: Durable, cause: Cause, hit: usize) -> Loss {
    let Durable { mode, async_flush: _, replicas } = stream;
    let majority_is_left = 2 * (replicas - hit.min(replicas)) > replicas;
    match (mode, cause) {
        _ if hit == 0 || majority_is_left => Loss::Nothing,
        (Mode::Always, _) | (Mode::Interval, Cause::Kill) => Loss::Nothing,
        (Mode::Interval, Cause::Power) => Loss::LastInterval,
        (Mode::NoWait, _) => Loss::Suffix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/operations/durability.md");

    /// What a cell of the page's table says.
    fn said(cell: &str) -> Loss {
        let cell = cell.trim();
        if cell == "nothing" || cell.starts_with("nothing:") {
            Loss::Nothing
        } else if cell.starts_with("at most the last `syncInterval`") {
            Loss::LastInterval
        } else if cell.starts_with("what ") {
            Loss::Suffix
        } else {
            panic!("a cell that no promise is known for: {cell:?}")
        }
    }

    fn row(fault: &str) -> [Loss; 3] {
        let rows: Vec<&str> = PAGE.lines().filter(|line| line.starts_with(&format!("| {fault} |"))).collect();
        let [row] = rows[..] else { panic!("{} rows for {fault:?}", rows.len()) };
        let cells: Vec<&str> = row.split('|').collect();
        assert_eq!(cells.len(), 6, "{row}");
        [said(cells[2]), said(cells[3]), said(cells[4])]
    }

    #[test]
    fn is_the_table_of_the_page() {
        /// Replicas, and how many of them are hit.
        type Hits = &'static [(usize, usize)];
        let rows: [(&str, Cause, Hits); 6] = [
            ("`kill -9` of one node, R3 and R5", Cause::Kill, &[(3, 1), (5, 1), (5, 2)]),
            ("`kill -9` of a majority or of all nodes", Cause::Kill, &[(3, 2), (3, 3), (5, 3), (5, 4), (5, 5)]),
            ("power loss of a minority", Cause::Power, &[(3, 1), (5, 1), (5, 2)]),
            ("power loss of a majority or of all nodes", Cause::Power, &[(3, 2), (3, 3), (5, 3), (5, 4), (5, 5)]),
            ("R1: `kill -9`", Cause::Kill, &[(1, 1)]),
            ("R1: power loss", Cause::Power, &[(1, 1)]),
        ];
        for (fault, cause, replicas_and_hit) in rows {
            let row = row(fault);
            for &(replicas, hit) in replicas_and_hit {
                for async_flush in [true, false] {
                    let promised = Mode::ALL.map(|mode| promise(Durable { mode, async_flush, replicas }, cause, hit));
                    assert_eq!(promised, row, "{fault}: {hit} of {replicas}, asynchronous {async_flush}");
                }
            }
        }
    }

    #[test]
    fn who_is_not_hit_loses_nothing() {
        for mode in Mode::ALL {
            for replicas in [1, 3, 5] {
                let stream = Durable { mode, async_flush: true, replicas };
                assert_eq!(promise(stream, Cause::Power, 0), Loss::Nothing);
            }
        }
    }
}
