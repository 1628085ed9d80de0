//! A whole cluster in one thread, under a stopped clock: openraft, the log store, the log, the stream's state machine
//! and its block store are the real ones; network and disks are simulated, and faults come as a seed says.
//!
//! A seed decides everything: the faults, the load, delays, election timeouts. Running it twice gives the same entries
//! in the same order, which [`a_seed_replays`] checks. What is not here: the node's own shell (sessions, admin calls,
//! the durability roll, refusals at the handshake, rejoin after a weak stop), which the cluster tests cover with real
//! processes.
//!
//! `make sim SEEDS=n` runs `n` seeds, `FIRST=s` the first of them; a failure names its seed.

mod member;
mod net;
mod runtime;
mod watch;
mod world;

use std::cell::Cell;
use std::io::Write as _;
use std::panic;
use std::sync::Once;

use futures::FutureExt;
use openraft::RaftTypeConfig;

pub(super) use self::runtime::Ordered;
use super::types::{TypeConfig, spawn};

type Runtime = <TypeConfig as RaftTypeConfig>::AsyncRuntime;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 if that is 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

thread_local! {
    /// Panics of this thread, where a whole cluster runs: a task that panicked is dropped and missed by nobody.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
}

fn run(seed: u64) -> Result<world::Report, String> {
    count_panics();
    let before = PANICS.get();
    let report = run_cluster(seed)?;
    if PANICS.get() > before { Err("a task panicked".to_owned()) } else { Ok(report) }
}

fn run_cluster(seed: u64) -> Result<world::Report, String> {
    let whole = async {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.map_err(|e| e.to_string())?.block_on(Runtime::scope(seed, world::run(seed)))
    };
    // openraft draws from the seed also where it is dropped, so the runtime ends within a scope as well.
    Runtime::scope(seed, whole).now_or_never().ok_or("it only blocks")?
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number")))
}

#[test]
fn seeds_hold() {
    let (first, seeds) = (number("HEADWATER_SIM_FIRST", 1), number("HEADWATER_SIM_SEEDS", 40));
    let mut total = world::Report::default();
    for seed in first..first + seeds {
        match run(seed) {
            Ok(report) => total.add(&report),
            Err(why) => panic!("seed {seed}: {why}\n  again: make sim FIRST={seed} SEEDS=1"),
        }
    }
    let _shown_or_not = writeln!(std::io::stderr(), "sim: {seeds} seeds from {first}: {total}");
}

#[test]
fn a_seed_replays() {
    for seed in [1, 2, 3] {
        assert_eq!(run(seed).unwrap().trace, run(seed).unwrap().trace, "seed {seed}");
    }
}
