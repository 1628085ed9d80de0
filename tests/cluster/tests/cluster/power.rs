//! Power cuts, for real: every node's store is an ext4 image, which is copied as it is while the node is stopped in
//! mid-load. The node goes on with the copy, which has what was synced and nothing else.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions};

use crate::{can_cut_power, run_on, sleep};

const DISK_BYTES: u64 = 1 << 30;
/// All nodes start, replay, and may have to hear of each other first.
const RECOVERED: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(1);

fn config(name: &str, replicas: usize, mode: &str) -> async_nats::jetstream::stream::Config {
    let mut config = Cluster::stream_config(name, replicas);
    config.metadata.insert("headwater.sync_mode".into(), mode.into());
    if mode == "interval" {
        config.metadata.insert("headwater.sync_interval".into(), format!("{}s", INTERVAL.as_secs()));
    }
    config
}

/// Cuts: `HEADWATER_POWER_CUTS`, or 1.
pub(crate) fn rounds() -> u32 {
    std::env::var("HEADWATER_POWER_CUTS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// B01, B08, B36: power of all three nodes cut at one moment, with what was acknowledged no longer in the log: in `always`
/// nothing is lost. The other modes are in the matrix.
#[test]
fn b08_power_of_all_cut_behind_a_purged_log() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| {
        for round in 1..=rounds() {
            let name = format!("ALL{round}");
            cluster.create_stream(config(&name, 3, "always")).await?;
            let ledger = Ledger::named(&name);
            // 8 MiB a second: a checkpoint each.
            let load = Load::start(cluster, &name, &ledger, LoadOptions::on(&name).rate(500.0).size(8192)).await?;
            cluster
                .until(RECOVERED, "every node has purged its log", async |cluster: &mut Cluster| {
                    for node in 0..3 {
                        let recovery = cluster.recovery(node).await?;
                        let marks = recovery.stream(&name).context("not there")?.watermarks;
                        ensure!(marks.purged > 0, "{} purged", cluster.nodes()[node].name());
                    }
                    Ok(())
                })
                .await?;
            sleep(700).await;
            cluster.cut_power(&[0, 1, 2])?;
            cluster.start_all().await?;
            cluster.wait_all_recovered(RECOVERED).await?;
            load.finish().await?;
            cluster.wait_replicas(&name).await?;
            cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), &name, &ledger).await?;
            let _shown_or_not = writeln!(std::io::stderr(), "round {round}: {} confirmed, 0 lost", ledger.confirmed());
            cluster.jetstream().await?.delete_stream(&name).await?;
        }
        Ok(())
    });
}

/// B12: power of one node cut, and of the leader later, in `interval`: each has forgotten what it confirmed, comes back
/// as a new member, and nothing is lost.
#[test]
fn b12_power_of_one_cut_in_interval() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| {
        cluster.create_stream(config("MINOR", 3, "interval")).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "MINOR", &ledger, LoadOptions::on("MINOR")).await?;
        for offset in [1, 0] {
            sleep(1500).await;
            let victim = (cluster.leader_of("MINOR").await? + offset) % 3;
            cluster.cut_power(&[victim])?;
            sleep(500).await;
            cluster.restart(victim)?;
            cluster.wait_recovered(victim, RECOVERED).await?;
        }
        load.finish().await?;
        cluster.wait_replicas("MINOR").await?;
        cluster.audit_each_leader("MINOR", &ledger).await
    });
}

/// B14: with one replica a purge is synced before it succeeds, in every mode: after a power cut right behind it the next
/// sequence is what it would have been.
#[test]
fn b14_power_cut_after_a_purge_of_the_only_copy() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| {
        for mode in ["always", "interval", "noWait"] {
            let name = format!("ONE-{mode}");
            cluster.create_stream(config(&name, 1, mode)).await?;
            let context = cluster.jetstream().await?;
            // The node asked may hear of the stream a moment later.
            cluster
                .until(RECOVERED, "the first publish is acknowledged", async |_: &mut Cluster| {
                    Ok(context.publish(format!("{name}.0"), "x".into()).await?.await?)
                })
                .await?;
            for n in 1..100 {
                context.publish(format!("{name}.{n}"), "x".into()).await?.await?;
            }
            let node = cluster.leader_of(&name).await?;
            context.get_stream(&name).await?.purge().await?;
            cluster.cut_power(&[node])?;
            cluster.restart(node)?;
            cluster.wait_recovered(node, RECOVERED).await?;
            let ack = cluster
                .until(RECOVERED, "a publish is acknowledged", async |_: &mut Cluster| {
                    Ok(context.publish(format!("{name}.again"), "y".into()).await?.await?)
                })
                .await
                .context(mode)?;
            ensure!(ack.sequence >= 101, "{mode}: sequence {} after a purge at 100", ack.sequence);
            let state = cluster.stream_info(&name).await?.state;
            ensure!(state.messages <= 2 && state.first_sequence >= 101, "{mode}: purged messages are back: {state:?}");
        }
        Ok(())
    });
}
