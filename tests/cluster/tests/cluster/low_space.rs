//! A disk that fills up, and is not full yet: writes stop while the node still can write.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use headwater_audit::Ledger;
use headwater_cluster_tests::{Cluster, Load, LoadOptions, api};
use serde_json::json;

use crate::{RECOVERED, can_mount, run_on, sleep};

const DISK_BYTES: u64 = 420 << 20;
/// What is left free: less than the default floor, a fourth of the file system, and enough for the log's next segment.
const LEFT_BYTES: u64 = 80 << 20;

/// Fills the disk of node `i` up to [`LEFT_BYTES`].
fn fill_up(cluster: &Cluster, i: usize) -> anyhow::Result<()> {
    let store = cluster.nodes()[i].store();
    let seen = rustix::fs::statvfs(&store)?;
    let free = seen.f_bavail * seen.f_frsize;
    // The name by which the disk frees it again.
    let file = File::create(store.join("filler"))?;
    let bytes = free.checked_sub(LEFT_BYTES).context("the disk is too small for this test")?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    Ok(())
}

async fn metric(cluster: &Cluster, i: usize, name: &str) -> anyhow::Result<u64> {
    let text = reqwest::get(format!("{}/metrics", cluster.nodes()[i].http())).await?.text().await?;
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("headwater_{name} ")));
    Ok(value.with_context(|| format!("no {name} in\n{text}"))?.parse()?)
}

async fn health(cluster: &Cluster, i: usize) -> anyhow::Result<(u16, String)> {
    let answer = reqwest::get(format!("{}/healthz", cluster.nodes()[i].http())).await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

/// B49: the leader's disk has little room left. It hands over, and writes go on where there is room. With two such disks
/// there is no majority with room: messages and streams are refused, by the numbers that clients know, while deletes and
/// reads work and nothing fails. With room again all goes on by itself.
#[test]
fn b49_writes_stop_before_the_disk_is_full() {
    if !can_mount() {
        return;
    }
    run_on(Cluster::on_small_disks(DISK_BYTES), async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("ROOM", 3)).await?;
        cluster.create_stream(Cluster::stream_config("DROP", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "ROOM", &ledger, LoadOptions::on("ROOM")).await?;
        sleep(1000).await;
        let first = cluster.leader_of("ROOM").await?;
        fill_up(cluster, first)?;
        cluster
            .until(Duration::from_secs(10), "another node leads", async |cluster: &mut Cluster| {
                ensure!(cluster.leader_of("ROOM").await? != first, "n{} still leads", first + 1);
                Ok(())
            })
            .await?;
        let before = ledger.confirmed();
        cluster
            .until(RECOVERED, "writes go on", async |_: &mut Cluster| {
                ensure!(ledger.confirmed() > before + 200, "{} confirmed since", ledger.confirmed() - before);
                Ok(())
            })
            .await?;
        ensure!(metric(cluster, first, "store_low").await? == 1, "n{} does not say so", first + 1);
        let (status, said) = health(cluster, first).await?;
        ensure!(status == 503 && said.contains("bytes free"), "{status} {said}");

        // The catalogue is led where there is room too, so that new streams go there.
        let second = cluster.leader_of("ROOM").await?;
        fill_up(cluster, second)?;
        let third = 3 - first - second;
        let client = cluster.client(third).await?;
        let publish = async || -> anyhow::Result<serde_json::Value> {
            let answer = client.request("ROOM.x", "x".into()).await?;
            Ok(serde_json::from_slice(&answer.payload)?)
        };
        cluster
            .until(RECOVERED, "messages are refused", async |_: &mut Cluster| {
                let answer = publish().await?;
                ensure!(answer["error"]["err_code"] == 10023 && answer["error"]["code"] == 503, "{answer}");
                Ok(())
            })
            .await?;
        let stopped = ledger.confirmed();
        let new = json!({"name": "NEW", "subjects": ["new"], "num_replicas": 3});
        let answer = api(&client, "STREAM.CREATE.NEW", &new).await?;
        ensure!(answer["error"]["err_code"] == 10047, "{answer}");
        let answer = api(&client, "STREAM.DELETE.DROP", &json!({})).await?;
        ensure!(answer["success"] == true, "{answer}");
        let answer = api(&client, "STREAM.INFO.ROOM", &json!({})).await?;
        ensure!(answer["state"]["messages"].as_u64() >= Some(stopped), "{answer}");
        sleep(2000).await;
        ensure!(ledger.confirmed() == stopped, "confirmed without room");
        for i in 0..3 {
            let recovery = cluster.recovery(i).await?;
            ensure!(recovery.is_recovered(), "n{}: {:?}", i + 1, recovery.groups);
        }

        cluster.disk(first).free()?;
        cluster.disk(second).free()?;
        cluster
            .until(RECOVERED, "writes go on", async |_: &mut Cluster| {
                ensure!(ledger.confirmed() > stopped + 200, "{} confirmed since", ledger.confirmed() - stopped);
                Ok(())
            })
            .await?;
        cluster
            .until(RECOVERED, "all nodes say that all is well", async |cluster: &mut Cluster| {
                for i in 0..3 {
                    let (status, said) = health(cluster, i).await?;
                    ensure!(status == 200, "n{}: {status} {said}", i + 1);
                }
                Ok(())
            })
            .await?;
        load.finish().await?;
        cluster.wait_replicas("ROOM").await?;
        cluster.audit_each_leader("ROOM", &ledger).await
    });
}
