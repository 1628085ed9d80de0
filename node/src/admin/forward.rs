//! Passing a call on to the node that can serve it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use headwater_core::catalog::{NodeEntry, NodeState};
use headwater_core::ids::RaftNodeId;

use super::Admin;
use super::call::{Call, FORWARDED};
use super::error::Refusal;
use crate::transport::NodeId;

/// Longest wait for the other node: it may have to wait for its quorum.
const DEADLINE: Duration = Duration::from_secs(12);
/// Largest answer that is passed back (bytes).
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Where others reach a node's admin API.
///
/// A node that listens on every address does not know which of them others use: that is the host under which its
/// peers dial it.
pub(crate) fn admin_url(node: &NodeEntry) -> String {
    let http = &node.addresses.http;
    let unspecified = |host: &str| matches!(host, "0.0.0.0" | "[::]" | "");
    match (http.rsplit_once(':'), node.addresses.cluster.rsplit_once(':')) {
        (Some((host, port)), Some((reachable, _))) if unspecified(host) && !unspecified(reachable) => {
            format!("http://{reachable}:{port}")
        }
        _ => format!("http://{http}"),
    }
}

impl Admin {
    /// Passes a call on, once.
    pub(super) async fn forward(self: &Arc<Self>, call: &Call, node: NodeId) -> Result<Response, Refusal> {
        let entry = self.context.meta.read(|c| c.node_by_incarnation(RaftNodeId::new(node)).cloned());
        let Some(entry) = entry.filter(|n| n.state != NodeState::Removed) else {
            return Err(Refusal::no_leader(format!("node {node} leads, and the catalogue does not know it")));
        };
        let name = &entry.name;
        if call.forwarded || node == self.context.node_id {
            // Two nodes think of each other as the leader: that ends when the next one is elected.
            return Err(Refusal::unavailable(
                "not_leader",
                format!("leadership is moving; {name} was said to lead last"),
            ));
        }
        let url = format!("{}{}", admin_url(&entry), call.path);
        let mut request = self
            .http
            .request(call.method.clone(), &url)
            .timeout(DEADLINE)
            .header(CONTENT_TYPE, "application/json")
            .header(FORWARDED, &self.context.config.name)
            .body(call.body.clone());
        if let Some(token) = &self.context.config.admin_token {
            request = request.bearer_auth(token);
        }
        let failed = |e: reqwest::Error| {
            Refusal::no_leader(format!("{name} leads and could not be asked at {url}: {}", root(&e)))
        };
        let mut answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Refusal::unavailable(
                    "bad_answer",
                    format!("{name} answered more than {ANSWER_BYTES_MAX} bytes"),
                ));
            }
            body.extend_from_slice(&chunk);
        }
        Response::builder()
            .status(status)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|e| Refusal::unavailable("bad_answer", e.to_string()))
    }

    /// Passes a call on to the node that leads the catalogue.
    pub(super) async fn forward_to_meta_leader(self: &Arc<Self>, call: &Call) -> Result<Response, Refusal> {
        match self.context.meta.leader() {
            Some(leader) => self.forward(call, leader).await,
            None => Err(Refusal::no_leader("the catalogue has no leader")),
        }
    }
}

/// The innermost cause, which is what a person needs ("connection refused").
pub(crate) fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use headwater_core::catalog::{Addresses, NodeName};
    use headwater_core::ids::Timestamp;

    use super::*;

    #[test]
    fn a_node_that_listens_everywhere_is_reached_where_its_peers_reach_it() {
        let at = |http: &str, cluster: &str| {
            admin_url(&NodeEntry {
                name: NodeName::new("n1"),
                incarnation: RaftNodeId::new(1),
                past: BTreeSet::new(),
                addresses: Addresses { client: String::new(), cluster: cluster.into(), http: http.into() },
                boot_epoch: 1,
                tags: BTreeSet::new(),
                zone: None,
                state: NodeState::Active,
                joined: Timestamp::new(0),
            })
        };
        assert_eq!(at("10.0.0.1:8222", "n1.svc:6222"), "http://10.0.0.1:8222");
        assert_eq!(at("0.0.0.0:8222", "n1.svc:6222"), "http://n1.svc:8222");
        assert_eq!(at("[::]:8222", "[fd00::1]:6222"), "http://[fd00::1]:8222");
        assert_eq!(at("0.0.0.0:8222", "0.0.0.0:6222"), "http://0.0.0.0:8222");
    }
}
