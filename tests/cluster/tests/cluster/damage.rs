//! Damage in blocks that a start does not read, because it reads their indexes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::try_join_all;
use headwater_audit::Ledger;
use headwater_cluster_tests::{Cluster, Load, LoadOptions, api};
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

/// Healed, and what heals it has been seen to.
async fn wait_healed(cluster: &mut Cluster, node: usize, stream: &str) -> anyhow::Result<()> {
    cluster
        .until(HEALED, "the replica is healed", async |cluster: &mut Cluster| {
            let recovery = cluster.recovery(node).await?;
            let group = recovery.stream(stream).context("not there")?;
            ensure!(cluster.nodes()[node].log_text().contains("rejoining as a new member"), "not fetched");
            ensure!(group.phase == "Recovered", "{}: {:?}", group.phase, group.phase_why);
            Ok(())
        })
        .await
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
        wait_healed(cluster, bad, "FLIP").await?;
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

/// B09: damage that nobody has met is found by reading everything again, and healed while there are peers.
#[test]
fn b09_flip_that_nobody_reads_is_found_and_healed() {
    run(async |cluster| {
        cluster.set_env("HEADWATER_SCRUB_EVERY", "2s");
        cluster.set_env("HEADWATER_SCRUB_RATE", "100000000");
        cluster.create_stream(Cluster::stream_config("COLD", 3)).await?;
        fill(cluster, "COLD").await?;
        cluster.wait_replicas("COLD").await?;
        let bad = (cluster.leader_of("COLD").await? + 1) % 3;
        wait_indexed(cluster, bad).await?;
        cluster.stop(bad)?;
        flip(cluster, bad)?;
        cluster.restart(bad)?;
        wait_healed(cluster, bad, "COLD").await?;
        ensure!(cluster.nodes()[bad].log_text().contains("0000000001.blk is damaged at offset"), "it is said where");
        cluster.wait_replicas("COLD").await?;
        cluster.lead("COLD", bad).await?;
        let stream = cluster.jetstream().await?.get_stream("COLD").await?;
        ensure!(stream.get_raw_message(DAMAGED).await?.payload == vec![DAMAGED as u8 - 1; SIZE], "another message");
        Ok(())
    });
}

/// B09: the same message damaged in two of three replicas, the leader's and another: they step aside one after the other,
/// the one sound replica leads, and what is damaged is not what the others get.
#[test]
fn b09_flip_in_two_replicas_is_healed_from_the_third() {
    run(async |cluster| {
        cluster.set_env("HEADWATER_SCRUB_EVERY", "2s");
        cluster.set_env("HEADWATER_SCRUB_RATE", "100000000");
        cluster.create_stream(Cluster::stream_config("TWO", 3)).await?;
        fill(cluster, "TWO").await?;
        cluster.wait_replicas("TWO").await?;
        let leader = cluster.leader_of("TWO").await?;
        let bad = [leader, (leader + 1) % 3];
        for node in bad {
            wait_indexed(cluster, node).await?;
        }
        for node in 0..3 {
            cluster.stop(node)?;
        }
        for node in bad {
            flip(cluster, node)?;
        }
        cluster.start_all().await?;
        for node in bad {
            wait_healed(cluster, node, "TWO").await?;
        }
        cluster.wait_replicas("TWO").await?;
        for node in 0..3 {
            cluster.lead("TWO", node).await?;
            let stream = cluster.jetstream().await?.get_stream("TWO").await?;
            for seq in [1, DAMAGED, MESSAGES as u64] {
                let payload = stream.get_raw_message(seq).await?.payload;
                ensure!(payload == vec![seq as u8 - 1; SIZE], "message {seq} is another at n{}", node + 1);
            }
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
        let context = cluster.jetstream().await?;
        let ack = context.publish("ONLY.x", "on".into()).await?.await?;
        ensure!(ack.sequence > MESSAGES as u64, "sequence {}", ack.sequence);
        let mut stream = context.get_stream("ONLY").await?;
        let config = pull::Config {
            durable_name: Some("C".into()),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: DAMAGED - 2 },
            ..pull::Config::default()
        };
        let mut consumer = stream.create_consumer(config).await?;
        let mut got = Vec::new();
        while got.len() < 4 {
            let mut messages = consumer.fetch().max_messages(5).expires(Duration::from_secs(2)).messages().await?;
            while let Some(message) = messages.next().await {
                let message = message.map_err(|e| anyhow!(e))?;
                got.push(message.info().map_err(|e| anyhow!(e))?.stream_sequence);
                message.ack().await.map_err(|e| anyhow!(e))?;
            }
        }
        ensure!(got[..4] == [DAMAGED - 2, DAMAGED - 1, DAMAGED + 1, DAMAGED + 2], "{got:?}");
        cluster
            .until(RECOVERED, "nothing waits for it", async |_: &mut Cluster| {
                let pending = consumer.info().await?.num_ack_pending;
                ensure!(pending == 0, "{pending} pending");
                Ok(())
            })
            .await?;
        // Limits and purges go on around it, too.
        let mut config = stream.info().await?.config.clone();
        config.max_messages = 60;
        context.update_stream(config).await?;
        let state = stream.info().await?.state.clone();
        ensure!(state.messages == 60 && state.first_sequence == MESSAGES as u64 + 1 - 59, "{state:?}");
        ensure!(cluster.recovery(node).await?.stream("ONLY").context("not there")?.phase == "Recovered", "it goes on");
        cluster.kill9(node)?;
        cluster.restart(node)?;
        cluster.wait_recovered(node, RECOVERED).await?;
        let ack = context.publish("ONLY.x", "on".into()).await?.await?;
        ensure!(ack.sequence == MESSAGES as u64 + 2, "sequence {}", ack.sequence);
        Ok(())
    });
}

/// B09: the newest block of the only copy has no index; what is damaged there is gone, and nothing else.
#[test]
fn b09_hole_in_the_newest_block_of_the_only_copy() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("NEWEST", 1)).await?;
        let context = cluster.jetstream().await?;
        let publish = async |n: u64| anyhow::Ok(context.publish("NEWEST.x", n.to_string().into()).await?.await?);
        cluster.until(RECOVERED, "the first is stored", async |_: &mut Cluster| publish(1).await).await?;
        let first = cluster.stream_info("NEWEST").await?.state.last_sequence;
        for n in 2..=20 {
            publish(n).await?;
        }
        let node = cluster.leader_of("NEWEST").await?;
        // An orderly stop writes a checkpoint.
        cluster.stop(node)?;
        let streams = std::fs::read_dir(cluster.nodes()[node].store().join("streams"))?;
        let blocks: Vec<_> = streams
            .filter_map(|stream| Some(stream.ok()?.path().join("blocks/0000000001.blk")))
            .filter(|block| block.exists())
            .collect();
        let [block] = &blocks[..] else { anyhow::bail!("{blocks:?}") };
        let bytes = std::fs::read(block)?;
        let at = bytes.windows(9).position(|w| w == b"NEWEST.x7").context("message 7 is there")?;
        std::fs::File::options().write(true).open(block)?.write_all_at(b"x", at as u64 + 8)?;
        cluster.restart(node)?;
        cluster.wait_recovered(node, RECOVERED).await?;
        let ack = cluster.until(RECOVERED, "it takes messages", async |_: &mut Cluster| publish(21).await).await?;
        ensure!(ack.sequence > first + 19, "sequence {}", ack.sequence);
        let stream = context.get_stream("NEWEST").await?;
        let mut left = Vec::new();
        for seq in first..first + 20 {
            if let Ok(message) = stream.get_raw_message(seq).await {
                left.push(String::from_utf8_lossy(&message.payload).into_owned());
            }
        }
        ensure!(left.len() == 19 && !left.contains(&"7".to_owned()), "left is {left:?}");
        let recovery = cluster.recovery(node).await?;
        let why = recovery.stream("NEWEST").context("not there")?.phase_why.clone().unwrap_or_default();
        ensure!(why.contains("0000000001.blk is damaged at offset"), "{why}");
        Ok(())
    });
}

/// Every file of a node's store but for spares and the lock, which hold nothing.
fn store_files(dir: &Path, out: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            store_files(&path, out)?;
        } else if path.metadata()?.len() > 0
            && !path.ends_with("lock")
            && path.extension().is_none_or(|ext| ext != "spare" && ext != "tmp")
        {
            out.push(path);
        }
    }
    Ok(())
}

/// What kind of file it is: its path without numbers.
fn kind(store: &Path, file: &Path) -> String {
    let relative = file.strip_prefix(store).unwrap_or(file).to_string_lossy();
    relative.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// B09, B32: one byte of each kind of file of a node, flipped while it is down. The node heals it from its peers, or does
/// not start and names the file; put right, it starts again. Nothing is lost, and nothing wrong is served.
#[test]
fn b32_flip_in_each_kind_of_file() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("KINDS", 3)).await?;
        fill(cluster, "KINDS").await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "KINDS", &ledger, LoadOptions::on("KINDS").rate(100.0)).await?;
        let bad = (cluster.leader_of("KINDS").await? + 1) % 3;
        wait_indexed(cluster, bad).await?;
        let store = cluster.nodes()[bad].store();
        let (mut tried, mut healed, mut refused) = (BTreeSet::new(), 0, 0);
        loop {
            cluster.stop(bad)?;
            let mut files = Vec::new();
            store_files(&store, &mut files)?;
            files.sort();
            // The newest of a kind: of the log that is the one that is written to.
            let next = files.into_iter().rev().find(|file| !tried.contains(&kind(&store, file)));
            let Some(path) = next else { break };
            tried.insert(kind(&store, &path));
            // What counts of a segment of the log are its first bytes.
            let at = if path.extension().is_some_and(|ext| ext == "wal") { 70 } else { path.metadata()?.len() / 2 };
            let file = std::fs::File::options().read(true).write(true).open(&path)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at)?;
            file.write_all_at(&[byte[0] ^ 1], at)?;
            drop(file);
            let what = path.display().to_string();
            cluster.restart(bad)?;
            let back = cluster
                .until(HEALED, &format!("n{} heals {what}, or ends", bad + 1), async |cluster: &mut Cluster| {
                    if cluster.check_alive().is_err() {
                        return Ok(false);
                    }
                    ensure!(cluster.recovery(bad).await?.is_recovered(), "not yet");
                    Ok(true)
                })
                .await?;
            if back {
                healed += 1;
                continue;
            }
            refused += 1;
            let log = cluster.nodes()[bad].log_tail();
            ensure!(log.contains(&what), "{what} is damaged, and not named:\n{log}");
            std::fs::File::options().write(true).open(&path)?.write_all_at(&byte, at)?;
            cluster.restart(bad)?;
            cluster.wait_recovered(bad, HEALED).await.with_context(|| format!("with {what} as it was"))?;
        }
        cluster.restart(bad)?;
        cluster.wait_recovered(bad, HEALED).await?;
        let _shown_or_not = writeln!(std::io::stderr(), "{healed} healed, {refused} refused of {tried:?}");
        ensure!(tried.len() >= 8 && healed >= 4, "{healed} healed, {refused} refused of {tried:?}");
        load.finish().await?;
        cluster.wait_replicas("KINDS").await?;
        cluster.audit_each_leader("KINDS", &ledger).await
    });
}
