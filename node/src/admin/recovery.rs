//! `GET /v1/recovery`: what this node knows of every group it keeps a replica of.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use headwater_core::ids::{LogIndex, StreamId};
use headwater_crds::{ReplicaPhase, ReplicaRole, SyncMode};
use headwater_plan::wire::{Durability, GroupReport, RecoveryReport, Snapshot, Voter, Watermarks};

use super::Admin;
use crate::jetstream::convert;
use crate::jetstream::streams::config_of;
use crate::meta;
use crate::node::Context;
use crate::stream::report;

/// The catalogue is always synced, and written to its file now and then.
const META_DURABILITY: Durability =
    Durability { sync_mode: SyncMode::Always, sync_interval_ms: None, allow_async_flush: true };

pub(super) async fn get(State(admin): State<Arc<Admin>>) -> Json<RecoveryReport> {
    Json(report(&admin.context))
}

/// The report of this node.
pub(crate) fn report(context: &Arc<Context>) -> RecoveryReport {
    let mut groups: Vec<GroupReport> =
        context.streams.all_local().iter().map(|replica| replica.report(context)).collect();
    groups.extend(context.streams.unopened().into_iter().filter_map(|(id, why)| unopened_report(context, id, why)));
    groups.push(meta_report(context));
    groups.sort_by_key(|group| group.group);
    RecoveryReport {
        cluster_id: context.identity.cluster_id().unwrap_or_default(),
        node: context.config.name.clone(),
        node_id: context.node_id,
        boot_id: context.boot_id.clone(),
        groups,
        space: context.space.report(),
    }
}

/// A replica whose files are being read, or could not be: nothing is known of it but that it is to be here.
fn unopened_report(context: &Context, id: StreamId, why: Option<String>) -> Option<GroupReport> {
    let entry = context.meta.read(|c| c.stream(id).cloned())?;
    let desired = convert::durability(&config_of(&entry)).map(report::durability).unwrap_or(META_DURABILITY);
    Some(GroupReport {
        group: entry.group.get(),
        stream: entry.key.name,
        account: entry.key.account,
        role: ReplicaRole::Unknown,
        leader: None,
        term: 0,
        watermarks: report::wire_marks(&headwater_core::watermark::Watermarks::default()),
        snapshot: None,
        phase: if why.is_some() { ReplicaPhase::Failed } else { ReplicaPhase::LoadingSnapshot },
        phase_why: why,
        effective: desired,
        desired,
        promise: desired,
        generation: 0,
        barrier: None,
        quorum_acked_ms: None,
        voters: Vec::new(),
        learners: Vec::new(),
    })
}

fn meta_report(context: &Context) -> GroupReport {
    let names = context.node_names();
    let name = |id: u64| match names.get(&id) {
        Some(name) => name.clone(),
        None if id == context.node_id => context.config.name.clone(),
        None => id.to_string(),
    };
    // Lowest watermark first, so that none can be overtaken by the next while they are read.
    let persisted = context.meta.replica.persisted().get();
    let applied = context.meta.replica.applied().map_or(0, |at| at.index.get());
    let phase = context.meta.replica.with(|inner| inner.phase.phase().clone());
    let raft = context.meta.state();
    let wal = context.wal.watermarks(meta::GROUP);
    let purged = context.wal.group(meta::GROUP).and_then(|g| g.purged).map_or(0, |p| p.index.get());
    let at = |index: Option<LogIndex>| index.map_or(0, LogIndex::get).max(purged).max(persisted);
    let accepted = at(wal.accepted).max(applied);
    let watermarks = Watermarks {
        purged,
        persisted,
        stored: persisted,
        applied: applied.max(persisted),
        committed: raft.as_ref().map_or(applied, |r| r.committed).max(applied).min(accepted),
        accepted,
        synced: at(wal.synced).min(accepted),
        written: at(wal.written).min(accepted),
    };
    let voters: Vec<u64> = raft.as_ref().map_or_else(Vec::new, |r| r.members.voters().into_iter().collect());
    let learners = raft.as_ref().map_or_else(Vec::new, |r| {
        r.members.nodes.iter().filter(|id| !voters.contains(id)).map(|id| name(*id)).collect()
    });
    let (phase, phase_why) = report::phase(&phase);
    GroupReport {
        group: meta::GROUP.get(),
        stream: String::new(),
        account: String::new(),
        role: raft.as_ref().map_or(ReplicaRole::Unknown, |r| report::role(r.role)),
        leader: raft.as_ref().and_then(|r| r.leader).map(name),
        term: raft.as_ref().map_or(0, |r| r.term),
        watermarks,
        snapshot: Some(Snapshot { index: persisted, r#async: false, missing: 0 }),
        phase,
        phase_why,
        effective: META_DURABILITY,
        desired: META_DURABILITY,
        promise: META_DURABILITY,
        generation: 0,
        barrier: None,
        quorum_acked_ms: raft.as_ref().and_then(|r| r.quorum_ack_ms),
        voters: voters
            .iter()
            .map(|id| Voter { node: name(*id), node_id: *id, effective: META_DURABILITY, generation: 0, granted: None })
            .collect(),
        learners,
    }
}
