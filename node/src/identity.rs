//! Who this node is, and what its disk says about the last stop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use headwater_core::ids::LogIndex;
use headwater_core::recovery::{PhaseLatch, RecoveryPlan};
use headwater_storage::disk::{Disk, LockGuard, real_disk};
use headwater_storage::flusher::Flusher;
use headwater_storage::hard_state::{HardState, lock_store};
use headwater_storage::wal::{LastStop, LogEnd, Wal, WalOptions};
use parking_lot::Mutex;

use crate::config::NodeConfig;
use crate::meta;

/// The node's hard state in memory; every change is on disk before the call returns.
pub(crate) struct Identity {
    disk: Arc<dyn Disk>,
    store: std::path::PathBuf,
    state: Mutex<HardState>,
    /// Mirrors that somebody is declared lost, for those who ask at every message.
    any_lost: AtomicBool,
    _lock: Box<dyn LockGuard>,
}

/// How the node stopped last, as far as its disk can tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastRunFacts {
    /// There was a last run.
    pub(crate) known: bool,
    /// Its boot epoch.
    pub(crate) boot_epoch: u64,
    pub(crate) clean_stop: bool,
    /// The page cache survived: same OS boot and same mount.
    pub(crate) same_boot_and_mount: bool,
    pub(crate) weak_since: bool,
}

impl LastRunFacts {
    /// What of the files may be missing.
    pub(crate) fn last_stop(&self) -> LastStop {
        if self.same_boot_and_mount { LastStop::PageCacheKept } else { LastStop::PowerLost }
    }
}

/// The store, open.
pub(crate) struct OpenedStore {
    pub(crate) identity: Arc<Identity>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) wal: Wal,
    pub(crate) flusher: Flusher,
    pub(crate) last_run: LastRunFacts,
    /// Where the log's records ended.
    pub(crate) log_end: Option<LogEnd>,
}

impl Identity {
    pub(crate) fn node_id(&self) -> u64 {
        self.state.lock().node_incarnation
    }

    pub(crate) fn boot_epoch(&self) -> u64 {
        self.state.lock().boot_epoch
    }

    pub(crate) fn cluster_id(&self) -> Option<String> {
        self.state.lock().cluster_id.clone()
    }

    fn change(&self, change: impl FnOnce(&mut HardState)) -> anyhow::Result<()> {
        let mut state = self.state.lock();
        let mut next = state.clone();
        change(&mut next);
        next.save(&*self.disk, &self.store)?;
        *state = next;
        Ok(())
    }

    /// This node is part of a cluster from now on.
    pub(crate) fn join_cluster(&self, cluster_id: &str) -> anyhow::Result<()> {
        self.change(|s| s.cluster_id = Some(cluster_id.to_owned())).context("the cluster id could not be saved")
    }

    /// Something weaker than `always` is about to be confirmed.
    pub(crate) fn weak_promise(&self) {
        if self.state.lock().weak_since.is_some() {
            return;
        }
        if let Err(error) = self.change(|s| s.weak_since = Some(crate::clock::now())) {
            // Without this mark a power loss could go unnoticed, so nothing weaker may be promised.
            tracing::error!(%error, "hard state not saved; this node stops");
            std::process::exit(74);
        }
    }

    /// A person has declared these nodes lost for good: nothing is heard from them again. Durable when this returns.
    pub(crate) fn declare_lost(&self, incarnations: &BTreeSet<u64>) -> anyhow::Result<()> {
        self.change(|s| s.lost.extend(incarnations)).context("the lost nodes could not be saved")?;
        self.any_lost.store(!self.lost().is_empty(), Ordering::Release);
        Ok(())
    }

    /// Incarnations that a person has declared lost.
    pub(crate) fn lost(&self) -> BTreeSet<u64> {
        self.state.lock().lost.clone()
    }

    /// Whether a person has declared this incarnation lost.
    pub(crate) fn is_lost(&self, incarnation: u64) -> bool {
        self.any_lost.load(Ordering::Acquire) && self.state.lock().lost.contains(&incarnation)
    }

    /// The cluster refuses this store for good; it is not started again.
    pub(crate) fn refuse(&self, why: &str) {
        if let Err(error) = self.change(|s| s.refused = Some(why.to_owned())) {
            tracing::error!(%error, "the refusal could not be saved: move the store away before the next start");
        }
    }

    /// Everything is synced: the next start may trust what is there.
    pub(crate) fn clean_stop(&self) {
        let marked = self.change(|s| {
            s.clean_stop = true;
            s.weak_since = None;
        });
        if let Err(error) = marked {
            tracing::warn!(%error, "the clean stop could not be marked; the next start counts as one after a crash");
        }
    }
}

/// The next boot's number: later than the last, and not the same in two boots of two copies of one disk.
fn next_epoch(last: u64) -> u64 {
    (last + 1).max(crate::clock::now().get() / 1_000_000)
}

fn os_boot_id() -> String {
    #[expect(clippy::disallowed_methods, reason = "the kernel's boot id is no file of the store")]
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn mount_id(store: &std::path::Path) -> String {
    let stat = rustix::fs::stat(store);
    stat.map_or_else(|_| String::new(), |s| format!("{}:{}", rustix::fs::major(s.st_dev), rustix::fs::minor(s.st_dev)))
}

/// Locks the store, finds or makes its identity, and opens its log.
pub(crate) fn open_store(config: &NodeConfig) -> anyhow::Result<OpenedStore> {
    let disk = real_disk();
    let store = config.store_dir.clone();
    let shown = store.display().to_string();
    disk.create_dir_all(&store).with_context(|| format!("--store-dir {shown}: the folder cannot be made"))?;
    let lock = lock_store(&*disk, &store)
        .with_context(|| format!("--store-dir {shown}: cannot be locked; is another node using it?"))?;
    let found = HardState::load(&*disk, &store)
        .with_context(|| format!("--store-dir {shown}: the hard state cannot be read"))?;
    if let Some(why) = found.as_ref().and_then(|s| s.refused.as_ref()) {
        bail!(
            "--store-dir {shown}: the cluster has refused this store: {why}. Put the newest copy back, or move the \
             folder away: then the node comes back empty and gets its data from its peers"
        );
    }
    let (boot, mount) = (os_boot_id(), mount_id(&store));
    let last_run = found.as_ref().map_or(
        LastRunFacts { known: false, boot_epoch: 0, clean_stop: true, same_boot_and_mount: false, weak_since: false },
        |s| LastRunFacts {
            known: true,
            boot_epoch: s.boot_epoch,
            clean_stop: s.clean_stop,
            same_boot_and_mount: !boot.is_empty() && s.os_boot_id == boot && s.mount_id == mount,
            weak_since: s.weak_since.is_some(),
        },
    );
    let was_member = found.as_ref().is_some_and(|s| s.cluster_id.is_some());
    let state = match found {
        Some(s) if s.node_name != config.name => {
            bail!("--store-dir {shown} belongs to node {:?}, not to --name {}", s.node_name, config.name);
        }
        Some(s) => HardState {
            boot_epoch: next_epoch(s.boot_epoch),
            os_boot_id: boot,
            mount_id: mount,
            clean_stop: false,
            ..s
        },
        None => {
            // A new node has none of these; with somebody's left-overs it would serve messages of another life.
            for left in ["wal", "meta", "streams", "replicas"] {
                if !disk.list(&store.join(left)).map_or(true, |l| l.is_empty()) {
                    bail!(
                        "--store-dir {shown}: there is a {left} folder but no hard state; put the file {:?} back, or move \
                         the folder away",
                        headwater_storage::hard_state::HARD_STATE_FILE
                    );
                }
            }
            HardState {
                cluster_id: None,
                node_name: config.name.clone(),
                // 52 bits: exact in JSON numbers too. Never 0, which means "none".
                node_incarnation: (rand::random::<u64>() >> 12) | 1,
                boot_epoch: next_epoch(0),
                os_boot_id: boot,
                mount_id: mount,
                clean_stop: false,
                weak_since: None,
                log_segment: 0,
                refused: None,
                lost: BTreeSet::new(),
            }
        }
    };
    state.save(&*disk, &store).with_context(|| format!("--store-dir {shown}: the hard state cannot be written"))?;
    let options = WalOptions {
        last_stop: last_run.last_stop(),
        on_failure: Some(Arc::new(|failure| {
            // Nothing more can be confirmed from here: peers go on, and a restart finds out what is on disk.
            tracing::error!(%failure, "the log failed; this node stops");
            #[expect(clippy::exit, reason = "a failed write or sync is final (I-6)")]
            std::process::exit(74);
        })),
        ..WalOptions::default()
    };
    let wal_dir = store.join("wal");
    // Looked at before it is opened, which begins a segment: the next start must find the same.
    if was_member {
        let newest = Wal::newest_on_disk(&*disk, &wal_dir)
            .with_context(|| format!("--store-dir {shown}: the log's folder cannot be read"))?;
        match newest {
            None => bail!(lost_log(&shown, "the log is gone, and with it this node's votes")),
            Some(newest) if newest.get() < state.log_segment => {
                let had = state.log_segment;
                bail!(lost_log(
                    &shown,
                    &format!("the log ends with segment {newest}, and had segment {had} at the last start")
                ));
            }
            Some(_) => {}
        }
    }
    let (wal, scan) = Wal::open(Arc::clone(&disk), &wal_dir, options)
        .with_context(|| format!("--store-dir {shown}: the log cannot be opened (see `headwater inspect {shown}`)"))?;
    tracing::info!(end = ?scan.end, groups = scan.groups.len(), "log scanned");
    let last = |group| wal.group(group).and_then(|g| g.last).map_or(LogIndex::new(0), |p| p.index);
    if let Err(lost) = crate::log_check::check(&*disk, &store, !last_run.weak_since, last) {
        bail!(lost_log(&shown, &lost.to_string()));
    }
    let state = HardState { log_segment: wal.newest_segment().get(), ..state };
    state.save(&*disk, &store).with_context(|| format!("--store-dir {shown}: the hard state cannot be written"))?;
    let flusher = Flusher::start(Arc::clone(&disk), wal.clone()).context("the flusher does not start")?;
    let any_lost = AtomicBool::new(!state.lost.is_empty());
    let state = Mutex::new(state);
    let identity = Arc::new(Identity { disk: Arc::clone(&disk), store, state, any_lost, _lock: lock });
    Ok(OpenedStore { identity, disk, wal, flusher, last_run, log_end: scan.end_of_records() })
}

/// A node that has lost part of its log may have voted, and confirmed, what it does not know of.
fn lost_log(store: &str, why: &str) -> String {
    format!(
        "--store-dir {store}: {why}. This node must not take part with what is left. Put the log back, or move the \
         folder away: then the node comes back empty and gets its data from its peers"
    )
}

/// The meta replica's phases: it always replays its own synced log.
pub(crate) fn meta_phase(opened: &OpenedStore) -> PhaseLatch {
    let last = opened.wal.group(meta::GROUP).and_then(|g| g.last).map_or(LogIndex::new(0), |p| p.index);
    PhaseLatch::new(&RecoveryPlan::Replay { from: LogIndex::new(0) }, last)
}
