//! Watches StreamClusters, asks their nodes now and then, and publishes what they say.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube_client::{Resource as _, ResourceExt as _};
use kube_runtime::controller::{Action, Config, Controller};
use kube_runtime::{WatchStreamExt as _, predicates, reflector, watcher};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use headwater_crds::{ConditionStatus, ConditionType, StreamCluster, StreamClusterStatus};

use crate::cluster_status;
use crate::context::Context;
use crate::events::Reason;
use crate::metrics::{Kind, Outcome};
use crate::objects::write_status;
use crate::observatory::{TokenProblem, now};
use crate::reconcile::{self, Failure, Guarded, Next, readable, within};
use crate::stop::until_stopped;

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

/// Runs until `stop`, then until running reconciles have ended.
pub(crate) async fn run(context: Arc<Context>, stop: watch::Receiver<bool>) {
    let (reader, writer) = reflector::store();
    let objects = watcher(context.api::<Guarded<StreamCluster>>(), watcher::Config::default())
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

async fn reconcile(cluster: Arc<Guarded<StreamCluster>>, context: Arc<Context>) -> Result<Action, Failure> {
    let Some(cluster) = readable(&context, Kind::StreamCluster, &cluster) else {
        return Ok(Action::requeue(context.resync));
    };
    let uid = cluster.uid().unwrap_or_default();
    within(DEADLINE, &context, Kind::StreamCluster, &uid, look(&context, cluster)).await
}

fn after_failure(cluster: Arc<Guarded<StreamCluster>>, failure: &Failure, context: Arc<Context>) -> Action {
    reconcile::after_failure(Kind::StreamCluster, &cluster, failure, &context)
}

async fn look(context: &Context, cluster: &StreamCluster) -> kube_client::Result<Next> {
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
    Ok(Next::new(outcome, if outcome == Outcome::Settled { AT_REST } else { IN_MOTION }))
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
