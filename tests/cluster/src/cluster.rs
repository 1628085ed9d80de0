//! A cluster of node processes.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use async_nats::jetstream::stream::{Config, Info};
use async_nats::{Client, ConnectOptions, jetstream};
use bytes::Bytes;
use headwater_audit::{Ledger, Report, Verifier, Way};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin::{Recovery, transfer};
use crate::node::Node;
use crate::ports::free_port;
use crate::power_disk::{COMMITS, PowerDisk, SYNCS_ONLY};
use crate::sampler::Sampler;
use crate::server::{Ports, Server};
use crate::small_disk::SmallDisk;

/// Everything but single gets: for audits of many messages.
pub const DIRECT_VIEWS: [Way; 2] = [Way::DirectBatch, Way::Consumer];

/// Measures how long something took, with a limit. Only failing says more than a number.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts.
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Fails if more than `limit` has passed.
    ///
    /// # Errors
    /// Then.
    pub fn within(&self, limit: Duration, what: &str) -> anyhow::Result<Duration> {
        let took = self.0.elapsed();
        ensure!(took <= limit, "{what} took {took:.1?}, allowed are {limit:?}");
        Ok(took)
    }
}

/// Nodes, indexed from 0.
pub struct Cluster {
    server: Server,
    nodes: Vec<Node>,
    /// Dropped after the processes that use them.
    disks: Vec<SmallDisk>,
    power: Vec<PowerDisk>,
    dir: Option<TempDir>,
    http: reqwest::Client,
}

impl Cluster {
    /// Starts three nodes and waits until JetStream answers.
    ///
    /// # Errors
    /// If there's no binary to test, or the cluster doesn't come up within 30 s.
    pub async fn start() -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::prepare(3)?;
        cluster.start_all().await?;
        Ok(cluster)
    }

    /// Directories and ports for `count` nodes; none is started.
    ///
    /// # Errors
    /// If there's no binary to test, no port or no directory.
    pub fn prepare(count: usize) -> anyhow::Result<Cluster> {
        Cluster::prepare_of(Server::find()?, false, count)
    }

    /// As [`Cluster::prepare`], of that server; `always` has the reference sync before it confirms.
    fn prepare_of(server: Server, always: bool, count: usize) -> anyhow::Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("headwater-cluster-").tempdir()?;
        let ports: Vec<Ports> = (0..count)
            .map(|_| Ok(Ports { client: free_port()?, http: free_port()?, cluster: free_port()? }))
            .collect::<anyhow::Result<_>>()?;
        let nodes =
            (0..count).map(|i| Node::new(i, ports.clone(), dir.path().join(format!("n{}", i + 1)), always)).collect();
        Ok(Cluster {
            server,
            nodes,
            disks: Vec::new(),
            power: Vec::new(),
            dir: Some(dir),
            http: reqwest::Client::new(),
        })
    }

    /// Three nodes, each with its store on a file system of `bytes`; see [`SmallDisk::is_possible`].
    ///
    /// # Errors
    /// As [`Cluster::start`], or if one can't be mounted.
    pub async fn on_small_disks(bytes: u64) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::prepare(3)?;
        cluster.disks =
            cluster.nodes.iter().map(|node| SmallDisk::mount(&node.store(), bytes)).collect::<Result<_, _>>()?;
        cluster.start_all().await?;
        Ok(cluster)
    }

    /// `count` nodes, each with its store on an image of `bytes` whose power can be cut; see [`SmallDisk::is_possible`].
    ///
    /// # Errors
    /// As [`Cluster::start`], or if one can't be mounted.
    pub async fn on_power_disks(count: usize, bytes: u64) -> anyhow::Result<Cluster> {
        Cluster::prepare(count)?.mount_power_disks(bytes, SYNCS_ONLY).await
    }

    /// Three nodes of that server, as [`Cluster::on_power_disks`], but on file systems that commit when they like to.
    /// `always` has the reference sync before it confirms.
    ///
    /// # Errors
    /// As [`Cluster::on_power_disks`].
    pub async fn beside(server: Server, always: bool, bytes: u64) -> anyhow::Result<Cluster> {
        Cluster::prepare_of(server, always, 3)?.mount_power_disks(bytes, COMMITS).await
    }

    async fn mount_power_disks(mut self, bytes: u64, commit: u32) -> anyhow::Result<Cluster> {
        let mount = |node: &Node| PowerDisk::mount(&node.store(), bytes, commit);
        self.power = self.nodes.iter().map(mount).collect::<Result<_, _>>()?;
        self.start_all().await?;
        Ok(self)
    }

    /// Cuts the power of these nodes at one moment: they are killed, and their disks hold what was synced. The nodes are
    /// not started again.
    ///
    /// # Errors
    /// If one doesn't run, or a disk can't be copied and mounted.
    pub fn cut_power(&mut self, nodes: &[usize]) -> anyhow::Result<()> {
        for i in nodes {
            self.pause(*i)?;
        }
        for i in nodes {
            self.power[*i].cut()?;
        }
        for i in nodes {
            self.kill9(*i)?;
            self.power[*i].power_on()?;
        }
        Ok(())
    }

    /// The file system of node `i`'s store, if the cluster was started on small ones.
    pub fn disk(&self, i: usize) -> &SmallDisk {
        &self.disks[i]
    }

    /// Waits until node `i` has ended by itself; returns the end of its log.
    ///
    /// # Errors
    /// If it goes on for longer than `limit`.
    pub async fn ended(&mut self, i: usize, limit: Duration) -> anyhow::Result<String> {
        self.until(limit, &format!("n{} ends", i + 1), async |cluster: &mut Cluster| {
            ensure!(cluster.nodes[i].check_alive().is_err(), "it runs");
            Ok(())
        })
        .await?;
        Ok(self.nodes[i].log_tail())
    }

    /// Whether the server under test is Headwater, with its admin API and durability settings.
    pub fn is_headwater(&self) -> bool {
        matches!(self.server, Server::Headwater(_))
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Starts every node that doesn't run, and waits until JetStream answers.
    ///
    /// # Errors
    /// If it doesn't within 30 s.
    pub async fn start_all(&mut self) -> anyhow::Result<()> {
        for node in self.nodes.iter_mut().filter(|node| node.pid().is_none()) {
            node.start(&self.server)?;
        }
        self.wait_jetstream().await
    }

    /// Waits until JetStream answers on any node.
    ///
    /// # Errors
    /// If it doesn't within 30 s.
    pub async fn wait_jetstream(&mut self) -> anyhow::Result<()> {
        let client = self.any_client().await?;
        self.until(Duration::from_secs(30), "JetStream answers", async |cluster: &mut Cluster| {
            cluster.check_alive()?;
            let info = api(&client, "INFO", &json!({})).await?;
            ensure!(info.get("error").is_none() && info.get("limits").is_some(), "INFO answers {info}");
            Ok(())
        })
        .await
    }

    /// Puts node `i`'s disk under these rules, a line each, from its next operation on: see
    /// `node/storage/src/disk/faulty.rs`. Only debug builds of the server follow them.
    ///
    /// # Errors
    /// If they can't be written.
    pub fn set_faults(&self, i: usize, rules: &str) -> anyhow::Result<()> {
        let file = self.nodes[i].faults();
        // At once, or half a rule might be read.
        let next = file.with_extension("next");
        fs::File::create(&next)?.write_all(rules.as_bytes())?;
        #[expect(clippy::disallowed_methods, reason = "no file of a store")]
        Ok(fs::rename(next, file)?)
    }

    /// Ends what [`Cluster::set_faults`] began.
    ///
    /// # Errors
    /// If there are no rules.
    pub fn no_faults(&self, i: usize) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.nodes[i].faults())?)
    }

    /// Sets an environment variable of all nodes' next processes.
    pub fn set_env(&mut self, name: &'static str, value: &'static str) {
        for node in &mut self.nodes {
            node.env.push((name, value));
        }
    }

    /// `kill -9` of node `i`; returns when the process is gone.
    ///
    /// # Errors
    /// If it doesn't run, or had ended by itself.
    pub fn kill9(&mut self, i: usize) -> anyhow::Result<()> {
        self.nodes[i].kill9()
    }

    /// `kill -9` of every node that runs, as nearly at once as can be.
    ///
    /// # Errors
    /// If one had ended by itself.
    pub fn kill_all(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().filter(|node| node.pid().is_some()).try_for_each(Node::kill9)
    }

    /// A clean stop (SIGTERM) of node `i`.
    ///
    /// # Errors
    /// If it isn't clean, or takes more than 20 s.
    pub fn stop(&mut self, i: usize) -> anyhow::Result<()> {
        self.nodes[i].stop(Duration::from_secs(20))
    }

    /// Starts node `i` again on its directory.
    ///
    /// # Errors
    /// If it runs already or can't be spawned.
    pub fn restart(&mut self, i: usize) -> anyhow::Result<()> {
        self.nodes[i].start(&self.server)
    }

    /// Stops the process (SIGSTOP): alive, but silent.
    ///
    /// # Errors
    /// If it doesn't run.
    pub fn pause(&mut self, i: usize) -> anyhow::Result<()> {
        self.nodes[i].pause()
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    /// If it doesn't run.
    pub fn cont(&mut self, i: usize) -> anyhow::Result<()> {
        self.nodes[i].resume()
    }

    /// Removes the whole store of node `i`, which must not run.
    ///
    /// # Errors
    /// If it runs, or the directory can't be removed.
    pub fn wipe(&mut self, i: usize) -> anyhow::Result<()> {
        ensure!(self.nodes[i].pid().is_none(), "{} runs", self.nodes[i].name());
        Ok(fs::remove_dir_all(self.nodes[i].store())?)
    }

    /// Fails if any node that should run has ended by itself.
    ///
    /// # Errors
    /// Then, with the end of its log.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(Node::check_alive)
    }

    /// A client of node `i` only.
    ///
    /// # Errors
    /// If it can't connect within 10 s.
    pub async fn client(&self, i: usize) -> anyhow::Result<Client> {
        connect(vec![self.nodes[i].url()]).await
    }

    /// A client that uses whichever node is there.
    ///
    /// # Errors
    /// If it can't connect to any within 10 s.
    pub async fn any_client(&self) -> anyhow::Result<Client> {
        connect(self.urls()).await
    }

    /// Where clients connect.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// JetStream through [`Cluster::any_client`].
    ///
    /// # Errors
    /// As there.
    pub async fn jetstream(&self) -> anyhow::Result<jetstream::Context> {
        Ok(jetstream::new(self.any_client().await?))
    }

    /// Creates a stream, trying again while the cluster has no leader or hasn't heard of all peers.
    ///
    /// # Errors
    /// If it can't be created within 20 s.
    pub async fn create_stream(&mut self, config: Config) -> anyhow::Result<()> {
        let context = self.jetstream().await?;
        self.until(Duration::from_secs(20), "the stream is created", async |_: &mut Cluster| {
            context.create_stream(config.clone()).await?;
            Ok(())
        })
        .await
    }

    /// A file stream with direct gets, subjects `<name>.>`.
    pub fn stream_config(name: &str, replicas: usize) -> Config {
        Config {
            name: name.to_owned(),
            subjects: vec![format!("{name}.>")],
            num_replicas: replicas,
            allow_direct: true,
            ..Config::default()
        }
    }

    /// The stream's information, from its leader.
    ///
    /// # Errors
    /// If none answers within 15 s.
    pub async fn stream_info(&mut self, stream: &str) -> anyhow::Result<Info> {
        let context = self.jetstream().await?;
        self.until(Duration::from_secs(15), "stream info is answered", async |_: &mut Cluster| {
            Ok(context.get_stream(stream).await?.get_info().await?)
        })
        .await
    }

    /// The node that leads the stream.
    ///
    /// # Errors
    /// If there's none within 15 s.
    pub async fn leader_of(&mut self, stream: &str) -> anyhow::Result<usize> {
        let context = self.jetstream().await?;
        self.until(Duration::from_secs(15), "the stream has a leader", async |cluster: &mut Cluster| {
            let info = context.get_stream(stream).await?.get_info().await?;
            let leader = info.cluster.and_then(|cluster| cluster.leader).context("no leader")?;
            let found = cluster.nodes.iter().position(|node| node.name() == leader && node.is_up());
            found.with_context(|| format!("the leader {leader:?} is no node that runs"))
        })
        .await
    }

    /// What node `i` says of its recovery.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub async fn recovery(&self, i: usize) -> anyhow::Result<Recovery> {
        Recovery::get(&self.http, &self.nodes[i].http()).await
    }

    /// Moves the stream's leadership to node `to`, and waits until it's there.
    ///
    /// # Errors
    /// If it isn't within 15 s.
    pub async fn lead(&mut self, stream: &str, to: usize) -> anyhow::Result<()> {
        let (client, name) = (self.any_client().await?, self.nodes[to].name().to_owned());
        self.until(Duration::from_secs(15), &format!("{name} leads {stream}"), async |cluster: &mut Cluster| {
            let from = cluster.leader_of(stream).await?;
            if from == to {
                return Ok(());
            }
            if cluster.is_headwater() {
                let (http, from) = (cluster.nodes[from].http(), cluster.nodes[from].name().to_owned());
                transfer(&cluster.http, &http, stream, &from, &name).await?;
            } else {
                api(&client, &format!("STREAM.LEADER.STEPDOWN.{stream}"), &json!({"placement": {"preferred": name}}))
                    .await?;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            ensure!(cluster.leader_of(stream).await? == to, "leadership did not move");
            Ok(())
        })
        .await
    }

    /// The whole AUDIT: every node leads in turn, and everything is read from every node each time.
    ///
    /// # Errors
    /// If a node can't be made leader, or an audit isn't clean.
    pub async fn audit_each_leader(&mut self, stream: &str, ledger: &Ledger) -> anyhow::Result<()> {
        for i in 0..self.nodes.len() {
            self.lead(stream, i).await?;
            self.wait_replicas(stream).await?;
            // Stream gets are what the leader answers; the other ways were read at the first turn.
            let ways: &[Way] = if i == 0 { &Way::ALL } else { &[Way::StreamGet] };
            self.audit_with(Verifier::new().ways(ways), stream, ledger).await?;
        }
        Ok(())
    }

    /// Waits until node `i` says it's recovered; returns how long that took.
    ///
    /// # Errors
    /// If it doesn't within `limit`, or ends.
    pub async fn wait_recovered(&mut self, i: usize, limit: Duration) -> anyhow::Result<Duration> {
        let watch = Stopwatch::start();
        self.until(limit, &format!("n{} is recovered", i + 1), async |cluster: &mut Cluster| {
            cluster.check_alive()?;
            if cluster.is_headwater() {
                let recovery = cluster.recovery(i).await?;
                let phases: Vec<_> =
                    recovery.groups.iter().map(|group| (group.stream.clone(), group.phase.clone())).collect();
                ensure!(recovery.is_recovered(), "phases are {phases:?}");
            } else {
                let url = format!("{}/healthz", cluster.nodes[i].http());
                cluster.http.get(url).timeout(Duration::from_secs(2)).send().await?.error_for_status()?;
            }
            Ok(())
        })
        .await?;
        watch.within(limit, "recovery")
    }

    /// Waits until every node is recovered.
    ///
    /// # Errors
    /// If one isn't within `limit`.
    pub async fn wait_all_recovered(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        for i in 0..self.nodes.len() {
            self.wait_recovered(i, deadline.saturating_duration_since(Instant::now())).await?;
        }
        Ok(())
    }

    /// Waits until every replica of the stream has what the leader has, by the leader's account.
    ///
    /// # Errors
    /// If one hasn't within 15 s.
    pub async fn wait_replicas(&mut self, stream: &str) -> anyhow::Result<()> {
        let context = self.jetstream().await?;
        self.until(Duration::from_secs(15), "all replicas are current", async |_: &mut Cluster| {
            let info = context.get_stream(stream).await?.get_info().await?;
            let replicas = info.cluster.map(|cluster| cluster.replicas).unwrap_or_default();
            ensure!(replicas.len() + 1 == info.config.num_replicas, "{} followers known", replicas.len());
            ensure!(replicas.iter().all(|replica| replica.current && replica.lag.unwrap_or(0) == 0), "{replicas:?}");
            Ok(())
        })
        .await
    }

    /// Reads everything back from every node and compares it with the ledger; fails unless clean.
    ///
    /// # Errors
    /// Then, with the report.
    pub async fn audit(&self, stream: &str, ledger: &Ledger) -> anyhow::Result<Report> {
        self.audit_with(Verifier::new(), stream, ledger).await
    }

    /// As [`Cluster::audit`], with the verifier's options.
    ///
    /// # Errors
    /// As there.
    pub async fn audit_with(&self, verifier: Verifier, stream: &str, ledger: &Ledger) -> anyhow::Result<Report> {
        let report = self.report(verifier, stream, ledger).await?;
        ensure!(report.confirmed > 0, "the ledger is empty: nothing was tested");
        ensure!(report.is_clean(), "the audit of {stream} found:\n{report}");
        Ok(report)
    }

    /// The audit's report, clean or not.
    ///
    /// # Errors
    /// If a node can't be reached.
    pub async fn report(&self, verifier: Verifier, stream: &str, ledger: &Ledger) -> anyhow::Result<Report> {
        let mut clients = Vec::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_up()) {
            clients.push((node.name().to_owned(), self.client(i).await?));
        }
        Ok(verifier.verify(&clients, stream, ledger).await?)
    }

    /// Starts sampling the watermarks of every node.
    pub fn sample(&self) -> Sampler {
        Sampler::start(self.nodes.iter().map(|node| (node.name().to_owned(), node.http())).collect())
    }

    /// Tries `attempt` every 100 ms until it succeeds.
    ///
    /// # Errors
    /// If it hasn't within `limit`: the last attempt's error.
    pub async fn until<T>(
        &mut self,
        limit: Duration,
        what: &str,
        mut attempt: impl AsyncFnMut(&mut Cluster) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            match attempt(self).await {
                Ok(value) => return Ok(value),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error.context(format!("waited {limit:?} until {what}")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear(); // kills them
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            let kept: PathBuf = dir.keep();
            // The test has failed already; it can't fail for not being able to say where.
            let _ = writeln!(io::stderr(), "kept: logs and stores in {}", kept.display());
        }
    }
}

/// A client of any of `servers`, tried for 10 s.
pub(crate) async fn connect(servers: Vec<String>) -> anyhow::Result<Client> {
    let only_one = servers.len() == 1;
    let mut options = ConnectOptions::new()
        .connection_timeout(Duration::from_secs(2))
        .ping_interval(Duration::from_secs(2))
        .request_timeout(Some(Duration::from_secs(3)))
        .reconnect_delay_callback(|attempts| Duration::from_millis(if attempts < 2 { 10 } else { 100 }));
    if only_one {
        options = options.ignore_discovered_servers();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match options.clone().connect(servers.clone()).await {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() >= deadline => bail!("connecting to {servers:?}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// One JetStream API request, its answer as JSON.
///
/// # Errors
/// If there's no answer within 3 s, or it isn't JSON.
pub async fn api(client: &Client, subject: &str, body: &Value) -> anyhow::Result<Value> {
    let answer = client.request(format!("$JS.API.{subject}"), Bytes::from(body.to_string())).await?;
    Ok(serde_json::from_slice(&answer.payload)?)
}
