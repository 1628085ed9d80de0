//! Opens and closes this node's replicas as the catalogue says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headwater_core::catalog::{CatalogCommand, Replica, StreamEntry, Verdict};
use headwater_core::ids::{RaftNodeId, StreamId};
use headwater_core::recovery::{PhaseLatch, RecoveryPlan};
use headwater_core::rejoin::Standing;
use headwater_storage::replica_file::ReplicaFile;

use super::rejoin::{self, Ended};
use super::replica::{Failure, ReplicaSpec, StreamReplica};
use crate::jetstream::streams::config_of;
use crate::node::Context;
use crate::raft::{GroupKind, GroupParams, RaftGroup, StartError};

/// A group whose Raft task died is reopened after this long, doubling; beyond the second figure it is given up.
const REOPEN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A group that lived this long was not ill when it was opened.
const STABLE: Duration = Duration::from_secs(60);
/// A replica that could not be opened, or had to stop for a reason that may pass, is tried again after this long.
const REOPEN_FAILED: Duration = Duration::from_secs(5);
/// A damaged replica fetches everything from its peers so many times per boot; then something else is wrong.
const REJOINS_MAX: u32 = 3;

/// Makes what is open match the catalogue. Called whenever either may have changed.
pub(crate) async fn reconcile(context: &Arc<Context>) {
    let entries: Vec<StreamEntry> = context.meta.read(|c| c.streams().cloned().collect());
    let wanted: BTreeSet<StreamId> = entries.iter().map(|e| e.id).collect();
    for id in context.streams.known().into_iter().filter(|id| !wanted.contains(id)) {
        close(context, id).await;
    }
    for entry in &entries {
        context.members.know(entry);
        let only = entry.replicas.first().filter(|_| entry.replicas.len() == 1);
        // One whose disk was replaced has it no more.
        let has_it = |replica: &&Replica| context.meta.read(|c| c.hosts(entry, replica));
        let only = only.filter(has_it).map(|replica| entry.incarnation_of(replica).get());
        context.streams.know(entry.id, &entry.key.name, only);
        context.broker.add_stream(entry.id.get(), &entry.subjects);
        if let Some(replica) = context.streams.local(entry.id.get()).filter(|replica| replica.spec.group != entry.group)
        {
            // A person has ordered it. What is open here is opened anew as a member of that group.
            let why = format!("the stream goes on in group {}", entry.group);
            replica.stop_with(&mut replica.lock(), Failure { why, passes: true });
        }
        if placed_here(context, entry).is_some() && context.streams.start_opening(entry.id) {
            tokio::spawn(keep_open(Arc::clone(context), entry.id));
        }
        if let Some(replica) = context.streams.local(entry.id.get()).filter(|r| r.leads()) {
            adopt(&replica, entry);
        }
    }
    remove_data(context).await;
}

fn placed_here<'e>(context: &Context, entry: &'e StreamEntry) -> Option<&'e Replica> {
    entry.replicas.iter().find(|replica| replica.node.as_str() == context.config.name)
}

/// The member that the catalogue places on this node, in this life of its disk.
fn member_here(context: &Context, entry: &StreamEntry) -> Option<RaftNodeId> {
    let here = placed_here(context, entry)?;
    (entry.incarnation_of(here).get() == context.node_id).then_some(here.raft_id)
}

/// Opens a replica and runs it until the stream is closed here. One that stopped for a reason that may pass, a full disk
/// for one, is opened anew from its files after a while; one that may have lost something, or is damaged, is kept out of
/// its group until its peers let it in again.
async fn keep_open(context: Arc<Context>, id: StreamId) {
    // A node whose catalogue has stopped serves nothing.
    let is_barred = || context.stopping.is_cancelled() || context.meta.replica.failure().is_some();
    let mut rejoins = 0;
    while context.streams.is_wanted(id) && !is_barred() {
        let entry = context.meta.read(|c| c.stream(id).cloned());
        let Some((entry, own)) = entry.clone().and_then(|entry| member_here(&context, &entry).map(|own| (entry, own)))
        else {
            if let Some(entry) = entry.filter(|entry| entry.replicas.len() == 1) {
                let name = &entry.key.name;
                let why = format!(
                    "this node has an empty disk in place of the one that held the only copy of {name}: put the old \
                     store folder back, or delete the stream"
                );
                context.streams.not_opened(id, why);
            }
            pause(&context, REOPEN_FAILED).await;
            continue;
        };
        let name = &entry.key.name;
        // A replica that keeps being damaged is left to a person.
        let may_rejoin = entry.replicas.len() > 1 && rejoins < REJOINS_MAX;
        let (replica, standing) = match open(&context, &entry, own).await {
            Ok(opened) => opened,
            Err(NotOpened { why, is_damage }) => {
                tracing::error!(stream = name, error = why, "replica not opened; its files stay as they are");
                context.streams.not_opened(id, why);
                if !(is_damage && may_rejoin) {
                    pause(&context, REOPEN_FAILED).await;
                } else if rejoin::keep_out(&context, &entry, own, Standing::Damaged).await == Ended::NewMember {
                    rejoins += 1;
                }
                continue;
            }
        };
        if context.stopping.is_cancelled() || !context.streams.open(Arc::clone(&replica)) {
            return;
        }
        if let Some(why) = context.meta.replica.failure() {
            // It came while the files were read.
            replica.quarantine(&mut replica.lock(), &why);
            return;
        }
        if let Some(standing @ Standing::MayHaveLost { .. }) = standing {
            match rejoin::keep_out(&context, &entry, own, standing).await {
                Ended::NewMember => {
                    replica.close();
                    replica.flushed_out().await;
                    continue;
                }
                Ended::Gone => return,
                Ended::Resume { stands } => {
                    replica.sit_out(!stands);
                    let from = replica.lock().flushing.persisted();
                    let last = rejoin::log_end(&replica).index;
                    replica.lock().phase = PhaseLatch::new(&RecoveryPlan::Replay { from }, last);
                }
            }
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
        while context.meta.read(|c| c.stream(id).is_none_or(|now| now.group == replica.spec.group)) {
            let passes = replica.lock().failed.as_ref().is_some_and(|f| f.passes);
            pause(&context, REOPEN_FAILED).await;
            if is_barred() || replica.is_closing() {
                return;
            }
            if passes {
                break;
            }
            if may_rejoin {
                match rejoin::keep_out(&context, &entry, own, Standing::Damaged).await {
                    Ended::NewMember => rejoins += 1,
                    Ended::Resume { .. } => {}
                    Ended::Gone => return,
                }
                break;
            }
        }
        replica.flushed_out().await;
        tracing::info!(stream = name, "opening the replica anew");
    }
}

async fn pause(context: &Context, time: Duration) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = context.stopping.cancelled() => {}
    }
}

struct NotOpened {
    why: String,
    is_damage: bool,
}

async fn open(
    context: &Arc<Context>,
    entry: &StreamEntry,
    own: RaftNodeId,
) -> Result<(Arc<StreamReplica>, Option<Standing>), NotOpened> {
    let spec = ReplicaSpec {
        stream: entry.id,
        group: entry.group,
        raft_id: own,
        name: entry.key.name.clone(),
        replicas: u32::try_from(entry.replicas.len()).unwrap_or(u32::MAX),
    };
    let (context, entry) = (Arc::clone(context), entry.clone());
    // It reads every block of the stream.
    let opened = tokio::task::spawn_blocking(move || super::open::open(&context, spec, &entry)).await;
    let opened = opened.map_err(|e| NotOpened { why: e.to_string(), is_damage: false })?;
    opened.map_err(|e| NotOpened { why: e.to_string(), is_damage: e.is_damage() })
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
            staging: super::folders::incoming(&replica.dir),
            own_files: Some(replica.dir.clone()),
        })
        .await;
        let raft = match started {
            Ok(raft) => raft,
            Err(error) => {
                // What is wrong with the files is found anew at every opening; a lack of file descriptors passes.
                let passes = matches!(error, StartError::Raft { .. });
                replica.stop_with(&mut replica.lock(), Failure { why: error.to_string(), passes });
                return;
            }
        };
        replica.lock().phase.loaded();
        raft.stand_for_election(!replica.sits_out());
        replica.set_raft(raft.clone());
        let asks = Arc::clone(replica);
        tokio::spawn(raft.clone().stand_early(move || !asks.sits_out() && asks.lock().failed.is_none()));
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
        if replica.has_started_over() {
            tracing::info!(stream = replica.spec.name, why, "the group's task starts over");
            replica.reopen();
            continue;
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
        let store = context.config.store_dir.clone();
        let removed = tokio::task::spawn_blocking(move || {
            super::folders::remove(&*disk, &dir)?;
            ReplicaFile::remove(&*disk, &store, id)
        })
        .await;
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
