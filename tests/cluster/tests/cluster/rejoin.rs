//! Replicas that may have lost what they confirmed, or whose files are damaged: they do not vote with what is left, and
//! come back by themselves where their peers can help.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use headwater_audit::{Invariant, Ledger, Outcome, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions};

use crate::{RECOVERED, run, sleep};

/// A replica that fetches everything from its peers, and a group in which all must be heard first.
const REJOINED: Duration = Duration::from_secs(30);

fn relaxed(name: &str, mode: &str) -> async_nats::jetstream::stream::Config {
    let mut config = Cluster::stream_config(name, 3);
    config.metadata.insert("headwater.sync_mode".into(), mode.into());
    config
}

/// The newest file below `dir` with this ending.
fn newest(dir: &Path, ending: &str) -> anyhow::Result<PathBuf> {
    let names = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let files = names.filter_map(Result::ok).map(|entry| entry.path());
    files.filter(|path| path.to_string_lossy().ends_with(ending)).max().with_context(|| format!("no {ending} file"))
}

fn flip(path: &Path, at: u64) -> anyhow::Result<()> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x40], at)?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the node is down, and nothing here survives a crash")]
fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    Ok(fs::rename(from, to)?)
}

/// The only folder of a stream in a node's store.
fn stream_dir(store: &Path) -> anyhow::Result<PathBuf> {
    newest(&store.join("streams"), "")
}

/// B12, B20: in `noWait` a killed node may have forgotten what it confirmed. It must not elect a leader that lacks it:
/// it comes back as a new member, and nothing is lost though its peers die one after the other later.
#[test]
fn b12_forgetful_replica_rejoins_as_a_new_member() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(relaxed("LOOSE", "noWait")).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "LOOSE", &ledger, LoadOptions::on("LOOSE")).await?;
        for offset in [1, 0] {
            sleep(1000).await;
            let victim = (cluster.leader_of("LOOSE").await? + offset) % 3;
            cluster.kill9(victim)?;
            sleep(500).await;
            cluster.restart(victim)?;
            cluster.wait_recovered(victim, REJOINED).await?;
            let role = cluster.recovery(victim).await?.stream("LOOSE").map(|group| group.role.clone());
            ensure!(role.as_deref().is_some_and(|role| role != "Learner"), "recovered, its role is {role:?}");
        }
        load.finish().await?;
        cluster.wait_replicas("LOOSE").await?;
        cluster.audit_each_leader("LOOSE", &ledger).await
    });
}

/// B12: a replica that waits for its peers is no sounder after an orderly stop.
#[test]
fn b12_orderly_stop_does_not_let_a_forgetful_replica_in() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(relaxed("WAIT", "noWait")).await?;
        cluster.wait_replicas("WAIT").await?;
        cluster.kill_all()?;
        let is_kept_out = async |cluster: &mut Cluster| {
            let recovery = cluster.recovery(0).await?;
            let phase = recovery.stream("WAIT").map(|group| group.phase.clone());
            ensure!(phase.as_deref() == Some("Quarantined"), "it is {phase:?}");
            Ok(())
        };
        cluster.restart(0)?;
        cluster.until(REJOINED, "it is kept out", is_kept_out).await?;
        cluster.stop(0)?;
        cluster.restart(0)?;
        cluster.until(REJOINED, "it is kept out again", is_kept_out).await?;
        cluster.start_all().await?;
        cluster.wait_all_recovered(REJOINED).await
    });
}

/// B20: all nodes of a `noWait` stream killed at once. What is lost is a suffix, the same on every replica, and the log
/// that reaches furthest goes on, whoever starts first.
#[test]
fn b20_all_forgetful_replicas_agree_on_the_longest_log() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(relaxed("ALL", "noWait")).await?;
        for order in [[0, 1, 2], [2, 0, 1]] {
            let ledger = Ledger::new();
            let load = Load::start(cluster, "ALL", &ledger, LoadOptions::on("ALL").rate(2000.0)).await?;
            sleep(1500).await;
            cluster.kill_all()?;
            load.finish().await?;
            for (nth, i) in order.into_iter().enumerate() {
                cluster.restart(i)?;
                if nth < 2 {
                    sleep(300).await;
                }
            }
            cluster.wait_all_recovered(REJOINED).await?;
            cluster.wait_replicas("ALL").await?;
            let last = cluster.stream_info("ALL").await?.state.last_sequence;
            let beyond = ledger
                .entries()
                .iter()
                .filter(|e| matches!(e.outcome, Outcome::Acked { seq, .. } if seq > last))
                .count();
            let report = cluster.report(Verifier::new().ways(&DIRECT_VIEWS), "ALL", &ledger).await?;
            ensure!(report.lost == beyond as u64, "{beyond} confirmed beyond {last}: not a suffix\n{report}");
            let allowed = [Invariant::Lost, Invariant::WentBack];
            ensure!(report.counts.keys().all(|found| allowed.contains(found)), "{report}");
            cluster.jetstream().await?.delete_stream("ALL").await?;
            cluster.create_stream(relaxed("ALL", "noWait")).await?;
        }
        Ok(())
    });
}

/// B09: damage to the files of one replica. It leads nothing and serves nothing wrong; its peers give it their data.
#[test]
fn b09_damaged_replica_is_healed_by_its_peers() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("HEAL", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "HEAL", &ledger, LoadOptions::on("HEAL").rate(500.0).size(4096)).await?;
        sleep(2000).await;
        type Damage = fn(&Path) -> anyhow::Result<()>;
        let damages: [(&str, Damage); 5] = [
            ("a flipped byte in what the disk remembers of the member", |dir| {
                flip(&newest(&dir.join("../../replicas"), ".replica")?, 12)
            }),
            ("a flipped byte in the checkpoint", |dir| flip(&newest(dir, "checkpoint")?, 40)),
            ("a flipped byte in a block", |dir| flip(&newest(&dir.join("blocks"), ".blk")?, 4096 + 300)),
            ("no checkpoint", |dir| Ok(fs::remove_file(newest(dir, "checkpoint")?)?)),
            ("no folder", |dir| Ok(fs::remove_dir_all(dir)?)),
        ];
        for (what, damage) in damages {
            let node = (cluster.leader_of("HEAL").await? + 1) % 3;
            // An orderly stop leaves a checkpoint of everything.
            cluster.stop(node)?;
            damage(&stream_dir(&cluster.nodes()[node].store())?).context(what)?;
            cluster.restart(node)?;
            cluster.wait_recovered(node, REJOINED).await.context(what)?;
        }
        load.finish().await?;
        cluster.wait_replicas("HEAL").await?;
        cluster.audit_each_leader("HEAL", &ledger).await
    });
}

/// B12: a replica is recovered when it votes, not before: as soon as one that was wiped is, another may go. Damage and
/// a wipe, in turn, with no pause.
#[test]
fn b12_next_replica_may_go_as_soon_as_the_last_is_recovered() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("TURNS", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "TURNS", &ledger, LoadOptions::on("TURNS").rate(300.0)).await?;
        sleep(1000).await;
        for turn in 0..4 {
            let node = (cluster.leader_of("TURNS").await? + 1 + turn % 2) % 3;
            cluster.kill9(node)?;
            if turn % 2 == 0 {
                cluster.wipe(node)?;
            } else {
                flip(&newest(&stream_dir(&cluster.nodes()[node].store())?.join("blocks"), ".blk")?, 300)?;
            }
            cluster.restart(node)?;
            cluster.wait_recovered(node, REJOINED).await?;
        }
        load.finish().await?;
        cluster.wait_replicas("TURNS").await?;
        cluster.audit_each_leader("TURNS", &ledger).await
    });
}

/// B34: a node came back with an empty disk in place of the one that held a stream's only copy. It is said, in health
/// too; nobody waits for an answer.
#[test]
fn b34_only_copy_on_a_wiped_node_is_said_to_be_gone() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("ALONE", 1)).await?;
        let node = cluster.leader_of("ALONE").await?;
        cluster.kill9(node)?;
        cluster.wipe(node)?;
        cluster.restart(node)?;
        cluster
            .until(REJOINED, "the loss is said", async |cluster: &mut Cluster| {
                let recovery = cluster.recovery(node).await?;
                let group = recovery.stream("ALONE").context("no such stream")?;
                ensure!(group.phase == "Failed", "it is {}", group.phase);
                let why = group.phase_why.clone().unwrap_or_default();
                ensure!(why.contains("held the only copy of ALONE"), "{why}");
                Ok(())
            })
            .await?;
        let health = reqwest::get(format!("{}/healthz", cluster.nodes()[node].http())).await?;
        ensure!(health.status() == 503, "healthz says {}", health.status());
        let client = cluster.client((node + 1) % 3).await?;
        let watch = headwater_cluster_tests::Stopwatch::start();
        let info = headwater_cluster_tests::api(&client, "STREAM.INFO.ALONE", &serde_json::json!({})).await;
        watch.within(RECOVERED, "an answer")?;
        ensure!(info.is_err(), "{info:?}");
        Ok(())
    });
}

/// B34: the folder of a stream without other copies is gone. It is said; the stream does not start again at sequence 1.
#[test]
fn b34_only_copy_that_is_gone_is_not_an_empty_stream() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("ONE", 1)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "ONE", &ledger, LoadOptions::on("ONE")).await?;
        sleep(500).await;
        load.finish().await?;
        let node = cluster.leader_of("ONE").await?;
        let dir = stream_dir(&cluster.nodes()[node].store())?;
        let away = cluster.nodes()[node].log().with_extension("away");
        cluster.kill9(node)?;
        rename(&dir, &away)?;
        cluster.restart(node)?;
        cluster
            .until(RECOVERED, "the loss is said", async |cluster: &mut Cluster| {
                let recovery = cluster.recovery(node).await?;
                let group = recovery.stream("ONE").context("no such stream")?;
                ensure!(group.phase == "Failed", "it is {}", group.phase);
                let why = group.phase_why.clone().unwrap_or_default();
                ensure!(why.contains("is gone"), "{why}");
                Ok(())
            })
            .await?;
        rename(&away, &dir)?;
        cluster.wait_recovered(node, REJOINED).await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "ONE", &ledger).await?;

        // With its identity gone too the node must not take over what is left for a new cluster.
        cluster.kill9(node)?;
        for gone in ["hard-state", "wal", "meta", "replicas"] {
            let path = cluster.nodes()[node].store().join(gone);
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        cluster.restart(node)?;
        let said = cluster.ended(node, RECOVERED).await?;
        ensure!(said.contains("there is a streams folder but no hard state"), "{said}");
        Ok(())
    });
}
