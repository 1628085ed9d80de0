//! Commands at the stream's leader: purge, delete, configuration, consumers, durability. Each is an entry in the log.

use std::sync::Arc;
use std::time::Duration;

use headwater_core::consumer::{ConsumerOp, encode_ops};
use headwater_core::stream::{Applied, Command, Rejection};
use tokio::sync::oneshot;

use super::leading::CommandFate;
use super::replica::StreamReplica;

/// A command waits at most this long for its quorum.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a command had no effect that its proposer may count on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("this replica does not lead")]
    NotLeader,
    #[error("refused: {0:?}")]
    Rejected(Rejection),
    #[error("the outcome is unknown")]
    Unknown,
}

impl StreamReplica {
    /// Proposes a command and waits until it is applied, and as safe as the stream promises.
    pub(crate) async fn command(self: &Arc<Self>, command: Command) -> Result<Box<Applied>, CommandError> {
        let waiter = {
            let mut guard = self.lock();
            let inner = &mut *guard;
            let leading = inner.leading.as_mut().ok_or(CommandError::NotLeader)?;
            let proposed = leading
                .admission
                .propose(&inner.state, command, crate::clock::now())
                .map_err(CommandError::Rejected)?;
            let (tx, rx) = oneshot::channel();
            leading.waiters(proposed.ordinal).command = Some(tx);
            rx
        };
        self.wake.notify_one();
        match tokio::time::timeout(COMMAND_TIMEOUT, waiter).await {
            Ok(Ok(CommandFate::Applied(applied))) => Ok(applied),
            Ok(Ok(CommandFate::Rejected(why))) => Err(CommandError::Rejected(why)),
            Ok(Ok(CommandFate::Lost) | Err(_)) | Err(_) => Err(CommandError::Unknown),
        }
    }

    pub(crate) async fn consumer_op(self: &Arc<Self>, op: ConsumerOp) -> Result<Box<Applied>, CommandError> {
        let mut body = Vec::new();
        encode_ops([&op], &mut body);
        self.command(Command::Consumers(body.into())).await
    }
}
