//! `POST /v1/leadership/transfer`: the node that leads hands over.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use headwater_core::catalog::NodeName;
use headwater_plan::wire::LeadershipTransfer;
use serde_json::json;

use super::call::Call;
use super::error::Refusal;
use super::streams::check_account;
use super::{Admin, Taken, fence};
use crate::node::{Context, Owner};
use crate::stream::StreamReplica;

pub(super) async fn post(State(admin): State<Arc<Admin>>, call: Call) -> Result<Response, Refusal> {
    let body: LeadershipTransfer = call.parse()?;
    check_account(&body.account, body.stream.as_deref().unwrap_or_default())?;
    match transfer(&admin.context, &body).await? {
        Taken::Here => Ok(Json(json!({"from": body.from, "to": body.to})).into_response()),
        Taken::By(node) => admin.forward(&call, node).await,
    }
}

/// Hands over if `from` is this node; otherwise names the node that must.
pub(crate) async fn transfer(context: &Arc<Context>, body: &LeadershipTransfer) -> Result<Taken, Refusal> {
    let known = |name: &str| context.meta.read(|c| c.node(&NodeName::new(name)).map(|n| n.incarnation.get()));
    let from = known(&body.from).ok_or_else(|| Refusal::not_found(format!("there is no node {}", body.from)))?;
    if let Some(to) = &body.to
        && known(to).is_none()
    {
        return Err(Refusal::not_found(format!("there is no node {to}")));
    }
    if body.to.as_ref() == Some(&body.from) {
        return Err(Refusal::bad("bad_body", "`from` and `to` are the same node"));
    }
    if from != context.node_id {
        return Ok(Taken::By(from));
    }
    let to = body.to.as_ref().map(|name| NodeName::new(name.as_str()));
    let Some(stream) = &body.stream else {
        fence::verify(context, body.fence).await?;
        let led: Vec<_> = context.streams.all_local().into_iter().filter(|r| r.leads() && r.is_replicated()).collect();
        for replica in led {
            hand_over(context, &replica, to.as_ref()).await?;
        }
        return Ok(Taken::Here);
    };
    let id = context.streams.id_of(stream).ok_or_else(|| Refusal::not_found(format!("there is no stream {stream}")))?;
    match context.streams.owner(id) {
        Owner::Here(replica) => {
            fence::verify(context, body.fence).await?;
            hand_over(context, &replica, to.as_ref()).await?;
            Ok(Taken::Here)
        }
        Owner::Node(leader) => {
            let name = context.node_names().remove(&leader).unwrap_or_else(|| leader.to_string());
            if Some(&name) == body.to.as_ref() {
                // The same call again.
                return Ok(Taken::Here);
            }
            Err(Refusal::conflict("not_leader", format!("{name} leads {stream}, not {}", body.from)))
        }
        Owner::Nobody => Err(Refusal::no_leader(format!("stream {stream} has no leader"))),
    }
}

async fn hand_over(context: &Context, replica: &StreamReplica, to: Option<&NodeName>) -> Result<(), Refusal> {
    replica.hand_over(context, to).await.map_err(|why| {
        Refusal::unavailable("busy", format!("{} still leads {}: {why}", context.config.name, replica.spec.name))
    })
}
