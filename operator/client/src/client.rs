//! A deadline on every call, bounded answers, and a token that does not show.

use std::time::Duration;

use headwater_plan::Request;
use headwater_plan::wire::{Fence, FenceRequest, GroupRecover, GroupRecovered, RecoveryReport, StreamReport};
use reqwest::{Method, Url};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::error::ClientError;

/// Longest wait for a read.
const READ_DEADLINE: Duration = Duration::from_secs(3);
/// Longest wait for a change: it passes a Raft log, and may wait for an election first. Two reads and two changes
/// that run into their deadlines, 22 s, fit into one reconcile of the operator.
const CHANGE_DEADLINE: Duration = Duration::from_secs(8);
/// Longest wait for a connection; a machine without power answers nothing at all.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Largest answer that is read (bytes). A report is about 400 bytes a group, so this is some 40 000 groups.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The secret that changes carry. It never shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

impl AdminToken {
    /// White space around it is no part of it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(..)")
    }
}

/// One node and where its admin API is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Base address of its admin API.
    pub url: String,
}

/// One HTTP client for all nodes of a cluster; connections are pooled per address.
#[derive(Clone, Debug)]
pub struct AdminClient {
    http: reqwest::Client,
    token: Option<AdminToken>,
}

impl AdminClient {
    /// `token` is carried by every call: reads are open at a node, but maybe not at what stands in front of it.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub fn new(token: Option<AdminToken>) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_DEADLINE)
            .pool_idle_timeout(Duration::from_secs(60))
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("headwater-admin-client/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .build()?;
        Ok(Self { http, token })
    }

    /// The same client, connections included, with another token.
    #[must_use]
    pub fn with_token(&self, token: Option<AdminToken>) -> Self {
        Self { http: self.http.clone(), token }
    }

    /// Whether the node takes clients and can create streams.
    pub async fn is_ready(&self, node: &str) -> bool {
        self.read::<IgnoredAny>(node, &["readyz"]).await.is_ok()
    }

    /// `GET /v1/recovery`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn recovery(&self, node: &str) -> Result<RecoveryReport, ClientError> {
        self.read(node, &["v1", "recovery"]).await
    }

    /// `GET /v1/streams/{account}/{name}`.
    ///
    /// # Errors
    /// `NotFound` among others, if there is none.
    pub async fn stream(&self, node: &str, account: &str, name: &str) -> Result<StreamReport, ClientError> {
        self.read(node, &["v1", "streams", account, name]).await
    }

    /// Every node of the cluster, as `node` knows it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn members(&self, node: &str) -> Result<Vec<Member>, ClientError> {
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
    ///
    /// # Errors
    /// `Transient` among others, while somebody else holds it.
    pub async fn fence(&self, node: &str, ask: &FenceRequest) -> Result<Fence, ClientError> {
        self.change(node, Method::POST, &["v1", "fence"], ask).await
    }

    /// `POST /v1/groups/{id}/recover`.
    ///
    /// # Errors
    /// `Terminal` among others, if the group can go on by itself or not from the named nodes.
    pub async fn recover_group(
        &self,
        node: &str,
        group: u64,
        order: &GroupRecover,
    ) -> Result<GroupRecovered, ClientError> {
        self.change(node, Method::POST, &["v1", "groups", &group.to_string(), "recover"], order).await
    }

    /// Any other change, as the planner asks for it. What the node answers is seen again by the next observation.
    ///
    /// # Errors
    /// `Overtaken` among others, if the fence or the generation is an old one.
    pub async fn send(&self, node: &str, account: &str, name: &str, request: &Request) -> Result<(), ClientError> {
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
        let unreachable = |e: reqwest::Error| ClientError::Unreachable { url: node.to_owned(), why: cause(&e, limit) };
        let malformed = |why: String| ClientError::Malformed { url: node.to_owned(), why };
        let mut request = self.http.request(method, joined(node, path)?).timeout(limit);
        if let Some(token) = &self.token {
            request = request.bearer_auth(&token.0);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(malformed(format!("longer than {ANSWER_BYTES_MAX} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            return Err(ClientError::refused(status, &bytes));
        }
        // An empty answer stands for JSON null, which is what `()` and `Option` read.
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text).map_err(|e| malformed(e.to_string()))
    }
}

/// What a person needs: reqwest's own text repeats the URL, the innermost cause says "connection refused".
fn cause(error: &reqwest::Error, limit: Duration) -> String {
    if error.is_timeout() && !error.is_connect() {
        return format!("no answer within {} s", limit.as_secs());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// `base` + `path`, each part one segment whatever characters it has.
fn joined(base: &str, path: &[&str]) -> Result<Url, ClientError> {
    let bad = || ClientError::Unreachable { url: base.to_owned(), why: "not an http address".to_owned() };
    let mut url = Url::parse(base).map_err(|_| bad())?;
    match url.path_segments_mut() {
        Ok(mut segments) => {
            segments.pop_if_empty().extend(path);
        }
        Err(()) => return Err(bad()),
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_path_are_one_segment_each() {
        let url = joined("http://127.0.0.1:8222/prefix/", &["v1", "streams", "$G", "a/b c%"]).unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:8222/prefix/v1/streams/$G/a%2Fb%20c%25");
        for bad in ["8222", "mailto:x", ""] {
            assert_eq!(joined(bad, &["v1"]).unwrap_err().to_string(), format!("{bad}: not an http address"));
        }
    }

    #[test]
    fn a_token_does_not_show_in_logs() {
        let client = AdminClient::new(Some(AdminToken::new("secret\n"))).unwrap();
        assert!(!format!("{client:?}").contains("secret"));
        assert_eq!(client.token, Some(AdminToken::new("secret")));
    }
}
