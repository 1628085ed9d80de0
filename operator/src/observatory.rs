//! What the nodes of each cluster say, asked once for all who want to know at the same time.
//!
//! A hundred streams of one cluster share one round of questions, and one fence.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube_client::{Api, Client, ResourceExt as _};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::debug;

use headwater_admin_client::{AdminClient, AdminToken, ClientError, FailureClass};
use headwater_crds::{ExternalCluster, SecretKeyRef, StreamCluster};
use headwater_plan::wire::FenceRequest;
use headwater_plan::{NodeAnswer, Now, Request, StreamView};

use crate::metrics::{Metrics, NodeCall};

/// How long a round of answers serves everybody.
const ROUND_MAX_AGE: Duration = Duration::from_secs(1);
/// How long a token is used before the Secret is read again.
const TOKEN_MAX_AGE: Duration = Duration::from_secs(10);
/// How long a fence stays live without another request. Short, so that a node's own planner may act between two changes.
const FENCE_TTL: Duration = Duration::from_secs(15);

/// A StreamCluster's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ClusterKey {
    pub(crate) fn of(cluster: &StreamCluster) -> Self {
        Self { namespace: cluster.namespace().unwrap_or_default(), name: cluster.name_any() }
    }
}

/// Why the admin token of a cluster does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenProblem {
    /// The Secret or its key is missing, or may not be read.
    NotFound(String),
    /// A node refused it.
    Refused(String),
}

/// One round of answers.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) key: ClusterKey,
    /// Carries the cluster's token.
    nodes: AdminClient,
    /// One per URL of the spec, in its order.
    pub(crate) answers: Vec<NodeAnswer>,
    pub(crate) token: Result<(), TokenProblem>,
}

/// What is remembered of one cluster between rounds. Losing it costs a question, nothing else.
#[derive(Debug, Default)]
struct Memory {
    /// UID and generation of the object that the rest was learnt from.
    version: (String, i64),
    token: Option<(Instant, Result<Option<AdminToken>, TokenProblem>)>,
    token_refused: Option<String>,
    round: Option<(Instant, Arc<Sight>)>,
    /// Whether something was changed after `round`.
    changed: bool,
    fence: Option<(Instant, u64)>,
    /// Last known name of the node at each URL, so that a silent node keeps its name.
    names: BTreeMap<String, String>,
}

/// Asks nodes, and remembers for a moment.
pub(crate) struct Observatory {
    client: Client,
    nodes: AdminClient,
    metrics: Arc<Metrics>,
    holder: String,
    clusters: std::sync::Mutex<HashMap<ClusterKey, Arc<Mutex<Memory>>>>,
}

impl Observatory {
    pub(crate) fn new(client: Client, nodes: AdminClient, metrics: Arc<Metrics>, holder: &str) -> Self {
        Self { client, nodes, metrics, holder: holder.to_owned(), clusters: std::sync::Mutex::default() }
    }

    fn memory(&self, key: &ClusterKey) -> Arc<Mutex<Memory>> {
        let mut clusters = self.clusters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(clusters.entry(key.clone()).or_default())
    }

    /// Drops what is known of a cluster whose object is gone.
    pub(crate) fn forget(&self, key: &ClusterKey) {
        let mut clusters = self.clusters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        clusters.remove(key);
    }

    /// Asks every node, or returns a round that is younger than a second.
    pub(crate) async fn look(&self, cluster: &StreamCluster) -> Arc<Sight> {
        let key = ClusterKey::of(cluster);
        let memory = self.memory(&key);
        // Held while asking: whoever comes meanwhile gets this round's answers.
        let mut memory = memory.lock().await;
        let version = (cluster.uid().unwrap_or_default(), cluster.metadata.generation.unwrap_or(0));
        if memory.version != version {
            *memory = Memory { version, names: known_names(cluster), ..Memory::default() };
        }
        if let Some((since, round)) = &memory.round
            && since.elapsed() < ROUND_MAX_AGE
            && !memory.changed
        {
            return Arc::clone(round);
        }
        let round = Arc::new(self.ask(key, cluster.spec.external.as_ref(), &mut memory).await);
        memory.round = Some((Instant::now(), Arc::clone(&round)));
        memory.changed = false;
        round
    }

    async fn ask(&self, key: ClusterKey, external: Option<&ExternalCluster>, memory: &mut Memory) -> Sight {
        let reference = external.and_then(|external| external.admin_token_secret_ref.as_ref());
        let token = self.token(&key.namespace, reference, memory).await;
        let urls = external.map(|external| external.admin_urls.as_slice()).unwrap_or_default();
        let nodes = self.nodes.with_token(token.as_ref().ok().cloned().flatten());
        let told = join_all(urls.iter().map(|url| self.answer(&nodes, url, &memory.names))).await;
        let mut refused = memory.token_refused.clone();
        let mut answers = Vec::with_capacity(told.len());
        for (answer, class) in told {
            match &answer.report {
                Ok(report) => {
                    memory.names.insert(answer.url.clone(), report.node.clone());
                }
                Err(why) if class == Some(FailureClass::Credentials) => refused = Some(why.clone()),
                Err(_) => {}
            }
            answers.push(answer);
        }
        let token = match (token, refused) {
            (Err(problem), _) => Err(problem),
            (Ok(_), Some(why)) => Err(TokenProblem::Refused(why)),
            (Ok(_), None) => Ok(()),
        };
        Sight { key, nodes, answers, token }
    }

    async fn answer(
        &self,
        nodes: &AdminClient,
        url: &str,
        names: &BTreeMap<String, String>,
    ) -> (NodeAnswer, Option<FailureClass>) {
        let report = nodes.recovery(url).await;
        self.metrics.node_called(NodeCall::Observe, report.is_ok());
        let class = report.as_ref().err().map(ClientError::class);
        let place = || url.split("://").last().unwrap_or(url).trim_end_matches('/').to_owned();
        let answer = NodeAnswer {
            name: names.get(url).cloned().unwrap_or_else(place),
            url: url.to_owned(),
            pod: None,
            at: now(),
            report: report.map_err(|error| error.to_string()),
        };
        (answer, class)
    }

    async fn token(
        &self,
        namespace: &str,
        reference: Option<&SecretKeyRef>,
        memory: &mut Memory,
    ) -> Result<Option<AdminToken>, TokenProblem> {
        let Some(reference) = reference else {
            return Ok(None);
        };
        if let Some((since, token)) = &memory.token
            && since.elapsed() < TOKEN_MAX_AGE
            && token.is_ok()
        {
            return token.clone();
        }
        let token = self.read_token(namespace, reference).await.map(Some);
        if memory.token.as_ref().map(|(_, old)| old) != Some(&token) {
            // Another token may be accepted.
            memory.token_refused = None;
        }
        memory.token = Some((Instant::now(), token.clone()));
        token
    }

    async fn read_token(&self, namespace: &str, reference: &SecretKeyRef) -> Result<AdminToken, TokenProblem> {
        let name = &reference.name;
        let problem = |why: String| TokenProblem::NotFound(format!("Secret {namespace}/{name}: {why}"));
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = match secrets.get_opt(name).await {
            Ok(Some(secret)) => secret,
            Ok(None) => return Err(problem("does not exist".to_owned())),
            Err(error) => return Err(problem(error.to_string())),
        };
        let key = reference.key();
        let bytes = secret.data.and_then(|mut data| data.remove(key));
        let bytes = bytes.ok_or_else(|| problem(format!("has no key {key:?}")))?;
        match std::str::from_utf8(&bytes.0) {
            Ok(text) if !text.trim().is_empty() && !text.trim().contains(char::is_control) => Ok(AdminToken::new(text)),
            _ => Err(problem(format!("key {key:?} does not hold a token"))),
        }
    }

    /// The catalogue's entry of a stream, from the first node that can say.
    pub(crate) async fn entry(&self, sight: &Sight, account: &str, name: &str) -> StreamView {
        let mut why = Vec::new();
        for answer in answering(sight) {
            let report = sight.nodes.stream(&answer.url, account, name).await;
            self.metrics.node_called(NodeCall::Observe, report.is_ok());
            match report {
                Ok(report) => return StreamView::Present(report.into()),
                Err(error) if error.class() == FailureClass::NotFound => return StreamView::Absent,
                Err(error) => why.push(format!("{}: {error}", answer.name)),
            }
        }
        if why.is_empty() {
            why = sight
                .answers
                .iter()
                .filter_map(|answer| Some(format!("{}: {}", answer.name, answer.report.as_ref().err()?)))
                .collect();
        }
        StreamView::Unknown { why: why.join("; ") }
    }

    /// The fencing number of this process in that cluster: extended in time, asked anew when it may have run out.
    ///
    /// # Errors
    /// The last node's refusal, when no node gives one.
    pub(crate) async fn fence(&self, sight: &Sight) -> Result<u64, ClientError> {
        let memory = self.memory(&sight.key);
        let mut memory = memory.lock().await;
        if let Some((since, number)) = memory.fence
            && since.elapsed() < FENCE_TTL / 2
        {
            return Ok(number);
        }
        let ask = FenceRequest {
            holder: self.holder.clone(),
            ttl_ms: u64::try_from(FENCE_TTL.as_millis()).unwrap_or(u64::MAX),
        };
        let started = Instant::now();
        let mut last = ClientError::nobody(sight.answers.len());
        for answer in answering(sight) {
            let fence = sight.nodes.fence(&answer.url, &ask).await;
            self.metrics.node_called(NodeCall::Fence, fence.is_ok());
            match fence {
                Ok(fence) => {
                    memory.fence = Some((started, fence.number));
                    memory.token_refused = None;
                    return Ok(fence.number);
                }
                Err(error) => {
                    note_refusal(&mut memory, &error);
                    let again = error.class() == FailureClass::Transient;
                    last = error;
                    if !again {
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    /// Gives every live fence back, so that a successor need not wait until it runs out. Best effort.
    pub(crate) async fn give_fences_back(&self) {
        let ask = FenceRequest { holder: self.holder.clone(), ttl_ms: 0 };
        let clusters: Vec<_> = {
            let clusters = self.clusters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            clusters.values().map(Arc::clone).collect()
        };
        for memory in clusters {
            let mut memory = memory.lock().await;
            let held = memory.fence.take().is_some_and(|(since, _)| since.elapsed() < FENCE_TTL);
            let Some((_, sight)) = memory.round.take().filter(|_| held) else {
                continue;
            };
            for answer in answering(&sight) {
                match sight.nodes.fence(&answer.url, &ask).await {
                    Ok(_) => break,
                    Err(error) => debug!(node = %answer.name, %error, "fence not given back"),
                }
            }
        }
    }

    /// Sends a change, to `first` before all others, until a node takes it or refuses it for good.
    ///
    /// # Errors
    /// The refusal, or the last node's failure.
    pub(crate) async fn send(
        &self,
        sight: &Sight,
        first: Option<&str>,
        (account, name): (&str, &str),
        request: &Request,
    ) -> Result<(), ClientError> {
        let call = match request {
            Request::Put(_) => NodeCall::PutStream,
            Request::Delete(_) => NodeCall::DeleteStream,
            Request::Durability(_) => NodeCall::DurabilityStep,
            Request::Transfer(_) => NodeCall::Leadership,
        };
        let mut nodes: Vec<_> = answering(sight).collect();
        nodes.sort_by_key(|answer| first != Some(node_name(answer)));
        let mut result = Err(ClientError::nobody(sight.answers.len()));
        for answer in nodes {
            result = sight.nodes.send(&answer.url, account, name, request).await;
            self.metrics.node_called(call, result.is_ok());
            match &result {
                Err(error) if error.class() == FailureClass::Transient => {
                    debug!(node = %answer.name, %error, "change not taken; asking the next node");
                }
                _ => break,
            }
        }
        let memory = self.memory(&sight.key);
        let mut memory = memory.lock().await;
        // Whatever happened, what was seen before it is old.
        memory.changed = true;
        if let Err(error) = &result {
            note_refusal(&mut memory, error);
        }
        result
    }
}

/// Nodes that answered this round. One that did not is not asked again at once.
fn answering(sight: &Sight) -> impl Iterator<Item = &NodeAnswer> {
    sight.answers.iter().filter(|answer| answer.report.is_ok())
}

fn node_name(answer: &NodeAnswer) -> &str {
    answer.report.as_ref().map_or(answer.name.as_str(), |report| report.node.as_str())
}

fn note_refusal(memory: &mut Memory, error: &ClientError) {
    match error.class() {
        FailureClass::Credentials => {
            memory.token_refused = Some(error.to_string());
            memory.token = None;
        }
        // Somebody else got a later number: ours is worth nothing.
        FailureClass::Overtaken => memory.fence = None,
        FailureClass::Transient | FailureClass::NotFound | FailureClass::Terminal => {}
    }
}

/// Names from the last published status: after a restart a silent node keeps its name.
fn known_names(cluster: &StreamCluster) -> BTreeMap<String, String> {
    let nodes = cluster.status.iter().flat_map(|status| &status.nodes);
    nodes.filter_map(|node| Some((node.url.clone(), node.name.clone()?))).collect()
}

/// The wall clock, for the planner.
pub(crate) fn now() -> Now {
    Now::from_unix_ms(jiff::Timestamp::now().as_millisecond())
}
