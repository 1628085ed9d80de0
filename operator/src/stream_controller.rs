//! Watches Streams, and StreamClusters for the Streams that wait for them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube_client::core::DeserializeGuard;
use kube_client::{Api, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::reflector::{self, ObjectRef, Store};
use kube_runtime::{Predicate as _, WatchStreamExt as _, predicates, watcher};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use headwater_crds::{Stream, StreamCluster};

use crate::context::Context;
use crate::metrics::{Kind, Outcome};
use crate::stop::until_stopped;
use crate::{backoff, stream_pass};

/// Streams reconciled at a time; most of one reconcile is waiting for nodes.
const CONCURRENCY: u16 = 32;
/// Longest reconcile: four node calls that each run into their deadline.
const DEADLINE: Duration = Duration::from_secs(30);

type Guarded = DeserializeGuard<Stream>;

/// Why a reconcile failed.
#[derive(Debug, Error)]
enum Failure {
    #[error("kubernetes: {0}")]
    Kubernetes(#[from] kube_client::Error),
    #[error("not done within {} s", DEADLINE.as_secs())]
    Deadline,
}

/// Runs until `stop`, then until running reconciles have ended.
pub(crate) async fn run(context: Arc<Context>, stop: watch::Receiver<bool>) {
    let streams: Api<Guarded> = context.api();
    let clusters: Api<DeserializeGuard<StreamCluster>> = context.api();
    let (reader, writer) = reflector::store();
    // Status writes, ours above all, must not trigger: only what people change does.
    let changed = predicates::generation.combine(predicates::finalizers).combine(predicates::annotations);
    let objects = watcher(streams, watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .applied_objects()
        .predicate_filter(changed, kube_runtime::PredicateConfig::default());
    let appeared = watcher(clusters, watcher::Config::default())
        .default_backoff()
        .touched_objects()
        .predicate_filter(predicates::generation, kube_runtime::PredicateConfig::default());
    let waiting = reader.clone();
    Controller::for_stream(objects, reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .watches_stream(appeared, move |cluster| streams_of(&cluster, &waiting))
        .graceful_shutdown_on(until_stopped(stop))
        .run(reconcile, after_failure, context)
        .for_each(|ended| async move {
            if let Err(error) = ended {
                // Reconcile errors were told in `after_failure`; what is left is watches and objects that vanished.
                debug!(%error, "stream controller");
            }
        })
        .await;
}

/// Streams that name this cluster.
fn streams_of(cluster: &DeserializeGuard<StreamCluster>, streams: &Store<Guarded>) -> Vec<ObjectRef<Guarded>> {
    let (namespace, name) = (cluster.namespace(), cluster.name_any());
    let named = |stream: &Guarded| {
        let spec = stream.0.as_ref().ok().map(|stream| &stream.spec);
        spec.is_some_and(|spec| spec.cluster_ref.name == name) && stream.namespace() == namespace
    };
    streams
        .state()
        .into_iter()
        .filter(|stream| named(stream))
        .map(|stream| ObjectRef::from_obj(stream.as_ref()))
        .collect()
}

async fn reconcile(stream: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Failure> {
    let stream = match &stream.0 {
        Ok(stream) => stream,
        Err(invalid) => {
            // The API server validates, so this object was stored under another version of the CRD.
            warn!(stream = %stream.name_any(), error = %invalid.error, "cannot read this Stream; is the operator older than the CRD?");
            context.metrics.reconciled(Kind::Stream, Outcome::Stalled, Duration::ZERO);
            return Ok(Action::requeue(context.resync));
        }
    };
    let started = Instant::now();
    let next = timeout(DEADLINE, stream_pass::reconcile(&context, stream)).await;
    let next = next.map_err(|_| Failure::Deadline)??;
    context.metrics.reconciled(Kind::Stream, next.outcome, started.elapsed());
    let uid = stream.uid().unwrap_or_default();
    if next.after.is_some() {
        context.note(&uid, |note| note.failures = 0);
    }
    Ok(match next.after {
        Some(pause) => Action::requeue(backoff::spread(pause, &uid)),
        None => Action::await_change(),
    })
}

fn after_failure(stream: Arc<Guarded>, failure: &Failure, context: Arc<Context>) -> Action {
    let uid = stream.uid().unwrap_or_default();
    let failures = context.note(&uid, |note| {
        note.failures = note.failures.saturating_add(1);
        note.failures
    });
    context.metrics.reconciled(Kind::Stream, Outcome::Error, Duration::ZERO);
    let pause = backoff::after(failures, &uid);
    let (namespace, name) = (stream.namespace().unwrap_or_default(), stream.name_any());
    match failure {
        // Somebody else wrote in between, or the object is gone: looking again is all that is needed.
        Failure::Kubernetes(error) if matches!(crate::objects::code(error), Some(404 | 409)) => {
            debug!(namespace, name, %failure, "object changed meanwhile");
            Action::requeue(pause.min(Duration::from_secs(1)))
        }
        Failure::Kubernetes(error) if error.to_string().contains("field not declared in schema") => {
            warn!(namespace, name, %failure, "the installed CRD is older than this operator: upgrade headwater-crds");
            Action::requeue(pause)
        }
        Failure::Kubernetes(_) | Failure::Deadline => {
            warn!(namespace, name, %failure, failures, pause_ms = pause.as_millis(), "reconcile failed");
            Action::requeue(pause)
        }
    }
}
