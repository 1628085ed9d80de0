//! Opens and closes this node's replicas as the catalogue says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_core::catalog::{CatalogCommand, StreamEntry, Verdict};
use headwater_core::ids::StreamId;

use super::replica::{ReplicaSpec, StreamReplica};
use crate::jetstream::streams::config_of;
use crate::node::Context;
use crate::raft::{GroupKind, GroupParams, RaftGroup};

/// A group whose Raft task died is reopened after this long, doubling; beyond the second figure it is given up.
const REOPEN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A group that lived this long was not ill when it was opened.
const STABLE: Duration = Duration::from_secs(60);
/// A replica that could not be opened, or had to stop for a reason that may pass, is tried again after this long.
const REOPEN_FAILED: Duration = Duration::from_secs(5);

/// Makes what is open match the catalogue. Called whenever either may have changed.
pub(crate) async fn reconcile(context: &Arc<Context>) {
    let entries: Vec<StreamEntry> = context.meta.read(|c| c.streams().cloned().collect());
    let wanted: BTreeSet<StreamId> = entries.iter().map(|e| e.id).collect();
    for id in context.streams.known().into_iter().filter(|id| !wanted.contains(id)) {
        close(context, id).await;
    }
    for entry in &entries {
        let only = (entry.replicas.len() == 1).then(|| entry.replicas.first().map(|r| r.raft_id.get())).flatten();
        context.streams.know(entry.id, &entry.key.name, only);
        context.broker.add_stream(entry.id.get(), &entry.subjects);
        let mine = entry.replicas.iter().find(|r| r.node.as_str() == context.config.name);
        if mine.is_some_and(|m| m.raft_id.get() == context.node_id) && context.streams.start_opening(entry.id) {
            tokio::spawn(keep_open(Arc::clone(context), entry.clone()));
        }
        if let Some(replica) = context.streams.local(entry.id.get()).filter(|r| r.leads()) {
            adopt(&replica, entry);
        }
    }
    remove_data(context).await;
}

/// Opens a replica and runs it until the stream is closed here. One that stopped for a reason that may pass, a full disk
/// for one, is opened anew from its files after a while.
async fn keep_open(context: Arc<Context>, entry: StreamEntry) {
    let (id, name) = (entry.id, &entry.key.name);
    // A node whose catalogue has stopped serves nothing.
    let is_barred = || context.stopping.is_cancelled() || context.meta.replica.failure().is_some();
    while context.streams.is_wanted(id) && !is_barred() {
        let replica = match open(&context, &entry).await {
            Ok(replica) => replica,
            Err(error) => {
                tracing::error!(stream = name, error, "replica not opened; its files stay as they are");
                context.streams.not_opened(id, error);
                pause(&context, REOPEN_FAILED).await;
                continue;
            }
        };
        if is_barred() || !context.streams.open(Arc::clone(&replica)) {
            return;
        }
        tokio::spawn(Arc::clone(&replica).run_pumps());
        if replica.is_replicated() {
            supervise(&replica, &entry).await;
        } else {
            replica.lock().phase.loaded();
            replica.drive_locally().await;
        }
        replica.stop_pumps();
        if replica.is_closing() {
            return;
        }
        loop {
            let passes = replica.lock().failed.as_ref().is_some_and(|f| f.passes);
            pause(&context, REOPEN_FAILED).await;
            if is_barred() || replica.is_closing() {
                return;
            }
            if passes {
                break;
            }
        }
        replica.flushed_out().await;
        tracing::info!(stream = name, "opening the replica anew from its files");
    }
}

async fn pause(context: &Context, time: Duration) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = context.stopping.cancelled() => {}
    }
}

async fn open(context: &Arc<Context>, entry: &StreamEntry) -> Result<Arc<StreamReplica>, String> {
    let spec = ReplicaSpec {
        stream: entry.id,
        group: entry.group,
        raft_id: headwater_core::ids::RaftNodeId::new(context.node_id),
        name: entry.key.name.clone(),
        replicas: u32::try_from(entry.replicas.len()).unwrap_or(u32::MAX),
    };
    let (context, created) = (Arc::clone(context), entry.created);
    // It reads every block of the stream.
    let opened = tokio::task::spawn_blocking(move || super::open::open(&context, spec, created)).await;
    opened.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Runs the replica's Raft member, and reopens it on its storage when its task has died. Returns when the replica is
/// closed or has failed; the member has stopped then.
async fn supervise(replica: &Arc<StreamReplica>, entry: &StreamEntry) {
    let voters: BTreeSet<u64> = entry.replicas.iter().map(|r| r.raft_id.get()).collect();
    let first = entry.replicas.first().is_some_and(|r| r.raft_id == replica.spec.raft_id);
    let mut wait = REOPEN.0;
    loop {
        if replica.lock().failed.is_some() {
            return;
        }
        let context = &replica.context;
        let started = RaftGroup::start(GroupParams {
            kind: GroupKind::Stream,
            group: replica.spec.group,
            raft_id: replica.spec.raft_id.get(),
            wal: context.wal.clone(),
            sync: Arc::clone(&replica.sync),
            replica: Arc::new(Arc::clone(replica)),
            net: context.net.clone(),
            receiver: context.receiver.clone(),
            staging: super::open::incoming(&replica.dir),
        })
        .await;
        let raft = match started {
            Ok(raft) => raft,
            Err(error) => {
                let mut inner = replica.lock();
                replica.fail(&mut inner, error.to_string());
                return;
            }
        };
        replica.lock().phase.loaded();
        replica.set_raft(raft.clone());
        if !entry.replaced {
            tokio::spawn(Arc::clone(replica).found(raft.clone(), voters.clone(), first));
        }
        let opened = Instant::now();
        let why = replica.drive(raft.clone()).await;
        replica.stop_leading(&mut replica.lock());
        raft.shutdown().await;
        replica.follow(None);
        if replica.lock().failed.is_some() || context.stopping.is_cancelled() {
            return;
        }
        replica.flushed_out().await;
        if opened.elapsed() > STABLE {
            wait = REOPEN.0;
        }
        if wait >= REOPEN.1 {
            // Its log contradicts the group's, for one: then it must not serve what it holds.
            replica.fail(&mut replica.lock(), format!("the group's task died again and again: {why}"));
            return;
        }
        tracing::error!(stream = replica.spec.name, why, "the group's task died; reopening it on its storage");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(REOPEN.1);
        replica.reopen();
    }
}

/// The leader brings the catalogue's configuration into the group's log.
fn adopt(replica: &Arc<StreamReplica>, entry: &StreamEntry) {
    if replica.lock().state.generation() >= entry.generation || !replica.start_adopting() {
        return;
    }
    let (replica, entry) = (Arc::clone(replica), entry.clone());
    tokio::spawn(async move {
        let adopted = replica.adopt_config(&config_of(&entry), entry.generation).await;
        replica.adopting_done();
        if let Err(error) = adopted {
            tracing::debug!(stream = entry.key.name, %error, "configuration not adopted yet");
            tokio::time::sleep(Duration::from_millis(100)).await;
            replica.context.catalogue_changed();
        }
    });
}

/// The catalogue no longer lists the stream: stop serving it. Data goes only on a removal record.
async fn close(context: &Arc<Context>, id: StreamId) {
    context.broker.remove_stream(id.get());
    let Some(replica) = context.streams.forget(id) else { return };
    replica.close();
    if let Some(raft) = replica.raft() {
        raft.shutdown().await;
    }
    replica.stop_pumps();
    replica.flushed_out().await;
}

/// Removes the data of streams with a removal record, and says so.
async fn remove_data(context: &Arc<Context>) {
    let name = headwater_core::catalog::NodeName::new(context.config.name.clone());
    let due: Vec<(StreamId, headwater_core::ids::GroupId)> = context.meta.read(|c| {
        c.removals()
            .filter(|r| r.awaiting.contains(&name) && c.verdict(r.stream.id, &name) == Verdict::Removed)
            .map(|r| (r.stream.id, r.stream.group))
            .collect()
    });
    for (id, group) in due {
        let (disk, dir) = (Arc::clone(&context.disk), super::open::dir_of(context, id));
        let removed = tokio::task::spawn_blocking(move || super::open::remove(&*disk, &dir)).await;
        match removed {
            Ok(Ok(())) => {
                if let Err(error) = context.wal.drop_group(group) {
                    tracing::warn!(%group, %error, "the removed stream's log stays until the next start");
                }
                let context = Arc::clone(context);
                let node = name.clone();
                tokio::spawn(async move {
                    // Confirmed again at the next change if it did not take.
                    let _again = context.meta.write(None, CatalogCommand::ConfirmRemoval { id, node }).await;
                });
            }
            Ok(Err(error)) => tracing::error!(stream = %id, %error, "the removed stream's data could not be deleted"),
            Err(error) => tracing::error!(stream = %id, %error, "the removal did not run"),
        }
    }
}
