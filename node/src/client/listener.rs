//! Accepts client connections.

use std::io;
use std::time::Duration;

use headwater_protocol::encode;
use headwater_protocol::wire_error::WireError;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::buffer::BufferPool;
use super::session;
use crate::broker::Broker;

/// After a failed accept (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Clients that have not taken their last bytes by then are cut off.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Serves clients on `listener` until `shutdown`, then lets every connection write what waits, and returns.
pub(crate) async fn run(listener: std::net::TcpListener, broker: Broker, shutdown: CancellationToken) {
    let listener = match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "client listener cannot be used");
            return;
        }
    };
    let mut sessions = JoinSet::new();
    let cut_off = CancellationToken::new();
    let pool = BufferPool::default();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
            // Reaped here, else ended sessions would pile up.
            Some(_) = sessions.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                accept(stream, &broker, &mut sessions, &pool, &shutdown, &cut_off);
            }
            Err(error) => {
                tracing::warn!(%error, "client not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = tokio::time::timeout(CLOSE_PATIENCE, async { while sessions.join_next().await.is_some() {} });
    if ended.await.is_err() {
        cut_off.cancel();
        while sessions.join_next().await.is_some() {}
    }
}

fn accept(
    stream: TcpStream,
    broker: &Broker,
    sessions: &mut JoinSet<()>,
    pool: &BufferPool,
    shutdown: &CancellationToken,
    cut_off: &CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "client gone before it was served");
        return;
    }
    match broker.connect(stream.peer_addr().ok(), cut_off.child_token()) {
        Some(conn) => {
            let session = session::run(stream, conn, broker.clone(), pool.clone(), shutdown.clone());
            sessions.spawn(session);
        }
        None => {
            sessions.spawn(async move {
                // The client learns why if it still listens.
                let _ = tokio::time::timeout(ACCEPT_PAUSE, refuse(stream)).await;
            });
        }
    }
}

async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let mut line = Vec::new();
    encode::err(&mut line, &WireError::ConnectionsExceeded);
    stream.write_all(&line).await?;
    stream.shutdown().await
}
