//! Power cuts, for real: every node's store is an ext4 image, which is copied as it is while the node is stopped in
//! mid-load. The node goes on with the copy, which has what was synced and nothing else.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use headwater_audit::{Invariant, Ledger, Outcome, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions};

use crate::{can_cut_power, run_on, sleep};

const DISK_BYTES: u64 = 1 << 30;
/// All nodes start, replay, and may have to hear of each other first.
const RECOVERED: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(1);
/// Until a message that was sent is acknowledged, and a sync that is due has ended, on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

fn config(name: &str, replicas: usize, mode: &str) -> async_nats::jetstream::stream::Config {
    let mut config = Cluster::stream_config(name, replicas);
    config.metadata.insert("headwater.sync_mode".into(), mode.into());
    if mode == "interval" {
        config.metadata.insert("headwater.sync_interval".into(), format!("{}s", INTERVAL.as_secs()));
    }
    config
}

/// Cuts per mode: `HEADWATER_POWER_CUTS`, or 1.
pub(crate) fn rounds() -> u32 {
    std::env::var("HEADWATER_POWER_CUTS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// Power of all three nodes cut at one moment under load. Whatever is lost is a suffix, the same on every replica;
/// `oldest_lost` bounds how long before the cut a lost message may have been sent.
async fn all_cut(cluster: &mut Cluster, mode: &str, oldest_lost: Option<Duration>) -> anyhow::Result<()> {
    let name = mode.to_uppercase();
    cluster.create_stream(config(&name, 3, mode)).await?;
    for round in 1..=rounds() {
        let ledger = Ledger::named(format!("{mode}{round}"));
        // All nodes stay off until the publishers have ended: nobody will answer.
        let options = LoadOptions::on(&name).rate(1000.0).give_up(SLACK);
        let load = Load::start(cluster, &name, &ledger, options).await?;
        sleep(4000).await;
        cluster.cut_power(&[0, 1, 2])?;
        #[expect(clippy::disallowed_methods, reason = "compared with the ledger's times of sending")]
        let cut = SystemTime::now();
        load.finish().await?;
        cluster.start_all().await?;
        cluster.wait_all_recovered(RECOVERED).await?;
        cluster.wait_replicas(&name).await?;
        let last = cluster.stream_info(&name).await?.state.last_sequence;
        let lost: Vec<_> = ledger
            .entries()
            .into_iter()
            .filter(|entry| matches!(entry.outcome, Outcome::Acked { seq, .. } if seq > last))
            .collect();
        let report = cluster.report(Verifier::new().ways(&DIRECT_VIEWS), &name, &ledger).await?;
        ensure!(report.lost == lost.len() as u64, "{} confirmed beyond {last}: not a suffix\n{report}", lost.len());
        let allowed: &[Invariant] = if lost.is_empty() { &[] } else { &[Invariant::Lost, Invariant::WentBack] };
        ensure!(report.counts.keys().all(|found| allowed.contains(found)), "{report}");
        ensure!(ledger.confirmed() > 1000, "only {} confirmed", ledger.confirmed());
        if let Some(bound) = oldest_lost {
            let cut = cut.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos();
            let oldest = lost.iter().map(|entry| u128::from(entry.sent_at)).min().unwrap_or(cut);
            let age = Duration::from_nanos(u64::try_from(cut.saturating_sub(oldest))?);
            ensure!(age <= bound, "{} lost, the oldest {age:?} before the cut", lost.len());
        }
        let _shown_or_not =
            writeln!(std::io::stderr(), "{mode}, round {round}: {} confirmed, {} lost", ledger.confirmed(), lost.len());
        cluster.jetstream().await?.delete_stream(&name).await?;
        cluster.create_stream(config(&name, 3, mode)).await?;
    }
    Ok(())
}

/// B08: in `always` a power cut of all nodes loses nothing.
#[test]
fn b08_power_of_all_cut_in_always() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| {
        all_cut(cluster, "always", Some(Duration::ZERO)).await
    });
}

/// B08: in `interval` it loses at most what came in the last interval.
#[test]
fn b08_power_of_all_cut_in_interval() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| {
        all_cut(cluster, "interval", Some(INTERVAL + SLACK)).await
    });
}

/// B08, B20: in `noWait` what was not synced is lost, and all replicas agree what that is.
#[test]
fn b08_power_of_all_cut_in_no_wait() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(3, DISK_BYTES), async |cluster| all_cut(cluster, "noWait", None).await);
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
