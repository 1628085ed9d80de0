//! The one flag that ends the process in order.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

/// A flag that turns true on SIGTERM or SIGINT.
///
/// # Errors
/// When the signals cannot be handled.
pub(crate) fn on_signal() -> anyhow::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let (flag, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: stopping"),
            _ = interrupt.recv() => info!("SIGINT: stopping"),
        }
        // Without a receiver the run is over anyway.
        let _ = flag.send(true);
        // Keeps the sender alive, so that receivers see the value and not a closed channel.
        flag.closed().await;
    });
    Ok(receiver)
}

/// Resolves when the flag is true.
pub(crate) async fn until_stopped(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stopped| *stopped).await.is_err() {
        // The sender lives as long as the process; without it nobody can ask to stop.
        std::future::pending::<()>().await;
    }
}
