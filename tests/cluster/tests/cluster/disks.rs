//! Disks that are full, and logs that are gone: a node that cannot vouch for its data steps aside.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, Stopwatch};

use crate::{RECOVERED, can_mount, run, run_on, sleep};

const DISK_BYTES: u64 = 420 << 20;

/// B49: the disk of the leader fills under load. Its replica steps aside, another leads, and it comes back by itself
/// when there is room.
#[test]
fn b49_full_disk_at_the_leader() {
    if !can_mount() {
        return;
    }
    run_on(Cluster::on_small_disks(DISK_BYTES), async |cluster| {
        cluster.create_stream(Cluster::stream_config("FULL", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "FULL", &ledger, LoadOptions::on("FULL").size(1024)).await?;
        sleep(1000).await;
        let leader = cluster.leader_of("FULL").await?;
        cluster.disk(leader).fill()?;
        let watch = Stopwatch::start();
        cluster
            .until(Duration::from_secs(15), "another node leads", async |cluster: &mut Cluster| {
                ensure!(cluster.leader_of("FULL").await? != leader, "n{} still leads", leader + 1);
                Ok(())
            })
            .await?;
        let before = ledger.confirmed();
        cluster
            .until(Duration::from_secs(5), "writes go on", async |_: &mut Cluster| {
                ensure!(ledger.confirmed() > before + 200, "{} confirmed since", ledger.confirmed() - before);
                Ok(())
            })
            .await?;
        watch.within(Duration::from_secs(20), "stepping aside")?;
        let stopped = cluster.recovery(leader).await?;
        let why = stopped.stream("FULL").map(|group| group.phase.clone());
        ensure!(why.as_deref() == Some("Failed"), "the replica on the full disk is {why:?}");
        cluster.disk(leader).free()?;
        cluster.wait_recovered(leader, Duration::from_secs(20)).await?;
        sleep(500).await;
        load.finish().await?;
        cluster.wait_replicas("FULL").await?;
        cluster.audit_each_leader("FULL", &ledger).await
    });
}

/// B12: a node whose log is gone, or cut, but whose other files are there would vote for a peer that lacks what it has
/// confirmed itself. It does not start; emptied, it joins anew.
#[test]
fn b12_lost_log_is_not_taken_part_with() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("LOG", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "LOG", &ledger, LoadOptions::on("LOG").size(2048)).await?;
        sleep(3000).await;
        load.finish().await?;
        cluster.wait_replicas("LOG").await?;
        let node = (cluster.leader_of("LOG").await? + 1) % 3;
        let log = cluster.nodes()[node].store().join("wal");

        cluster.kill9(node)?;
        let first = fs::read_dir(&log)?.filter_map(Result::ok).map(|entry| entry.path()).min();
        let first = first.filter(|path| path.extension().is_some_and(|ext| ext == "wal"));
        let Some(first) = first else { anyhow::bail!("no segment in {}", log.display()) };
        let whole = cluster.nodes()[node].log().with_extension("wal");
        fs::copy(&first, &whole)?;
        fs::OpenOptions::new().write(true).open(&first)?.set_len(300_000)?;
        cluster.restart(node)?;
        let said = cluster.ended(node, RECOVERED).await?;
        ensure!(said.contains("expected a file of"), "a cut log: {said}");

        fs::copy(&whole, &first)?;
        cluster.restart(node)?;
        cluster.wait_recovered(node, RECOVERED).await?;
        cluster.kill9(node)?;
        fs::remove_dir_all(&log)?;
        // Whoever runs the node starts it again and again: no start may make the next one pass.
        for _ in 0..2 {
            cluster.restart(node)?;
            let said = cluster.ended(node, RECOVERED).await?;
            ensure!(said.contains("the log is gone"), "no log: {said}");
        }
        ensure!(!log.exists(), "a refused start made a new log");

        cluster.wipe(node)?;
        cluster.restart(node)?;
        cluster.wait_recovered(node, Duration::from_secs(20)).await?;
        cluster.wait_replicas("LOG").await?;
        cluster.lead("LOG", node).await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "LOG", &ledger).await?;
        Ok(())
    });
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = Command::new("cp").arg("-a").args([from, to]).status()?;
    ensure!(status.success(), "cp -a {} {}", from.display(), to.display());
    Ok(())
}

/// B49: a node that runs out of file descriptors under load loses nothing, and is well again by itself once it has some.
#[test]
fn b49_out_of_file_descriptors() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("FILES", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "FILES", &ledger, LoadOptions::on("FILES").rate(500.0).size(8192)).await?;
        sleep(1000).await;
        let node = cluster.leader_of("FILES").await?;
        let Some(pid) = cluster.nodes()[node].pid() else { anyhow::bail!("n{} is down", node + 1) };
        let allow = |files: &str| {
            let limit =
                Command::new("prlimit").args(["--pid", &pid.to_string(), &format!("--nofile={files}:")]).status()?;
            ensure!(limit.success(), "prlimit: {limit}");
            anyhow::Ok(())
        };
        allow("8")?;
        sleep(4000).await;
        allow("1024")?;
        cluster.wait_recovered(node, Duration::from_secs(20)).await?;
        let before = ledger.confirmed();
        cluster
            .until(Duration::from_secs(5), "writes go on", async |_: &mut Cluster| {
                ensure!(ledger.confirmed() > before + 200, "{} confirmed since", ledger.confirmed() - before);
                Ok(())
            })
            .await?;
        load.finish().await?;
        cluster.wait_replicas("FILES").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "FILES", &ledger).await?;
        Ok(())
    });
}

/// B39: a copy taken while the node ran, put back before any other start. The catalogue has seen no newer boot, but the
/// peers have heard how far its log was synced.
#[test]
fn b39_copy_of_a_running_store_is_refused() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("LIVE", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "LIVE", &ledger, LoadOptions::on("LIVE")).await?;
        sleep(1000).await;
        let node = cluster.leader_of("LIVE").await?;
        let (store, copy) = (cluster.nodes()[node].store(), cluster.nodes()[node].log().with_extension("copy"));
        copy_tree(&store, &copy)?;
        sleep(1000).await;
        put_back_and_refused(cluster, node, &copy, "or has lost records").await?;
        load.finish().await?;
        cluster.wait_replicas("LIVE").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "LIVE", &ledger).await?;
        Ok(())
    });
}

/// Puts `copy` in the place of a node's store: it is quarantined, does not start again and says `why`, and emptied it
/// joins anew.
async fn put_back_and_refused(cluster: &mut Cluster, node: usize, copy: &Path, why: &str) -> anyhow::Result<()> {
    cluster.kill9(node)?;
    cluster.wipe(node)?;
    copy_tree(copy, &cluster.nodes()[node].store())?;
    cluster.restart(node)?;
    cluster
        .until(RECOVERED, "the copy is refused", async |cluster: &mut Cluster| {
            let recovery = cluster.recovery(node).await?;
            let phases: Vec<_> = recovery.groups.iter().map(|group| group.phase.clone()).collect();
            ensure!(phases.len() == 2 && phases.iter().all(|phase| phase == "Quarantined"), "{phases:?}");
            Ok(())
        })
        .await?;
    cluster.kill9(node)?;
    cluster.restart(node)?;
    let said = cluster.ended(node, RECOVERED).await?;
    ensure!(said.contains(why), "{said}");
    cluster.wipe(node)?;
    cluster.restart(node)?;
    cluster.wait_recovered(node, Duration::from_secs(20)).await?;
    Ok(())
}

/// B39: a store that was put back from an older copy has forgotten what it voted and confirmed. The cluster remembers a
/// newer boot of it and refuses it, for good; emptied, the node joins anew.
#[test]
fn b39_older_copy_is_refused_for_good() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("COPY", 3)).await?;
        let node = (cluster.leader_of("COPY").await? + 1) % 3;
        let (store, copy) = (cluster.nodes()[node].store(), cluster.nodes()[node].log().with_extension("copy"));
        cluster.stop(node)?;
        copy_tree(&store, &copy)?;
        cluster.restart(node)?;
        cluster.wait_recovered(node, RECOVERED).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "COPY", &ledger, LoadOptions::on("COPY")).await?;
        sleep(1000).await;
        load.finish().await?;
        put_back_and_refused(cluster, node, &copy, "put back from an older copy").await?;
        cluster.wait_replicas("COPY").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "COPY", &ledger).await?;
        Ok(())
    });
}
