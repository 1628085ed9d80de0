//! Watches Streams, and StreamClusters for the Streams that wait for them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube_client::{Api, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::reflector::{self, ObjectRef, Store};
use kube_runtime::{Predicate as _, WatchStreamExt as _, predicates, watcher};
use tokio::sync::watch;
use tracing::debug;

use headwater_crds::{Stream, StreamCluster};

use crate::context::Context;
use crate::metrics::Kind;
use crate::reconcile::{self, Failure, Guarded, readable, within};
use crate::stop::until_stopped;
use crate::stream_pass;

/// Streams reconciled at a time; most of one reconcile is waiting for nodes.
const CONCURRENCY: u16 = 32;
/// Longest reconcile: four node calls that each run into their deadline.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs until `stop`, then until running reconciles have ended.
pub(crate) async fn run(context: Arc<Context>, stop: watch::Receiver<bool>) {
    let streams: Api<Guarded<Stream>> = context.api();
    let clusters: Api<Guarded<StreamCluster>> = context.api();
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
fn streams_of(cluster: &Guarded<StreamCluster>, streams: &Store<Guarded<Stream>>) -> Vec<ObjectRef<Guarded<Stream>>> {
    let (namespace, name) = (cluster.namespace(), cluster.name_any());
    let named = |stream: &Guarded<Stream>| {
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

async fn reconcile(stream: Arc<Guarded<Stream>>, context: Arc<Context>) -> Result<Action, Failure> {
    let Some(stream) = readable(&context, Kind::Stream, &stream) else {
        return Ok(Action::requeue(context.resync));
    };
    let uid = stream.uid().unwrap_or_default();
    within(DEADLINE, &context, Kind::Stream, &uid, stream_pass::reconcile(&context, stream)).await
}

fn after_failure(stream: Arc<Guarded<Stream>>, failure: &Failure, context: Arc<Context>) -> Action {
    reconcile::after_failure(Kind::Stream, &stream, failure, &context)
}
