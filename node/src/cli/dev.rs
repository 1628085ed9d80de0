//! `headwater dev`: a cluster on this machine that keeps streams as manifests say. Kubernetes is not needed.

pub(crate) mod keeper;
pub(crate) mod manifests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use self::keeper::Keeper;
use self::manifests::{ManifestFiles, Manifests};
use super::local::LocalCluster;
use crate::planner::{AdminClient, Fleet, Member, Reconciler};

/// How often manifests are compared and children looked after.
const PACE: Duration = Duration::from_millis(500);
/// Pause between two looks at the streams while all is as wanted.
const SETTLED_PACE: Duration = Duration::from_secs(3);
/// How long the nodes have to become ready.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long they have to stop; a node's own grace is 25 s, and it takes a fraction of a second.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// How long a stop waits until the fence is given back; without that the next start takes it over all the same.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a node that ended by itself is started again: the first, and the longest.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A node that ran this long before it ended is started again after the first pause.
const STABLE: Duration = Duration::from_secs(60);

/// Arguments of `headwater dev`.
#[derive(clap::Args)]
pub(crate) struct DevArgs {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=5))]
    nodes: u16,
    /// Client port of the first node; HTTP is 4000 above, the cluster's own port 2000 above, further nodes follow
    #[arg(long, default_value_t = 4222, value_parser = clap::value_parser!(u16).range(1..=61_000))]
    port: u16,
    /// Folder for the data [default: headwater/dev in the user's data folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// File with Stream manifests; read again when it changes; may be given several times. One that is wrong holds back
    /// all others: nothing is started, or, after a change, all streams are kept as they were, until every one is right
    #[arg(short, long = "file", value_name = "FILE")]
    file: Vec<PathBuf>,
}

pub(crate) async fn run(args: DevArgs) -> anyhow::Result<ExitCode> {
    let stop = crate::node::stop_signal()?;
    let dir = match args.dir {
        Some(dir) => dir,
        None => default_dir()?,
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("--dir {}: cannot create it", dir.display()))?;
    same_size(&dir, args.nodes)?;
    let mut files = ManifestFiles::new(args.file);
    let manifests = files.changed().unwrap_or_default();
    if manifests.has_errors() {
        for remark in &manifests.remarks {
            eprintln!("headwater: {remark}");
        }
        return Ok(ExitCode::from(super::USAGE));
    }
    let mut cluster = LocalCluster::new(args.nodes, args.port, &dir, false)?;
    let client = AdminClient::new(None)?;

    let mut keeper = Keeper::new(reconciler(&cluster, &client, "headwater-dev"));

    let worked = tokio::select! {
        result = work(&mut cluster, &client, &dir, &mut keeper, files, manifests) => result,
        () = stop.cancelled() => {
            println!("\nstopping");
            Ok(())
        }
    };
    // Whether the nodes still answer or not, they are stopped.
    let _released_or_late = tokio::time::timeout(RELEASE_PATIENCE, keeper.release()).await;
    cluster.stop(STOP_PATIENCE).await;
    worked?;
    println!("stopped; the data stays in {}", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Starts the nodes and looks after them and the streams; ends only with an error.
async fn work(
    cluster: &mut LocalCluster,
    client: &AdminClient,
    dir: &Path,
    keeper: &mut Keeper,
    mut files: ManifestFiles,
    first: Manifests,
) -> anyhow::Result<()> {
    cluster.start()?;
    wait_until_ready(cluster, client).await?;
    print_header(cluster, dir);

    let mut nurses: Vec<Nurse> = cluster.nodes.iter().map(|_| Nurse::default()).collect();
    take_over(keeper, first);
    let mut looked: Option<Instant> = None;
    loop {
        tend(cluster, &mut nurses)?;
        if let Some(changed) = files.changed() {
            println!("manifests changed");
            take_over(keeper, changed);
            looked = None;
        }
        if looked.is_none_or(|at| !keeper.is_done() || at.elapsed() >= SETTLED_PACE) {
            for line in keeper.turn().await {
                println!("{line}");
            }
            looked = Some(Instant::now());
        }
        tokio::time::sleep(PACE).await;
    }
}

fn take_over(keeper: &mut Keeper, manifests: Manifests) {
    for remark in &manifests.remarks {
        println!("{}{remark}", if remark.is_error { "error: " } else { "note: " });
    }
    if manifests.has_errors() {
        // A half-written file must not look like one that no longer wants its streams.
        println!("the streams are kept as the manifests said before");
        return;
    }
    for line in keeper.set(manifests.streams) {
        println!("{line}");
    }
}

/// Who keeps the streams of a local cluster.
///
/// The fence is asked for under a name without anything of this process, so that a start after a crash goes on with the
/// fence of the process before it instead of waiting for its end. There is no second one to be kept apart: a local
/// cluster's nodes are children of the one process that asks, and end with it.
pub(crate) fn reconciler(cluster: &LocalCluster, client: &AdminClient, holder: &str) -> Reconciler {
    Reconciler::new(Fleet::new(client.clone(), members(cluster), holder.to_owned()))
}

pub(crate) fn members(cluster: &LocalCluster) -> Vec<Member> {
    cluster.nodes.iter().map(|n| Member { name: n.name.clone(), url: n.admin_url() }).collect()
}

/// Waits until every node takes clients and knows all the others. Fails if one of them ends.
pub(crate) async fn wait_until_ready(cluster: &mut LocalCluster, client: &AdminClient) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        if let Some((name, status)) = cluster.ended().into_iter().next() {
            bail!("node {name} ended while it started: {status}");
        }
        let mut missing = Vec::new();
        for node in &cluster.nodes {
            let url = node.admin_url();
            let known = client.members(&url).await.map_or(0, |members| members.len());
            if known < cluster.nodes.len() || !client.is_ready(&url).await {
                missing.push(node.name.clone());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{} were not ready after {} s", missing.join(", "), START_PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn print_header(cluster: &LocalCluster, dir: &Path) {
    let clients: Vec<String> = cluster.nodes.iter().map(super::local::LocalNode::client_url).collect();
    let admins: Vec<String> = cluster.nodes.iter().map(super::local::LocalNode::admin_url).collect();
    let (Some(client), Some(admin)) = (clients.first(), admins.first()) else { return };
    let plural = if clients.len() == 1 { "" } else { "s" };
    println!(
        "Headwater {}: {} node{plural} on this machine. Ctrl-C stops; the data stays.",
        env!("CARGO_PKG_VERSION"),
        clients.len()
    );
    println!();
    println!("  clients  {}", clients.join(","));
    println!("  admin    {}", admins.join(" "));
    println!("  data     {}", dir.display());
    println!();
    println!("  nats --server {client} stream ls");
    println!("  headwater recovery --url {admin} --watch");
    println!();
}

/// Looks after one child that may crash.
#[derive(Default)]
struct Nurse {
    started: Option<Instant>,
    pause: Option<Duration>,
    due: Option<Instant>,
}

impl Nurse {
    /// The child has ended: when to start it again.
    fn ended(&mut self, now: Instant) -> Duration {
        let was_stable = self.started.is_none_or(|at| now.duration_since(at) >= STABLE);
        let pause = match self.pause {
            Some(last) if !was_stable => (last * 2).min(RESTART_PAUSE.1),
            _ => RESTART_PAUSE.0,
        };
        self.pause = Some(pause);
        self.due = Some(now + pause);
        pause
    }

    /// Whether it is to be started now.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = self.due.is_some_and(|at| at <= now);
        if due {
            self.due = None;
            self.started = Some(now);
        }
        due
    }
}

fn tend(cluster: &mut LocalCluster, nurses: &mut [Nurse]) -> anyhow::Result<()> {
    let now = Instant::now();
    for (name, status) in cluster.ended() {
        let nurse = cluster.nodes.iter().zip(nurses.iter_mut()).find(|(node, _)| node.name == name);
        if let Some((_, nurse)) = nurse {
            let pause = nurse.ended(now);
            println!("{name} ended ({status}); it is started again in {} s", pause.as_secs());
        }
    }
    for (i, nurse) in nurses.iter_mut().enumerate() {
        if nurse.is_due(now) {
            cluster.start_node(i)?;
        }
    }
    Ok(())
}

fn default_dir() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("headwater/dev"))
        .context("neither XDG_DATA_HOME nor HOME is set: name a folder with --dir")
}

/// The data of three nodes is no use to one: that would be a cluster without its quorum.
fn same_size(dir: &Path, nodes: u16) -> anyhow::Result<()> {
    let found = (1..=u16::from(u8::MAX)).take_while(|i| dir.join(format!("n{i}")).is_dir()).count();
    if found > 0 && found != usize::from(nodes) {
        bail!("{} holds the data of {found} nodes: use --nodes {found}, or another --dir", dir.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_keeps_crashing_is_started_ever_later() {
        let (mut nurse, start) = (Nurse::default(), Instant::now());
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            pauses.push(nurse.ended(now).as_secs());
            assert!(!nurse.is_due(now));
            now += Duration::from_secs(30);
            assert!(nurse.is_due(now) && !nurse.is_due(now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(nurse.ended(now + STABLE).as_secs(), 1, "it ran well for a while");
    }

    #[test]
    fn data_of_another_number_of_nodes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(same_size(dir.path(), 3).is_ok());
        for name in ["n1", "n2", "n3"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert!(same_size(dir.path(), 3).is_ok());
        let why = same_size(dir.path(), 1).unwrap_err().to_string();
        assert!(why.contains("--nodes 3"), "{why}");
    }
}
