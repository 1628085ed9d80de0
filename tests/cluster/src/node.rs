//! One node process.

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::server::{Ports, Server};

/// A node of a [`crate::Cluster`]: its place on disk, its ports, and its process if it runs.
#[derive(Debug)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) index: usize,
    pub(crate) ports: Vec<Ports>,
    pub(crate) always: bool,
    /// Environment variables of its next processes.
    pub(crate) env: Vec<(&'static str, &'static str)>,
    child: Option<Child>,
    paused: bool,
}

impl Node {
    pub(crate) fn new(index: usize, ports: Vec<Ports>, dir: PathBuf, always: bool) -> Node {
        Node { name: format!("n{}", index + 1), dir, index, ports, always, env: Vec::new(), child: None, paused: false }
    }

    /// `n1`, `n2`, `n3`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `nats://…` of its client port.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.ports[self.index].client)
    }

    /// `http://…` of its monitoring port.
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[self.index].http)
    }

    /// Its process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Its store directory.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Its log file: standard output and error of every one of its processes.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The file with the rules that its disk is under.
    pub(crate) fn faults(&self) -> PathBuf {
        self.dir.join("faults")
    }

    pub(crate) fn start(&mut self, server: &Server) -> anyhow::Result<()> {
        if self.child.is_some() {
            bail!("{} already runs", self.name);
        }
        fs::create_dir_all(&self.dir)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = server.command(self.index, &self.ports, &self.dir, self.always)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).env_remove("RUST_BACKTRACE");
        command.env("HEADWATER_DISK_FAULTS", self.faults()).envs(self.env.iter().copied());
        self.child = Some(command.spawn().with_context(|| format!("starting {}", self.name))?);
        Ok(())
    }

    /// Fails if the process ended by itself, with the end of its log.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            self.child = None;
            bail!("{} ended by itself ({status}); its log ends:\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// `kill -9`, and waits until the process is gone. A paused one is killed as it stands.
    pub(crate) fn kill9(&mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name))?;
        self.paused = false;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the clean end; fails if it takes longer than `patience` or isn't clean.
    pub(crate) fn stop(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.check_alive()?;
        self.signal(Signal::TERM)?;
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name))?;
        let deadline = Instant::now() + patience;
        let status: ExitStatus = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                bail!("{} did not stop within {patience:?} of SIGTERM; its log ends:\n{}", self.name, self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // nats-server ends with status 1 on SIGTERM; a signal or a panic is what must not be.
        if status.signal().is_some() || status.code().is_some_and(|code| code > 1) {
            bail!("{} stopped with {status}; its log ends:\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)?;
        self.paused = true;
        Ok(())
    }

    pub(crate) fn resume(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)?;
        self.paused = false;
        Ok(())
    }

    /// Whether it runs and isn't paused.
    pub fn is_up(&self) -> bool {
        self.child.is_some() && !self.paused
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process id out of range")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Its log, over all its starts.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may be gone already; either way nothing is left running.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
