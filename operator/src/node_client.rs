//! Typed client of a node's admin API: bearer token, deadline on every call, bounded answers.

use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use thiserror::Error;

use headwater_plan::Request;
use headwater_plan::wire::{ErrorBody, Fence, FenceRequest, RecoveryReport, StreamReport};

/// Longest wait for a read.
const READ_DEADLINE: Duration = Duration::from_secs(3);
/// Longest wait for a change: it passes a Raft log, and may wait for an election first.
const CHANGE_DEADLINE: Duration = Duration::from_secs(8);
/// Longest wait for a connection; a machine without power answers nothing at all.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Largest answer that is read (bytes). A report is about 400 bytes a group, so this is some 40 000 groups.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Longest excerpt of an answer that is not JSON (bytes).
const EXCERPT_BYTES_MAX: usize = 200;

/// The secret that mutating calls carry. It never shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AdminToken(String);

impl AdminToken {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// Why a call did not work.
#[derive(Debug, Error)]
pub(crate) enum NodeError {
    #[error("no answer from {url} within {limit_ms} ms")]
    Timeout { url: Url, limit_ms: u128 },
    #[error("cannot reach {url}: {why}")]
    Unreachable { url: Url, why: String },
    #[error("refused ({status} {code}): {message}")]
    Refused { status: u16, code: String, message: String },
    #[error("{url} sent an answer that cannot be used: {why}")]
    Malformed { url: Url, why: String },
}

/// What a failure means for whoever called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureClass {
    /// The same call may work later, or at another node.
    Transient,
    /// The fence or the generation was overtaken: observe and plan again.
    Overtaken,
    /// The admin token is missing or wrong.
    Credentials,
    /// There is no such stream.
    NotFound,
    /// The request itself is refused and will be until somebody changes it.
    Terminal,
}

impl NodeError {
    /// Sorts the failure; what to do about each class is the caller's business.
    pub(crate) fn class(&self) -> FailureClass {
        let Self::Refused { status, code, .. } = self else {
            return FailureClass::Transient;
        };
        match (*status, code.as_str()) {
            (401 | 403, _) => FailureClass::Credentials,
            // Only a node says `not_found`; a bare 404 comes from something else at that address.
            (404, "not_found") => FailureClass::NotFound,
            (_, "stale_fence" | "stale_generation") => FailureClass::Overtaken,
            (_, "fence_held" | "no_leader" | "not_leader" | "busy" | "timeout") | (404 | 408 | 421 | 425 | 429, _) => {
                FailureClass::Transient
            }
            (400..=499, _) => FailureClass::Terminal,
            _ => FailureClass::Transient,
        }
    }
}

/// One HTTP client for all nodes; connections are pooled per address.
#[derive(Clone, Debug)]
pub(crate) struct NodeClient {
    http: reqwest::Client,
}

/// A node as the admin client addresses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) url: Url,
    pub(crate) token: Option<AdminToken>,
}

impl NodeClient {
    /// # Errors
    /// When the HTTP client cannot be built.
    pub(crate) fn new() -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_DEADLINE)
            .pool_idle_timeout(Duration::from_secs(60))
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("headwater-operator/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .build()?;
        Ok(Self { http })
    }

    /// `GET /v1/recovery`.
    ///
    /// # Errors
    /// See [`NodeError`]; so for every call below.
    pub(crate) async fn recovery(&self, node: &Endpoint) -> Result<RecoveryReport, NodeError> {
        self.read(node, &["v1", "recovery"]).await
    }

    /// `GET /v1/streams/{account}/{name}`.
    pub(crate) async fn stream(&self, node: &Endpoint, account: &str, name: &str) -> Result<StreamReport, NodeError> {
        self.read(node, &["v1", "streams", account, name]).await
    }

    /// `POST /v1/fence`.
    pub(crate) async fn fence(&self, node: &Endpoint, ask: &FenceRequest) -> Result<Fence, NodeError> {
        self.change(node, Method::POST, &["v1", "fence"], ask).await
    }

    /// Any other change, as the planner asks for it. What the node answers is seen again by the next observation.
    pub(crate) async fn send(
        &self,
        node: &Endpoint,
        account: &str,
        name: &str,
        request: &Request,
    ) -> Result<(), NodeError> {
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

    async fn read<A: DeserializeOwned>(&self, node: &Endpoint, path: &[&str]) -> Result<A, NodeError> {
        self.call::<(), A>(node, Method::GET, path, None, READ_DEADLINE).await
    }

    async fn change<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        node: &Endpoint,
        method: Method,
        path: &[&str],
        body: &B,
    ) -> Result<A, NodeError> {
        self.call(node, method, path, Some(body), CHANGE_DEADLINE).await
    }

    async fn call<B: Serialize + Sync, A: DeserializeOwned>(
        &self,
        node: &Endpoint,
        method: Method,
        path: &[&str],
        body: Option<&B>,
        limit: Duration,
    ) -> Result<A, NodeError> {
        let url = joined(&node.url, path)?;
        let mut request = self.http.request(method, url.clone()).timeout(limit);
        if let Some(token) = &node.token {
            request = request.bearer_auth(&token.0);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut answer = request.send().await.map_err(|error| failure(&url, limit, &error))?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| failure(&url, limit, &error))? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                let why = format!("longer than {ANSWER_BYTES_MAX} bytes");
                return Err(NodeError::Malformed { url, why });
            }
            bytes.extend_from_slice(&chunk);
        }
        if status.is_success() {
            // An empty answer stands for JSON null, which is what `()` and `Option` read.
            let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
            serde_json::from_slice(text).map_err(|error| NodeError::Malformed { url, why: error.to_string() })
        } else {
            Err(refusal(status, &bytes))
        }
    }
}

/// `base` + `path`, each part percent-encoded as one segment.
fn joined(base: &Url, path: &[&str]) -> Result<Url, NodeError> {
    let mut url = base.clone();
    match url.path_segments_mut() {
        Ok(mut segments) => {
            segments.pop_if_empty().extend(path);
        }
        Err(()) => {
            return Err(NodeError::Malformed { url: base.clone(), why: "not an http address".to_owned() });
        }
    }
    Ok(url)
}

fn failure(url: &Url, limit: Duration, error: &reqwest::Error) -> NodeError {
    if error.is_timeout() && !error.is_connect() {
        return NodeError::Timeout { url: url.clone(), limit_ms: limit.as_millis() };
    }
    // reqwest's own text repeats the URL; the innermost cause is what a person needs ("connection refused").
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    NodeError::Unreachable { url: url.clone(), why: cause.to_string() }
}

fn refusal(status: StatusCode, bytes: &[u8]) -> NodeError {
    let body = serde_json::from_slice(bytes).unwrap_or_else(|_| {
        let excerpt = bytes.get(..bytes.len().min(EXCERPT_BYTES_MAX)).unwrap_or_default();
        ErrorBody { code: String::new(), message: String::from_utf8_lossy(excerpt).trim().to_owned() }
    });
    NodeError::Refused { status: status.as_u16(), code: body.code, message: body.message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_sorted_by_what_can_be_done_about_them() {
        let table = [
            (401, "", FailureClass::Credentials),
            (403, "forbidden", FailureClass::Credentials),
            (404, "not_found", FailureClass::NotFound),
            (404, "", FailureClass::Transient),
            (409, "stale_fence", FailureClass::Overtaken),
            (409, "stale_generation", FailureClass::Overtaken),
            (409, "fence_held", FailureClass::Transient),
            (409, "not_owner", FailureClass::Terminal),
            (400, "10065", FailureClass::Terminal),
            (422, "", FailureClass::Terminal),
            (429, "", FailureClass::Transient),
            (503, "no_leader", FailureClass::Transient),
            (500, "", FailureClass::Transient),
        ];
        for (status, code, class) in table {
            let error = NodeError::Refused { status, code: code.to_owned(), message: String::new() };
            assert_eq!(error.class(), class, "{status} {code}");
        }
    }

    #[test]
    fn names_in_a_path_are_one_segment_each() {
        let base = Url::parse("http://127.0.0.1:8222/prefix/").unwrap();
        let url = joined(&base, &["v1", "streams", "$G", "a/b c%"]).unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:8222/prefix/v1/streams/$G/a%2Fb%20c%25");
        assert!(joined(&Url::parse("mailto:x").unwrap(), &["v1"]).is_err());
    }

    #[test]
    fn a_refusal_that_is_not_ours_shows_an_excerpt() {
        let NodeError::Refused { code, message, .. } =
            refusal(StatusCode::BAD_GATEWAY, "<html>é".repeat(100).as_bytes())
        else {
            panic!("not a refusal")
        };
        assert!(code.is_empty() && message.starts_with("<html>") && message.len() <= EXCERPT_BYTES_MAX + 3);
    }

    #[test]
    fn a_token_does_not_show_in_logs() {
        let node = Endpoint { url: Url::parse("http://localhost").unwrap(), token: Some(AdminToken::new("secret\n")) };
        assert!(!format!("{node:?}").contains("secret"));
        assert_eq!(node.token, Some(AdminToken::new("secret")));
    }
}
