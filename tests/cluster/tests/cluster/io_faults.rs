//! Disks that are slow or fail, and processes that end at one operation of the disk or another, under rules that debug
//! builds of the server follow (`node/storage/src/disk/faulty.rs`).

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use async_nats::jetstream::stream::{Config, State};
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, api};
use serde_json::{Value, json};

use crate::{RECOVERED, run, run_on, sleep};

/// A replica that fetches everything from its peers, on slow disks.
const HEALED: Duration = Duration::from_secs(40);
/// No removal, and no orderly stop behind it, takes so many operations.
const OPERATIONS_MAX: u64 = 60;

async fn one_node() -> anyhow::Result<Cluster> {
    let mut cluster = Cluster::prepare(1)?;
    cluster.start_all().await?;
    Ok(cluster)
}

fn set_mode(config: &mut Config, mode: &str) {
    config.metadata.insert("headwater.sync_mode".into(), mode.into());
    match mode {
        "interval" => config.metadata.insert("headwater.sync_interval".into(), "1s".into()),
        _ => config.metadata.remove("headwater.sync_interval"),
    };
}

/// What a stream looks like to whoever counts.
fn looks(state: &State) -> (u64, u64, u64) {
    (state.messages, state.first_sequence, state.last_sequence)
}

/// B14: the only copy, whose process ends at each operation of the disk, one after the other, from a removal on until an
/// orderly stop behind it has ended: what was confirmed is removed and stays so, what was not is removed or not, and the
/// last sequence never goes back. In `noWait` the kill may take what came last before a removal that it kept from being
/// confirmed: no process had written that yet.
#[test]
fn b14_kill_at_each_operation_of_a_removal() {
    run_on(one_node(), async |cluster| {
        let requests: [(&str, &str, Value, (u64, u64)); 4] = [
            ("all", "STREAM.PURGE", json!({}), (0, 13)),
            ("keep", "STREAM.PURGE", json!({"keep": 2}), (2, 11)),
            ("delete", "STREAM.MSG.DELETE", json!({"seq": 12, "no_erase": true}), (11, 1)),
            ("limit", "STREAM.UPDATE", Value::Null, (5, 8)),
        ];
        for (kind, request, body, (left, first)) in requests {
            let mut nth = 1;
            let mut modes = ["always", "interval", "noWait"].into_iter().cycle();
            loop {
                let name = format!("{kind}{nth}");
                let mut config = Cluster::stream_config(&name, 1);
                let mode = modes.next().context("a mode")?;
                set_mode(&mut config, mode);
                cluster.create_stream(config.clone()).await?;
                let context = cluster.jetstream().await?;
                for n in 0..12 {
                    context.publish(format!("{name}.x"), format!("{n}").into()).await?.await?;
                }
                let before = looks(&cluster.stream_info(&name).await?.state);
                let client = cluster.client(0).await?;
                cluster.set_faults(0, &format!("any streams/ kill {nth}\n"))?;
                let confirmed = if kind == "limit" {
                    config.max_messages = 5;
                    let updated = tokio::time::timeout(Duration::from_secs(2), context.update_stream(config)).await;
                    matches!(updated, Ok(Ok(_)))
                } else {
                    let subject = format!("{request}.{name}");
                    let answer = tokio::time::timeout(Duration::from_secs(2), api(&client, &subject, &body)).await;
                    answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer["success"] == true))
                };
                let stopped = cluster.stop(0).is_ok();
                cluster.no_faults(0)?;
                cluster.restart(0)?;
                cluster.wait_recovered(0, RECOVERED).await?;
                let state = cluster.stream_info(&name).await?.state;
                // A limit is set first and acts next: neither without the other is confirmed.
                let after = looks(&state);
                let what = format!("{kind}, operation {nth}, {mode}, confirmed {confirmed}");
                let removed = (left, first, 12);
                // The limit is kept apart from the messages.
                let holds = [12, if kind == "limit" { left } else { 12 }];
                let came_first =
                    |n: u64| holds.iter().any(|max| after == (n.min(*max), n.min(1) + n.saturating_sub(*max), n));
                let is_kept = after == before || (mode == "noWait" && (0..12).any(came_first));
                ensure!(after == removed || (!confirmed && is_kept), "{what}: {before:?}, then {after:?}");
                let context = cluster.jetstream().await?;
                let ack = context.publish(format!("{name}.x"), "again".into()).await?.await?;
                ensure!(ack.sequence == after.2 + 1, "{what}: {after:?}, then sequence {}", ack.sequence);
                context.delete_stream(&name).await?;
                if stopped {
                    break;
                }
                nth += 1;
                ensure!(nth < OPERATIONS_MAX, "{kind}: no end");
            }
            ensure!(nth > 3, "{kind}: only {nth} operations were tried");
        }
        Ok(())
    });
}

/// B05, B31: a node ends at some operation of its disk under load, the leader and a follower in turn.
#[test]
fn b31_kill_at_an_operation_of_the_disk_under_load() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("OPS", 3)).await?;
        let ledger = Ledger::new();
        // 4 MiB a second: a checkpoint every two.
        let load = Load::start(cluster, "OPS", &ledger, LoadOptions::on("OPS").rate(250.0).size(8192)).await?;
        for (turn, rule) in [
            "any / kill 40",
            "name streams/ kill 2",
            "sync wal/ kill 9",
            "syncdir streams/ kill 1",
            "name wal/ kill 1",
            "write streams/ kill 7",
            "any streams/ kill 23",
        ]
        .into_iter()
        .enumerate()
        {
            sleep(700).await;
            let victim = (cluster.leader_of("OPS").await? + turn % 2) % 3;
            cluster.set_faults(victim, rule)?;
            cluster.ended(victim, Duration::from_secs(30)).await.context(rule)?;
            cluster.no_faults(victim)?;
            cluster.restart(victim)?;
            cluster.wait_recovered(victim, RECOVERED).await.context(rule)?;
        }
        load.finish().await?;
        cluster.wait_replicas("OPS").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "OPS", &ledger).await?;
        Ok(())
    });
}

/// B03: a sync of the log fails at the leader. It confirms nothing more and ends; what it had confirmed is there, also
/// after it has started again on the same page cache.
#[test]
fn b03_failed_sync_of_the_log_ends_the_node() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("SYNC", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "SYNC", &ledger, LoadOptions::on("SYNC")).await?;
        for offset in [0, 1] {
            sleep(1000).await;
            let victim = (cluster.leader_of("SYNC").await? + offset) % 3;
            cluster.set_faults(victim, "sync wal/ fail EIO")?;
            let log = cluster.ended(victim, Duration::from_secs(10)).await?;
            ensure!(log.contains("Input/output error"), "the reason is not said:\n{log}");
            cluster.no_faults(victim)?;
            cluster.restart(victim)?;
            cluster.wait_recovered(victim, RECOVERED).await?;
        }
        load.finish().await?;
        cluster.wait_replicas("SYNC").await?;
        cluster.audit_each_leader("SYNC", &ledger).await
    });
}

/// B03, B87: durability changes on slow disks: acknowledgements wait for the disk only where they promise to, a failing
/// store of one replica is healed in the middle of it, and in the end every replica does what was asked for last.
#[test]
fn b87_durability_flipped_on_slow_and_failing_disks() {
    run(async |cluster| {
        let mut config = Cluster::stream_config("SLOW", 3);
        config.metadata.insert("headwater.allow_async_flush".into(), "true".into());
        cluster.create_stream(config.clone()).await?;
        for node in 0..3 {
            cluster.set_faults(node, "sync / delay 150")?;
        }
        let ledger = Ledger::new();
        let load = Load::start(cluster, "SLOW", &ledger, LoadOptions::on("SLOW").rate(100.0)).await?;
        let steps =
            [("true", "interval"), ("false", "always"), ("true", "noWait"), ("false", "interval"), ("false", "always")];
        for (turn, (flush, mode)) in steps.into_iter().enumerate() {
            config.metadata.insert("headwater.allow_async_flush".into(), flush.into());
            set_mode(&mut config, mode);
            let context = cluster.jetstream().await?;
            cluster
                .until(Duration::from_secs(15), "the update is accepted", async |_: &mut Cluster| {
                    context.update_stream(&config).await?;
                    Ok(())
                })
                .await?;
            if turn == 1 {
                let follower = (cluster.leader_of("SLOW").await? + 1) % 3;
                cluster.set_faults(follower, "sync / delay 150\nsync streams/ fail EIO")?;
                cluster
                    .until(Duration::from_secs(15), "the replica steps aside", async |cluster: &mut Cluster| {
                        let log = cluster.nodes()[follower].log_text();
                        ensure!(log.contains("Input/output error"), "not yet");
                        Ok(())
                    })
                    .await?;
                cluster.set_faults(follower, "sync / delay 150")?;
                cluster.wait_recovered(follower, HEALED).await?;
            }
            cluster
                .until(Duration::from_secs(30), &format!("all are {mode}, {flush}"), async |cluster: &mut Cluster| {
                    for node in 0..3 {
                        let recovery = cluster.recovery(node).await?;
                        let group = recovery.stream("SLOW").context("no replica")?;
                        // In `noWait` a store is always flushed behind.
                        let flushes = mode == "noWait" || flush == "true";
                        let acts = &group.effective;
                        ensure!(acts.sync_mode == mode && acts.allow_async_flush == flushes, "{acts:?}");
                    }
                    Ok(())
                })
                .await?;
            let context = cluster.jetstream().await?;
            let mut took = Vec::new();
            for _ in 0..5 {
                let began = Instant::now();
                context.publish("SLOW.0", "timed".into()).await?.await?;
                took.push(began.elapsed());
            }
            // The first may meet a leader that has just come.
            took.sort_unstable();
            let took = took[2];
            let waits = mode == "always";
            ensure!(
                (took >= Duration::from_millis(150)) == waits,
                "{mode}, {flush}: an acknowledgement took {took:.0?}"
            );
        }
        load.finish().await?;
        for node in 0..3 {
            cluster.no_faults(node)?;
        }
        cluster.wait_replicas("SLOW").await?;
        Ok(())
    });
}
