//! This node's copy of the catalogue.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use headwater_core::catalog::{Catalog, CatalogEntry, CatalogResponse};
use headwater_core::ids::LogIndex;
use headwater_core::recovery::{PhaseLatch, Progress};
use headwater_storage::blocks::passes;
use headwater_storage::checkpoint::{CHECKPOINT_FILE, MetaCheckpoint};
use headwater_storage::disk::Disk;
use headwater_storage::wal::Wal;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::log_check;
use crate::raft::transfer::{FileEntry, Outgoing, Staged};
use crate::raft::{Committed, LogPos, Members, Replica, SnapshotHead};

/// How often it is looked whether a checkpoint is written.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A checkpoint is written after this many entries; quiet catalogues are written on the node's tick.
const CHECKPOINT_ENTRIES: u64 = 64;

pub(crate) struct Inner {
    pub(crate) catalog: Catalog,
    pub(crate) members: Members,
    applied: Option<LogPos>,
    persisted: Option<SnapshotHead>,
    recovered: (Option<LogPos>, Members),
    writing: bool,
    pub(crate) phase: PhaseLatch,
    pub(crate) failed: Option<String>,
}

pub(crate) struct MetaReplica {
    inner: Mutex<Inner>,
    disk: Arc<dyn Disk>,
    wal: Wal,
    dir: PathBuf,
    runtime: tokio::runtime::Handle,
    /// The catalogue changed.
    pub(crate) changed: Notify,
    /// A checkpoint was published.
    pub(crate) persisted_moved: Notify,
}

impl MetaReplica {
    /// Opens the catalogue as of its checkpoint; the log brings it up to date.
    pub(crate) fn open(disk: Arc<dyn Disk>, wal: Wal, dir: PathBuf, phase: PhaseLatch) -> io::Result<Arc<Self>> {
        disk.create_dir_all(&dir)?;
        let found = MetaCheckpoint::load(&*disk, &dir).map_err(io::Error::other)?;
        let (catalog, head) = match &found {
            Some(c) => (read_catalog(c)?, Some(head_of(c)?)),
            None => (Catalog::default(), None),
        };
        let recovered = head.as_ref().map_or((None, Members::default()), |h| (Some(h.at), h.members.clone()));
        Ok(Arc::new(Self {
            inner: Mutex::new(Inner {
                catalog,
                members: recovered.1.clone(),
                applied: recovered.0,
                persisted: head,
                recovered,
                writing: false,
                phase,
                failed: None,
            }),
            disk,
            wal,
            dir,
            runtime: tokio::runtime::Handle::current(),
            changed: Notify::new(),
            persisted_moved: Notify::new(),
        }))
    }

    /// Looks at the catalogue.
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Catalog) -> T) -> T {
        f(&self.inner.lock().catalog)
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock())
    }

    /// Stops this copy: what it holds stays as it is, and the node's member leaves the group.
    pub(crate) fn fail(&self, why: String) {
        let mut inner = self.inner.lock();
        if inner.failed.is_some() {
            return;
        }
        tracing::error!(why, "the catalogue stopped here: this node serves nothing until it is started again");
        inner.phase.failed(why.clone());
        inner.failed = Some(why);
        drop(inner);
        self.changed.notify_one();
    }

    /// As [`MetaReplica::fail`]: the cluster remembers more than this disk holds.
    pub(crate) fn quarantine(&self, why: &str) {
        self.inner.lock().phase.quarantined(why);
        self.fail(why.to_owned());
    }

    /// The member is opened anew on its log while this process lives: what is applied stays applied.
    pub(crate) fn reopen(&self) {
        let mut inner = self.inner.lock();
        if inner.applied.is_some() {
            inner.recovered = (inner.applied, inner.members.clone());
        }
    }

    /// Why this copy has stopped.
    pub(crate) fn failure(&self) -> Option<String> {
        self.inner.lock().failed.clone()
    }

    pub(crate) fn applied(&self) -> Option<LogPos> {
        self.inner.lock().applied
    }

    pub(crate) fn persisted(&self) -> LogIndex {
        self.inner.lock().persisted.as_ref().map_or(LogIndex::new(0), |h| h.at.index)
    }

    /// Takes the phase forward, and writes the checkpoint that it waits for.
    pub(crate) fn observe_phase(self: &Arc<Self>, own: u64, raft: &crate::raft::GroupState) {
        let waits = {
            let mut inner = self.inner.lock();
            let index = |at: Option<LogPos>| at.map_or(LogIndex::new(0), |p| p.index);
            let (applied, persisted) = (index(inner.applied), index(inner.persisted.as_ref().map(|h| h.at)));
            let progress = Progress {
                applied,
                persisted,
                committed: LogIndex::new(raft.committed).max(applied),
                leader_known: raft.commit_known,
                // Beyond so many voters a node is a learner for good.
                counts: {
                    let voters = raft.members.voters();
                    voters.contains(&own) || voters.len() >= super::bootstrap::META_VOTERS_MAX
                },
            };
            if inner.phase.observe(progress) {
                tracing::info!(phase = inner.phase.phase().as_str(), "recovery of the catalogue");
            }
            inner.phase.barrier().is_some_and(|barrier| barrier > persisted)
        };
        if waits {
            self.checkpoint();
        }
    }

    /// Writes a checkpoint if anything changed since the last one, once the log is synced that far.
    pub(crate) fn checkpoint(self: &Arc<Self>) {
        let (head, checkpoint) = {
            let mut inner = self.inner.lock();
            let Some(at) = inner.applied else { return };
            if inner.writing || inner.failed.is_some() || inner.persisted.as_ref().is_some_and(|h| h.at == at) {
                return;
            }
            inner.writing = true;
            let head = SnapshotHead { at, members: inner.members.clone() };
            (
                head.clone(),
                MetaCheckpoint {
                    applied: at,
                    membership: Bytes::from(serde_json::to_vec(&head.members).expect("plain data")),
                    snapshot: Bytes::new(),
                    image: Bytes::from(inner.catalog.image()),
                },
            )
        };
        let this = Arc::clone(self);
        // The store may never be ahead of its log on disk.
        self.wal.sync_barrier(
            super::GROUP,
            checkpoint.applied.index,
            Box::new(move |synced| {
                let runtime = this.runtime.clone();
                runtime.spawn_blocking(move || {
                    let result =
                        synced.map_err(io::Error::other).and_then(|()| checkpoint.publish(&*this.disk, &this.dir));
                    this.published(head, result);
                });
            }),
        );
    }

    fn published(&self, head: SnapshotHead, result: io::Result<()>) {
        let mut inner = self.inner.lock();
        inner.writing = false;
        match result {
            Ok(()) => {
                inner.persisted = Some(head);
                if let Err(error) = log_check::clear_installed(&*self.disk, &self.dir) {
                    tracing::warn!(%error, "tried again after the next checkpoint");
                }
            }
            // The log keeps everything meanwhile.
            Err(error) if passes(&error) => {
                tracing::warn!(%error, "the catalogue's checkpoint waits for room on the disk");
            }
            Err(error) => {
                drop(inner);
                self.fail(format!("the catalogue's checkpoint failed: {error}"));
            }
        }
        self.persisted_moved.notify_one();
    }
}

impl Replica for Arc<MetaReplica> {
    fn recovered(&self) -> (Option<LogPos>, Members) {
        self.inner.lock().recovered.clone()
    }

    fn apply(&self, at: LogPos, what: Committed<'_>) -> Bytes {
        let mut inner = self.inner.lock();
        if inner.failed.is_some() {
            return Bytes::new();
        }
        inner.applied = Some(at);
        match what {
            Committed::Blank => Bytes::new(),
            Committed::Members(members) => {
                inner.members = members.clone();
                Bytes::new()
            }
            Committed::Command(bytes) => match CatalogEntry::decode(bytes) {
                Ok(entry) => {
                    let response: CatalogResponse = inner.catalog.apply(at.index, &entry);
                    Bytes::from(serde_json::to_vec(&response).expect("plain data"))
                }
                Err(error) => {
                    // A newer node wrote it: applying around it would make the catalogues differ.
                    drop(inner);
                    self.fail(format!("catalogue entry {}: {error}", at.index));
                    Bytes::new()
                }
            },
        }
    }

    fn applied_run(&self) {
        let due = {
            let inner = self.inner.lock();
            let applied = inner.applied.map_or(0, |a| a.index.get());
            let persisted = inner.persisted.as_ref().map_or(0, |h| h.at.index.get());
            applied >= persisted + CHECKPOINT_ENTRIES
        };
        if due {
            self.checkpoint();
        }
        self.changed.notify_one();
    }

    fn snapshot(&self) -> Option<SnapshotHead> {
        self.inner.lock().persisted.clone()
    }

    fn pin(&self) -> io::Result<Option<(SnapshotHead, Box<dyn Outgoing>)>> {
        let Some(found) = MetaCheckpoint::load(&*self.disk, &self.dir).map_err(io::Error::other)? else {
            return Ok(None);
        };
        Ok(Some((head_of(&found)?, Box::new(OneFile(found.encode())))))
    }

    fn install(&self, head: SnapshotHead, staged: Staged) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            // One writer at a time: an older checkpoint must not land on top of this one.
            while std::mem::replace(&mut self.inner.lock().writing, true) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let this = Arc::clone(self);
            let read = tokio::task::spawn_blocking(move || {
                let found = MetaCheckpoint::load(&*this.disk, &staged.dir)
                    .map_err(io::Error::other)?
                    .ok_or_else(|| io::Error::other("the staged catalogue has no checkpoint"))?;
                let catalog = read_catalog(&found)?;
                log_check::mark_installed(&*this.disk, &this.dir)?;
                found.publish(&*this.disk, &this.dir)?;
                Ok(catalog)
            });
            let read = read.await.map_err(io::Error::other).flatten();
            let mut inner = self.inner.lock();
            inner.writing = false;
            inner.catalog = read?;
            inner.members = head.members.clone();
            inner.applied = Some(head.at);
            inner.persisted = Some(head);
            drop(inner);
            self.changed.notify_one();
            Ok(())
        })
    }

    fn cannot_stage(&self, error: &io::Error) {
        // The catalogue is small, and needed as long as it can be read: it catches up when there is room.
        tracing::warn!(%error, "a snapshot of the catalogue cannot be written");
    }

    fn room(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

fn read_catalog(found: &MetaCheckpoint) -> io::Result<Catalog> {
    Catalog::from_image(&found.image).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

fn head_of(found: &MetaCheckpoint) -> io::Result<SnapshotHead> {
    let members = serde_json::from_slice(&found.membership)?;
    Ok(SnapshotHead { at: found.applied, members })
}

/// The checkpoint as read; the file may be replaced meanwhile.
struct OneFile(Vec<u8>);

impl Outgoing for OneFile {
    fn files(&self) -> Vec<FileEntry> {
        vec![FileEntry { name: CHECKPOINT_FILE.to_owned(), bytes: self.0.len() as u64, identity: None }]
    }

    fn read(&self, _file: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let part = self.0.get(start..start + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(part);
        Ok(())
    }
}
