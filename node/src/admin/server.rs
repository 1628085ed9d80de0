//! Serves the routes on their port: so many connections, none of them idle for ever.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time. More wait until one ends: each takes a file descriptor that the stores may need.
const CONNECTIONS_MAX: usize = 256;
/// A connection that has not sent a whole request head for this long is closed.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// After a failed accept (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until the task is dropped. A failure to listen ends the API, not the node.
pub(super) async fn serve(listener: std::net::TcpListener, router: Router) {
    let listener = match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin API cannot listen"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "admin connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let routes = router.clone().layer(Extension(ConnectInfo::<SocketAddr>(from)));
        tokio::spawn(async move {
            let _permit = permit;
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
                .await;
            if let Err(error) = served {
                tracing::debug!(%from, %error, "admin connection ended");
            }
        });
    }
}
