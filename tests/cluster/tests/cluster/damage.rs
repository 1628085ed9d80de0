//! Damage in blocks that a start does not read, because it reads their indexes.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use headwater_cluster_tests::{Cluster, api};
use serde_json::json;

use crate::{RECOVERED, run};

/// Payload bytes of a message.
const SIZE: usize = 512 << 10;
/// A full block of 64 MiB and some of the next.
const MESSAGES: usize = 150;
/// A message in the middle of the first block.
const DAMAGED: u64 = 60;
/// The damaged replica gives up its files and fetches everything.
const HEALED: Duration = Duration::from_secs(40);

async fn fill(cluster: &mut Cluster, stream: &str) -> anyhow::Result<()> {
    let context = cluster.jetstream().await?;
    for part in 0..MESSAGES / 10 {
        let sent = try_join_all((0..10).map(|n| {
            let payload = Bytes::from(vec![(part * 10 + n) as u8; SIZE]);
            context.publish(format!("{stream}.x"), payload)
        }))
        .await?;
        try_join_all(sent.into_iter().map(IntoFuture::into_future)).await?;
    }
    Ok(())
}

/// Flips a byte in the payload of [`DAMAGED`] in the only full block that a node has.
fn flip(cluster: &Cluster, node: usize) -> anyhow::Result<()> {
    let streams = std::fs::read_dir(cluster.nodes()[node].store().join("streams"))?;
    let mut flipped = 0;
    for stream in streams {
        let block = stream?.path().join("blocks/0000000001.blk");
        if block.exists() && block.with_extension("idx").exists() {
            let file = std::fs::File::options().read(true).write(true).open(&block)?;
            let at = DAMAGED * SIZE as u64 - SIZE as u64 / 2;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at)?;
            file.write_all_at(&[byte[0] ^ 1], at)?;
            file.sync_all()?;
            flipped += 1;
        }
    }
    ensure!(flipped == 1, "{flipped} full blocks with an index");
    Ok(())
}

/// Publishes a little, so that a checkpoint covers the full block and it gets its index.
async fn wait_indexed(cluster: &mut Cluster, node: usize) -> anyhow::Result<()> {
    cluster
        .until(RECOVERED, "the full block has an index", async |cluster: &mut Cluster| {
            let mut streams = std::fs::read_dir(cluster.nodes()[node].store().join("streams"))?;
            let has = streams.any(|s| s.is_ok_and(|s| s.path().join("blocks/0000000001.idx").exists()));
            ensure!(has, "none yet");
            Ok(())
        })
        .await
}

/// B09: a replica that meets damage when it leads answers nothing wrong, steps aside, and is healed by its peers.
#[test]
fn b09_flip_in_a_full_block_is_met_when_it_is_read() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("FLIP", 3)).await?;
        fill(cluster, "FLIP").await?;
        cluster.wait_replicas("FLIP").await?;
        let bad = (cluster.leader_of("FLIP").await? + 1) % 3;
        wait_indexed(cluster, bad).await?;
        cluster.stop(bad)?;
        flip(cluster, bad)?;
        cluster.restart(bad)?;
        cluster.wait_recovered(bad, RECOVERED).await?;
        cluster.wait_replicas("FLIP").await?;
        cluster.lead("FLIP", bad).await?;
        let client = cluster.client(bad).await?;
        let answer = api(&client, "STREAM.MSG.GET.FLIP", &json!({ "seq": DAMAGED })).await?;
        ensure!(
            answer["error"]["err_code"] == 10051,
            "not said: {}",
            answer.to_string().get(..300).unwrap_or_default()
        );
        let text = answer["error"]["description"].to_string();
        ensure!(text.contains("0000000001.blk is damaged at offset"), "{text}");
        cluster
            .until(HEALED, "the replica is healed", async |cluster: &mut Cluster| {
                let recovery = cluster.recovery(bad).await?;
                let group = recovery.stream("FLIP").context("not there")?;
                ensure!(group.phase == "Recovered", "{}: {:?}", group.phase, group.phase_why);
                ensure!(cluster.nodes()[bad].log_text().contains("rejoining as a new member"), "not fetched");
                Ok(())
            })
            .await?;
        cluster.wait_replicas("FLIP").await?;
        cluster.lead("FLIP", bad).await?;
        let stream = cluster.jetstream().await?.get_stream("FLIP").await?;
        for seq in [1, DAMAGED, MESSAGES as u64] {
            let payload = stream.get_raw_message(seq).await?.payload;
            ensure!(payload == vec![seq as u8 - 1; SIZE], "message {seq} is another");
        }
        Ok(())
    });
}

/// B09: of the only copy everything else stays readable, the hole is reported, and it is not taken for no message.
#[test]
fn b09_hole_in_the_only_copy_is_reported() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("ONLY", 1)).await?;
        cluster.until(RECOVERED, "it is filled", async |cluster: &mut Cluster| fill(cluster, "ONLY").await).await?;
        let node = cluster.leader_of("ONLY").await?;
        wait_indexed(cluster, node).await?;
        cluster.stop(node)?;
        flip(cluster, node)?;
        cluster.restart(node)?;
        cluster.wait_recovered(node, RECOVERED).await?;
        let client = cluster.client(node).await?;
        let get = async |seq: u64| api(&client, "STREAM.MSG.GET.ONLY", &json!({ "seq": seq })).await;
        ensure!(get(DAMAGED - 2).await?["message"]["seq"] == DAMAGED - 2, "its neighbours can be read");
        ensure!(get(DAMAGED + 2).await?["message"]["seq"] == DAMAGED + 2, "its neighbours can be read");
        let answer = get(DAMAGED).await?;
        ensure!(answer["error"]["err_code"] == 10051, "{}", answer.to_string().get(..300).unwrap_or_default());
        let recovery = cluster.recovery(node).await?;
        let group = recovery.stream("ONLY").context("not there")?;
        let why = group.phase_why.clone().unwrap_or_default();
        ensure!(why.contains("0000000001.blk is damaged at offset"), "{}: {why}", group.phase);
        let ack = cluster.jetstream().await?.publish("ONLY.x", "on".into()).await?.await?;
        ensure!(ack.sequence > MESSAGES as u64, "sequence {}", ack.sequence);
        Ok(())
    });
}
