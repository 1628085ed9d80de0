//! A cluster of `headwater node` child processes on loopback: what `dev` and `demo` run on.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

/// One child node and where it listens.
pub(crate) struct LocalNode {
    pub(crate) name: String,
    pub(crate) client_port: u16,
    pub(crate) http_port: u16,
    pub(crate) cluster_port: u16,
    pub(crate) dir: PathBuf,
    child: Option<Child>,
}

impl LocalNode {
    pub(crate) fn client_url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http_port)
    }
}

/// Node i = 1…N on `port + i - 1`; HTTP 4000 above, cluster 2000 above. Dropping it kills what still runs.
pub(crate) struct LocalCluster {
    pub(crate) nodes: Vec<LocalNode>,
    /// Where the nodes' own logs go; `None` shows warnings on the terminal.
    quiet: bool,
}

impl LocalCluster {
    /// Lays out the cluster; nothing runs yet. Fails if a port it needs is taken.
    pub(crate) fn new(count: u16, port: u16, dir: &Path, quiet: bool) -> anyhow::Result<Self> {
        if !(1..=5).contains(&count) {
            bail!("--nodes {count}: use 1 to 5");
        }
        let mut nodes = Vec::new();
        for i in 0..count {
            let at = |base: u16| {
                port.checked_add(i)
                    .and_then(|p| p.checked_add(base))
                    .with_context(|| format!("--port {port}: too high"))
            };
            let (client_port, http_port, cluster_port) = (at(0)?, at(4000)?, at(2000)?);
            for taken in [client_port, http_port, cluster_port] {
                std::net::TcpListener::bind(("127.0.0.1", taken))
                    .with_context(|| format!("port {taken}, needed by node n{}, is not free", i + 1))?;
            }
            let name = format!("n{}", i + 1);
            nodes.push(LocalNode { dir: dir.join(&name), name, client_port, http_port, cluster_port, child: None });
        }
        Ok(Self { nodes, quiet })
    }

    fn peers(&self) -> String {
        let seeds = self.nodes.iter().map(|n| format!("{}=127.0.0.1:{}", n.name, n.cluster_port));
        seeds.collect::<Vec<_>>().join(",")
    }

    /// Starts every node that does not run.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        for i in 0..self.nodes.len() {
            self.start_node(i)?;
        }
        Ok(())
    }

    pub(crate) fn start_node(&mut self, i: usize) -> anyhow::Result<()> {
        let peers = self.peers();
        let alone = self.nodes.len() == 1;
        let node = &mut self.nodes[i];
        if node.child.is_some() {
            return Ok(());
        }
        let exe = std::env::current_exe().context("cannot find the headwater binary")?;
        let mut command = Command::new(exe);
        command
            .arg("node")
            .args(["--name", &node.name])
            .args(["--listen", &format!("127.0.0.1:{}", node.client_port)])
            .args(["--http", &format!("127.0.0.1:{}", node.http_port)])
            .args(["--cluster-listen", &format!("127.0.0.1:{}", node.cluster_port)])
            .arg("--store-dir")
            .arg(&node.dir)
            // The child ends itself when this process is gone, however it went.
            .env("HEADWATER_PARENT", std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if !alone {
            command.args(["--peers", &peers]);
        }
        if self.quiet {
            let log = node.dir.with_extension("log");
            let file = std::fs::OpenOptions::new().create(true).append(true).open(&log);
            command.stderr(file.with_context(|| format!("cannot write {}", log.display()))?);
        } else if std::env::var_os("HEADWATER_LOG").is_none() {
            command.env("HEADWATER_LOG", format!("warn,{}", crate::raft::LOG_FILTER));
        }
        // Ctrl-C goes to this process alone, which then stops its nodes in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        node.child = Some(command.spawn().with_context(|| format!("cannot start node {}", node.name))?);
        Ok(())
    }

    /// `kill -9`, and waits until the process is gone.
    pub(crate) fn kill9(&mut self, i: usize) -> io::Result<()> {
        if let Some(mut child) = self.nodes[i].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Nodes that ended by themselves since the last call, with how.
    pub(crate) fn ended(&mut self) -> Vec<(String, ExitStatus)> {
        let mut ended = Vec::new();
        for node in &mut self.nodes {
            if let Some(child) = &mut node.child
                && let Ok(Some(status)) = child.try_wait()
            {
                node.child = None;
                ended.push((node.name.clone(), status));
            }
        }
        ended
    }

    /// SIGTERM to all, then waits; kills what has not stopped after `patience`.
    pub(crate) async fn stop(&mut self, patience: Duration) {
        for node in &self.nodes {
            if let Some(child) = &node.child
                && let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed())
            {
                // It may have ended already.
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        let deadline = tokio::time::Instant::now() + patience;
        for node in &mut self.nodes {
            let Some(mut child) = node.child.take() else { continue };
            while matches!(child.try_wait(), Ok(None)) {
                if tokio::time::Instant::now() >= deadline {
                    // It did not stop in time; its log is as safe as after kill -9.
                    let _gone = child.kill();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(child) = &mut node.child {
                // Best effort: the child also watches for this process's end.
                let _gone = child.kill().and_then(|()| child.wait());
            }
        }
    }
}

/// A run of ports for `count` nodes that is free now: client, cluster (+2000) and HTTP (+4000).
pub(crate) fn free_base_port(count: u16) -> anyhow::Result<u16> {
    let start = 20_000 + u16::try_from(std::process::id() % 20_000).expect("below 20 000");
    (0..200_u16)
        .map(|step| 20_000 + (start - 20_000 + step * 16) % 20_000)
        .find(|base| {
            (0..count).all(|i| {
                [0, 2000, 4000].iter().all(|d| std::net::TcpListener::bind(("127.0.0.1", base + d + i)).is_ok())
            })
        })
        .context("found no free ports between 20000 and 46000")
}
