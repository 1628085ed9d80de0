//! `/healthz` and `/readyz`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Admin;

type Health = (StatusCode, Json<Value>);

fn ok() -> Health {
    (StatusCode::OK, Json(json!({"status": "ok"})))
}

fn unavailable(error: &str) -> Health {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "unavailable", "error": error})))
}

/// Whether the node takes clients.
pub(super) async fn healthz(State(admin): State<Arc<Admin>>) -> Health {
    let context = &admin.context;
    if context.stopping.is_cancelled() {
        return unavailable("the node is stopping");
    }
    if context.serving.load(Ordering::Acquire) { ok() } else { unavailable("the node is starting") }
}

/// Whether it can also create and change streams: the catalogue has a leader.
pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> Health {
    let health = healthz(State(Arc::clone(&admin))).await;
    if health.0 != StatusCode::OK {
        return health;
    }
    if admin.context.meta.leader().is_none() {
        return unavailable("the catalogue has no leader");
    }
    ok()
}
