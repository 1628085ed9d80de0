//! Client of a node's admin API: a deadline on every call, bounded answers.

use std::time::Duration;

use headwater_plan::Request;
use headwater_plan::wire::{ErrorBody, Fence, FenceRequest, RecoveryReport, StreamReport};
use reqwest::{Method, Url};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::fleet::Member;

/// Longest wait for a read.
const READ_DEADLINE: Duration = Duration::from_secs(2);
/// Longest wait for a change: it passes a Raft log, and may wait for an election first.
const CHANGE_DEADLINE: Duration = Duration::from_secs(12);
/// Longest wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// Largest answer that is read (bytes). A report is about 500 bytes a group.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why a call did not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("{url}: {why}")]
    Unreachable { url: String, why: String },
    #[error("{message}")]
    Refused { status: u16, code: String, message: String },
    #[error("{url} sent an answer that cannot be used: {why}")]
    Malformed { url: String, why: String },
}

impl ClientError {
    /// There is no such stream; only a node says that with this word.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, code, .. } if code == "not_found")
    }

    /// The same call may work at another node, or later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Refused { status, code, .. } => {
                *status >= 500 || matches!(code.as_str(), "no_leader" | "not_leader" | "busy" | "timeout")
            }
            Self::Unreachable { .. } | Self::Malformed { .. } => true,
        }
    }

    /// Fence or generation were overtaken: look again and plan anew.
    pub(crate) fn is_overtaken(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if matches!(code.as_str(), "stale_fence" | "stale_generation" | "fence_held"))
    }
}

/// One HTTP client for all nodes of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient {
    http: reqwest::Client,
    token: Option<String>,
}

impl AdminClient {
    /// `token` is carried by every change.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub(crate) fn new(token: Option<String>) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_DEADLINE)
            .pool_idle_timeout(Duration::from_secs(30))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { http, token })
    }

    /// Whether the node takes clients and can create streams.
    pub(crate) async fn is_ready(&self, node: &str) -> bool {
        self.read::<IgnoredAny>(node, &["readyz"]).await.is_ok()
    }

    /// `GET /v1/recovery`.
    pub(crate) async fn recovery(&self, node: &str) -> Result<RecoveryReport, ClientError> {
        self.read(node, &["v1", "recovery"]).await
    }

    /// `GET /v1/streams/{account}/{name}`.
    pub(crate) async fn stream(&self, node: &str, account: &str, name: &str) -> Result<StreamReport, ClientError> {
        self.read(node, &["v1", "streams", account, name]).await
    }

    /// Every node of the cluster, as `node` knows it.
    pub(crate) async fn members(&self, node: &str) -> Result<Vec<Member>, ClientError> {
        #[derive(Deserialize)]
        struct Varz {
            headwater: Nodes,
        }
        #[derive(Deserialize)]
        struct Nodes {
            nodes: Vec<Member>,
        }
        let varz: Varz = self.read(node, &["varz"]).await?;
        Ok(varz.headwater.nodes)
    }

    /// `POST /v1/fence`.
    pub(crate) async fn fence(&self, node: &str, ask: &FenceRequest) -> Result<Fence, ClientError> {
        self.change(node, Method::POST, &["v1", "fence"], ask).await
    }

    /// One of the planner's changes.
    pub(crate) async fn send(
        &self,
        node: &str,
        account: &str,
        name: &str,
        request: &Request,
    ) -> Result<(), ClientError> {
        let stream = ["v1", "streams", account, name];
        let IgnoredAny = match request {
            Request::Put(body) => self.change(node, Method::PUT, &stream, body).await?,
            Request::Delete(body) => self.change(node, Method::DELETE, &stream, body).await?,
            Request::Durability(body) => {
                let path = ["v1", "streams", account, name, "durability", "step"];
                self.change(node, Method::POST, &path, body).await?
            }
            Request::Transfer(body) => self.change(node, Method::POST, &["v1", "leadership", "transfer"], body).await?,
        };
        Ok(())
    }

    async fn read<A: DeserializeOwned>(&self, node: &str, path: &[&str]) -> Result<A, ClientError> {
        self.call(node, Method::GET, path, None::<&()>, READ_DEADLINE).await
    }

    async fn change<A: DeserializeOwned>(
        &self,
        node: &str,
        method: Method,
        path: &[&str],
        body: &(impl Serialize + Sync),
    ) -> Result<A, ClientError> {
        self.call(node, method, path, Some(body), CHANGE_DEADLINE).await
    }

    async fn call<A: DeserializeOwned>(
        &self,
        node: &str,
        method: Method,
        path: &[&str],
        body: Option<&(impl Serialize + Sync)>,
        limit: Duration,
    ) -> Result<A, ClientError> {
        let url = joined(node, path)?;
        let unreachable = |e: reqwest::Error| ClientError::Unreachable {
            url: node.to_owned(),
            why: if e.is_timeout() { format!("no answer within {} s", limit.as_secs()) } else { root(&e) },
        };
        let is_read = method == Method::GET;
        let mut request = self.http.request(method, url).timeout(limit);
        if let Some(token) = self.token.as_ref().filter(|_| !is_read) {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let malformed = |why: String| ClientError::Malformed { url: node.to_owned(), why };
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(malformed(format!("longer than {ANSWER_BYTES_MAX} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|e| malformed(e.to_string()));
        }
        let ErrorBody { code, message } =
            serde_json::from_slice(&bytes).map_err(|_| malformed(format!("status {status} without a reason")))?;
        Err(ClientError::Refused { status: status.as_u16(), code, message })
    }
}

/// The innermost cause, which is what a person needs ("connection refused").
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// `base` + `path`, each part one segment whatever characters it has.
fn joined(base: &str, path: &[&str]) -> Result<Url, ClientError> {
    let bad = |why: &str| ClientError::Unreachable { url: base.to_owned(), why: why.to_owned() };
    let mut url = Url::parse(base).map_err(|e| bad(&e.to_string()))?;
    match url.path_segments_mut() {
        Ok(mut segments) => {
            segments.pop_if_empty().extend(path);
        }
        Err(()) => return Err(bad("not an http address")),
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_path_are_one_segment_each() {
        let url = joined("http://127.0.0.1:8222/", &["v1", "streams", "$G", "a/b c"]).unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:8222/v1/streams/$G/a%2Fb%20c");
        assert!(joined("8222", &["v1"]).is_err());
        assert!(joined("mailto:x", &["v1"]).is_err());
    }

    #[test]
    fn refusals_are_sorted_by_what_can_be_done_about_them() {
        let refused = |status, code: &str| ClientError::Refused { status, code: code.into(), message: String::new() };
        assert!(refused(404, "not_found").is_not_found() && !refused(404, "no_such_path").is_not_found());
        assert!(refused(503, "no_leader").is_transient() && refused(409, "busy").is_transient());
        assert!(refused(409, "stale_fence").is_overtaken() && !refused(409, "stale_fence").is_transient());
        assert!(!refused(400, "10065").is_transient() && !refused(400, "10065").is_overtaken());
    }
}
