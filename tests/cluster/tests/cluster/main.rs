//! Three real processes, killed, paused, wiped and reconfigured under load. Each test names the
//! field report it stands for. They share two cores, so one cluster runs at a time.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headwater_cluster_tests::{PowerDisk, SmallDisk};

mod basics;
mod catch_up;
mod consumers;
mod crashes;
mod damage;
mod disks;
mod durability;
mod io_faults;
mod low_space;
mod matrix;
mod membership;
mod power;
mod recover;
mod rejoin;
mod sequences;
mod soak;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Holds off the other tests; a failed one doesn't fail them.
fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one test on a runtime of its own, and panics with its error, so that the cluster's
/// directory is kept: the cluster must be dropped while panicking.
fn run(test: impl AsyncFnOnce(&mut headwater_cluster_tests::Cluster) -> anyhow::Result<()>) {
    run_on(headwater_cluster_tests::Cluster::start(), test);
}

/// No test takes half of this, for each round it is told to do: one that does has stopped, and its logs say where.
const HANGS: Duration = Duration::from_secs(300);

/// As [`run`], on another cluster than the usual one.
fn run_on(
    start: impl Future<Output = anyhow::Result<headwater_cluster_tests::Cluster>>,
    test: impl AsyncFnOnce(&mut headwater_cluster_tests::Cluster) -> anyhow::Result<()>,
) {
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut cluster = start.await.unwrap_or_else(|error| panic!("{error:#}"));
        let hangs = HANGS * (power::rounds() + soak::rounds());
        let ended = tokio::time::timeout(hangs, test(&mut cluster)).await;
        if let Err(error) = ended.unwrap_or_else(|_| Err(anyhow::anyhow!("still under way after {hangs:?}"))) {
            let logs: Vec<_> = cluster
                .nodes()
                .iter()
                .map(|node| format!("--- log of {} ends:\n{}", node.name(), node.log_tail()))
                .collect();
            panic!("{error:#}\n{}", logs.join("\n"));
        }
    });
}

/// Whether file systems can be mounted here, which the tests that begin with this need.
fn can_mount() -> bool {
    let can = SmallDisk::is_possible().unwrap_or_else(|error| panic!("{error:#}"));
    if !can {
        let _shown_or_not = writeln!(std::io::stderr(), "SKIPPED: mounting a file system needs root");
    }
    can
}

/// As [`can_mount`], for images on loop devices, which not every sandbox has.
fn can_cut_power() -> bool {
    can_mount()
        && PowerDisk::is_possible().unwrap_or_else(|error| {
            let _shown_or_not = writeln!(std::io::stderr(), "SKIPPED: no loop device or ext4 here: {error:#}");
            false
        })
}

async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// A killed node must be recovered within this time of its restart.
const RECOVERED: Duration = Duration::from_secs(10);
/// Writes must go on within this time of the leader's death. The reference elects in its own time.
fn resumed(cluster: &headwater_cluster_tests::Cluster) -> Duration {
    Duration::from_secs(if cluster.is_headwater() { 5 } else { 20 })
}
