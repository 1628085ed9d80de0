//! Random kills and power cuts, one after the other, under load: a few in every run, as many as wanted by `make soak`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions};

use crate::{can_cut_power, run_on, sleep};

const DISK_BYTES: u64 = 1 << 30;
/// After each of them all nodes have recovered within this, from the last start on.
const RECOVERED: Duration = Duration::from_secs(30);
/// Faults between two audits, each with a stream and a ledger of its own.
const CYCLES_PER_AUDIT: u32 = 10;

/// SplitMix64: a seed gives the same faults again, though not the same moments.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// So many different nodes, in any order.
    fn nodes(&mut self, count: u64) -> Vec<usize> {
        let mut all = vec![0, 1, 2];
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(all.remove(self.below(all.len() as u64) as usize));
        }
        taken
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn cycles() -> u64 {
    number("HEADWATER_SOAK_CYCLES", 4)
}

/// Of [`CYCLES_PER_AUDIT`].
pub(crate) fn rounds() -> u32 {
    u32::try_from(cycles()).unwrap_or(u32::MAX) / CYCLES_PER_AUDIT
}

/// What happened so far.
#[derive(Default)]
struct Done {
    kills: u64,
    power_cuts: u64,
    confirmed: u64,
}

/// One fault: what it was.
async fn fault(cluster: &mut Cluster, rng: &mut Rng, done: &mut Done) -> anyhow::Result<String> {
    let count = 1 + rng.below(3);
    let nodes = rng.nodes(count);
    let what = match rng.below(3) {
        0 => {
            cluster.cut_power(&nodes)?;
            done.power_cuts += count;
            "power of"
        }
        1 => {
            for node in &nodes {
                cluster.kill9(*node)?;
            }
            done.kills += count;
            "kill -9"
        }
        _ => {
            for node in &nodes {
                cluster.pause(*node)?;
            }
            // Longer than an election takes.
            sleep(1500 + rng.below(1000)).await;
            for node in &nodes {
                cluster.kill9(*node)?;
            }
            done.kills += count;
            "pause and kill -9"
        }
    };
    sleep(rng.below(800)).await;
    for node in rng.nodes(3).into_iter().filter(|node| nodes.contains(node)) {
        cluster.restart(node)?;
        sleep(rng.below(200)).await;
    }
    Ok(format!("{what} {}", nodes.iter().map(|node| format!("n{}", node + 1)).collect::<Vec<_>>().join(",")))
}

/// B01, B08, B12, B20, B36: in `always`, with the log purged again and again, nothing confirmed is lost, whatever is
/// killed or loses power, in whatever order it comes back.
#[test]
fn soak() {
    if !can_cut_power() {
        return;
    }
    let (cycles, seed) = (cycles(), number("HEADWATER_SOAK_SEED", 1));
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| {
        let (mut rng, mut done, started) = (Rng(seed), Done::default(), Instant::now());
        let mut cycle = 0;
        while cycle < cycles {
            let name = format!("SOAK{cycle}");
            cluster.create_stream(Cluster::stream_config(&name, 3)).await?;
            let ledger = Ledger::named(&name);
            // 4 MiB a second and replica: a checkpoint every two seconds.
            let options = LoadOptions::on(&name).rate(250.0).size(8192);
            let load = Load::start(cluster, &name, &ledger, options).await?;
            for _ in 0..CYCLES_PER_AUDIT {
                sleep(500 + rng.below(1500)).await;
                let what = fault(cluster, &mut rng, &mut done).await?;
                let again = Instant::now();
                cluster.wait_all_recovered(RECOVERED).await.with_context(|| format!("cycle {cycle}: {what}"))?;
                cycle += 1;
                let seconds = again.elapsed().as_secs_f64();
                let _shown_or_not =
                    writeln!(std::io::stderr(), "cycle {cycle}: {what}; recovered {seconds:.1} s later");
                if cycle >= cycles {
                    break;
                }
            }
            load.finish().await?;
            cluster.wait_replicas(&name).await?;
            cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), &name, &ledger).await.context("the audit")?;
            done.confirmed += ledger.confirmed();
            cluster.jetstream().await?.delete_stream(&name).await?;
        }
        let _shown_or_not = writeln!(
            std::io::stderr(),
            "soak: seed {seed}, {cycles} cycles, {} kill -9, {} power cuts, {} confirmed, 0 lost, {:.0} s",
            done.kills,
            done.power_cuts,
            done.confirmed,
            started.elapsed().as_secs_f64()
        );
        Ok(())
    });
}
