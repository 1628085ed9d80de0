//! The admin and monitoring API: HTTP and JSON, on the data thread.
//!
//! Reading is open to all; changing needs the admin token (or, without one, a caller on this machine) and the live
//! fence. A call that another node must serve is passed on to it over the peer link, once.

mod address;
mod call;
mod durability;
mod error;
pub(crate) mod fence;
mod health;
mod leadership;
mod maintenance;
mod metrics;
mod monitor;
pub(crate) mod peer;
mod recover;
mod recovery;
mod restart_check;
mod server;
mod streams;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

pub(crate) use address::admin_url;
pub(crate) use durability::step as durability_step;
pub(crate) use error::Refusal;
pub(crate) use leadership::transfer as leadership_transfer;
pub(crate) use recovery::report as recovery_report;
pub(crate) use streams::stream_report;

use crate::node::Context;
use crate::transport::NodeId;

/// Where leadership is handed over.
pub(crate) const LEADERSHIP_TRANSFER: &str = "/v1/leadership/transfer";

/// Where a step of a durability change is taken.
pub(crate) fn durability_path(stream: &str) -> String {
    address::path(&["v1", "streams", crate::node::ACCOUNT, stream, "durability", "step"])
}

/// What the handlers share.
pub(crate) struct Admin {
    context: Arc<Context>,
    maintenance: maintenance::Window,
}

/// What became of a call that one particular node must serve.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It is done, or was before.
    Here,
    /// That node must do it.
    By(NodeId),
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: std::net::TcpListener, context: Arc<Context>) {
    let admin = Arc::new(Admin { context: Arc::clone(&context), maintenance: maintenance::Window::default() });
    let router = context.admin.get_or_init(|| router(admin)).clone();
    server::serve(listener, router).await;
}

fn router(admin: Arc<Admin>) -> Router {
    let stream = "/v1/streams/{account}/{name}";
    Router::new()
        .route("/", get(monitor::index))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::get))
        .route("/varz", get(monitor::varz))
        .route("/jsz", get(monitor::jsz))
        .route("/connz", get(monitor::connz))
        .route("/routez", get(monitor::routez))
        .route("/v1/recovery", get(recovery::get))
        .route("/v1/restart-check", get(restart_check::get))
        .route("/v1/fence", post(fence::post))
        .route(LEADERSHIP_TRANSFER, post(leadership::post))
        .route("/v1/groups/{id}/recover", post(recover::post))
        .route("/v1/maintenance", post(maintenance::post))
        .route(stream, get(streams::get).put(streams::put).delete(streams::delete))
        .route(&format!("{stream}/durability/step"), post(durability::post))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(admin)
}

async fn unknown(uri: Uri) -> Response {
    // Not `not_found`: that word means that a stream or node does not exist.
    Refusal {
        status: StatusCode::NOT_FOUND,
        code: "no_such_path".to_owned(),
        message: format!("there is nothing at {}", uri.path()),
    }
    .into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    Refusal {
        status: StatusCode::METHOD_NOT_ALLOWED,
        code: "wrong_method".to_owned(),
        message: format!("{} does not take {method}", uri.path()),
    }
    .into_response()
}
