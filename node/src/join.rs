//! Becoming and staying a member: founding a cluster, joining one, and keeping groups' members as the catalogue says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use headwater_core::catalog::{CatalogCommand, CatalogResponse, NodeState, Replica};
use headwater_core::durability::SyncMode;
use headwater_core::ids::{RaftNodeId, StreamId};
use serde::{Deserialize, Serialize};

use crate::meta::{self, bootstrap, membership};
use crate::node::{self, Context};
use crate::raft::{EffectiveSync, GroupKind, GroupParams, RaftGroup};
use crate::transport::NodeId;

const CALL_PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);
/// How often a node that is part of no cluster says so.
const WAITS_LONG: Duration = Duration::from_secs(15);

/// `JOIN`: an empty node introduces itself. `FOUND`: a member tells it which cluster it is part of.
#[derive(Serialize, Deserialize)]
struct Introduction {
    cluster_id: String,
    node_id: NodeId,
    name: String,
}

/// Opens this node's meta member: with what its disk holds, or by founding or joining a cluster.
pub(crate) async fn start_meta(context: &Arc<Context>) -> anyhow::Result<()> {
    if context.identity.cluster_id().is_some() {
        open_meta(context).await?;
        return Ok(());
    }
    let seeds: Vec<String> = context.config.peers.iter().map(|p| p.name.clone()).collect();
    let (mut told, mut answered) = (None, None);
    let mut warn_at = tokio::time::Instant::now() + WAITS_LONG;
    loop {
        // A member may have told this node meanwhile.
        if context.identity.cluster_id().is_some() {
            if context.meta.raft().is_none() {
                open_meta(context).await?;
            }
            return Ok(());
        }
        let heard = context.heard();
        let next = bootstrap::decide(&context.config.name, context.node_id, &seeds, &heard);
        if told.as_ref() != Some(&next) {
            tracing::info!(?next, "the disk is empty");
            told = Some(next.clone());
        }
        if tokio::time::Instant::now() >= warn_at {
            tracing::warn!(
                ?next,
                "still part of no cluster: is every node up, and is --peers the same on all of them?"
            );
            warn_at += WAITS_LONG;
        }
        match next {
            bootstrap::Move::Found { voters } => return found(context, voters).await,
            bootstrap::Move::Join { .. } => {
                // Given up at a stop: the wait below ends then too.
                let _stopped = context.told_to_stop.run_until_cancelled(ask_to_join(context, &mut answered)).await;
            }
            bootstrap::Move::Refuse { clusters } => {
                bail!("the peers belong to different clusters: {}", clusters.join(", "))
            }
            bootstrap::Move::AwaitFounder { .. } | bootstrap::Move::Ask { .. } => {}
        }
        tokio::select! {
            () = context.heard_again() => {}
            () = tokio::time::sleep(RETRY) => {}
            () = context.told_to_stop.cancelled() => bail!("stopped before this node was part of a cluster"),
        }
    }
}

/// Opens this node's member of the meta group on its log.
pub(crate) async fn open_meta(context: &Arc<Context>) -> anyhow::Result<RaftGroup> {
    let raft = RaftGroup::start(GroupParams {
        kind: GroupKind::Meta,
        group: meta::GROUP,
        raft_id: context.node_id,
        wal: context.wal.clone(),
        sync: EffectiveSync::new(SyncMode::Always),
        replica: Arc::new(Arc::clone(&context.meta.replica)),
        net: context.net.clone(),
        receiver: context.receiver.clone(),
        staging: context.config.store_dir.join("meta.incoming"),
        own_files: None,
    })
    .await
    .with_context(|| {
        let store = context.config.store_dir.display();
        format!("the catalogue in {store} cannot be opened; while its peers run, this node may join them as a new one, with {store} moved away")
    })?;
    context.meta.replica.with(|inner| inner.phase.loaded());
    tokio::spawn(raft.clone().stand_early(|| true));
    let followed = context.meta.started(raft.clone());
    let (follower, followed_raft) = (Arc::clone(context), raft.clone());
    tokio::spawn(async move {
        // Ends when the member is opened anew.
        let _ended = followed.run_until_cancelled(follow_meta(follower, followed_raft)).await;
    });
    Ok(raft)
}

/// Wakes whoever waits for the catalogue's leader, and reports checkpoints to Raft.
async fn follow_meta(context: Arc<Context>, raft: RaftGroup) {
    let mut watch = raft.watch();
    loop {
        tokio::select! {
            alive = watch.changed() => {
                if !alive || raft.fatal().is_some() {
                    let why = raft.fatal().unwrap_or_else(|| "stopped".to_owned());
                    if context.stopping.is_cancelled() || context.meta.replica.failure().is_some() {
                        return;
                    }
                    // Nothing on this node works without its catalogue; a restart reopens it on the same storage.
                    tracing::error!(why, "the meta group's task died: this node restarts");
                    context.stopping.cancel();
                    #[expect(clippy::exit, reason = "the process is restarted by whoever runs it, on the same storage")]
                    std::process::exit(70);
                }
                context.catalogue_changed();
            }
            () = context.meta.replica.persisted_moved.notified() => raft.persisted_moved().await,
        }
    }
}

async fn found(context: &Arc<Context>, voters: Vec<(String, NodeId)>) -> anyhow::Result<()> {
    let cluster_id = format!("{:016x}", rand::random::<u64>());
    tracing::info!(cluster_id, ?voters, "founding the cluster");
    let raft = open_meta(context).await?;
    // First the group's membership in the log, then the cluster id in hard state, then the others: a crash between any
    // two of these finds an empty node that founds again, never a member of a cluster that nobody founded.
    if let Err(why) = raft.initialize(voters.iter().map(|(_, id)| *id).collect()).await {
        bail!("the meta group could not be founded: {why}");
    }
    context.identity.join_cluster(&cluster_id)?;
    for (_, node) in voters.iter().filter(|(_, id)| *id != context.node_id) {
        // Whoever cannot be told now is told on every tick.
        if let Err(error) = invite(context, *node).await {
            tracing::debug!(node, error, "invitation not taken");
        }
    }
    let context = Arc::clone(context);
    tokio::spawn(async move {
        let command = CatalogCommand::InitCluster { cluster_id };
        while !matches!(context.meta.write(None, command.clone()).await, Ok(CatalogResponse::Cluster { .. })) {
            tokio::time::sleep(RETRY).await;
        }
    });
    Ok(())
}

/// Asks every member that is up; the first that can reach the leader registers this node, and an invitation follows.
/// `told` is what was answered last.
async fn ask_to_join(context: &Arc<Context>, told: &mut Option<String>) {
    for peer in context.transport.peers() {
        let Some(cluster_id) = peer.cluster_id.clone() else { continue };
        let intro = Introduction { cluster_id, node_id: context.node_id, name: context.config.name.clone() };
        let body = Bytes::from(serde_json::to_vec(&intro).expect("plain data"));
        match context.transport.request(peer.node_id, meta::kind::JOIN, &[body], CALL_PATIENCE).await {
            Ok(_) => return,
            Err(error) => {
                let error = error.to_string();
                if told.as_ref() != Some(&error) {
                    tracing::warn!(peer = peer.node_name, error, "not admitted yet");
                    *told = Some(error);
                }
            }
        }
    }
}

/// An empty node asks this member. Its addresses come from its hello.
pub(crate) async fn serve_join(context: &Arc<Context>, body: Bytes) -> Result<Vec<Bytes>, String> {
    let intro: Introduction = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
    let hello = context.transport.peers().into_iter().find(|p| p.node_id == intro.node_id).ok_or_else(|| {
        let dialled = context.config.peers.iter().find(|peer| peer.name == intro.name).map_or_else(
            || "which --peers here does not list".to_owned(),
            |peer| format!("which is dialled at {}", peer.addr),
        );
        format!(
            "there is no link back to {}, {dialled}; unless it comes up in a moment, its address is another, or a \
                 node with that name runs already",
            intro.name
        )
    })?;
    let command = CatalogCommand::RegisterNode {
        name: headwater_core::catalog::NodeName::new(hello.node_name.clone()),
        incarnation: RaftNodeId::new(hello.node_id),
        addresses: headwater_core::catalog::Addresses {
            client: hello.client_addr.clone(),
            cluster: hello.cluster_addr.clone(),
            http: hello.http_addr.clone(),
        },
        boot_epoch: hello.boot_epoch,
        last_boot_epoch: None,
        tags: BTreeSet::new(),
        zone: None,
    };
    match context.meta.write(None, command).await {
        Ok(CatalogResponse::Refused(why)) => Err(why.to_string()),
        Ok(_) => {
            invite(context, hello.node_id).await?;
            Ok(vec![])
        }
        Err(e) => Err(e.to_string()),
    }
}

/// Tells an empty node that it is a member now.
async fn invite(context: &Arc<Context>, node: NodeId) -> Result<(), String> {
    let cluster_id = context.identity.cluster_id().ok_or("not a member")?;
    let intro = Introduction { cluster_id, node_id: context.node_id, name: context.config.name.clone() };
    let body = Bytes::from(serde_json::to_vec(&intro).expect("plain data"));
    context
        .transport
        .request(node, meta::kind::FOUND, &[body], CALL_PATIENCE)
        .await
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// A member says that this node is part of its cluster.
pub(crate) async fn serve_found(context: &Arc<Context>, _from: NodeId, body: Bytes) -> Result<Vec<Bytes>, String> {
    let intro: Introduction = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
    match context.identity.cluster_id() {
        Some(ours) if ours == intro.cluster_id => Ok(vec![]),
        Some(ours) => Err(format!("already part of cluster {ours}")),
        None => {
            context.identity.join_cluster(&intro.cluster_id).map_err(|e| e.to_string())?;
            tracing::info!(cluster_id = intro.cluster_id, by = intro.name, "joined the cluster");
            context.hear_again();
            Ok(vec![])
        }
    }
}

/// Keeps the catalogue's record of this node current.
pub(crate) async fn register(context: Arc<Context>) {
    let mut refused = None;
    loop {
        match node::register_once(&context).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(why) => {
                if refused.as_ref() != Some(&why) {
                    tracing::error!(why, "the cluster refuses this node: it serves nothing");
                    context.quarantine(&why).await;
                    refused = Some(why);
                }
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = context.stopping.cancelled() => return,
        }
    }
}

/// Once a second: membership of the groups that are led here, invitations to members that do not know yet.
pub(crate) fn tick(context: &Arc<Context>, count: u64) {
    if !count.is_multiple_of(10) {
        return;
    }
    let empty: Vec<NodeId> = context
        .transport
        .peers()
        .into_iter()
        .filter(|p| p.cluster_id.is_none() && context.is_member(p.node_id))
        .map(|p| p.node_id)
        .collect();
    let context = Arc::clone(context);
    tokio::spawn(async move {
        for node in empty {
            if let Err(error) = invite(&context, node).await {
                tracing::debug!(node, error, "invitation not taken");
            }
        }
        keep_meta_members(&context).await;
        keep_stream_members(&context).await;
    });
}

async fn keep_meta_members(context: &Arc<Context>) {
    let Some(raft) = context.meta.raft().filter(|_| context.meta.leads()) else { return };
    let state = raft.state();
    let current = context.meta.current_nodes();
    // Founders vote before they have registered; only replaced incarnations leave.
    let mut past: BTreeSet<NodeId> =
        context.meta.read(|c| c.nodes().flat_map(|n| n.past.iter().map(|p| p.get())).collect());
    let lost: BTreeSet<NodeId> = context.identity.lost();
    let unsaid = context.meta.read(|c| {
        let is_unsaid = |id: &&NodeId| c.node_by_incarnation(RaftNodeId::new(**id)).is_some_and(|n| !n.is_lost());
        lost.iter().filter(is_unsaid).map(|id| RaftNodeId::new(*id)).collect::<BTreeSet<_>>()
    });
    if !unsaid.is_empty() {
        // Every node must know whom a person has declared lost. Said again in a second if it did not take.
        let _again = context.meta.write(None, CatalogCommand::LoseNodes { incarnations: unsaid }).await;
        return;
    }
    past.extend(lost);
    let mut wanted: BTreeSet<NodeId> = state.members.voters().difference(&past).copied().collect();
    for node in current {
        if wanted.len() < bootstrap::META_VOTERS_MAX {
            wanted.insert(node);
        }
    }
    change(&raft, &state, &wanted, "meta").await;
}

/// A node that came back with a new disk takes its place in every stream that had a replica on it.
async fn keep_stream_members(context: &Arc<Context>) {
    if context.meta.leads() {
        let moved = context.meta.read(|c| {
            let current =
                |r: &Replica| c.node(&r.node).filter(|n| n.state != NodeState::Removed).map(|n| n.incarnation);
            c.streams()
                .filter(|s| s.replicas.len() > 1)
                .filter(|s| s.replicas.iter().any(|r| current(r).is_some_and(|id| id != s.incarnation_of(r))))
                .map(|s| {
                    let replicas = s.replicas.iter().map(|r| match current(r) {
                        Some(id) if id != s.incarnation_of(r) => Replica { node: r.node.clone(), raft_id: id },
                        _ => r.clone(),
                    });
                    (s.id, replicas.collect::<Vec<_>>())
                })
                .collect::<Vec<_>>()
        });
        for (id, replicas) in moved {
            // Tried again in a second.
            let _again = context.meta.write(None, CatalogCommand::PlaceStream { id, replicas }).await;
        }
    }
    for replica in context.streams.all_local().into_iter().filter(|r| r.leads()) {
        let Some(raft) = replica.raft() else { continue };
        let wanted: BTreeSet<u64> = context.meta.read(|c| {
            c.stream(replica.spec.stream)
                .map(|s| s.replicas.iter().map(|r| r.raft_id.get()).collect())
                .unwrap_or_default()
        });
        let state = raft.state();
        change(&raft, &state, &wanted, &replica.spec.name).await;
        say_who_votes(context, replica.spec.stream, &state).await;
    }
}

/// Members that rejoined and vote by now count again when another wants to rejoin.
async fn say_who_votes(context: &Context, id: StreamId, state: &crate::raft::GroupState) {
    if state.members.is_joint() {
        return;
    }
    let voters = state.members.voters();
    let new: Vec<RaftNodeId> = context.meta.read(|c| {
        let rejoined = c.stream(id).map(|entry| entry.rejoined.clone()).unwrap_or_default();
        rejoined.into_iter().filter(|(id, r)| !r.votes && voters.contains(&id.get())).map(|(id, _)| id).collect()
    });
    for raft_id in new {
        // Said again in a second if it did not take.
        let _again = context.meta.write(None, CatalogCommand::MemberVotes { id, raft_id }).await;
    }
}

async fn change(raft: &RaftGroup, state: &crate::raft::GroupState, wanted: &BTreeSet<u64>, of: &str) {
    let Some(change) = membership::next_change(state, wanted) else { return };
    tracing::info!(group = of, ?change, "membership");
    let result = match change {
        membership::Change::AddLearner(id) => raft.add_learner(id).await,
        membership::Change::SetVoters(voters) => raft.set_voters(voters).await,
        membership::Change::RemoveLearners(ids) => raft.remove_learners(ids).await,
    };
    if let Err(error) = result {
        tracing::warn!(group = of, error, "membership change not made; tried again");
    }
}
