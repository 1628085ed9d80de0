//! `headwater demo`: a stream under load loses two nodes and changes its durability, and everything is counted after.

mod live;
mod load;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use headwater_audit::{Ledger, Report, Verifier, Way};
use headwater_crds::ReplicaRole;
use headwater_plan::ACCOUNT;

use self::live::{Live, Progress, grouped};
use self::load::{Load, connect_only};
use super::dev::keeper::Keeper;
use super::dev::manifests::Manifests;
use super::dev::{members, reconciler, wait_until_ready};
use super::local::{LocalCluster, free_base_port};
use super::recovery::{self, Seen};
use crate::node::stop_signal;
use crate::planner::{AdminClient, Member};

const MANIFEST: &str = include_str!("../../../examples/orders.yaml");
const MANIFEST_NAME: &str = "examples/orders.yaml";
/// The line of the manifest that the demo edits, before and after.
const FLIP: (&str, &str) = ("allowAsyncFlush: true", "allowAsyncFlush: false");
const STREAM: &str = "ORDERS";
const PREFIX: &str = "orders";
const NODES: u16 = 3;

/// How often nodes are looked at.
const PACE: Duration = Duration::from_millis(200);
/// How long a manifest may take to be in force.
const APPLY_PATIENCE: Duration = Duration::from_secs(20);
/// How long the load with both crashes may take.
const LOAD_PATIENCE: Duration = Duration::from_secs(50);
/// How long a killed node stays away.
const ABSENCE: Duration = Duration::from_millis(2_500);
/// How long replicas may take to be equal once nobody publishes.
const SETTLE_PATIENCE: Duration = Duration::from_secs(15);
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Arguments of `headwater demo`.
#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// How many messages must be confirmed before the load ends
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=2_000_000))]
    msgs: u64,
}

pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_signal()?;
    let started = Instant::now();
    let dir = std::env::temp_dir().join(format!("headwater-demo-{}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut cluster = LocalCluster::new(NODES, free_base_port(NODES)?, &dir, true)?;
    let mut live = Live::new();

    let outcome = tokio::select! {
        outcome = act(&mut cluster, &mut live, args.msgs) => Some(outcome),
        () = stop.cancelled() => None,
    };
    live.clear();
    cluster.stop(STOP_PATIENCE).await;
    let code = match outcome {
        None => {
            println!("interrupted");
            ExitCode::from(INTERRUPTED)
        }
        Some(Err(error)) => {
            println!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
        Some(Ok(report)) => conclude(&report, started),
    };
    clean_up(&dir, code != ExitCode::FAILURE);
    Ok(code)
}

fn conclude(report: &Report, started: Instant) -> ExitCode {
    println!();
    println!("  confirmed   {}", grouped(report.confirmed));
    println!("  lost        {}", report.lost);
    println!("  duplicated  {}", report.duplicated);
    println!("  reordered   {}", report.reordered);
    println!("  seconds     {:.1}", started.elapsed().as_secs_f64());
    if report.is_clean() {
        return ExitCode::SUCCESS;
    }
    println!("\nfailed: the audit found");
    for finding in &report.findings {
        println!("  {finding}");
    }
    ExitCode::FAILURE
}

fn clean_up(dir: &Path, remove: bool) {
    if !remove {
        println!("\nthe nodes' data and logs are in {}", dir.display());
    } else if let Err(error) = std::fs::remove_dir_all(dir) {
        println!("{} could not be removed: {error}", dir.display());
    }
}

/// The whole play; `Err` if it could not be played to its end.
async fn act(cluster: &mut LocalCluster, live: &mut Live, msgs: u64) -> anyhow::Result<Report> {
    let client = AdminClient::new(None)?;
    cluster.start()?;
    wait_until_ready(cluster, &client).await?;
    let clients: Vec<String> = cluster.nodes.iter().map(super::local::LocalNode::client_url).collect();
    live.say(&format!("three nodes: {}", clients.join(" ")));

    live.say(&format!("\napplying {MANIFEST_NAME}"));
    let mut keeper = Keeper::new(reconciler(cluster, &client, "headwater-demo"));
    apply(&mut keeper, MANIFEST, live).await?;

    live.say(&format!("\npublishing {} messages of 128 bytes; two nodes are killed meanwhile", grouped(msgs)));
    let ledger = Ledger::new();
    let load = Load::start(&clients, STREAM, PREFIX, msgs, &ledger).await?;
    let mut stage =
        Stage { cluster, live, client: &client, ledger: &ledger, load: &load, progress: Progress::new(msgs), msgs };
    tokio::time::timeout(LOAD_PATIENCE, stage.crashes()).await.map_err(|_| {
        anyhow::anyhow!(
            "the load was not over after {} s: {} confirmed",
            LOAD_PATIENCE.as_secs(),
            grouped(ledger.confirmed())
        )
    })??;
    let sum =
        tokio::time::timeout(LOAD_PATIENCE, load.finish()).await.context("publishers did not come to their end")??;
    live.say(&format!(
        "{} confirmed, {} sent again after a crash, {} without an answer, {} refused; writes stood still for {:.1} s at most",
        grouped(ledger.confirmed()),
        grouped(sum.retries),
        sum.unknown,
        sum.refused,
        sum.longest_gap.as_secs_f64(),
    ));

    live.say(&format!("\nediting the manifest: {} (replica by replica, the leader last)", FLIP.1));
    let flipped = MANIFEST.replacen(FLIP.0, FLIP.1, 1);
    ensure!(flipped != MANIFEST, "{MANIFEST_NAME} no longer says {:?}", FLIP.0);
    apply(&mut keeper, &flipped, live).await?;
    let seen = settled(&client, &members(cluster)).await?;
    live.say(&format!("\n{}", recovery::render(&seen, Some(STREAM)).trim_end()));
    check_roll(&seen)?;

    live.say("\nreading everything back through every node, against the ledger");
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        nodes.push((node.name.clone(), connect_only(&node.client_url()).await?));
    }
    // Single gets cost a round trip per message and node; these two read the same in a fraction of the time.
    let report = Verifier::new().ways(&[Way::DirectBatch, Way::Consumer]).verify(&nodes, STREAM, &ledger).await?;
    live.say(&format!(
        "{} messages read in {} views, {:.1} s",
        grouped(report.read),
        report.views.len(),
        report.seconds
    ));
    Ok(report)
}

/// Has the planner carry a manifest out, and says every step.
async fn apply(keeper: &mut Keeper, manifest: &str, live: &mut Live) -> anyhow::Result<()> {
    let mut manifests = Manifests::default();
    manifests.read(Path::new(MANIFEST_NAME), manifest);
    if let Some(remark) = manifests.remarks.into_iter().find(|r| r.is_error) {
        bail!("{remark}");
    }
    keeper.set(manifests.streams);
    let deadline = Instant::now() + APPLY_PATIENCE;
    let mut last = String::new();
    loop {
        for line in keeper.turn().await {
            live.say(&format!("  {line}"));
            last = line;
        }
        if keeper.is_done() {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the manifest was not in force after {} s; last: {last}",
            APPLY_PATIENCE.as_secs()
        );
        tokio::time::sleep(PACE).await;
    }
}

/// The replicas once all of them have everything.
async fn settled(client: &AdminClient, members: &[Member]) -> anyhow::Result<Vec<Seen>> {
    let deadline = Instant::now() + SETTLE_PATIENCE;
    loop {
        let seen = recovery::look(client, members).await;
        let mut applied = seen.iter().map(|node| {
            let group = node.report.as_ref().ok()?.stream(ACCOUNT, STREAM)?;
            Some((group.watermarks.applied, group.watermarks.applied == group.watermarks.committed))
        });
        let first = applied.next().flatten();
        if recovery::is_recovered(&seen, STREAM) && first.is_some_and(|f| f.1) && applied.all(|a| a == first) {
            return Ok(seen);
        }
        if Instant::now() >= deadline {
            bail!(
                "the replicas are not equal after {} s:\n{}",
                SETTLE_PATIENCE.as_secs(),
                recovery::render(&seen, Some(STREAM))
            );
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Every replica says that it flushes before it confirms, and the group promises it.
fn check_roll(seen: &[Seen]) -> anyhow::Result<()> {
    for node in seen {
        let report = node.report.as_ref().map_err(|why| anyhow::anyhow!("{} does not answer: {why}", node.name))?;
        let group = report.stream(ACCOUNT, STREAM).with_context(|| format!("{} has no replica", node.name))?;
        ensure!(
            !group.effective.allow_async_flush && !group.promise.allow_async_flush,
            "the roll is not complete: {} is {}, the promise is {}",
            node.name,
            group.effective,
            group.promise
        );
    }
    Ok(())
}

/// The load, and the nodes that die under it.
struct Stage<'a> {
    cluster: &'a mut LocalCluster,
    live: &'a mut Live,
    client: &'a AdminClient,
    ledger: &'a Ledger,
    load: &'a Load,
    progress: Progress,
    msgs: u64,
}

impl Stage<'_> {
    /// Kills a follower, then the leader, each in mid-load, and waits until both have recovered and enough is confirmed.
    async fn crashes(&mut self) -> anyhow::Result<()> {
        self.reach(self.msgs / 5).await?;
        let follower = self.find(ReplicaRole::Follower).await?;
        self.crash(follower, "a follower").await?;
        self.reach(self.msgs / 2).await?;
        let leader = self.find(ReplicaRole::Leader).await?;
        self.crash(leader, "the leader").await?;
        self.reach(self.msgs).await
    }

    /// Waits until so many messages are confirmed.
    async fn reach(&mut self, confirmed: u64) -> anyhow::Result<()> {
        while self.ledger.confirmed() < confirmed {
            self.look_after()?;
            self.draw(None);
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// Index of a node whose replica has this role.
    async fn find(&mut self, role: ReplicaRole) -> anyhow::Result<usize> {
        loop {
            let seen = recovery::look(self.client, &members(self.cluster)).await;
            let found = seen.iter().position(|node| {
                let group = node.report.as_ref().ok().and_then(|r| r.stream(ACCOUNT, STREAM));
                group.is_some_and(|g| g.role == role)
            });
            if let Some(i) = found {
                return Ok(i);
            }
            self.look_after()?;
            tokio::time::sleep(PACE).await;
        }
    }

    async fn crash(&mut self, i: usize, who: &str) -> anyhow::Result<()> {
        let name = self.cluster.nodes[i].name.clone();
        let confirmed = grouped(self.ledger.confirmed());
        self.cluster.kill9(i).with_context(|| format!("cannot kill {name}"))?;
        self.live.say(&format!("kill -9 {name}, {who}, at {confirmed} confirmed"));
        let back = Instant::now() + ABSENCE;
        while Instant::now() < back {
            self.look_after()?;
            self.draw(None);
            tokio::time::sleep(PACE).await;
        }
        self.cluster.start_node(i)?;
        let restarted = Instant::now();
        self.live.say(&format!("{name} is started again"));
        loop {
            self.look_after()?;
            let seen = recovery::look(self.client, &members(self.cluster)).await;
            self.draw(Some(&seen));
            if recovery::is_recovered(&seen, STREAM) {
                let confirmed = grouped(self.ledger.confirmed());
                let seconds = restarted.elapsed().as_secs_f64();
                self.live.say(&format!("{name} has recovered after {seconds:.1} s, at {confirmed} confirmed"));
                return Ok(());
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Nobody but us may end nodes or publishers.
    fn look_after(&mut self) -> anyhow::Result<()> {
        if let Some((name, status)) = self.cluster.ended().into_iter().next() {
            bail!("node {name} ended by itself: {status}");
        }
        ensure!(!self.load.has_ended(), "a publisher ended before the load was over");
        Ok(())
    }

    fn draw(&mut self, seen: Option<&[Seen]>) {
        let (mut text, mut key) = self.progress.render(self.ledger.confirmed());
        if let Some(seen) = seen {
            let table = recovery::render(seen, Some(STREAM));
            text = format!("{table}{text}");
            key += &phases(seen);
        }
        self.live.draw(&text, &key);
    }
}

/// The phases of all replicas: what of the table is news.
fn phases(seen: &[Seen]) -> String {
    let phase = |node: &Seen| match &node.report {
        Ok(report) => report.stream(ACCOUNT, STREAM).map_or("none", |g| g.phase.as_str()),
        Err(_) => "unreachable",
    };
    seen.iter().map(|node| format!(" {}", phase(node))).collect()
}
