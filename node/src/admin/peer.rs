//! Admin calls between nodes: they travel over the peer link and meet the same routes as those that come over HTTP.
//!
//! Peers need no token and no address of their own for this: whoever may append to the log may take a step of a plan.
//!
//! Request: JSON of [`PeerCall`]. Answer: `status u16 | body`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use bytes::{Buf, Bytes};
use headwater_core::catalog::{NodeEntry, NodeState};
use headwater_core::ids::RaftNodeId;
use headwater_plan::wire::ErrorBody;
use headwater_protocol::json;
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::Admin;
use super::call::Call;
use super::error::Refusal;
use crate::node::Context;
use crate::transport::{NodeId, RequestError};

/// The request's kind on the peer link.
pub(crate) const KIND: u8 = 0x2c;
/// Longest wait for the other node: it may have to wait for its quorum.
pub(crate) const DEADLINE: Duration = Duration::from_secs(12);
/// Largest answer that is passed on (bytes). A report is about 500 bytes a group.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Marks a request that a peer passed on: it is authorised, and not passed on again.
#[derive(Clone, Copy, Debug)]
pub(super) struct FromPeer;

#[derive(Serialize, Deserialize)]
struct PeerCall {
    method: String,
    path: String,
    /// JSON, or empty.
    body: String,
}

/// Why another node did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error(transparent)]
    Link(#[from] RequestError),
    #[error("{0}")]
    Refused(String),
    #[error("the answer cannot be used: {0}")]
    Malformed(String),
}

/// Asks a node and waits for its answer, whatever its status.
async fn ask(
    context: &Context,
    node: NodeId,
    method: &Method,
    path: &str,
    body: &[u8],
    limit: Duration,
) -> Result<(StatusCode, Bytes), PeerError> {
    let body = String::from_utf8(body.to_vec()).map_err(|_| PeerError::Refused("the body is not JSON".to_owned()))?;
    let call = PeerCall { method: method.to_string(), path: path.to_owned(), body };
    let call = Bytes::from(serde_json::to_vec(&call).expect("plain data"));
    let mut answer = context.transport.request(node, KIND, &[call], limit).await?;
    let malformed = || PeerError::Malformed("no status".to_owned());
    if answer.len() < 2 {
        return Err(malformed());
    }
    let status = StatusCode::from_u16(answer.get_u16_le()).map_err(|_| malformed())?;
    Ok((status, answer))
}

/// Asks a node for something as JSON.
pub(crate) async fn get<A: serde::de::DeserializeOwned>(
    context: &Context,
    node: NodeId,
    path: &str,
    limit: Duration,
) -> Result<A, PeerError> {
    let (status, body) = ask(context, node, &Method::GET, path, &[], limit).await?;
    accepted(status, &body)?;
    json::from_slice(&body).map_err(|e| PeerError::Malformed(e.to_string()))
}

/// Asks a node to change something.
pub(crate) async fn post(context: &Context, node: NodeId, path: &str, body: &impl Serialize) -> Result<(), PeerError> {
    let body = serde_json::to_vec(body).expect("plain data");
    let (status, body) = ask(context, node, &Method::POST, path, &body, DEADLINE).await?;
    accepted(status, &body)
}

fn accepted(status: StatusCode, body: &[u8]) -> Result<(), PeerError> {
    if status.is_success() {
        return Ok(());
    }
    let why = json::from_slice(body).map_or_else(|_| status.to_string(), |e: ErrorBody| e.message);
    Err(PeerError::Refused(why))
}

/// Serves a peer's call by the routes of the admin API.
pub(crate) async fn serve(context: Arc<Context>, call: Bytes) -> Result<Vec<Bytes>, String> {
    let router = context.admin.get().cloned().ok_or("the admin API is starting")?;
    let PeerCall { method, path, body } = json::from_slice(&call).map_err(|e| format!("bad admin call: {e}"))?;
    let request = Request::builder()
        .method(method.as_str())
        .uri(path)
        .extension(FromPeer)
        .body(Body::from(body))
        .map_err(|e| format!("bad admin call: {e}"))?;
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let status = Bytes::copy_from_slice(&response.status().as_u16().to_le_bytes());
    let body = axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX)
        .await
        .map_err(|_| format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"))?;
    Ok(vec![status, body])
}

impl Admin {
    /// Passes a call on, once.
    pub(super) async fn forward(self: &Arc<Self>, call: &Call, node: NodeId) -> Result<Response, Refusal> {
        let context = &self.context;
        let entry = context.meta.read(|c| c.node_by_incarnation(RaftNodeId::new(node)).cloned());
        let Some(NodeEntry { name, .. }) = entry.filter(|n| n.state != NodeState::Removed) else {
            return Err(Refusal::no_leader(format!("node {node} leads, and the catalogue does not know it")));
        };
        if call.forwarded || node == context.node_id {
            // Two nodes think of each other as the leader: that ends when the next one is elected.
            return Err(Refusal::unavailable(
                "not_leader",
                format!("leadership is moving; {name} was said to lead last"),
            ));
        }
        let asked = ask(context, node, &call.method, &call.path, &call.body, DEADLINE).await;
        let (status, body) =
            asked.map_err(|e| Refusal::no_leader(format!("{name} leads and could not be asked: {e}")))?;
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
