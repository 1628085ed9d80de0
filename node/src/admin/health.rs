//! `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use headwater_crds::ReplicaPhase;
use headwater_plan::wire::GroupReport;
use serde_json::{Value, json};

use super::Admin;

type Health = (StatusCode, Json<Value>);

fn ok() -> Health {
    (StatusCode::OK, Json(json!({"status": "ok"})))
}

fn unavailable(error: &str) -> Health {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "unavailable", "error": error})))
}

/// Whether the node serves clients, and every replica that belongs here works. One that is still recovering does.
pub(super) async fn healthz(State(admin): State<Arc<Admin>>) -> Health {
    let health = serving(&admin);
    if health.0 != StatusCode::OK {
        return health;
    }
    let report = super::recovery::report(&admin.context);
    let stopped = |g: &&GroupReport| matches!(g.phase, ReplicaPhase::Failed | ReplicaPhase::Quarantined);
    let failed: Vec<String> = report
        .groups
        .iter()
        .filter(stopped)
        .map(|g| {
            let of = if g.stream.is_empty() { "the catalogue" } else { &g.stream };
            format!("{of}: {} ({})", g.phase.as_str(), g.phase_why.as_deref().unwrap_or("see the log"))
        })
        .collect();
    if failed.is_empty() { ok() } else { unavailable(&failed.join("; ")) }
}

fn serving(admin: &Admin) -> Health {
    let context = &admin.context;
    if context.told_to_stop.is_cancelled() {
        return unavailable("the node is stopping");
    }
    if context.serving.load(Ordering::Acquire) { ok() } else { unavailable("the node is starting") }
}

/// Whether the node takes clients and can create and change streams: the catalogue has a leader. A failed replica does
/// not take the node out of service: its streams are served by the others.
pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> Health {
    let health = serving(&admin);
    if health.0 != StatusCode::OK {
        return health;
    }
    if admin.context.meta.leader().is_none() {
        return unavailable("the catalogue has no leader");
    }
    ok()
}
