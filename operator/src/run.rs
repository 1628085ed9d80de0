//! Life of the `run` command: reach the API server, serve probes, win the Lease, run both controllers, leave in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube_client::discovery;
use kube_client::{Api, Client, Config};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use headwater_admin_client::AdminClient;

use crate::cli::{LEASE_NAME, Settings};
use crate::context::Context;
use crate::events::Events;
use crate::http::{self, Probes};
use crate::lease::{Elector, Timing};
use crate::metrics::Metrics;
use crate::observatory::Observatory;
use crate::stop::until_stopped;
use crate::{cluster_controller, stop, stream_controller};

/// Longest wait for an answer of the API server to a call that must not be retried.
const QUICK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts to reach the API server at start.
const KNOCK_PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for running reconciles after SIGTERM; Kubernetes kills after 30 s by default.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// Longest wait for the nodes to take our fences back.
const FAREWELL_LIMIT: Duration = Duration::from_secs(3);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When there is no usable kubeconfig, the address is taken, the Lease is lost, or a controller ends by itself.
pub(crate) async fn run(settings: &Settings) -> anyhow::Result<()> {
    let config = Config::infer().await.context("no kubeconfig and not inside a cluster")?;
    let client = Client::try_from(config.clone()).context("cannot build a Kubernetes client")?;
    // The default client retries 429 and 503 for minutes: a renewal that waits that long has outlived its deadline.
    let mut quick = config.clone();
    quick.default_retry = false;
    quick.connect_timeout = Some(QUICK_TIMEOUT);
    quick.read_timeout = Some(QUICK_TIMEOUT);
    quick.write_timeout = Some(QUICK_TIMEOUT);
    let quick = Client::try_from(quick).context("cannot build a Kubernetes client")?;

    let metrics = Arc::new(Metrics::new());
    let probes = Arc::new(Probes::new(Arc::clone(&metrics)));
    let (stop_http, http_stopped) = watch::channel(false);
    let listener = TcpListener::bind(settings.http)
        .await
        .with_context(|| format!("--http: cannot listen on {}", settings.http))?;
    info!(address = %settings.http, identity = %settings.identity, "serving probes and metrics");
    let server = tokio::spawn(http::serve(listener, Arc::clone(&probes), http_stopped));

    let stop = stop::on_signal()?;
    let outcome = lead(settings, client, quick, metrics, probes, stop, &config.default_namespace).await;
    // The server may have ended already; then there is nobody to tell.
    let _ = stop_http.send(true);
    server.await.context("the HTTP server panicked")?.context("the HTTP server failed")?;
    outcome
}

/// Everything between "API server reachable" and "Lease given back".
async fn lead(
    settings: &Settings,
    client: Client,
    quick: Client,
    metrics: Arc<Metrics>,
    probes: Arc<Probes>,
    stop: watch::Receiver<bool>,
    own_namespace: &str,
) -> anyhow::Result<()> {
    tokio::select! {
        () = knock(&quick) => probes.set_ready(true),
        () = until_stopped(stop.clone()) => return Ok(()),
    }
    let namespace = settings.lease_namespace.as_deref().or(settings.namespace.as_deref()).unwrap_or(own_namespace);
    let elector =
        Elector::new(Api::namespaced(quick.clone(), namespace), LEASE_NAME, &settings.identity, Timing::default());
    let mut held = tokio::select! {
        held = elector.acquire() => held,
        () = until_stopped(stop.clone()) => return Ok(()),
    };
    info!(namespace, transitions = held.transitions(), "leading");
    metrics.leading(held.transitions());

    let nodes = AdminClient::new(None).context("cannot build the client of the nodes' admin API")?;
    let context = Arc::new(Context::new(
        client.clone(),
        Observatory::new(client.clone(), nodes, Arc::clone(&metrics), &settings.identity),
        Events::new(client, &settings.identity),
        Arc::clone(&metrics),
        held.tenure(),
        settings.namespace.clone(),
        Duration::from_secs(settings.resync_s),
    ));
    let mut controllers = std::pin::pin!(controllers(Arc::clone(&context), stop.clone()));
    let lost = tokio::select! {
        ended = &mut controllers => {
            ended?;
            None
        }
        lost = held.renew_until_lost() => Some(lost),
        () = drained(stop.clone()) => {
            warn!(limit_s = DRAIN_LIMIT.as_secs(), "reconciles did not end in time; leaving anyway");
            None
        }
    };
    metrics.stopped_leading();
    match lost {
        // Whatever still runs ends with the process; nodes refuse it by its fence.
        Some(lost) => Err(anyhow!(lost).context("leadership lost")),
        None => {
            if timeout(FAREWELL_LIMIT, context.observatory.give_fences_back()).await.is_err() {
                warn!("fences not given back in time; they run out by themselves");
            }
            held.release().await;
            Ok(())
        }
    }
}

async fn controllers(context: Arc<Context>, stop: watch::Receiver<bool>) -> anyhow::Result<()> {
    let streams = stream_controller::run(Arc::clone(&context), stop.clone());
    let clusters = cluster_controller::run(context, stop.clone());
    futures::future::join(streams, clusters).await;
    if *stop.borrow() {
        info!("controllers stopped");
        Ok(())
    } else {
        Err(anyhow!("the controllers ended without being asked to"))
    }
}

/// Waits until the API server serves our kinds.
async fn knock(client: &Client) {
    loop {
        match discovery::group(client, headwater_crds::GROUP).await {
            Ok(group) => {
                let kinds: Vec<_> = group.recommended_resources().into_iter().map(|(r, _)| r.kind).collect();
                let missing: Vec<_> =
                    ["Stream", "StreamCluster"].into_iter().filter(|k| !kinds.iter().any(|h| h == k)).collect();
                if missing.is_empty() {
                    return;
                }
                warn!(?missing, "CustomResourceDefinitions missing: install the headwater-crds chart");
            }
            Err(kube_client::Error::Discovery(_)) => {
                warn!(group = headwater_crds::GROUP, "the API group is not served: install the headwater-crds chart");
            }
            Err(error) => warn!(%error, "the Kubernetes API does not answer"),
        }
        sleep(KNOCK_PAUSE).await;
    }
}

/// Resolves some time after `stop`, when waiting longer would end in SIGKILL.
async fn drained(stop: watch::Receiver<bool>) {
    until_stopped(stop).await;
    sleep(DRAIN_LIMIT).await;
}
