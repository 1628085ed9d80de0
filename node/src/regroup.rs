//! Going on without replicas that never come back, by a person's order: hears the members, has it decided
//! ([`headwater_core::regroup`]), and sees to it.
//!
//! A stream goes on in a new group, through the catalogue. The catalogue's own group keeps its number: whoever is given up
//! is shut out for good first, on every disk that is left, and then the log of the one that is gone on from gets an entry
//! that makes it the only voter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use headwater_core::catalog::{CatalogCommand, CatalogRefusal, CatalogResponse, NodeName, Replica, StreamEntry};
use headwater_core::ids::{GroupId, LogIndex, LogPosition, RaftNodeId};
use headwater_core::regroup::{Known, Member, Order, RegroupRefusal, decide};
use headwater_core::rejoin::Standing;
use serde::{Deserialize, Serialize};

use crate::meta::{self, MetaError};
use crate::node::Context;
use crate::raft::{GroupState, RaftGroup, Role, refound};
use crate::stream::rejoin;
use crate::transport::NodeId;

const ASK_PATIENCE: Duration = Duration::from_secs(2);

/// Frame kinds on the peer link.
pub(crate) mod kind {
    /// `group u64`; answered by [`super::Said`] as JSON.
    pub(crate) const GROUP_STANDING: u8 = 0x38;
    /// JSON list of incarnations that are lost for good; answered when that is on disk.
    pub(crate) const DECLARE_LOST: u8 = 0x39;
}

/// Why the order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRegrouped {
    #[error("there is no group {0} here; it may have gone on as another")]
    NoSuchGroup(GroupId),
    #[error("{0} has one replica: there is nothing to go on from")]
    OneReplica(String),
    #[error(transparent)]
    Refused(#[from] RegroupRefusal),
    #[error(transparent)]
    Catalogue(#[from] MetaError),
    #[error(transparent)]
    ByCatalogue(CatalogRefusal),
    #[error("{0} could not write down who is lost: {1}")]
    NotDeclared(NodeName, String),
    #[error("the log could not be changed: {0}")]
    Log(String),
    #[error("another order is being carried out")]
    Busy,
}

/// What a node says of its member of a group.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Said {
    standing: Option<Standing>,
    committed: u64,
    heard_ms: Option<u64>,
}

/// What will be done, or is.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) source: NodeName,
    pub(crate) source_id: RaftNodeId,
    pub(crate) known: Known,
    pub(crate) given_up: Vec<NodeName>,
}

/// Serves [`kind::GROUP_STANDING`].
pub(crate) fn serve_standing(context: &Context, body: &Bytes) -> Result<Vec<Bytes>, String> {
    let group = body.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).ok_or("no group given")?;
    let said = said(context, GroupId::new(group));
    Ok(vec![Bytes::from(serde_json::to_vec(&said).expect("plain data"))])
}

fn said(context: &Context, group: GroupId) -> Said {
    let (standing, raft) = if group == meta::GROUP { meta_said(context) } else { stream_said(context, group) };
    let state = raft.as_ref().map(RaftGroup::state);
    Said {
        standing,
        committed: state.as_ref().map_or(0, |state| state.committed),
        heard_ms: raft.zip(state).and_then(|(raft, state)| heard_ms(&raft, &state)),
    }
}

/// A leader has all that it confirmed; what it may lack is what others confirmed since it last heard from a majority.
fn heard_ms(raft: &RaftGroup, state: &GroupState) -> Option<u64> {
    let led = state.quorum_ack_ms.filter(|_| state.role == Role::Leader);
    let followed = raft.leader_heard().map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX));
    led.into_iter().chain(followed).min()
}

fn meta_said(context: &Context) -> (Option<Standing>, Option<RaftGroup>) {
    if context.meta.replica.failure().is_some() {
        return (Some(Standing::Damaged), None);
    }
    let raft = context.meta.raft();
    let standing = raft.as_ref().map(|raft| match raft.state().members.voters().contains(&context.node_id) {
        true => Standing::Sound { last: log_end(context, meta::GROUP), repairing: false },
        false => Standing::Rejoining,
    });
    (standing, raft)
}

fn stream_said(context: &Context, group: GroupId) -> (Option<Standing>, Option<RaftGroup>) {
    let Some(stream) = context.meta.read(|c| c.streams().find(|s| s.group == group).map(|s| s.id.get())) else {
        return (None, None);
    };
    let raft = context.streams.local(stream).filter(|replica| !replica.is_stopped()).and_then(|r| r.raft());
    (rejoin::standing(context, stream), raft)
}

fn log_end(context: &Context, group: GroupId) -> LogPosition {
    context.wal.group(group).and_then(|log| log.last).unwrap_or_default()
}

/// What each of `members` says: by name, Raft id and node.
async fn ask(
    context: &Context,
    group: GroupId,
    members: &[(NodeName, RaftNodeId, NodeId)],
) -> Vec<(Member, Option<Said>)> {
    let body = Bytes::copy_from_slice(&group.get().to_le_bytes());
    let asked = members.iter().map(|(name, raft_id, node)| async {
        let said = if *node == context.node_id {
            Some(said(context, group))
        } else {
            let parts = std::slice::from_ref(&body);
            let answer = context.transport.request(*node, kind::GROUP_STANDING, parts, ASK_PATIENCE).await;
            answer.ok().and_then(|answer| serde_json::from_slice(&answer).ok())
        };
        let is_up = *node == context.node_id || context.transport.is_up(*node);
        let standing = said.and_then(|said: Said| said.standing);
        (Member { node: name.clone(), raft_id: *raft_id, is_up, standing }, said)
    });
    join_all(asked).await
}

/// Has it decided what would be done.
async fn plan(
    context: &Context,
    group: GroupId,
    members: &[(NodeName, RaftNodeId, NodeId)],
    order: &Order,
) -> Result<Plan, NotRegrouped> {
    let heard = ask(context, group, members).await;
    let standings: Vec<Member> = heard.iter().map(|(member, _)| member.clone()).collect();
    let (source_id, last) = decide(&standings, order)?;
    let source = standings.iter().find(|member| member.raft_id == source_id).map(|member| member.node.clone());
    let of_source = heard.iter().find(|(member, _)| member.raft_id == source_id).and_then(|(_, said)| *said);
    // Any of them may know of a commit.
    let committed = heard.iter().filter_map(|(_, said)| said.map(|said| said.committed)).max().unwrap_or(0);
    let given_up = standings.iter().filter(|member| !order.named.contains(&member.node));
    Ok(Plan {
        source: source.unwrap_or_else(|| NodeName::new("?")),
        source_id,
        known: Known { last, committed: LogIndex::new(committed), heard_ms: of_source.and_then(|said| said.heard_ms) },
        given_up: given_up.map(|member| member.node.clone()).collect(),
    })
}

/// The stream of a group, and what its replicas being asked comes to.
pub(crate) async fn plan_stream(
    context: &Context,
    group: GroupId,
    order: &Order,
) -> Result<(StreamEntry, Plan), NotRegrouped> {
    let entry = context.meta.read(|c| c.streams().find(|s| s.group == group).cloned());
    let entry = entry.ok_or(NotRegrouped::NoSuchGroup(group))?;
    if entry.replicas.len() == 1 {
        return Err(NotRegrouped::OneReplica(entry.key.name));
    }
    let members: Vec<_> =
        entry.replicas.iter().map(|r| (r.node.clone(), r.raft_id, entry.incarnation_of(r).get())).collect();
    let plan = plan(context, group, &members, order).await?;
    Ok((entry, plan))
}

/// The stream goes on from what `plan` says; the new group.
pub(crate) async fn regroup_stream(
    context: &Context,
    entry: &StreamEntry,
    plan: &Plan,
) -> Result<GroupId, NotRegrouped> {
    let anew = |replica: &Replica| Replica { node: replica.node.clone(), raft_id: random_id() };
    let replicas = entry.replicas.iter().map(anew).collect();
    let (id, from, source) = (entry.id, entry.group, plan.source_id);
    match context.meta.write(None, CatalogCommand::RegroupStream { id, from, source, replicas }).await? {
        CatalogResponse::Regrouped { group } => {
            tracing::warn!(
                stream = entry.key.name,
                %from,
                %group,
                source = %plan.source,
                last = %plan.known.last.index,
                missing = plan.known.missing(),
                lost = plan.known.may_be_lost(),
                "by a person's order the stream goes on from one replica"
            );
            Ok(group)
        }
        CatalogResponse::Refused(why) => Err(NotRegrouped::ByCatalogue(why)),
        other => Err(MetaError::Unknown(format!("{other:?}")).into()),
    }
}

fn random_id() -> RaftNodeId {
    RaftNodeId::new((rand::random::<u64>() >> 12) | 1)
}

/// What asking the members of the catalogue's group comes to.
pub(crate) async fn plan_catalogue(context: &Context, order: &Order) -> Result<Plan, NotRegrouped> {
    let state = context.meta.state().ok_or(NotRegrouped::NoSuchGroup(meta::GROUP))?;
    let names = context.node_names();
    let name = |id: u64| names.get(&id).cloned().unwrap_or_else(|| id.to_string());
    let voters = state.members.voters().into_iter();
    let members: Vec<_> = voters.map(|id| (NodeName::new(name(id)), RaftNodeId::new(id), id)).collect();
    plan(context, meta::GROUP, &members, order).await
}

/// Whoever is a member of the catalogue's group and not named is lost for good; this node goes on with the catalogue.
pub(crate) async fn regroup_catalogue(context: &Arc<Context>, plan: &Plan, order: &Order) -> Result<(), NotRegrouped> {
    let _alone = context.regrouping.try_lock().map_err(|_| NotRegrouped::Busy)?;
    let state = context.meta.state().ok_or(NotRegrouped::NoSuchGroup(meta::GROUP))?;
    let names = context.node_names();
    let is_named = |id: &u64| names.get(id).is_some_and(|name| order.named.iter().any(|n| n.as_str() == name));
    let stays = |id: &u64| *id == context.node_id || is_named(id);
    let lost: BTreeSet<u64> = state.members.voters().into_iter().filter(|id| !stays(id)).collect();
    // Learners stay as they are; one that is down hears of it when it comes back.
    let left: BTreeSet<u64> = state.members.nodes.iter().copied().filter(|id| !lost.contains(id)).collect();
    declare_lost(context, &left, &lost).await?;
    tracing::warn!(
        last = %plan.known.last.index,
        missing = plan.known.missing(),
        lost = plan.known.may_be_lost(),
        given_up = ?plan.given_up,
        "by a person's order the catalogue goes on from this node"
    );
    context.meta.stop_member().await;
    context.meta.replica.reopen();
    let (wal, founder) = (context.wal.clone(), context.node_id);
    let changed = tokio::task::spawn_blocking(move || {
        let seen = wal.group(meta::GROUP).and_then(|log| log.vote);
        refound::go_on_alone(&wal, meta::GROUP, founder, &left, seen)
    })
    .await;
    if let Err(error) = crate::join::open_meta(context).await {
        tracing::error!(%error, "the catalogue cannot be opened again: this node restarts");
        context.stopping.cancel();
        #[expect(clippy::exit, reason = "the process is restarted by whoever runs it, on the same storage")]
        std::process::exit(70);
    }
    context.catalogue_changed();
    let changed = changed.map_err(|e| NotRegrouped::Log(e.to_string()))?;
    changed.map(|_at| ()).map_err(|e| NotRegrouped::Log(e.to_string()))
}

/// Has every node that is left write down who is lost, this one last.
async fn declare_lost(context: &Context, left: &BTreeSet<u64>, lost: &BTreeSet<u64>) -> Result<(), NotRegrouped> {
    let names = context.node_names();
    let body = Bytes::from(serde_json::to_vec(lost).expect("plain data"));
    let told = left.iter().filter(|node| context.transport.is_up(**node)).map(|node| async {
        let parts = std::slice::from_ref(&body);
        let answer = context.transport.request(*node, kind::DECLARE_LOST, parts, ASK_PATIENCE).await;
        let name = names.get(node).cloned().unwrap_or_else(|| node.to_string());
        answer.map_err(|e| NotRegrouped::NotDeclared(NodeName::new(name), e.to_string()))
    });
    for told in join_all(told).await {
        told?;
    }
    let own = NodeName::new(context.config.name.clone());
    context.identity.declare_lost(lost).map_err(|e| NotRegrouped::NotDeclared(own, format!("{e:#}")))
}

/// Serves [`kind::DECLARE_LOST`].
pub(crate) fn serve_declare_lost(context: &Context, body: &Bytes) -> Result<Vec<Bytes>, String> {
    let lost: BTreeSet<u64> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    if lost.contains(&context.node_id) {
        return Err("this node is not lost".to_owned());
    }
    tracing::warn!(?lost, "a person has declared these incarnations lost");
    context.identity.declare_lost(&lost).map_err(|e| format!("{e:#}"))?;
    Ok(vec![])
}
