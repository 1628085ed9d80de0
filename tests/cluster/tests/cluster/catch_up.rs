//! A replica that was away for longer than the log is kept.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use headwater_cluster_tests::Cluster;

use crate::{RECOVERED, run};

/// Payload bytes of a message.
const SIZE: usize = 512 << 10;
/// Two full blocks of 64 MiB and some of a third.
const BEFORE: usize = 290;
/// 900 MiB: more than the 8 segments of 64 MiB that the log is to have.
const MEANWHILE: usize = 1800;
/// These, the one being written and one being let go, and two spares.
const LOG_BYTES_MAX: u64 = 12 * (64 << 20);

/// 900 MiB are read, sent, written, synced and read again.
const COPIED: Duration = Duration::from_secs(60);

async fn publish(cluster: &mut Cluster, count: usize) -> anyhow::Result<()> {
    let context = cluster.jetstream().await?;
    let payload = Bytes::from(vec![7; SIZE]);
    for _ in 0..count / 10 {
        let acks = try_join_all((0..10).map(|n| context.publish(format!("AWAY.{n}"), payload.clone()))).await?;
        try_join_all(acks.into_iter().map(IntoFuture::into_future)).await?;
    }
    Ok(())
}

/// The figures of the last snapshot that came to a node: bytes received, bytes it had.
fn last_snapshot(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().rfind(|line| line.contains("snapshot came"))?;
    let figure = |name: &str| line.split(name).nth(1)?.split_whitespace().next()?.parse().ok();
    Some((figure("received=")?, figure("reused=")?))
}

fn log_bytes(cluster: &Cluster, node: usize) -> anyhow::Result<u64> {
    let files = std::fs::read_dir(cluster.nodes()[node].store().join("wal"))?;
    files.map(|file| Ok(file?.metadata()?.len())).sum()
}

/// B51, B30, B45: while a follower is away the others' logs do not grow without end, and it comes back by what it
/// misses: blocks that it has are not sent again.
#[test]
fn b51_b30_log_is_bounded_and_only_the_missing_part_is_copied() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("AWAY", 3)).await?;
        publish(cluster, BEFORE).await?;
        cluster.wait_replicas("AWAY").await?;
        let away = (cluster.leader_of("AWAY").await? + 1) % 3;
        cluster.stop(away)?;
        publish(cluster, MEANWHILE).await?;
        for node in (0..3).filter(|node| *node != away) {
            let wal = cluster
                .until(RECOVERED, "the log is let go of", async |cluster: &mut Cluster| {
                    let bytes = log_bytes(cluster, node)?;
                    ensure!(bytes <= LOG_BYTES_MAX, "n{} has {} MiB of log", node + 1, bytes >> 20);
                    Ok(bytes)
                })
                .await?;
            ensure!(wal > 0, "it has a log");
        }
        cluster.restart(away)?;
        cluster.wait_recovered(away, COPIED).await?;
        cluster.wait_replicas("AWAY").await?;
        let log = cluster.nodes()[away].log_text();
        let (received, reused) = last_snapshot(&log).context("it caught up without a snapshot")?;
        ensure!(reused >= 120 << 20, "{reused} bytes were there, {received} were sent");
        ensure!(received < (MEANWHILE * SIZE + (70 << 20)) as u64, "{received} bytes were sent, {reused} were there");
        // It stands on what it has taken over.
        cluster.lead("AWAY", away).await?;
        let info = cluster.stream_info("AWAY").await?;
        ensure!(info.state.messages as usize == BEFORE + MEANWHILE, "{:?}", info.state);
        let stream = cluster.jetstream().await?.get_stream("AWAY").await?;
        for seq in [1, 200, 1000, info.state.last_sequence] {
            ensure!(stream.get_raw_message(seq).await?.payload.len() == SIZE, "message {seq}");
        }
        cluster.kill9(away)?;
        cluster.restart(away)?;
        cluster.wait_recovered(away, RECOVERED).await?;
        cluster.wait_replicas("AWAY").await
    });
}
