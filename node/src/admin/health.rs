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
use crate::stream::StreamReplica;

type Health = (StatusCode, Json<Value>);

fn ok() -> Health {
    (StatusCode::OK, Json(json!({"status": "ok"})))
}

fn unavailable(error: &str) -> Health {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "unavailable", "error": error})))
}

/// Whether the node serves clients, every replica that belongs here works, and their groups have leaders. One that is
/// still recovering works.
pub(super) async fn healthz(State(admin): State<Arc<Admin>>) -> Health {
    let health = serving(&admin);
    if health.0 != StatusCode::OK {
        return health;
    }
    let report = super::recovery::report(&admin.context);
    let stopped = |g: &&GroupReport| matches!(g.phase, ReplicaPhase::Failed | ReplicaPhase::Quarantined);
    let mut failed: Vec<String> = report
        .groups
        .iter()
        .filter(stopped)
        .map(|g| {
            let of = if g.stream.is_empty() { "the catalogue" } else { &g.stream };
            format!("{of}: {} ({})", g.phase.as_str(), g.phase_why.as_deref().unwrap_or("see the log"))
        })
        .collect();
    if admin.context.meta.state().is_none_or(|state| !state.has_leader()) {
        failed.push("the catalogue: no leader that a majority answers".to_owned());
    }
    let of_group = |r: &Arc<StreamReplica>| r.raft_state().is_some_and(|state| !state.has_leader());
    let leaderless = admin.context.streams.all_local().into_iter().filter(|r| !r.is_stopped()).filter(of_group);
    failed.extend(leaderless.map(|r| format!("{}: no leader that a majority answers", r.spec.name)));
    let hole = |r: Arc<StreamReplica>| r.lock().hole.as_ref().map(|why| format!("{}: {why}", r.spec.name));
    failed.extend(admin.context.streams.all_local().into_iter().filter_map(hole));
    failed.extend(admin.context.space.why());
    if failed.is_empty() { ok() } else { unavailable(&failed.join("; ")) }
}

fn serving(admin: &Admin) -> Health {
    let context = &admin.context;
    if context.told_to_stop.is_cancelled() {
        return unavailable("the node is stopping");
    }
    if context.serving.load(Ordering::Acquire) { ok() } else { unavailable("the node is starting") }
}

/// Whether the node takes clients and can create and change streams: its copy of the catalogue works, and has a leader.
/// A failed replica of a stream does not take the node out of service: its streams are served by the others.
pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> Health {
    let health = serving(&admin);
    if health.0 != StatusCode::OK {
        return health;
    }
    let meta = &admin.context.meta;
    ready(meta.replica.failure(), meta.state().is_some_and(|state| state.has_leader()))
}

/// A copy that has failed may still remember a leader, so it is asked first.
fn ready(failure: Option<String>, has_leader: bool) -> Health {
    match failure {
        Some(why) => unavailable(&format!("the catalogue has failed here: {why}")),
        None if !has_leader => unavailable("the catalogue has no leader that a majority answers"),
        None => ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_whose_catalogue_failed_is_not_ready_whatever_it_remembers() {
        for has_leader in [true, false] {
            let (status, body) = ready(Some("disk full".to_owned()), has_leader);
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(body.0["error"], "the catalogue has failed here: disk full");
        }
        assert_eq!(ready(None, false).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ready(None, true).0, StatusCode::OK);
    }
}
