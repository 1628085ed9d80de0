//! Writes a connection's output: all that gathered since the last write leaves in one.

use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::timeout;

use crate::broker::{ClientLimits, ConnHandle, Taken};

/// Runs until the output is finished and written, the connection is stopped, or the client takes nothing any more.
pub(super) async fn run(conn: ConnHandle, mut to: OwnedWriteHalf, limits: ClientLimits) {
    let stopped = conn.stopped().clone();
    tokio::select! {
        () = write_all(&conn, &mut to, &limits) => {}
        () = stopped.cancelled() => {}
    }
    // Whoever still reads must not wait for more; the client may be gone already.
    let _ = timeout(limits.write_deadline, to.shutdown()).await;
    conn.close();
}

async fn write_all(conn: &ConnHandle, to: &mut OwnedWriteHalf, limits: &ClientLimits) {
    let mut batch = Vec::new();
    loop {
        match conn.take_output(&mut batch) {
            Taken::Bytes => {}
            Taken::Nothing => {
                conn.output_woken().await;
                continue;
            }
            Taken::End => return,
        }
        let mut written = 0;
        while written < batch.len() {
            match timeout(limits.write_deadline, to.write(&batch[written..])).await {
                Ok(Ok(0)) => return,
                Ok(Ok(bytes)) => {
                    written += bytes;
                    conn.output_written(bytes);
                }
                Ok(Err(error)) => {
                    tracing::debug!(client = conn.id(), %error, "client not written to");
                    return;
                }
                Err(_) => {
                    conn.close_slow();
                    return;
                }
            }
        }
    }
}
