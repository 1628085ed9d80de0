//! `/varz`, `/jsz`, `/connz` and `/routez` in nats-server's shape, for the tools that read those.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use headwater_core::catalog::NodeState;
use headwater_protocol::api::stream_config::Storage;
use headwater_protocol::rfc3339::ApiTime;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Admin;
use super::address::admin_url;
use crate::jetstream::streams::config_of;
use crate::node::{ACCOUNT, Context};
use crate::raft::GroupState;
use crate::stream::StreamReplica;
use crate::transport::PeerHello;

const INDEX: &str = "healthz readyz metrics varz jsz connz routez v1/recovery v1/restart-check";

/// What there is, for people.
pub(super) async fn index() -> String {
    INDEX.split(' ').map(|path| format!("/{path}\n")).collect()
}

fn server_id(context: &Context) -> String {
    format!("HW{:X}", context.node_id)
}

fn now() -> Value {
    json!(ApiTime::from_ns(crate::clock::now().get()))
}

pub(super) async fn varz(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let context = &admin.context;
    let config = &context.config;
    let stats = context.broker.stats();
    let uptime = context.started.elapsed();
    let started = crate::clock::now().get().saturating_sub(u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX));
    let peers = context.transport.peers();
    let (file, memory) = stored_bytes(context);
    let (requests, errors) = context.api_counts();
    Json(json!({
        "server_id": server_id(context),
        "server_name": config.name,
        "version": env!("CARGO_PKG_VERSION"),
        "proto": 1,
        "host": config.listen.ip().to_string(),
        "port": config.listen.port(),
        "http_host": config.http.ip().to_string(),
        "http_port": config.http.port(),
        "max_payload": config.max_payload,
        "start": ApiTime::from_ns(started),
        "now": now(),
        "uptime": format!("{}s", uptime.as_secs()),
        "mem": resident_bytes(),
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "connections": stats.connections,
        "total_connections": stats.total_connections,
        "subscriptions": stats.subscriptions,
        "routes": peers.len(),
        "remotes": peers.len(),
        "in_msgs": stats.in_msgs,
        "out_msgs": stats.out_msgs,
        "in_bytes": stats.in_bytes,
        "out_bytes": stats.out_bytes,
        "slow_consumers": stats.slow_consumers,
        "cluster": {
            "name": context.is_clustered().then(|| context.cluster_name()),
            "addr": config.cluster_listen.ip().to_string(),
            "cluster_port": config.cluster_listen.port(),
            "urls": peers.iter().map(|p| p.cluster_addr.as_str()).collect::<Vec<_>>(),
        },
        "jetstream": {
            "config": {"store_dir": config.store_dir.display().to_string()},
            "stats": {
                "memory": memory,
                "storage": file,
                "accounts": 1,
                "ha_assets": context.streams.all_local().iter().filter(|r| r.is_replicated()).count(),
                "api": {"total": requests, "errors": errors},
            },
            "meta": meta_cluster(context),
        },
        "headwater": {
            "cluster_id": context.identity.cluster_id(),
            "node_id": context.node_id.to_string(),
            "boot_id": context.boot_id,
            "maintenance_ms": admin.maintenance.remaining().map_or(0, |left| left.as_millis()),
            "nodes": nodes(context),
        },
    }))
}

/// Every node of the catalogue and where its admin API is: how a client that knows one node finds the others.
fn nodes(context: &Context) -> Vec<Value> {
    context.meta.read(|c| {
        c.nodes()
            .filter(|n| n.state != NodeState::Removed)
            .map(|n| json!({"name": n.name.as_str(), "url": admin_url(n), "client": n.addresses.client}))
            .collect()
    })
}

fn meta_cluster(context: &Context) -> Value {
    let Some(state) = context.meta.state() else { return Value::Null };
    let names = context.node_names();
    json!({
        "name": context.cluster_name(),
        "leader": state.leader.and_then(|id| names.get(&id).cloned()),
        "peer": format!("{:x}", context.node_id),
        "cluster_size": state.members.nodes.len(),
        "pending": state.accepted.saturating_sub(state.applied),
        "replicas": peers_of(context, &state),
    })
}

fn peers_of(context: &Context, state: &GroupState) -> Vec<Value> {
    let names = context.node_names();
    let others = state.members.nodes.iter().filter(|id| **id != context.node_id);
    let mut peers: Vec<Value> = others
        .map(|id| {
            let matched = state.matched.iter().find(|(m, _)| m == id).map(|(_, at)| *at);
            let offline = !context.transport.is_up(*id);
            let lag = matched.map_or(0, |at| state.accepted.saturating_sub(at));
            json!({
                "name": names.get(id).cloned().unwrap_or_else(|| id.to_string()),
                "current": !offline && lag <= 256,
                "offline": offline,
                "lag": lag,
                "peer": format!("{id:x}"),
            })
        })
        .collect();
    peers.sort_by_key(|peer| peer["name"].as_str().map(str::to_owned));
    peers
}

/// Bytes of the messages on this node: in files, in memory.
fn stored_bytes(context: &Context) -> (u64, u64) {
    use headwater_core::stream::StorageKind;
    context.streams.all_local().iter().fold((0, 0), |(file, memory), replica| {
        let inner = replica.lock();
        let bytes = inner.state.counts().bytes;
        match inner.state.settings().storage {
            StorageKind::File => (file + bytes, memory),
            StorageKind::Memory => (file, memory + bytes),
        }
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct JszQuery {
    accounts: Option<String>,
    streams: Option<String>,
    config: Option<String>,
    leader_only: Option<String>,
}

fn is_set(flag: Option<&String>) -> bool {
    flag.is_some_and(|value| !matches!(value.as_str(), "0" | "false" | "f"))
}

pub(super) async fn jsz(State(admin): State<Arc<Admin>>, Query(query): Query<JszQuery>) -> Json<Value> {
    let context = &admin.context;
    if is_set(query.leader_only.as_ref()) && !context.meta.leads() {
        return Json(json!({"server_id": server_id(context), "now": now()}));
    }
    let replicas = context.streams.all_local();
    let (file, memory) = stored_bytes(context);
    let (requests, errors) = context.api_counts();
    let (mut consumers, mut messages) = (0, 0);
    for replica in &replicas {
        let inner = replica.lock();
        consumers += inner.state.consumers().len();
        messages += inner.state.counts().messages;
    }
    let mut out = json!({
        "server_id": server_id(context),
        "now": now(),
        "config": {"store_dir": context.config.store_dir.display().to_string()},
        "memory": memory,
        "storage": file,
        "accounts": 1,
        "ha_assets": replicas.iter().filter(|r| r.is_replicated()).count(),
        "api": {"total": requests, "errors": errors},
        "streams": replicas.len(),
        "consumers": consumers,
        "messages": messages,
        "bytes": file + memory,
        "meta_cluster": meta_cluster(context),
    });
    let with_streams = is_set(query.streams.as_ref());
    if with_streams || is_set(query.accounts.as_ref()) {
        let mut account = json!({
            "name": ACCOUNT,
            "id": ACCOUNT,
            "memory": memory,
            "storage": file,
            "api": {"total": requests, "errors": errors},
        });
        if with_streams {
            let with_config = is_set(query.config.as_ref());
            account["stream_detail"] = replicas.iter().map(|r| stream_detail(context, r, with_config)).collect();
        }
        out["account_details"] = json!([account]);
    }
    Json(out)
}

fn stream_detail(context: &Context, replica: &StreamReplica, with_config: bool) -> Value {
    let raft = replica.raft_state();
    let names = context.node_names();
    let leader = match &raft {
        Some(state) => state.leader.and_then(|id| names.get(&id).cloned()),
        None => Some(context.config.name.clone()),
    };
    let entry = context.meta.read(|c| c.stream(replica.spec.stream).cloned());
    let inner = replica.lock();
    let counts = inner.state.counts();
    let mut detail = json!({
        "name": replica.spec.name,
        "created": ApiTime::from_ns(inner.state.created().get()),
        "cluster": {
            "name": context.cluster_name(),
            "raft_group": format!("S-{}", replica.spec.group),
            "leader": leader,
            "replicas": raft.as_ref().map(|state| peers_of(context, state)),
        },
        "state": {
            "messages": counts.messages,
            "bytes": counts.bytes,
            "first_seq": counts.first_seq,
            "last_seq": counts.last_seq,
            "num_subjects": counts.num_subjects,
            "num_deleted": counts.num_deleted,
            "consumer_count": inner.state.consumers().len(),
        },
    });
    if let Some(entry) = entry.filter(|_| with_config) {
        let config = config_of(&entry);
        detail["storage"] = match config.storage {
            Storage::File => json!("file"),
            Storage::Memory => json!("memory"),
        };
        detail["config"] = json!(config);
    }
    detail
}

pub(super) async fn connz(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let mut out = admin.context.broker.connz();
    out["now"] = now();
    Json(out)
}

pub(super) async fn routez(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let context = &admin.context;
    let mut peers = context.transport.peers();
    peers.sort_by(|a, b| a.node_name.cmp(&b.node_name));
    let wants: std::collections::HashMap<_, _> = context.broker.peer_interest_counts().into_iter().collect();
    let routes: Vec<Value> =
        peers.iter().map(|peer| route(context, peer, wants.get(&peer.node_id).copied().unwrap_or(0))).collect();
    Json(json!({
        "server_id": server_id(context),
        "server_name": context.config.name,
        "now": now(),
        "num_routes": routes.len(),
        "routes": routes,
    }))
}

fn route(context: &Context, peer: &PeerHello, subscriptions: usize) -> Value {
    let (ip, port) = peer.cluster_addr.rsplit_once(':').unwrap_or((peer.cluster_addr.as_str(), "0"));
    json!({
        "remote_id": format!("HW{:X}", peer.node_id),
        "remote_name": peer.node_name,
        "did_solicit": true,
        "is_configured": context.config.peers.iter().any(|seed| seed.name == peer.node_name),
        "ip": ip,
        "port": port.parse::<u16>().unwrap_or(0),
        "pending_size": context.transport.queued_bytes(peer.node_id),
        "subscriptions": subscriptions,
        "version": peer.version,
        "http": peer.http_addr,
    })
}

/// Memory that is resident; 0 where the kernel does not say.
fn resident_bytes() -> u64 {
    let statm = std::fs::read("/proc/self/statm").unwrap_or_default();
    let text = String::from_utf8_lossy(&statm);
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}
