//! Watches StreamClusters, asks their nodes now and then, and publishes what they say.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube_client::core::DeserializeGuard;
use kube_client::{Resource as _, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::{WatchStreamExt as _, predicates, reflector, watcher};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use headwater_crds::{ConditionStatus, ConditionType, StreamCluster, StreamClusterStatus};

use crate::context::Context;
use crate::events::Reason;
use crate::metrics::{Kind, Outcome};
use crate::objects::{code, write_status};
use crate::observatory::{TokenProblem, now};
use crate::stop::until_stopped;
use crate::{backoff, cluster_status};

/// Clusters looked at at a time.
const CONCURRENCY: u16 = 8;
/// Pause between two looks while a node is missing or a person is needed.
const IN_MOTION: Duration = Duration::from_secs(4);
/// Pause between two looks at a sound cluster.
const AT_REST: Duration = Duration::from_secs(10);
/// Shortest pause between two writes that change only the wording of messages.
const WORDING_PAUSE: Duration = Duration::from_secs(60);
/// Longest reconcile.
const DEADLINE: Duration = Duration::from_secs(20);

type Guarded = DeserializeGuard<StreamCluster>;

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
    let (reader, writer) = reflector::store();
    let objects = watcher(context.api::<Guarded>(), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .applied_objects()
        .predicate_filter(predicates::generation, kube_runtime::PredicateConfig::default());
    Controller::for_stream(objects, reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(until_stopped(stop))
        .run(reconcile, after_failure, context)
        .for_each(|ended| async move {
            if let Err(error) = ended {
                debug!(%error, "cluster controller");
            }
        })
        .await;
}

async fn reconcile(cluster: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Failure> {
    let cluster = match &cluster.0 {
        Ok(cluster) => cluster,
        Err(invalid) => {
            warn!(cluster = %cluster.name_any(), error = %invalid.error, "cannot read this StreamCluster; is the operator older than the CRD?");
            context.metrics.reconciled(Kind::StreamCluster, Outcome::Stalled, Duration::ZERO);
            return Ok(Action::requeue(context.resync));
        }
    };
    let started = Instant::now();
    let outcome = timeout(DEADLINE, look(&context, cluster)).await.map_err(|_| Failure::Deadline)??;
    context.metrics.reconciled(Kind::StreamCluster, outcome, started.elapsed());
    let uid = cluster.uid().unwrap_or_default();
    context.note(&uid, |note| note.failures = 0);
    let pause = if outcome == Outcome::Settled { AT_REST } else { IN_MOTION };
    Ok(Action::requeue(backoff::spread(pause, &uid)))
}

async fn look(context: &Context, cluster: &StreamCluster) -> kube_client::Result<Outcome> {
    let sight = context.observatory.look(cluster).await;
    if matches!(sight.token, Err(TokenProblem::Refused(_))) && context.tenure.holds() {
        // The nodes' token may have changed to ours: asking for a fence is the call that tells, and its answer counts
        // from the next look on.
        if let Err(error) = context.observatory.fence(&sight).await {
            debug!(cluster = %cluster.name_any(), %error, "the token is still refused");
        }
    }
    let generation = cluster.metadata.generation.unwrap_or(0);
    let published = cluster.status.as_ref();
    let computed = cluster_status::report(generation, &sight.answers, sight.token.as_ref().copied(), published, now());
    let outcome = outcome(&computed);
    publish(context, cluster, computed).await?;
    Ok(outcome)
}

fn outcome(status: &StreamClusterStatus) -> Outcome {
    let is = |kind: ConditionType| {
        headwater_crds::conditions::find(&status.conditions, kind)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    };
    if is(ConditionType::Stalled) {
        Outcome::Stalled
    } else if is(ConditionType::Reconciling) {
        Outcome::Blocked
    } else {
        Outcome::Settled
    }
}

async fn publish(context: &Context, cluster: &StreamCluster, computed: StreamClusterStatus) -> kube_client::Result<()> {
    let published = cluster.status.clone().unwrap_or_default();
    let uid = cluster.uid().unwrap_or_default();
    let recently = context.note(&uid, |note| note.status_written.is_some_and(|at| at.elapsed() < WORDING_PAUSE));
    if published == computed || (!cluster_status::differs(&published, &computed) && recently) {
        return Ok(());
    }
    write_status(&context.client, cluster, &computed).await?;
    context.metrics.status_written(Kind::StreamCluster);
    context.note(&uid, |note| note.status_written = Some(Instant::now()));
    for node in &computed.nodes {
        let before = published.nodes.iter().find(|before| before.url == node.url);
        let Some(before) = before.filter(|before| before.reachable != node.reachable) else {
            continue;
        };
        let name = node.name.as_deref().or(before.name.as_deref()).unwrap_or(&node.url);
        let (reason, note) = if node.reachable {
            (Reason::NodeReachable, format!("{name} answers again"))
        } else {
            let why = node.message.as_deref().unwrap_or_default();
            (Reason::NodeUnreachable, format!("{name} does not answer: {why}"))
        };
        context.events.publish(&cluster.object_ref(&()), reason, note).await;
    }
    Ok(())
}

fn after_failure(cluster: Arc<Guarded>, failure: &Failure, context: Arc<Context>) -> Action {
    let uid = cluster.uid().unwrap_or_default();
    let failures = context.note(&uid, |note| {
        note.failures = note.failures.saturating_add(1);
        note.failures
    });
    context.metrics.reconciled(Kind::StreamCluster, Outcome::Error, Duration::ZERO);
    let pause = backoff::after(failures, &uid);
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    match failure {
        Failure::Kubernetes(error) if matches!(code(error), Some(404 | 409)) => {
            debug!(namespace, name, %failure, "object changed meanwhile");
        }
        Failure::Kubernetes(_) | Failure::Deadline => {
            warn!(namespace, name, %failure, failures, pause_ms = pause.as_millis(), "reconcile failed");
        }
    }
    Action::requeue(pause)
}
