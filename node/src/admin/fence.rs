//! `POST /v1/fence`: the meta group issues numbers, and whoever holds the newest live one may change the cluster's plan.
//! A step under an older number is refused (I-13).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use headwater_core::catalog::{CatalogCommand, CatalogRefusal, CatalogResponse, FenceNumber, FenceRefusal};
use headwater_plan::wire;

use super::Admin;
use super::call::Call;
use super::error::Refusal;
use crate::meta::MetaError;
use crate::node::Context;

/// Longest time to live (ms): a holder that died must not stop everybody else for long.
const TTL_MS_MAX: u64 = 300_000;
/// Longest name of a holder (bytes).
const HOLDER_BYTES_MAX: usize = 253;
/// Holders with this prefix are nodes themselves.
pub(crate) const NODE_HOLDER: &str = "meta-leader/";

/// `POST /v1/fence`.
pub(super) async fn post(State(admin): State<Arc<Admin>>, call: Call) -> Result<Json<wire::Fence>, Refusal> {
    let request: wire::FenceRequest = call.parse()?;
    let holder = request.holder.trim();
    if holder.is_empty() || holder.len() > HOLDER_BYTES_MAX {
        return Err(Refusal::bad("bad_holder", format!("holder must be 1 to {HOLDER_BYTES_MAX} bytes")));
    }
    if holder.starts_with(NODE_HOLDER) {
        return Err(Refusal::bad("bad_holder", format!("holders that start with {NODE_HOLDER} are nodes themselves")));
    }
    if request.ttl_ms > TTL_MS_MAX {
        return Err(Refusal::bad("bad_ttl", format!("ttl_ms must be at most {TTL_MS_MAX}")));
    }
    let number = if request.ttl_ms == 0 {
        give_back(&admin.context, holder).await?
    } else {
        obtain(&admin.context, holder, request.ttl_ms).await?
    };
    Ok(Json(wire::Fence { number: number.get(), holder: holder.to_owned(), ttl_ms: request.ttl_ms }))
}

/// Extends the holder's own live fence, or gets the next number.
pub(crate) async fn obtain(context: &Arc<Context>, holder: &str, ttl_ms: u64) -> Result<FenceNumber, Refusal> {
    let ttl_ns = ttl_ms.saturating_mul(1_000_000);
    if let Some(number) = own(context, holder) {
        match context.meta.write(None, CatalogCommand::RenewFence { number, ttl_ns }).await? {
            CatalogResponse::Fenced { number, .. } => return Ok(number),
            // It went to somebody else meanwhile; that one may have given it back, so ask.
            CatalogResponse::Refused(_) => {}
            other => return Err(unexpected(&other)),
        }
    }
    match context.meta.write(None, CatalogCommand::AcquireFence { holder: holder.to_owned(), ttl_ns }).await? {
        CatalogResponse::Fenced { number, .. } => Ok(number),
        CatalogResponse::Refused(why) => Err(why.into()),
        other => Err(unexpected(&other)),
    }
}

/// Gives the holder's own fence back, so that others need not wait for its end.
pub(crate) async fn give_back(context: &Arc<Context>, holder: &str) -> Result<FenceNumber, Refusal> {
    let Some(number) = own(context, holder) else {
        return Err(Refusal::conflict("stale_fence", format!("{holder} holds no fence")));
    };
    match context.meta.write(None, CatalogCommand::ReleaseFence { number }).await? {
        CatalogResponse::Refused(why) => Err(why.into()),
        _ => Ok(number),
    }
}

/// The holder's number, if it is live as far as this node knows.
fn own(context: &Context, holder: &str) -> Option<FenceNumber> {
    let now = crate::clock::now();
    context.meta.read(|c| {
        let fence = c.fence();
        (fence.is_live(now) && fence.holder.as_deref() == Some(holder)).then_some(fence.number)
    })
}

/// Asks the meta group, through its log, whether `number` is the newest and live.
///
/// This node's own copy may be behind, and an overtaken holder must be refused all the same.
pub(super) async fn verify(context: &Arc<Context>, number: u64) -> Result<(), Refusal> {
    let cluster_id =
        context.identity.cluster_id().ok_or_else(|| Refusal::no_leader("this node is in no cluster yet"))?;
    // Changes nothing in a founded cluster: what counts is that the fence is checked before.
    let probe = CatalogCommand::InitCluster { cluster_id };
    match context.meta.write(Some(FenceNumber::new(number)), probe).await? {
        CatalogResponse::Cluster { .. } => Ok(()),
        CatalogResponse::Refused(CatalogRefusal::Fence(FenceRefusal::Unknown { .. })) if number == 0 => {
            Err(Refusal::conflict("stale_fence", "the call carries no fence; ask POST /v1/fence for one"))
        }
        CatalogResponse::Refused(why) => Err(why.into()),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(response: &CatalogResponse) -> Refusal {
    MetaError::Unknown(format!("{response:?}")).into()
}
