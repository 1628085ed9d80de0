//! kill -9 and SIGSTOP under load, and nothing confirmed may be lost.

use std::time::Duration;

use anyhow::ensure;
use async_nats::jetstream::stream::Config;
use futures::future::{join, join_all};
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, api, longest_gap};
use serde_json::json;

use crate::{RECOVERED, resumed, run, sleep};

/// A follower, then the leader, killed in mid-load and restarted; then the whole AUDIT with each
/// node as leader, and once more after a clean restart of all.
async fn kill_follower_and_leader(cluster: &mut Cluster, config: Config) -> anyhow::Result<()> {
    let stream = config.name.clone();
    cluster.create_stream(config).await?;
    let ledger = Ledger::new();
    let load = Load::start(cluster, &stream, &ledger, LoadOptions::on(&stream)).await?;
    sleep(1000).await;

    let follower = (cluster.leader_of(&stream).await? + 1) % 3;
    cluster.kill9(follower)?;
    sleep(1000).await;
    cluster.restart(follower)?;
    cluster.wait_recovered(follower, RECOVERED).await?;

    let leader = cluster.leader_of(&stream).await?;
    cluster.kill9(leader)?;
    let before = ledger.confirmed();
    cluster
        .until(resumed(cluster), "writes go on after the leader's death", async |_: &mut Cluster| {
            // More than what was under way when it died.
            ensure!(ledger.confirmed() > before + 200, "{} confirmed since", ledger.confirmed() - before);
            Ok(())
        })
        .await?;
    cluster.restart(leader)?;
    cluster.wait_recovered(leader, RECOVERED).await?;
    sleep(500).await;
    let published = load.finish().await?;
    ensure!(longest_gap(&published) <= resumed(cluster), "writes stood still for {:?}", longest_gap(&published));
    ensure!(published.iter().all(|run| run.unknown + run.refused == 0), "{published:?}");

    cluster.wait_replicas(&stream).await?;
    cluster.audit_each_leader(&stream, &ledger).await?;

    for i in 0..3 {
        cluster.stop(i)?;
    }
    cluster.start_all().await?;
    cluster.wait_all_recovered(RECOVERED).await?;
    cluster.wait_replicas(&stream).await?;
    cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), &stream, &ledger).await?;
    Ok(())
}

/// B01, B23, I9: the default, `always`.
#[test]
fn b01_kill_follower_and_leader_always() {
    run(async |cluster| kill_follower_and_leader(cluster, Cluster::stream_config("KA", 3)).await);
}

/// B01, B20: `interval`, on a stream made with metadata as a plain NATS client does.
#[test]
fn b01_kill_follower_and_leader_interval() {
    run(async |cluster| {
        let mut config = Cluster::stream_config("KI", 3);
        config.metadata.insert("headwater.sync_mode".into(), "interval".into());
        config.metadata.insert("headwater.sync_interval".into(), "2m".into());
        kill_follower_and_leader(cluster, config).await?;
        let info = cluster.stream_info("KI").await?;
        ensure!(
            info.config.metadata.get("headwater.sync_mode").is_some_and(|mode| mode == "interval"),
            "{:?}",
            info.config.metadata
        );
        if cluster.is_headwater() {
            for i in 0..3 {
                let recovery = cluster.recovery(i).await?;
                let group = recovery.stream("KI").ok_or_else(|| anyhow::anyhow!("n{} has no replica", i + 1))?;
                ensure!(
                    group.effective.sync_mode == "interval" && group.effective.sync_interval_ms == Some(120_000),
                    "n{}: {:?}",
                    i + 1,
                    group.effective
                );
            }
        }
        Ok(())
    });
}

/// B20, B36: all three killed in mid-load within milliseconds, restarted in different orders; the
/// same stream and ledger through all of it.
#[test]
fn b20_kill_all_and_restart_in_several_orders() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("ORDERS", 3)).await?;
        let ledger = Ledger::new();
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let load = Load::start(cluster, "ORDERS", &ledger, LoadOptions::on("ORDERS")).await?;
            sleep(1000).await;
            cluster.kill_all()?;
            for i in order {
                cluster.restart(i)?;
                sleep(300).await;
            }
            cluster.wait_all_recovered(RECOVERED).await?;
            let (before, leader) = (ledger.confirmed(), cluster.leader_of("ORDERS").await?);
            cluster
                .until(resumed(cluster), "writes go on", async |_: &mut Cluster| {
                    ensure!(
                        ledger.confirmed() > before + 200,
                        "n{} leads, {} confirmed since",
                        leader + 1,
                        ledger.confirmed() - before
                    );
                    Ok(())
                })
                .await?;
            load.finish().await?;
        }
        cluster.wait_replicas("ORDERS").await?;
        cluster.audit("ORDERS", &ledger).await?;
        Ok(())
    });
}

/// B02: a replica stopped with work unfinished for longer than its sync interval, let go, and
/// killed right after; a follower first, then the leader.
#[test]
fn b02_paused_then_killed() {
    run(async |cluster| {
        let mut config = Cluster::stream_config("PAUSE", 3);
        config.metadata.insert("headwater.sync_mode".into(), "interval".into());
        config.metadata.insert("headwater.sync_interval".into(), "1s".into());
        cluster.create_stream(config).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "PAUSE", &ledger, LoadOptions::on("PAUSE")).await?;
        sleep(500).await;
        for offset in [1, 0] {
            let victim = (cluster.leader_of("PAUSE").await? + offset) % 3;
            cluster.pause(victim)?;
            sleep(3000).await;
            cluster.cont(victim)?;
            sleep(50).await;
            cluster.kill9(victim)?;
            cluster.restart(victim)?;
            cluster.wait_recovered(victim, RECOVERED).await?;
        }
        load.finish().await?;
        cluster.wait_replicas("PAUSE").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "PAUSE", &ledger).await?;
        Ok(())
    });
}

/// B46: one replica alone, killed in mid-load. What was confirmed is there from the first answer on.
#[test]
fn b46_single_replica_killed() {
    run(async |cluster| {
        let mut interval = Cluster::stream_config("ONE-I", 1);
        interval.metadata.insert("headwater.sync_mode".into(), "interval".into());
        interval.metadata.insert("headwater.sync_interval".into(), "2m".into());
        for config in [Cluster::stream_config("ONE-A", 1), interval] {
            let stream = config.name.clone();
            cluster.create_stream(config).await?;
            let ledger = Ledger::new();
            for _ in 0..2 {
                let load = Load::start(cluster, &stream, &ledger, LoadOptions::on(&stream)).await?;
                sleep(700).await;
                let owner = cluster.leader_of(&stream).await?;
                let confirmed = ledger.highest_confirmed();
                cluster.kill9(owner)?;
                cluster.restart(owner)?;
                let info = cluster.stream_info(&stream).await?;
                ensure!(
                    info.state.last_sequence >= confirmed,
                    "the first answer ends at {}, {confirmed} was confirmed",
                    info.state.last_sequence
                );
                cluster.wait_recovered(owner, RECOVERED).await?;
                load.finish().await?;
            }
            cluster.audit(&stream, &ledger).await?;
        }
        Ok(())
    });
}

/// B35: a stream and a consumer confirmed just before everything is killed are there afterwards,
/// with the messages; a deleted one does not come back.
#[test]
fn b35_metadata_survives_kill_all() {
    run(async |cluster| {
        for (round, delay) in [0, 100, 1000].into_iter().enumerate() {
            let (name, gone) = (format!("META{round}"), format!("GONE{round}"));
            let ledger = Ledger::new();
            cluster.create_stream(Cluster::stream_config(&gone, 3)).await?;
            cluster.create_stream(Cluster::stream_config(&name, 3)).await?;
            let context = cluster.jetstream().await?;
            let stream = context.get_stream(&name).await?;
            let config =
                async_nats::jetstream::consumer::pull::Config { durable_name: Some("C".into()), ..Default::default() };
            stream.create_consumer(config).await?;
            context.delete_stream(&gone).await?;
            let client = cluster.any_client().await?;
            let publisher = headwater_audit::Publisher::new(1);
            publisher
                .run(&client, &name, &ledger, |n| format!("{name}.{n}"), &headwater_audit::Until::count(10))
                .await?;
            sleep(delay).await;
            cluster.kill_all()?;
            cluster.start_all().await?;
            cluster.wait_all_recovered(RECOVERED).await?;

            let context = cluster.jetstream().await?;
            let names = cluster
                .until(Duration::from_secs(10), "the stream is known again", async |_: &mut Cluster| {
                    use futures::TryStreamExt;
                    let names: Vec<String> = context.stream_names().try_collect().await?;
                    ensure!(names.contains(&name), "{names:?}");
                    Ok(names)
                })
                .await?;
            ensure!(!names.contains(&gone), "the deleted stream is back");
            cluster.wait_replicas(&name).await?;
            cluster
                .until(Duration::from_secs(10), "the consumer is known again", async |_: &mut Cluster| {
                    let _: async_nats::jetstream::consumer::PullConsumer =
                        context.get_consumer_from_stream("C", &name).await?;
                    Ok(())
                })
                .await?;
            cluster.audit(&name, &ledger).await?;
        }
        Ok(())
    });
}

/// The audit itself: a message deleted behind the ledger's back is reported as lost.
#[test]
fn the_audit_notices_a_missing_message() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("HOLE", 3)).await?;
        let (ledger, client) = (Ledger::new(), cluster.any_client().await?);
        let publisher = headwater_audit::Publisher::new(1);
        publisher.run(&client, "HOLE", &ledger, |_| "HOLE.x".into(), &headwater_audit::Until::count(50)).await?;
        cluster.audit("HOLE", &ledger).await?;
        let stream = cluster.jetstream().await?.get_stream("HOLE").await?;
        ensure!(stream.delete_message(20).await?, "the delete was not done");
        cluster.wait_replicas("HOLE").await?;
        let report = cluster.report(Verifier::new(), "HOLE", &ledger).await?;
        ensure!(report.lost == 1 && !report.is_clean(), "the audit says\n{report}");
        let report = cluster.report(Verifier::new().removed(20..=20), "HOLE", &ledger).await?;
        ensure!(report.is_clean(), "removed by right, but the audit says\n{report}");
        Ok(())
    });
}

/// B46: a leader that was stopped while another one was elected answers nothing that has been overwritten since, not even
/// what waited for it when it woke.
#[test]
fn b46_leader_that_was_stopped_answers_nothing_old() {
    run(async |cluster| {
        let mut config = Cluster::stream_config("LAST", 3);
        config.max_messages_per_subject = 1;
        cluster.create_stream(config).await?;
        let mut answered = 0;
        for _ in 0..3 {
            cluster.wait_replicas("LAST").await?;
            let old = cluster.leader_of("LAST").await?;
            let client = cluster.client(old).await?;
            let other = async_nats::jetstream::new(cluster.client((old + 1) % 3).await?);
            cluster.pause(old)?;
            let confirmed = cluster
                .until(Duration::from_secs(15), "another leader confirms", async |_: &mut Cluster| {
                    Ok(other.publish("LAST.k", "x".into()).await?.await?.sequence)
                })
                .await?;
            let by_subject = json!({ "last_by_subj": "LAST.k" });
            let gets = async { join_all((0..20).map(|_| api(&client, "STREAM.MSG.GET.LAST", &by_subject))).await };
            let wake = async {
                sleep(300).await;
                cluster.cont(old)
            };
            let (gets, woken) = join(gets, wake).await;
            woken?;
            for answer in gets.into_iter().flatten().filter(|answer| answer["error"].is_null()) {
                answered += 1;
                let seq = answer["message"]["seq"].as_u64();
                ensure!(seq == Some(confirmed), "message {seq:?} for {confirmed}: {answer}");
            }
        }
        ensure!(answered > 20 || !cluster.is_headwater(), "only {answered} answers");
        Ok(())
    });
}
