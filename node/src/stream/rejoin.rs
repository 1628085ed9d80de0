//! A replica that is kept out of its group, as it may have lost what it confirmed or cannot use its files: it asks the
//! others where they stand, and comes back as somebody new, or with everybody else. The decision is
//! [`headwater_core::rejoin`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::join_all;
use headwater_core::catalog::{CatalogCommand, CatalogResponse, NodeName, StreamEntry};
use headwater_core::ids::{LogPosition, RaftNodeId, StreamId};
use headwater_core::rejoin::{Next, Standing, decide};
use serde::{Deserialize, Serialize};

use headwater_storage::replica_file::ReplicaFile;

use super::replica::StreamReplica;
use crate::node::Context;
use crate::transport::NodeId;

/// How often the others are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_PATIENCE: Duration = Duration::from_secs(2);

/// Frame kinds on the peer link.
pub(crate) mod kind {
    /// `stream u64`; answered by this node's [`super::Standing`] as JSON.
    pub(crate) const STANDING: u8 = 0x2f;
    /// `stream u64 | may stand for election u8`: replicas that are kept out take part again with the logs as they are.
    /// A member that runs without a quorum starts over, so that it assumes nothing of them.
    pub(crate) const START_OVER: u8 = 0x30;
}

/// How a time out of the group ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The catalogue has a new id for the replica.
    NewMember,
    /// It takes part with the log as it is.
    Resume { stands: bool },
    /// The stream is not kept here any more, or the node stops.
    Gone,
}

/// This node's answer to [`kind::STANDING`]: `None` while the replica is being opened.
pub(crate) fn standing(context: &Context, stream: u64) -> Option<Standing> {
    if let Some(kept_out) = context.streams.kept_out(stream) {
        return Some(kept_out);
    }
    let replica = context.streams.local(stream).filter(|r| !r.is_stopped())?;
    let is_rejoining = context.meta.read(|c| {
        let entry = c.stream(StreamId::new(stream))?;
        Some(entry.rejoined.get(&replica.spec.raft_id).is_some_and(|rejoined| !rejoined.votes))
    })?;
    if is_rejoining {
        return Some(Standing::Rejoining);
    }
    replica.raft().map(|_| Standing::Sound { last: log_end(&replica), repairing: replica.lock().hole.is_some() })
}

/// The end of a replica's log, or of its files if those reach further.
pub(super) fn log_end(replica: &StreamReplica) -> LogPosition {
    let log = replica.context.wal.group(replica.spec.group).and_then(|g| g.last).unwrap_or_default();
    log.max(replica.lock().state.applied())
}

#[derive(Serialize, Deserialize)]
struct Answer(Option<Standing>);

/// Serves [`kind::STANDING`].
pub(crate) fn serve_standing(context: &Context, body: &Bytes) -> Result<Vec<Bytes>, String> {
    let stream = body.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes).ok_or("no stream given")?;
    let answer = serde_json::to_vec(&Answer(standing(context, stream))).expect("plain data");
    Ok(vec![Bytes::from(answer)])
}

/// Takes [`kind::START_OVER`].
pub(crate) fn on_start_over(context: &Context, body: &Bytes) {
    let stream = body.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let Some(replica) = stream.and_then(|stream| context.streams.local(stream)) else { return };
    if !replica.raft_state().is_some_and(|state| state.leads_a_majority()) {
        replica.start_over(body.get(8) == Some(&1));
    }
}

/// Keeps a replica out until the catalogue gives it a new id, or all replicas go on together.
pub(super) async fn keep_out(context: &Arc<Context>, entry: &StreamEntry, own: RaftNodeId, why: Standing) -> Ended {
    let id = entry.id;
    let mut told = None;
    while context.streams.is_wanted(id) && !context.stopping.is_cancelled() {
        context.streams.keep_out(id, Some(why));
        // This node's copy of the catalogue has it, whoever asked for it.
        if is_replaced(context, id, own) {
            // Unless the group goes on from what it holds.
            if !context.meta.read(|c| c.stream(id).and_then(|entry| entry.regrouped).is_some_and(|r| r.source == own)) {
                forget_member(context, id).await;
            }
            return Ended::NewMember;
        }
        let others = ask(context, entry, own).await;
        let next = decide(own, why, &others);
        if told.as_ref() != Some(&next) {
            tracing::info!(stream = entry.key.name, ?why, ?others, ?next, "this replica is kept out of its group");
            show(context, entry, why, &next);
            told = Some(next.clone());
        }
        match next {
            Next::Rejoin => {
                let to = RaftNodeId::new((rand::random::<u64>() >> 12) | 1);
                let node = NodeName::new(context.config.name.clone());
                let command = CatalogCommand::RejoinReplica { id, node, from: own, to };
                match context.meta.write(None, command).await {
                    Ok(CatalogResponse::Refused(why)) => {
                        tracing::info!(stream = entry.key.name, %why, "no new id yet");
                    }
                    Ok(_) => tracing::warn!(stream = entry.key.name, from = %own, %to, "rejoining as a new member"),
                    Err(error) => tracing::debug!(stream = entry.key.name, %error, "asked again"),
                }
            }
            Next::Resume { leader } => {
                tell_to_start_over(context, entry, &others, leader);
                tracing::warn!(
                    stream = entry.key.name,
                    furthest = %leader,
                    "most replicas may have lost what they confirmed: the log that reaches furthest goes on"
                );
                // Still kept out for those who ask: what this log says is not the group's word until there is a leader.
                return Ended::Resume { stands: leader == own };
            }
            Next::Wait { .. } | Next::Stuck => {}
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_EVERY) => {}
            () = context.stopping.cancelled() => {}
        }
    }
    Ended::Gone
}

/// What a person sees of it.
fn show(context: &Context, entry: &StreamEntry, why: Standing, next: &Next) {
    // A damaged replica's phase says what is damaged.
    let Some(replica) = context.streams.local(entry.id.get()).filter(|_| why != Standing::Damaged) else { return };
    let waits = match next {
        Next::Wait { silent } => {
            let of = |id: &RaftNodeId| entry.replicas.iter().find(|replica| replica.raft_id == *id);
            let names: Vec<&str> = silent.iter().filter_map(of).map(|replica| replica.node.as_str()).collect();
            format!("waits to hear from {}", names.join(" and "))
        }
        Next::Stuck => "most replicas are unsound, and one that may reach further is damaged".to_owned(),
        Next::Rejoin => "rejoins as a new member".to_owned(),
        Next::Resume { .. } => "goes on with all others".to_owned(),
    };
    replica.lock().phase.quarantined(format!("it may have lost what it confirmed; {waits}"));
}

/// What the disk remembers of the earlier member goes, readable or not: what is left belongs to nobody, and is removed
/// when the new one is opened.
async fn forget_member(context: &Arc<Context>, id: StreamId) {
    let context = Arc::clone(context);
    let removed = tokio::task::spawn_blocking(move || {
        ReplicaFile::remove(&*context.disk, &context.config.store_dir, id).map_err(|e| e.to_string())
    })
    .await;
    if let Err(error) = removed.map_err(|e| e.to_string()).flatten() {
        tracing::warn!(stream = %id, error, "the replica's file stays; it is read again");
    }
}

fn is_replaced(context: &Context, id: StreamId, own: RaftNodeId) -> bool {
    context.meta.read(|c| c.stream(id).is_some_and(|entry| entry.replicas.iter().all(|r| r.raft_id != own)))
}

/// What every other replica says of itself.
pub(super) async fn ask(
    context: &Context,
    entry: &StreamEntry,
    own: RaftNodeId,
) -> BTreeMap<RaftNodeId, Option<Standing>> {
    let body = Bytes::copy_from_slice(&entry.id.get().to_le_bytes());
    let others = entry.replicas.iter().filter(|replica| replica.raft_id != own);
    join_all(others.map(|replica| async {
        let node = entry.incarnation_of(replica).get();
        let asked = context.transport.request(node, kind::STANDING, std::slice::from_ref(&body), ASK_PATIENCE).await;
        let answer = asked.ok().and_then(|answer| serde_json::from_slice::<Answer>(&answer).ok());
        (replica.raft_id, answer.and_then(|Answer(standing)| standing))
    }))
    .await
    .into_iter()
    .collect()
}

fn tell_to_start_over(
    context: &Context,
    entry: &StreamEntry,
    others: &BTreeMap<RaftNodeId, Option<Standing>>,
    leader: RaftNodeId,
) {
    for replica in &entry.replicas {
        if matches!(others.get(&replica.raft_id), Some(Some(Standing::Sound { .. }))) {
            let node: NodeId = entry.incarnation_of(replica).get();
            let mut out = BytesMut::with_capacity(9);
            out.put_u64_le(entry.id.get());
            out.put_u8(u8::from(replica.raft_id == leader));
            // One that went away meanwhile starts over anyway.
            let _down = context.transport.send(node, kind::START_OVER, &[out.freeze()]);
        }
    }
}
