//! Watermarks seen from outside, and durability changed under load.

use std::time::Duration;

use anyhow::{Context, ensure};
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions};

use crate::{RECOVERED, run, sleep};

/// B01: sampled every 50 ms under load and kills: purged ≤ persisted ≤ stored ≤ applied ≤
/// committed, and the log behind an asynchronous snapshot is still there.
#[test]
fn b01_watermarks_hold_under_load() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(()); // the reference has no watermarks
        }
        let mut config = Cluster::stream_config("MARKS", 3);
        config.metadata.insert("headwater.allow_async_flush".into(), "true".into());
        cluster.create_stream(config).await?;
        let (ledger, sampler) = (Ledger::new(), cluster.sample());
        // 8 MiB a second: enough for the log to be purged again and again.
        let options = LoadOptions::on("MARKS").rate(500.0).size(8192);
        let load = Load::start(cluster, "MARKS", &ledger, options).await?;
        sleep(3000).await;
        for offset in [1, 0] {
            let victim = (cluster.leader_of("MARKS").await? + offset) % 3;
            cluster.kill9(victim)?;
            sleep(500).await;
            cluster.restart(victim)?;
            cluster.wait_recovered(victim, RECOVERED).await?;
        }
        sleep(2000).await;
        load.finish().await?;
        let samples = sampler.finish().await?;
        ensure!(
            samples.violations.is_empty(),
            "{} violations, the first: {:#?}",
            samples.violations.len(),
            &samples.violations[..samples.violations.len().min(5)]
        );
        ensure!(samples.taken >= 100, "only {} samples", samples.taken);
        ensure!(
            samples.lagging > 0,
            "persisted was never behind applied: nothing asynchronous was seen in {} samples",
            samples.taken
        );
        ensure!(samples.with_async_snapshot > 0, "no snapshot was ahead of the store in {} samples", samples.taken);
        let purged = cluster.recovery(0).await?.stream("MARKS").map(|group| group.watermarks.purged);
        ensure!(purged.is_some_and(|purged| purged > 0), "the log was never purged: {purged:?}");
        cluster.wait_replicas("MARKS").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "MARKS", &ledger).await?;
        Ok(())
    });
}

/// B87: durability flipped through plain stream updates under load, the leader killed in between.
/// Nothing is lost, and in the end every replica is in the mode asked for last.
#[test]
fn b87_durability_flipped_under_load() {
    run(async |cluster| {
        let mut config = Cluster::stream_config("FLIP", 3);
        config.metadata.insert("headwater.allow_async_flush".into(), "true".into());
        cluster.create_stream(config.clone()).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "FLIP", &ledger, LoadOptions::on("FLIP")).await?;
        let steps = [
            ("false", "always"),
            ("true", "interval"),
            ("false", "interval"),
            ("true", "always"),
            ("true", "noWait"),
            ("false", "always"),
        ];
        for (i, (flush, mode)) in steps.into_iter().enumerate() {
            config.metadata.insert("headwater.allow_async_flush".into(), flush.into());
            config.metadata.insert("headwater.sync_mode".into(), mode.into());
            config.metadata.insert("headwater.sync_interval".into(), "500ms".into());
            if mode != "interval" {
                config.metadata.remove("headwater.sync_interval");
            }
            let context = cluster.jetstream().await?;
            cluster
                .until(Duration::from_secs(15), "the update is accepted", async |_: &mut Cluster| {
                    context.update_stream(&config).await?;
                    Ok(())
                })
                .await?;
            sleep(700).await;
            if i == 2 {
                let leader = cluster.leader_of("FLIP").await?;
                cluster.kill9(leader)?;
                sleep(500).await;
                cluster.restart(leader)?;
                cluster.wait_recovered(leader, RECOVERED).await?;
            }
        }
        let info = cluster.stream_info("FLIP").await?;
        ensure!(
            info.config.metadata.get("headwater.sync_mode").is_some_and(|mode| mode == "always"),
            "{:?}",
            info.config.metadata
        );
        if cluster.is_headwater() {
            cluster
                .until(
                    Duration::from_secs(15),
                    "every replica is always, not asynchronous",
                    async |cluster: &mut Cluster| {
                        for i in 0..3 {
                            let recovery = cluster.recovery(i).await?;
                            let group = recovery.stream("FLIP").context("no replica")?;
                            for setting in [&group.effective, &group.desired, &group.promise] {
                                ensure!(
                                    setting.sync_mode == "always" && !setting.allow_async_flush,
                                    "n{}: {group:?}",
                                    i + 1
                                );
                            }
                        }
                        Ok(())
                    },
                )
                .await?;
        }
        load.finish().await?;
        cluster.wait_replicas("FLIP").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "FLIP", &ledger).await?;
        Ok(())
    });
}
