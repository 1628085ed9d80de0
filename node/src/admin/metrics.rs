//! `/metrics` in Prometheus' text format.
//!
//! Every scrape reads what the node knows anyway; nothing is counted twice for it.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use headwater_crds::{ReplicaPhase, ReplicaRole};
use headwater_plan::wire::GroupReport;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::error::Refusal;
use super::{Admin, recovery};

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every phase, so that the one a replica has left reads 0.
const PHASES: [ReplicaPhase; 8] = [
    ReplicaPhase::LoadingSnapshot,
    ReplicaPhase::ReplayingLog,
    ReplicaPhase::CatchingUp,
    ReplicaPhase::Persisting,
    ReplicaPhase::Recovered,
    ReplicaPhase::Repairing,
    ReplicaPhase::Quarantined,
    ReplicaPhase::Failed,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Replica {
    /// Empty for the catalogue.
    stream: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplicaPhaseLabels {
    stream: String,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

pub(super) async fn get(State(admin): State<Arc<Admin>>) -> Result<Response, Refusal> {
    let mut registry = Registry::with_prefix("headwater");
    node(&admin, &mut registry);
    wal(&admin, &mut registry);
    replicas(&recovery::report(&admin.context).groups, &mut registry);
    let mut out = String::new();
    text::encode(&mut out, &registry).map_err(|e| Refusal::unavailable("metrics", e.to_string()))?;
    Ok(([(CONTENT_TYPE, TEXT)], out).into_response())
}

fn whole(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: impl TryInto<i64>) {
    let gauge = Gauge::<i64>::default();
    gauge.set(whole(value));
    registry.register(name, help, gauge);
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn node(admin: &Admin, registry: &mut Registry) {
    let context = &admin.context;
    let build = Family::<Build, Gauge>::default();
    build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
    registry.register("build_info", "The program that runs", build);
    gauge(registry, "uptime_seconds", "Seconds since the node started", context.started.elapsed().as_secs());
    let meta = context.meta.state();
    gauge(registry, "meta_leader", "1 while this node leads the catalogue", i64::from(context.meta.leads()));
    let known = meta.as_ref().is_some_and(|m| m.leader.is_some());
    gauge(registry, "meta_leader_known", "1 while the catalogue has a leader", i64::from(known));
    gauge(registry, "peers_up", "Nodes that this one is connected to", context.transport.peers().len());
    let maintenance = admin.maintenance.remaining().map_or(0, |left| left.as_secs().max(1));
    gauge(registry, "maintenance_seconds", "Seconds for which this node still keeps from leading", maintenance);

    if let Some(space) = context.space.report() {
        gauge(registry, "store_free_bytes", "Bytes free on the store's file system", space.free_bytes);
        gauge(registry, "store_min_free_bytes", "Bytes that must be free for new messages", space.min_free_bytes);
        gauge(registry, "store_low", "1 while there is too little room for new messages", i64::from(space.is_low));
    }

    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let scrub = &context.scrub;
    counter(registry, "scrub_bytes", "Bytes of stored messages that were read again", read(&scrub.bytes));
    counter(registry, "scrub_passes", "Times that the whole store was read again", read(&scrub.passes));
    counter(registry, "scrub_damaged_blocks", "Blocks that were found damaged by that", read(&scrub.damaged));

    let stats = context.broker.stats();
    gauge(registry, "connections", "Client connections", stats.connections);
    gauge(registry, "subscriptions", "Client subscriptions", stats.subscriptions);
    counter(registry, "accepted_connections", "Client connections accepted", stats.total_connections);
    counter(registry, "in_messages", "Messages received from clients", stats.in_msgs);
    counter(registry, "in_bytes", "Payload bytes received from clients", stats.in_bytes);
    counter(registry, "out_messages", "Messages sent to clients", stats.out_msgs);
    counter(registry, "out_bytes", "Payload bytes sent to clients", stats.out_bytes);
    counter(registry, "slow_consumers", "Clients closed because they did not read", stats.slow_consumers);
    let (requests, errors) = context.api_counts();
    counter(registry, "api_requests", "JetStream API requests", requests);
    counter(registry, "api_errors", "JetStream API requests answered with an error", errors);
}

fn wal(admin: &Admin, registry: &mut Registry) {
    let stats = admin.context.wal.stats();
    gauge(registry, "wal_segments", "Segment files that hold records", stats.segment_count);
    gauge(registry, "wal_segment_bytes", "Bytes of those files", stats.segment_bytes);
    gauge(registry, "wal_queued_bytes", "Bytes that wait to be written", stats.queued_bytes);
    gauge(registry, "wal_unsynced_records", "Records written and not yet synced", stats.unsynced_records);
    gauge(registry, "wal_failed", "1 once a write or sync has failed", i64::from(stats.failure.is_some()));
    gauge(registry, "wal_damaged", "1 if damage was found at start", i64::from(stats.damage.is_some()));
    counter(registry, "wal_writes", "Vectored writes", stats.write_count);
    counter(registry, "wal_written_bytes", "Bytes written", stats.written_bytes);
    counter(registry, "wal_syncs", "Syncs", stats.sync_count);
    counter(registry, "wal_rewritten_records", "Live records moved out of old segments", stats.rewritten_record_count);
}

/// One gauge a replica.
type PerReplica = (&'static str, &'static str, fn(&GroupReport) -> u64);

const PER_REPLICA: [PerReplica; 15] = [
    ("replica_purged_index", "No longer in the log", |g| g.watermarks.purged),
    ("replica_persisted_index", "In the store's synced files, under a checkpoint", |g| g.watermarks.persisted),
    ("replica_stored_index", "Handed to the kernel by the store", |g| g.watermarks.stored),
    ("replica_applied_index", "In the store's memory", |g| g.watermarks.applied),
    ("replica_committed_index", "Known to be committed", |g| g.watermarks.committed),
    ("replica_accepted_index", "In the log's memory", |g| g.watermarks.accepted),
    ("replica_written_index", "Log entries handed to the kernel", |g| g.watermarks.written),
    ("replica_synced_index", "Log entries synced", |g| g.watermarks.synced),
    ("replica_persist_lag_entries", "Applied entries not yet persisted", |g| {
        g.watermarks.applied.saturating_sub(g.watermarks.persisted)
    }),
    ("replica_snapshot_index", "Entry that the newest snapshot stands for", |g| g.snapshot.map_or(0, |s| s.index)),
    ("replica_snapshot_async", "1 while that snapshot is ahead of the data on disk", |g| {
        g.snapshot.map_or(0, |s| u64::from(s.r#async))
    }),
    ("replica_snapshot_missing_entries", "Entries between the data on disk and the snapshot", |g| {
        g.snapshot.map_or(0, |s| s.missing)
    }),
    ("replica_term", "Raft term", |g| g.term),
    ("replica_leader", "1 at the leader", |g| u64::from(g.role == ReplicaRole::Leader)),
    ("replica_durability_moving", "1 while a voter of the group is on its way to another durability", |g| {
        u64::from(g.voters.iter().any(|v| v.granted.is_some()))
    }),
];

fn replicas(groups: &[GroupReport], registry: &mut Registry) {
    for (name, help, read) in PER_REPLICA {
        let family = Family::<Replica, Gauge>::default();
        for group in groups {
            family.get_or_create(&Replica { stream: group.stream.clone() }).set(whole(read(group)));
        }
        registry.register(name, help, family);
    }
    let phases = Family::<ReplicaPhaseLabels, Gauge>::default();
    for group in groups {
        for phase in PHASES {
            let labels = ReplicaPhaseLabels { stream: group.stream.clone(), phase: phase.as_str() };
            phases.get_or_create(&labels).set(i64::from(group.phase == phase));
        }
    }
    registry.register("replica_phase", "1 for the phase of recovery that the replica is in", phases);
}
