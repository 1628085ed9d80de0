//! `/healthz`, `/readyz` and `/metrics` of the operator itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// What the probes read.
#[derive(Debug)]
pub(crate) struct Probes {
    /// Set once the API server has answered. A standby is ready too: it can take over.
    ready: AtomicBool,
    metrics: Arc<Metrics>,
}

impl Probes {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { ready: AtomicBool::new(false), metrics }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }
}

/// Serves until `stop` turns true.
///
/// # Errors
/// When accepting connections fails for good.
pub(crate) async fn serve(
    listener: TcpListener,
    probes: Arc<Probes>,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(probes);
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            // An error means that the sender is gone, which is a stop as well.
            let _ = stop.wait_for(|stopped| *stopped).await;
        })
        .await
}

async fn readyz(State(probes): State<Arc<Probes>>) -> Response {
    if probes.ready.load(Ordering::Relaxed) {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the Kubernetes API has not answered yet\n").into_response()
    }
}

async fn metrics(State(probes): State<Arc<Probes>>) -> Response {
    match probes.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
