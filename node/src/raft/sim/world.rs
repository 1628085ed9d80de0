//! The cluster, its clients, and what befalls them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use headwater_core::durability::SyncMode;
use headwater_core::ids::{StreamSeq, Timestamp};
use headwater_core::stream::{Command, DeleteMessage, Purge};
use headwater_storage::disk::{Fault as DiskFault, SimDisk};
use openraft::ChangeMembers;
use parking_lot::Mutex;

use super::member::{Fate, GROUP, Pace, Running, SimReplica};
use super::net::Net;
use super::watch::Watch;
use super::{Rng, spawn};

/// How long faults go on, in simulated milliseconds.
const FAULTS_MS: u64 = 30_000;
/// Until everything is well again after the last fault, in simulated milliseconds.
const HEAL_MS: u64 = 60_000;
/// Until a leader that was cut off for a moment confirms again, in simulated milliseconds.
const RESUME_MS: u64 = 12_000;
const CLIENTS: u64 = 3;

/// What one run, or many, came to.
#[derive(Default)]
pub(super) struct Report {
    pub(super) trace: u64,
    confirmed: usize,
    leaders: usize,
    counts: BTreeMap<&'static str, usize>,
}

impl Report {
    pub(super) fn add(&mut self, other: &Self) {
        self.confirmed += other.confirmed;
        self.leaders += other.leaders;
        for (what, n) in &other.counts {
            *self.counts.entry(what).or_default() += n;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages confirmed, {} terms with a leader;", self.confirmed, self.leaders)?;
        self.counts.iter().try_for_each(|(what, n)| write!(f, " {what} {n}"))
    }
}

struct Node {
    disk: SimDisk,
    raft_id: u64,
    running: Option<Running>,
    /// Starts again at this time.
    due: Option<u64>,
    /// Its disk was told to fail, which only a new life ends.
    faulty: bool,
    /// How far its log was purged when last looked at.
    purged: u64,
    /// Its term when last looked at.
    term: u64,
}

struct World {
    nodes: Mutex<Vec<Node>>,
    net: Net,
    watch: Arc<Watch>,
    mode: SyncMode,
    /// Log entries kept behind `persisted`: with few of them, snapshots travel.
    keep: u64,
    lives: AtomicU64,
    started: tokio::time::Instant,
    quiet: AtomicBool,
}

impl World {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).expect("minutes")
    }

    /// What the clock of a node says: none is right.
    fn clock(&self, node: usize) -> Timestamp {
        let skew = (node as u64 % 3) * 700_000_000;
        Timestamp::new(1_700_000_000_000_000_000 + self.now_ms() * 1_000_000 + skew)
    }

    async fn start(&self, node: usize, rng: &mut Rng) -> Result<(), String> {
        let (disk, raft_id) = {
            let nodes = self.nodes.lock();
            (nodes[node].disk.clone(), nodes[node].raft_id)
        };
        let life = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        let pace = Pace { mode: self.mode, seed: rng.next(), slow: 1 + rng.below(8) / 7 * 20, keep: self.keep };
        let started = Running::start(node, raft_id, life, &disk, &self.net, &self.watch, pace);
        let started = started.await;
        let mut nodes = self.nodes.lock();
        nodes[node].due = None;
        match started {
            Ok(running) => {
                self.watch.happened(self.now_ms(), format_args!("node {node} runs as {raft_id}, life {life}"));
                nodes[node].running = Some(running);
            }
            Err(_) if nodes[node].faulty => {
                drop(nodes);
                self.crash(node, rng.below(2) == 0 && self.mode == SyncMode::Always, rng);
            }
            Err(why) => return Err(format!("node {node} does not start: {why}")),
        }
        Ok(())
    }

    /// The process dies; with `power`, what was not synced is lost or kept as chance will have it.
    fn crash(&self, node: usize, power: bool, rng: &mut Rng) {
        let mut nodes = self.nodes.lock();
        let now = self.now_ms();
        self.net.down(node);
        self.watch.happened(now, format_args!("node {node} {}", if power { "loses power" } else { "is killed" }));
        let node = &mut nodes[node];
        if let Some(running) = node.running.take() {
            running.end();
        }
        node.disk.set_full(false);
        node.faulty = false;
        if power {
            node.disk.crash(rng.next())
        } else {
            node.disk.kill()
        }
        node.due.get_or_insert(now + rng.below(4000));
    }

    fn replica(&self, node: usize) -> Option<Arc<SimReplica>> {
        self.nodes.lock()[node].running.as_ref().map(|r| Arc::clone(&r.replica))
    }

    /// The node whose leader is of the highest term.
    fn leader(&self) -> Option<usize> {
        let nodes = self.nodes.lock();
        let leads = |(i, node): (usize, &Node)| node.running.as_ref().filter(|r| r.leads()).map(|r| (r.term(), i));
        nodes.iter().enumerate().filter_map(leads).max().map(|(_, i)| i)
    }

    /// Looks at every member once, and ends the lives that cannot go on.
    fn look(&self, rng: &mut Rng) -> Result<(), String> {
        let mut ended = Vec::new();
        for (i, node) in self.nodes.lock().iter_mut().enumerate() {
            let Some(running) = &node.running else { continue };
            if running.leads() {
                self.watch.leader(running.term(), running.raft_id);
            }
            // I-4, from outside.
            let purged = running.wal.group(GROUP).and_then(|g| g.purged).map_or(0, |p| p.index.get());
            let persisted = running.replica.persisted().get();
            if std::mem::replace(&mut node.purged, purged) < purged {
                self.watch.count("purged");
            }
            if purged > persisted {
                return Err(format!("node {i}: the log is purged to {purged}, persisted is {persisted}"));
            }
            let excused = node.disk.stopped();
            match running.trouble() {
                Ok(None) if !excused => {}
                Ok(why) => {
                    self.watch.happened(self.now_ms(), format_args!("node {i} cannot go on: {why:?}"));
                    ended.push(i);
                }
                Err(why) => return Err(why),
            }
        }
        for node in ended {
            // A failed sync or write is final, and what the kernel still holds may be anything.
            let power = rng.below(2) == 0;
            self.crash(node, power && self.mode == SyncMode::Always, rng);
        }
        self.watch.first_broken().map_or(Ok(()), Err)
    }

    fn describe(&self) -> String {
        let nodes = self.nodes.lock();
        let all = nodes.iter().map(|n| n.running.as_ref().map_or_else(|| "down".to_owned(), Running::describe));
        all.enumerate().map(|(i, what)| format!("  node {i}: {what}")).collect::<Vec<_>>().join("\n")
    }

    /// Cuts the power of a node that has just voted, now and then: it must not vote again in that term.
    fn strike_voter(&self, rng: &mut Rng) {
        let voted = |node: &mut Node| {
            let term = node.running.as_ref().map_or(node.term, Running::term);
            std::mem::replace(&mut node.term, term) < term
        };
        let voted: Vec<usize> = {
            let mut nodes = self.nodes.lock();
            nodes.iter_mut().enumerate().filter_map(|(i, node)| voted(node).then_some(i)).collect()
        };
        for node in voted {
            if self.mode == SyncMode::Always && rng.below(4) == 0 {
                self.crash(node, true, rng);
                self.nodes.lock()[node].due = Some(self.now_ms());
                self.watch.count("voter-struck");
            }
        }
    }

    /// Waits until something more is confirmed.
    async fn confirms(&self, rng: &mut Rng, limit_ms: u64) -> Result<(), String> {
        let (confirmed, until) = (self.watch.confirmed(), self.now_ms() + limit_ms);
        while self.watch.confirmed() <= confirmed {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.start_due(rng).await?;
            self.look(rng)?;
            if self.now_ms() > until {
                return Err(format!(
                    "nothing was confirmed for {limit_ms} ms although all is well\n{}",
                    self.describe()
                ));
            }
        }
        Ok(())
    }

    async fn start_due(&self, rng: &mut Rng) -> Result<(), String> {
        let now = self.now_ms();
        let due: Vec<usize> = {
            let nodes = self.nodes.lock();
            (0..nodes.len()).filter(|i| nodes[*i].due.is_some_and(|due| due <= now)).collect()
        };
        for node in due {
            self.start(node, rng).await?;
        }
        Ok(())
    }
}

/// Publishes until the world is quiet, each message until it is confirmed.
fn client(world: &Arc<World>, name: u64, mut rng: Rng) {
    let world = Arc::clone(world);
    spawn(async move {
        let count = world.nodes.lock().len() as u64;
        let mut node = 0;
        let mut message = 0;
        let mut id = format!("c{name}-{message}");
        while !world.quiet.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
            let fate = match world.replica(node).filter(|_| !world.net.is_paused(node)) {
                Some(replica) => replica.publish(&id, world.clock(node)),
                None => None,
            };
            let Some((seq, fate)) = fate else {
                node = usize::try_from(rng.below(count)).expect("few");
                continue;
            };
            if let Ok(Ok(Fate::Confirmed)) = tokio::time::timeout(Duration::from_secs(4), fate).await {
                world.watch.acked(&id, seq.get());
                message += 1;
                id = format!("c{name}-{message}");
            }
        }
    });
}

/// Purges and deletes, now and then.
fn remover(world: &Arc<World>, mut rng: Rng) {
    let world = Arc::clone(world);
    spawn(async move {
        while !world.quiet.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(500 + rng.below(4000))).await;
            let Some(node) = world.leader() else { continue };
            let Some(replica) = world.replica(node) else { continue };
            let (first, last, _) = replica.content();
            let seq = first + rng.below((last + 1).saturating_sub(first) / 2 + 1);
            let now = world.clock(node);
            if rng.below(3) == 0 {
                world.watch.purging(seq);
                let up_to_last = StreamSeq::new(0);
                let purge = Purge { filter: None, seq: Some(StreamSeq::new(seq)), keep: None, up_to_last };
                let Some(fate) = replica.command(Command::Purge(purge), now) else { continue };
                if let Ok(Ok(Fate::Confirmed)) = tokio::time::timeout(Duration::from_secs(4), fate).await {
                    world.watch.purged(seq);
                }
            } else {
                world.watch.deleting(seq);
                let delete = DeleteMessage { seq: StreamSeq::new(seq), erase: false };
                // Whether it took place is seen in the content.
                let _unasked = replica.command(Command::DeleteMessage(delete), now);
            }
        }
    });
}

/// A node whose disk was emptied comes back as a new member: learner first, then a voter in the place of the old one.
async fn replace(world: &Arc<World>, old: u64, new: u64) {
    while !world.quiet.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let Some(leader) = world.leader() else { continue };
        let found = world.nodes.lock()[leader].running.as_ref().map(|r| (r.raft.clone(), r.members()));
        let Some((raft, members)) = found else { continue };
        let voters = members.voters();
        if voters.contains(&new) && !voters.contains(&old) && !members.is_joint() {
            return;
        }
        let limit = Duration::from_secs(5);
        // Any of these may fail with the leader; then the next one is asked.
        if !members.nodes.contains(&new) {
            let _tried = tokio::time::timeout(limit, raft.add_learner(new, openraft::EmptyNode::new(), true)).await;
            continue;
        }
        let voters: BTreeSet<u64> = voters.into_iter().filter(|id| *id != old).chain([new]).collect();
        let change = raft.change_membership(ChangeMembers::ReplaceAllVoters(voters), false);
        let _tried = tokio::time::timeout(limit, change).await;
    }
}

async fn befall(world: &Arc<World>, rng: &mut Rng, replacing: &Arc<AtomicBool>) -> Option<(&'static str, usize)> {
    let count = world.nodes.lock().len();
    let node = usize::try_from(rng.below(count as u64)).expect("few");
    let may_cut_power = world.mode == SyncMode::Always;
    let fault = match rng.below(16) {
        0..3 => {
            world.crash(node, false, rng);
            "kill"
        }
        3 if may_cut_power => {
            world.crash(node, true, rng);
            "power"
        }
        4 => {
            (0..count).for_each(|node| world.crash(node, false, rng));
            "kill-all"
        }
        5 if may_cut_power => {
            (0..count).for_each(|node| world.crash(node, true, rng));
            "power-all"
        }
        6..9 => {
            // The process dies inside one of its next disk operations.
            let node = &mut world.nodes.lock()[node];
            node.disk.stop_after(rng.below(40));
            node.faulty = true;
            "cut-short"
        }
        9 => {
            let side: BTreeSet<usize> = (0..count).filter(|_| rng.below(2) == 0).collect();
            world.net.part(&side, rng.below(3) == 0);
            "partition"
        }
        10 => {
            world.net.part(&[node].into(), rng.below(3) == 0);
            "isolated"
        }
        11 => {
            world.net.pause(node, true);
            "pause"
        }
        12 => {
            let node = &mut world.nodes.lock()[node];
            node.disk.set_full(true);
            node.faulty = true;
            "disk-full"
        }
        13 => {
            let node = &mut world.nodes.lock()[node];
            node.disk.fail_op(rng.below(30), DiskFault::Eio);
            node.faulty = true;
            "disk-error"
        }
        14 => {
            let leader = world.leader()?;
            let raft = world.nodes.lock()[leader].running.as_ref().map(|r| r.raft.clone())?;
            let to = world.nodes.lock()[node].raft_id;
            // Refused while `to` is behind.
            let _tried = raft.trigger().transfer_leader(to).await;
            "transfer"
        }
        15 if !replacing.swap(true, Ordering::AcqRel) => {
            world.crash(node, false, rng);
            let (old, new) = {
                let mut nodes = world.nodes.lock();
                let new = nodes.iter().map(|n| n.raft_id).max().unwrap_or(0).max(10) + 1;
                nodes[node].disk = SimDisk::new();
                (std::mem::replace(&mut nodes[node].raft_id, new), new)
            };
            let (world, replacing) = (Arc::clone(world), Arc::clone(replacing));
            spawn(async move {
                replace(&world, old, new).await;
                replacing.store(false, Ordering::Release);
            });
            "wiped"
        }
        _ => {
            world.net.heal();
            "heal"
        }
    };
    Some((fault, node))
}

/// Waits until every member has applied the same, and looks at what each has.
async fn settle(world: &Arc<World>, rng: &mut Rng, replacing: &AtomicBool) -> Result<(), String> {
    let until = world.now_ms() + HEAL_MS;
    loop {
        world.start_due(rng).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.look(rng)?;
        let found: Vec<_> = {
            let nodes = world.nodes.lock();
            nodes
                .iter()
                .map(|n| n.running.as_ref().map(|r| (r.replica.applied(), r.wal.watermarks(GROUP).accepted)))
                .collect()
        };
        let is_level = found
            .iter()
            .all(|f| f.is_some_and(|(applied, accepted)| accepted == Some(applied.index)) && *f == found[0]);
        if is_level && world.leader().is_some() && !replacing.load(Ordering::Acquire) {
            break;
        }
        if world.now_ms() > until {
            return Err(format!("not well {HEAL_MS} ms after the last fault\n{}", world.describe()));
        }
    }
    let mut contents = Vec::new();
    for (i, node) in world.nodes.lock().iter().enumerate() {
        let Some(running) = &node.running else { continue };
        let content = running.replica.content();
        world.watch.content(i, &content)?;
        contents.push(content);
    }
    match contents.iter().position(|content| *content != contents[0]) {
        Some(i) => Err(format!("nodes 0 and {i} hold different streams")),
        None => Ok(()),
    }
}

pub(super) async fn run(seed: u64) -> Result<Report, String> {
    let watch = Arc::<Watch>::default();
    live(seed, &watch).await.map_err(|why| format!("{why}\n{}", watch.history()))
}

async fn live(seed: u64, watch: &Arc<Watch>) -> Result<Report, String> {
    let mut rng = Rng::new(seed);
    let count = if rng.below(3) == 0 { 5 } else { 3 };
    let nodes = usize::try_from(count).expect("few");
    let mode = if rng.below(3) == 0 { SyncMode::Interval } else { SyncMode::Always };
    let node =
        |raft_id| Node { disk: SimDisk::new(), raft_id, running: None, due: None, faulty: false, purged: 0, term: 0 };
    let world = Arc::new(World {
        nodes: Mutex::new((1..=count).map(node).collect()),
        net: Net::new(nodes, rng.next()),
        watch: Arc::clone(watch),
        mode,
        keep: [1, 8, 64, 256][rng.below(4) as usize],
        lives: AtomicU64::new(0),
        started: tokio::time::Instant::now(),
        quiet: AtomicBool::new(false),
    });
    for node in 0..nodes {
        world.start(node, &mut rng).await?;
    }
    let founder = world.nodes.lock()[0].running.as_ref().map(|r| r.raft.clone()).ok_or("nobody runs")?;
    let voters: BTreeMap<u64, openraft::EmptyNode> = (1..=count).map(|id| (id, openraft::EmptyNode::new())).collect();
    founder.initialize(voters).await.map_err(|e| e.to_string())?;
    for name in 0..CLIENTS {
        client(&world, name, rng.fork());
    }
    remover(&world, rng.fork());
    // A majority has heard that there is a cluster: before that, its founder alone could take it along.
    world.confirms(&mut rng, HEAL_MS).await?;

    let replacing = Arc::<AtomicBool>::default();
    let mut next_fault = 1500;
    while world.now_ms() < FAULTS_MS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.look(&mut rng)?;
        world.strike_voter(&mut rng);
        world.start_due(&mut rng).await?;
        if world.now_ms() >= next_fault {
            next_fault = world.now_ms() + 50 + rng.below(2500);
            if let Some((fault, node)) = befall(&world, &mut rng, &replacing).await {
                world.watch.happened(world.now_ms(), format_args!("{fault} (node {node})"));
                world.watch.count(fault);
            }
        }
    }
    world.net.heal();
    world.net.calm();
    // Faults that are still to come are over with a new life.
    for node in 0..nodes {
        world.crash(node, mode == SyncMode::Always, &mut rng);
    }
    world.confirms(&mut rng, HEAL_MS).await?;
    // A leader that reaches nobody for a moment refuses what it is given, and goes on in the same term afterwards.
    if let Some(leader) = world.leader() {
        world.net.part(&[leader].into(), false);
        tokio::time::sleep(Duration::from_millis(1500 + rng.below(1000))).await;
        let refused = world.replica(leader).and_then(|replica| replica.publish("late", world.clock(leader)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(refused);
        world.net.heal();
        // What was accepted before the cut is confirmed by now.
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.confirms(&mut rng, RESUME_MS).await?;
    }
    let until = world.now_ms() + HEAL_MS;
    while replacing.load(Ordering::Acquire) && world.now_ms() <= until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.start_due(&mut rng).await?;
        world.look(&mut rng)?;
    }
    world.quiet.store(true, Ordering::Release);
    settle(&world, &mut rng, &replacing).await?;
    // Once more from what the disks hold.
    for node in 0..nodes {
        world.crash(node, mode == SyncMode::Always, &mut rng);
    }
    settle(&world, &mut rng, &replacing).await?;
    Ok(Report {
        trace: watch.trace(),
        confirmed: watch.confirmed(),
        leaders: watch.leader_count(),
        counts: watch.counts(),
    })
}
