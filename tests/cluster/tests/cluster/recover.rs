//! Most replicas are gone for good, and a person orders to go on from what is left: nothing that the rest has is lost,
//! and those that were given up change nothing, however they come back.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use headwater_audit::{Invariant, Ledger, Outcome, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, Server, Stopwatch};

use crate::{RECOVERED, run, run_on, sleep};

/// New members fetch everything, and the catalogue and the stream change their members one after the other.
const REFILLED: Duration = Duration::from_secs(40);

/// `headwater recover` at node `at`; whether it ended well, and what it said.
async fn recover(cluster: &Cluster, at: usize, args: &[&str]) -> anyhow::Result<(bool, String)> {
    let Server::Headwater(binary) = Server::find()? else { anyhow::bail!("only Headwater has this command") };
    let mut command = Command::new(binary);
    command.arg("recover").args(args).args(["--url", &cluster.nodes()[at].http()]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((output.status.success(), said))
}

/// As [`recover`], and it must end well.
async fn recovered(cluster: &Cluster, at: usize, args: &[&str]) -> anyhow::Result<String> {
    let (done, said) = recover(cluster, at, args).await?;
    ensure!(done, "headwater recover {args:?}: {said}");
    Ok(said)
}

/// As [`recover`], and it must be refused with `why`.
async fn refused(cluster: &Cluster, at: usize, args: &[&str], why: &str) -> anyhow::Result<()> {
    let (done, said) = recover(cluster, at, args).await?;
    ensure!(!done && said.contains(why), "headwater recover {args:?}, done {done}: {said}");
    Ok(())
}

async fn writes_go_on(cluster: &mut Cluster, ledger: &Ledger, limit: Duration) -> anyhow::Result<()> {
    let before = ledger.confirmed();
    cluster
        .until(limit, "writes go on", async |_: &mut Cluster| {
            ensure!(ledger.confirmed() > before + 100, "{} confirmed since", ledger.confirmed() - before);
            Ok(())
        })
        .await
}

/// B12: two of three nodes are gone for good, under load, in `always`. The one that is left led: everything confirmed is
/// there, and empty nodes under the old names make three replicas of it again.
#[test]
fn b12_two_of_three_nodes_lost_for_good() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("LEFT", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "LEFT", &ledger, LoadOptions::on("LEFT")).await?;
        sleep(1500).await;
        let left = cluster.leader_of("LEFT").await?;
        let name = cluster.nodes()[left].name().to_owned();
        let all = ["--all", "--voters", &name];
        refused(cluster, left, &["LEFT", "--voters", &name, "--accept-loss"], "a majority of the group answers")
            .await?;
        refused(cluster, left, &["--catalogue", "--voters", &name, "--accept-loss"], "a majority of the group").await?;
        let gone: Vec<usize> = (0..3).filter(|i| *i != left).collect();
        for i in &gone {
            cluster.kill9(*i)?;
        }
        for i in &gone {
            cluster.wipe(*i)?;
        }
        sleep(1500).await;
        let lost = cluster.nodes()[gone[0]].name().to_owned();
        refused(cluster, left, &["LEFT", "--voters", &lost, "--accept-loss"], "does not answer").await?;
        refused(cluster, left, &["LEFT", "--voters", "n9", "--accept-loss"], "n9 has no replica").await?;
        // Without a word about the loss it only says what it would do.
        refused(cluster, left, &all, "may be lost: what others confirmed in the last").await?;
        let before = ledger.confirmed();
        sleep(500).await;
        ensure!(ledger.confirmed() == before, "confirmed without a majority");
        let watch = Stopwatch::start();
        let said = recovered(cluster, left, &[all.as_slice(), &["--accept-loss"]].concat()).await?;
        ensure!(said.contains("the catalogue has a leader") && said.contains("LEFT (group 1) goes on as"), "{said}");
        writes_go_on(cluster, &ledger, RECOVERED).await?;
        watch.within(Duration::from_secs(20), "going on")?;
        for i in &gone {
            cluster.restart(*i)?;
        }
        cluster.wait_all_recovered(REFILLED).await?;
        cluster.wait_replicas("LEFT").await?;
        refused(cluster, left, &["LEFT", "--voters", &name, "--accept-loss"], "a majority of the group answers")
            .await?;
        load.finish().await?;
        cluster.wait_replicas("LEFT").await?;
        cluster.audit_each_leader("LEFT", &ledger).await?;
        // It stands on its own feet: any one may go.
        cluster.kill_all()?;
        cluster.start_all().await?;
        cluster.wait_all_recovered(REFILLED).await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "LEFT", &ledger).await?;
        Ok(())
    });
}

/// B12: the one that is left followed. What it may lack is the newest of what was confirmed, and nothing else.
#[test]
fn b12_going_on_from_a_follower_loses_a_suffix_at_most() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("TAIL", 3)).await?;
        let ledger = Ledger::new();
        let options = LoadOptions::on("TAIL").rate(2000.0).give_up(Duration::from_secs(2));
        let load = Load::start(cluster, "TAIL", &ledger, options).await?;
        sleep(1500).await;
        let left = (cluster.leader_of("TAIL").await? + 1) % 3;
        let name = cluster.nodes()[left].name().to_owned();
        for i in (0..3).filter(|i| *i != left) {
            cluster.kill9(i)?;
        }
        load.finish().await?;
        // A restart in between: what the node remembers is on its disk.
        cluster.kill9(left)?;
        cluster.restart(left)?;
        let order = ["--all", "--voters", &name, "--accept-loss"];
        cluster
            .until(RECOVERED, "the order is taken", async |cluster: &mut Cluster| {
                recovered(cluster, left, &order).await.map(|_| ())
            })
            .await?;
        let last = cluster.stream_info("TAIL").await?.state.last_sequence;
        let beyond =
            ledger.entries().iter().filter(|e| matches!(e.outcome, Outcome::Acked { seq, .. } if seq > last)).count();
        ensure!(ledger.confirmed() > 1000, "only {} confirmed", ledger.confirmed());
        let report = cluster.report(Verifier::new().ways(&DIRECT_VIEWS), "TAIL", &ledger).await?;
        ensure!(report.lost == beyond as u64, "{beyond} confirmed beyond {last}: not a suffix\n{report}");
        let allowed = [Invariant::Lost, Invariant::WentBack];
        ensure!(report.counts.keys().all(|found| allowed.contains(found)), "{report}");
        Ok(())
    });
}

#[expect(clippy::disallowed_methods, reason = "the node is down, and nothing here survives a crash")]
fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    Ok(fs::rename(from, to)?)
}

/// B12, B93: the two that were given up come back, with their disks and a majority of the old group between them. They
/// are refused for good, and lead nothing.
#[test]
fn b12_lost_majority_that_comes_back_is_harmless() {
    run(async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("BACK", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "BACK", &ledger, LoadOptions::on("BACK")).await?;
        sleep(1500).await;
        let left = cluster.leader_of("BACK").await?;
        let name = cluster.nodes()[left].name().to_owned();
        let gone: Vec<usize> = (0..3).filter(|i| *i != left).collect();
        for i in &gone {
            cluster.kill9(*i)?;
        }
        recovered(cluster, left, &["--all", "--voters", &name, "--accept-loss"]).await?;
        writes_go_on(cluster, &ledger, RECOVERED).await?;
        for i in &gone {
            cluster.restart(*i)?;
        }
        for _ in 0..40 {
            sleep(200).await;
            for i in &gone {
                let Ok(recovery) = cluster.recovery(*i).await else { continue };
                let leads = recovery.groups.iter().find(|group| group.role == "Leader");
                ensure!(leads.is_none(), "n{} was given up, and leads {:?}", i + 1, leads.map(|g| &g.stream));
            }
        }
        for i in &gone {
            // It may have ended already, as whoever is refused for good does at its next start.
            let recovery = cluster.recovery(*i).await?;
            let phases: Vec<_> = recovery.groups.iter().map(|group| group.phase.clone()).collect();
            ensure!(phases.iter().all(|phase| phase == "Quarantined"), "n{}: {phases:?}", i + 1);
            cluster.kill9(*i)?;
            cluster.restart(*i)?;
            let said = cluster.ended(*i, RECOVERED).await?;
            ensure!(said.contains("declared lost"), "{said}");
        }
        for i in &gone {
            let store = cluster.nodes()[*i].store();
            rename(&store, &store.with_extension("old"))?;
            cluster.restart(*i)?;
        }
        cluster.wait_all_recovered(REFILLED).await?;
        load.finish().await?;
        cluster.wait_replicas("BACK").await?;
        cluster.audit_each_leader("BACK", &ledger).await
    });
}

async fn five() -> anyhow::Result<Cluster> {
    let mut cluster = Cluster::prepare(5)?;
    cluster.start_all().await?;
    Ok(cluster)
}

/// B12: a stream loses two of its three nodes while the catalogue has its majority. Both come back with their disks, at
/// once: they are new members of the stream, and their old log counts for nothing.
#[test]
fn b12_stream_goes_on_without_nodes_that_do_come_back() {
    run_on(five(), async |cluster| {
        if !cluster.is_headwater() {
            return Ok(());
        }
        cluster.create_stream(Cluster::stream_config("SOME", 3)).await?;
        let ledger = Ledger::new();
        let load = Load::start(cluster, "SOME", &ledger, LoadOptions::on("SOME")).await?;
        sleep(1500).await;
        let left = cluster.leader_of("SOME").await?;
        let info = cluster.stream_info("SOME").await?;
        let replicas = info.cluster.context("no cluster")?.replicas;
        let is_gone = |i: &usize| replicas.iter().any(|replica| replica.name == cluster.nodes()[*i].name());
        let gone: Vec<usize> = (0..5).filter(is_gone).collect();
        ensure!(gone.len() == 2 && !gone.contains(&left), "{replicas:?}");
        let name = cluster.nodes()[left].name().to_owned();
        for i in &gone {
            cluster.kill9(*i)?;
        }
        let order = ["SOME", "--voters", &name, "--accept-loss"];
        cluster
            .until(RECOVERED, "the order is taken", async |cluster: &mut Cluster| {
                recovered(cluster, left, &order).await.map(|_| ())
            })
            .await?;
        writes_go_on(cluster, &ledger, RECOVERED).await?;
        for i in &gone {
            cluster.restart(*i)?;
        }
        cluster.wait_all_recovered(REFILLED).await?;
        load.finish().await?;
        cluster.wait_replicas("SOME").await?;
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "SOME", &ledger).await?;
        Ok(())
    });
}
