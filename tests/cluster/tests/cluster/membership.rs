//! Wiped nodes, and nodes alone.

use std::time::Duration;

use anyhow::{Context, ensure};
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, api};
use serde_json::json;

use crate::{RECOVERED, run, sleep};

/// B12, B93: a wiped node comes back under a new incarnation, is filled by its peers, and belongs
/// to the same cluster as before.
#[test]
fn b12_wiped_node_rejoins() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("WIPE", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "WIPE", &ledger, LoadOptions::on("WIPE")).await?;
        sleep(1000).await;
        let victim = (cluster.leader_of("WIPE").await? + 1) % 3;
        let before = match cluster.is_headwater() {
            true => Some(cluster.recovery(victim).await?),
            false => None,
        };
        cluster.kill9(victim)?;
        cluster.wipe(victim)?;
        sleep(500).await;
        cluster.restart(victim)?;
        cluster.wait_recovered(victim, Duration::from_secs(20)).await?;
        load.finish().await?;
        cluster.wait_replicas("WIPE").await?;
        if let Some(before) = before {
            let after = cluster.recovery(victim).await?;
            ensure!(
                after.cluster_id == before.cluster_id,
                "a second cluster: {} and {}",
                before.cluster_id,
                after.cluster_id
            );
            ensure!(after.node_id != before.node_id, "the wiped node came back as {}, which had votes", after.node_id);
            let group = after.stream("WIPE").context("no replica on the wiped node")?;
            ensure!(group.phase == "Recovered", "{group:?}");
        }
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "WIPE", &ledger).await?;
        Ok(())
    });
}

/// B12: one replica is behind, the other is wiped, and the only one with all data is down: the two
/// must not go on without it. With it back, nothing is lost.
#[test]
fn b12_wiped_node_does_not_vote_for_a_lagging_one() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(()); // the reference's own fault, in the report this test is named for
        }
        cluster.create_stream(Cluster::stream_config("BEHIND", 3)).await?;
        let ledger = Ledger::new();
        let leader = cluster.leader_of("BEHIND").await?;
        let (behind, wiped) = ((leader + 1) % 3, (leader + 2) % 3);
        cluster.pause(behind)?;
        let load = Load::start(cluster, "BEHIND", &ledger, LoadOptions::on("BEHIND")).await?;
        sleep(2000).await;
        load.finish().await?;
        let confirmed = ledger.confirmed();
        ensure!(confirmed > 500, "only {confirmed} confirmed with one of three paused");
        cluster.kill9(wiped)?;
        cluster.wipe(wiped)?;
        cluster.kill9(leader)?;
        cluster.cont(behind)?;
        cluster.restart(wiped)?;
        // Twice the time in which a sound majority elects.
        for _ in 0..20 {
            sleep(500).await;
            for i in [behind, wiped] {
                if let Ok(recovery) = cluster.recovery(i).await {
                    let role = recovery.stream("BEHIND").map(|group| group.role.clone());
                    ensure!(role.as_deref() != Some("Leader"), "n{} leads without the node that has the data", i + 1);
                }
            }
        }
        cluster.restart(leader)?;
        cluster.wait_all_recovered(Duration::from_secs(20)).await?;
        cluster.wait_replicas("BEHIND").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "BEHIND", &ledger).await?;
        Ok(())
    });
}

/// B93: a wiped node that starts before its peers waits for them; it never begins a cluster of its own.
#[test]
fn b93_wiped_node_alone_starts_nothing() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("LONE", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "LONE", &ledger, LoadOptions::on("LONE")).await?;
        sleep(500).await;
        load.finish().await?;
        cluster.wait_replicas("LONE").await?;
        cluster.kill_all()?;
        cluster.wipe(2)?;
        cluster.restart(2)?;
        sleep(1000).await;
        let client = cluster.client(2).await?;
        for _ in 0..8 {
            let body = json!({"name": "SECOND", "subjects": ["second.>"], "num_replicas": 1});
            let answer =
                tokio::time::timeout(Duration::from_secs(1), api(&client, "STREAM.CREATE.SECOND", &body)).await;
            let refused = matches!(&answer, Ok(Ok(answer)) if answer["error"]["err_code"] == 10008);
            ensure!(refused, "a wiped node alone must refuse at once: {answer:?}");
        }
        cluster.restart(0)?;
        cluster.restart(1)?;
        cluster.wait_jetstream().await?;
        cluster.wait_all_recovered(Duration::from_secs(20)).await?;
        cluster.wait_replicas("LONE").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "LONE", &ledger).await?;
        let info = api(&cluster.any_client().await?, "STREAM.NAMES", &json!({})).await?;
        ensure!(info["streams"] == json!(["LONE"]), "{info}");
        Ok(())
    });
}

/// B46, B88: after a node's restart nothing it answers ever goes back, from its first answer on.
#[test]
fn b46_no_answer_goes_back_after_a_restart() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("SHRINK", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "SHRINK", &ledger, LoadOptions::on("SHRINK")).await?;
        sleep(1000).await;
        let leader = cluster.leader_of("SHRINK").await?;
        let seen = cluster.stream_info("SHRINK").await?.state.last_sequence;
        cluster.kill9(leader)?;
        cluster.restart(leader)?;
        let client = cluster.client(leader).await?;
        let (mut highest, mut answers) = (seen, 0);
        for _ in 0..40 {
            if let Ok(Ok(info)) =
                tokio::time::timeout(Duration::from_millis(500), api(&client, "STREAM.INFO.SHRINK", &json!({}))).await
                && let Some(last) = info["state"]["last_seq"].as_u64()
            {
                ensure!(last >= highest, "stream info said {last} after {highest}");
                (highest, answers) = (last, answers + 1);
            }
            sleep(50).await;
        }
        ensure!(answers > 5, "only {answers} answers");
        load.finish().await?;
        cluster.wait_recovered(leader, RECOVERED).await?;
        cluster.wait_replicas("SHRINK").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "SHRINK", &ledger).await?;
        Ok(())
    });
}

/// A node that is left alone has no majority, whoever led before: it does not say that it is ready.
#[test]
fn b93_node_left_alone_is_not_ready() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        let mut left = 0;
        for i in 0..3 {
            let recovery = cluster.recovery(i).await?;
            if recovery.groups.iter().any(|group| group.stream.is_empty() && group.role == "Leader") {
                left = i;
            }
        }
        let ready = format!("{}/readyz", cluster.nodes()[left].http());
        let status = async || anyhow::Ok(reqwest::get(&ready).await?.status().as_u16());
        let is = async |wanted: u16| {
            let status = status().await?;
            ensure!(status == wanted, "it says {status}");
            anyhow::Ok(())
        };
        cluster.until(RECOVERED, "it is ready", async |_: &mut Cluster| is(200).await).await?;
        for other in (0..3).filter(|i| *i != left) {
            cluster.kill9(other)?;
        }
        cluster.until(RECOVERED, "it is not ready", async |_: &mut Cluster| is(503).await).await?;
        cluster.start_all().await?;
        cluster.until(RECOVERED, "it is ready again", async |_: &mut Cluster| is(200).await).await
    });
}
