//! One reconcile of one Stream: observe, validate, plan, lint, apply, execute, report.

use std::sync::Arc;
use std::time::Duration;

use kube_client::{Api, Resource as _, ResourceExt as _};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use headwater_admin_client::{ClientError, FailureClass};
use headwater_crds::{OperationStatus, Stream, StreamCluster, StreamStatus};
use headwater_plan::{
    Desired, Observed, Plan, Step, StreamView, WaitingOn, assemble, lint, plan, render, request, status,
};

use crate::context::{Context, Refusal};
use crate::events::Reason;
use crate::finalizer::{self, ClusterObject, Finality, Release};
use crate::metrics::{Kind, Outcome};
use crate::news;
use crate::objects::{set_finalizer, write_status};
use crate::observatory::{ClusterKey, Sight, now};
use crate::reconcile::Next;

/// Pause after a step, before looking at what it did.
const AFTER_STEP: Duration = Duration::from_millis(400);
/// Pause while something is on its way or awaited.
const IN_MOTION: Duration = Duration::from_secs(2);
/// Pause while the cluster object is missing; its appearance triggers a reconcile anyway.
const WITHOUT_CLUSTER: Duration = Duration::from_secs(15);
/// How long a refused step is not tried again, as long as it stays the same step.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// One reconcile. Everything but the finalizer follows from the plan.
///
/// # Errors
/// The API server's; a node's failure is part of what is reported.
pub(crate) async fn reconcile(context: &Context, stream: &Stream) -> kube_client::Result<Next> {
    let cluster = find_cluster(context, stream).await?;
    let object = cluster.as_ref().map_or(ClusterObject::Gone, |_| ClusterObject::Present);
    if let Some(next) = settle_finalizer(context, stream, finalizer::decide(stream, object)).await? {
        return Ok(next);
    }
    let pass = Pass::new(context, stream);
    let desired = match Desired::from_stream(stream) {
        Ok(desired) => desired,
        Err(problems) => {
            let computed = status::invalid(pass.generation(), &problems, pass.published(), now());
            pass.publish(computed).await?;
            return Ok(Next::new(Outcome::Stalled, context.resync));
        }
    };
    let Some(cluster) = cluster else {
        return pass.without_cluster().await;
    };

    let sight = context.observatory.look(&cluster).await;
    let entry = context.observatory.entry(&sight, &desired.account, &desired.name).await;
    let observed = assemble(&desired.account, &desired.name, &sight.answers, entry, now());
    let planned = pass.plan(&desired, &observed);
    let computed = status::report(&desired, &observed, &planned, pass.published(), now());

    if let Some(step) = &planned.step {
        return pass.take(step, &desired, &observed, &sight, computed).await;
    }
    if desired.deleting && planned.is_done() {
        return pass.finish_deletion(&observed).await;
    }
    let computed = if desired.deleting { pass.explain_held(computed, &planned) } else { computed };
    let next = pass.pace(&planned, &computed);
    pass.publish(computed).await?;
    Ok(next)
}

/// The StreamCluster that the stream names; one that is being deleted counts as gone.
async fn find_cluster(context: &Context, stream: &Stream) -> kube_client::Result<Option<StreamCluster>> {
    let namespace = stream.namespace().unwrap_or_default();
    let name = &stream.spec.cluster_ref.name;
    let clusters: Api<StreamCluster> = Api::namespaced(context.client.clone(), &namespace);
    let found = clusters.get_opt(name).await?;
    if found.is_none() {
        context.observatory.forget(&ClusterKey { namespace, name: name.clone() });
    }
    Ok(found.filter(|cluster| cluster.metadata.deletion_timestamp.is_none()))
}

/// Carries out what the finalizer's rules say; `None` means: go on.
async fn settle_finalizer(context: &Context, stream: &Stream, finality: Finality) -> kube_client::Result<Option<Next>> {
    let again = Some(Next::new(Outcome::Progressing, IN_MOTION));
    let (reason, note) = match finality {
        Finality::Keep | Finality::Delete => return Ok(None),
        Finality::Leave => {
            return Ok(Some(Next { outcome: Outcome::Settled, after: None }));
        }
        Finality::Add | Finality::Drop => {
            // The change triggers the next reconcile; the pause covers a missed watch event.
            set_finalizer(&context.client, stream, finality == Finality::Add).await?;
            return Ok(again);
        }
        Finality::Remove(Release::Retained) => {
            (Reason::DataRetained, "deletionPolicy Retain: the stream and its messages stay on the server")
        }
        Finality::Remove(Release::Forced) => {
            (Reason::FinalizerForced, "forced by annotation: the stream may still be on the server")
        }
        Finality::Remove(Release::ClusterGone) => (
            Reason::ClusterGone,
            "its StreamCluster is gone, so nobody can be asked to delete the stream; its messages stay with the nodes",
        ),
    };
    context.events.publish(&stream.object_ref(&()), reason, note).await;
    set_finalizer(&context.client, stream, false).await?;
    context.forget(&stream.uid().unwrap_or_default());
    Ok(Some(Next { outcome: Outcome::Settled, after: None }))
}

/// One reconcile's object and what it needs at every turn.
struct Pass<'a> {
    context: &'a Context,
    stream: &'a Stream,
    uid: String,
}

impl<'a> Pass<'a> {
    fn new(context: &'a Context, stream: &'a Stream) -> Self {
        Self { context, stream, uid: stream.uid().unwrap_or_default() }
    }

    fn generation(&self) -> i64 {
        self.stream.metadata.generation.unwrap_or(0)
    }

    fn published(&self) -> Option<&StreamStatus> {
        self.stream.status.as_ref()
    }

    async fn without_cluster(&self) -> kube_client::Result<Next> {
        let name = &self.stream.spec.cluster_ref.name;
        let namespace = self.stream.namespace().unwrap_or_default();
        let computed = status::cluster_not_found(self.generation(), name, &namespace, self.published(), now());
        self.publish(computed).await?;
        Ok(Next::new(Outcome::Blocked, WITHOUT_CLUSTER))
    }

    /// The planner's answer, held back where the same step was just refused for good or breaks a rule.
    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan {
        let planned = plan(desired, observed, now());
        if let Err(violations) = lint(desired, observed, &planned, now()) {
            let why: Vec<String> = violations.iter().map(ToString::to_string).collect();
            let why = why.join("; ");
            // A bug of ours: refusing to act is the point of the check.
            error!(stream = %desired.owner, %why, plan = render::plan(&planned), "the planner broke a rule; nothing is done");
            return Plan::wait(vec![WaitingOn::Refused {
                why: format!("the operator's own check refused the plan: {why}"),
            }]);
        }
        let refusal = self.context.note(&self.uid, |note| note.refusal.clone());
        match (refusal, &planned.step) {
            (Some(refusal), Some(step)) if refusal.step == *step && refusal.at.elapsed() < REFUSED_PAUSE => {
                Plan::wait(vec![WaitingOn::Refused { why: refusal.why }])
            }
            _ => planned,
        }
    }

    /// Writes the step to status, then takes it.
    async fn take(
        &self,
        step: &Step,
        desired: &Desired,
        observed: &Observed,
        sight: &Arc<Sight>,
        mut computed: StreamStatus,
    ) -> kube_client::Result<Next> {
        if !self.context.tenure.holds() {
            // Another process may lead by now; the lease task is about to end this one.
            return Ok(Next::new(Outcome::Blocked, IN_MOTION));
        }
        let fence = match self.context.observatory.fence(sight).await {
            Ok(fence) => fence,
            Err(error) => return self.not_taken(step, desired, observed, &error).await,
        };
        if let Some(OperationStatus { fence: carried, .. }) = &mut computed.operation {
            *carried = i64::try_from(fence).ok();
        }
        let refused_before =
            self.context.note(&self.uid, |note| note.refusal.as_ref().is_some_and(|r| r.step == *step));
        if !refused_before {
            // A refused step keeps its explanation in status while it is tried once more.
            self.publish(computed.clone()).await?;
        }
        let call = request(step, desired, observed, fence);
        let stream = (desired.account.as_str(), desired.name.as_str());
        match self.context.observatory.send(sight, observed.leader(), stream, &call).await {
            Ok(()) => {
                info!(stream = %desired.owner, step = step.kind(), node = step.node(), fence, "step taken");
                self.context.note(&self.uid, |note| note.refusal = None);
                let (reason, note) = news::of_step(step, self.published(), self.generation());
                self.context.events.publish(&self.stream.object_ref(&()), reason, note).await;
                Ok(Next::new(Outcome::Progressing, AFTER_STEP))
            }
            Err(error) => self.not_taken(step, desired, observed, &error).await,
        }
    }

    /// Reports why a step was not taken: for good, or only now.
    async fn not_taken(
        &self,
        step: &Step,
        desired: &Desired,
        observed: &Observed,
        error: &ClientError,
    ) -> kube_client::Result<Next> {
        let class = error.class();
        warn!(stream = %desired.owner, step = step.kind(), %error, ?class, "step not taken");
        let (waiting, next) = match class {
            // What we planned from is old: look again before saying anything.
            FailureClass::Overtaken | FailureClass::NotFound => {
                return Ok(Next::new(Outcome::Progressing, AFTER_STEP));
            }
            FailureClass::Transient => {
                let why = format!("{} was not taken: {error}", render::step(step));
                (WaitingOn::Leader { why }, Next::new(Outcome::Blocked, IN_MOTION))
            }
            FailureClass::Credentials | FailureClass::Terminal => {
                let why = error.to_string();
                self.context.note(&self.uid, |note| {
                    note.refusal = Some(Refusal { step: step.clone(), why: why.clone(), at: Instant::now() });
                });
                (WaitingOn::Refused { why }, Next::new(Outcome::Stalled, self.context.resync))
            }
        };
        let held = Plan::wait(vec![waiting]);
        let computed = status::report(desired, observed, &held, self.published(), now());
        let computed = if desired.deleting { self.explain_held(computed, &held) } else { computed };
        self.publish(computed).await?;
        Ok(next)
    }

    /// The stream is gone from the server, or was never ours: the object may go.
    async fn finish_deletion(&self, observed: &Observed) -> kube_client::Result<Next> {
        let (reason, note) = match &observed.stream {
            StreamView::Present(server) => (
                Reason::DataRetained,
                match &server.owner {
                    Some(owner) => {
                        format!("the stream on the server belongs to {owner}, and stays")
                    }
                    None => "the stream on the server is not this object's, and stays".to_owned(),
                },
            ),
            StreamView::Absent | StreamView::Unknown { .. } => {
                (Reason::StreamDeleted, "the stream is gone from the server".to_owned())
            }
        };
        self.context.events.publish(&self.stream.object_ref(&()), reason, note).await;
        set_finalizer(&self.context.client, self.stream, false).await?;
        self.context.forget(&self.uid);
        Ok(Next { outcome: Outcome::Settled, after: None })
    }

    /// A deletion that cannot go on names its way out.
    fn explain_held(&self, mut computed: StreamStatus, planned: &Plan) -> StreamStatus {
        let why: Vec<String> = planned.waiting.iter().map(ToString::to_string).collect();
        news::hold_deletion(&mut computed, &why.join("; "), self.generation(), self.published(), now());
        computed
    }

    /// When to look again.
    fn pace(&self, planned: &Plan, computed: &StreamStatus) -> Next {
        let idle = |waiting: &WaitingOn| matches!(waiting, WaitingOn::DriftIgnored { .. } | WaitingOn::Paused);
        if planned.stalled().is_some() {
            Next::new(Outcome::Stalled, self.context.resync)
        } else if planned.waiting.iter().any(|waiting| !idle(waiting)) {
            Next::new(Outcome::Blocked, IN_MOTION)
        } else if computed.replicas.iter().any(|replica| replica.phase != headwater_crds::ReplicaPhase::Recovered) {
            Next::new(Outcome::Progressing, IN_MOTION)
        } else {
            Next::new(Outcome::Settled, self.context.resync)
        }
    }

    /// Writes the status if that is due, and tells what changed.
    async fn publish(&self, computed: StreamStatus) -> kube_client::Result<()> {
        let published = self.published().cloned().unwrap_or_default();
        let written = self.context.note(&self.uid, |note| note.status_written);
        let since_ms = written.map_or(i64::MAX, |at| i64::try_from(at.elapsed().as_millis()).unwrap_or(i64::MAX));
        if !status::write_due(&published, &computed, since_ms) {
            debug!(stream = %self.stream.name_any(), "status not due");
            return Ok(());
        }
        write_status(&self.context.client, self.stream, &computed).await?;
        self.context.metrics.status_written(Kind::Stream);
        self.context.note(&self.uid, |note| note.status_written = Some(Instant::now()));
        for (reason, note) in news::between(&published, &computed) {
            self.context.events.publish(&self.stream.object_ref(&()), reason, note).await;
        }
        Ok(())
    }
}
