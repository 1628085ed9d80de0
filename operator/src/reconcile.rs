//! What both controllers do around a reconcile: a deadline, counting, and what follows a failure.

use std::time::Duration;

use kube_client::ResourceExt;
use kube_client::core::DeserializeGuard;
use kube_runtime::controller::Action;
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use crate::backoff;
use crate::context::Context;
use crate::metrics::{Kind, Outcome};
use crate::objects::code;

/// A watched object; one that cannot be read does not end the watch.
pub(crate) type Guarded<K> = DeserializeGuard<K>;

/// Longest pause after a race with another writer.
const AFTER_RACE: Duration = Duration::from_secs(1);

/// How a reconcile ended, and when to look again (`None`: at the next change).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) outcome: Outcome,
    pub(crate) after: Option<Duration>,
}

impl Next {
    pub(crate) fn new(outcome: Outcome, after: Duration) -> Self {
        Self { outcome, after: Some(after) }
    }
}

/// Why a reconcile failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("kubernetes: {0}")]
    Kubernetes(#[from] kube_client::Error),
    #[error("not done within {} s", .0.as_secs())]
    Deadline(Duration),
}

/// What to make of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Somebody else wrote in between, or the object is gone: looking again is all that is needed.
    Race,
    /// The API server knows an older CRD than this operator.
    OldCrd,
    Trouble,
}

impl Failure {
    fn cause(&self) -> Cause {
        match self {
            Self::Kubernetes(error) if matches!(code(error), Some(404 | 409)) => Cause::Race,
            Self::Kubernetes(error) if error.to_string().contains("field not declared in schema") => Cause::OldCrd,
            Self::Kubernetes(_) | Self::Deadline(_) => Cause::Trouble,
        }
    }
}

/// The object, or `None` if it cannot be read: looking again at the next resync is all that can be done.
pub(crate) fn readable<'a, K>(context: &Context, kind: Kind, object: &'a Guarded<K>) -> Option<&'a K>
where
    Guarded<K>: ResourceExt,
{
    match &object.0 {
        Ok(readable) => Some(readable),
        Err(invalid) => {
            // The API server validates, so this object was stored under another version of the CRD.
            warn!(?kind, name = %object.name_any(), error = %invalid.error, "cannot read this object; is the operator older than the CRD?");
            context.metrics.reconciled(kind, Outcome::Stalled, Duration::ZERO);
            None
        }
    }
}

/// Waits for `work` until the deadline, counts how it ended, and says when to look again.
///
/// # Errors
/// That of `work`, or the deadline; [`after_failure`] deals with both.
pub(crate) async fn within(
    limit: Duration,
    context: &Context,
    kind: Kind,
    uid: &str,
    work: impl Future<Output = kube_client::Result<Next>>,
) -> Result<Action, Failure> {
    let started = Instant::now();
    // Boxed, or this future would hold the work twice.
    let next = timeout(limit, Box::pin(work)).await.map_err(|_| Failure::Deadline(limit))??;
    context.metrics.reconciled(kind, next.outcome, started.elapsed());
    let Some(pause) = next.after else {
        // The object may be gone, and what was remembered of it with it.
        return Ok(Action::await_change());
    };
    context.note(uid, |note| note.failures = 0);
    Ok(Action::requeue(backoff::spread(pause, uid)))
}

/// Counts and logs a failure; says when to try again.
pub(crate) fn after_failure<K>(kind: Kind, object: &Guarded<K>, failure: &Failure, context: &Context) -> Action
where
    Guarded<K>: ResourceExt,
{
    let uid = object.uid().unwrap_or_default();
    let failures = context.note(&uid, |note| {
        note.failures = note.failures.saturating_add(1);
        note.failures
    });
    context.metrics.reconciled(kind, Outcome::Error, Duration::ZERO);
    let pause = backoff::after(failures, &uid);
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    match failure.cause() {
        Cause::Race => {
            debug!(?kind, namespace, name, %failure, "object changed meanwhile");
            return Action::requeue(pause.min(AFTER_RACE));
        }
        Cause::OldCrd => {
            warn!(?kind, namespace, name, %failure, "the installed CRD is older than this operator: upgrade headwater-crds");
        }
        Cause::Trouble => {
            warn!(?kind, namespace, name, %failure, failures, pause_ms = pause.as_millis(), "reconcile failed");
        }
    }
    Action::requeue(pause)
}

#[cfg(test)]
mod tests {
    use kube_client::core::Status;

    use super::*;

    #[test]
    fn races_are_told_from_trouble() {
        let refused = |code, message: &str| {
            let status = Status { code, message: message.to_owned(), ..Status::default() };
            Failure::from(kube_client::Error::Api(Box::new(status)))
        };
        for (failure, cause) in [
            (refused(404, "streams.headwater.dev \"x\" not found"), Cause::Race),
            (refused(409, "the object has been modified"), Cause::Race),
            (refused(500, ".status.promise: field not declared in schema"), Cause::OldCrd),
            (refused(500, "etcdserver: request timed out"), Cause::Trouble),
            (refused(403, "forbidden"), Cause::Trouble),
            (Failure::Deadline(Duration::from_secs(30)), Cause::Trouble),
        ] {
            assert_eq!(failure.cause(), cause, "{failure}");
        }
    }
}
