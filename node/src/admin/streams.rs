//! `GET`, `PUT` and `DELETE /v1/streams/{account}/{name}`: the catalogue's entry of a stream.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use headwater_core::catalog::{FenceNumber, Owner, StreamEntry, StreamKey};
use headwater_plan::wire::{self, StreamDelete, StreamPut, StreamReport};
use headwater_protocol::api::stream_config::StreamConfig;
use headwater_protocol::rfc3339::ApiTime;
use serde_json::json;

use super::Admin;
use super::call::Call;
use super::error::Refusal;
use super::peer::FromPeer;
use crate::jetstream::streams::{config_of, create_in_catalogue, delete_in_catalogue, update_in_catalogue};
use crate::node::{ACCOUNT, Context};

/// Stands before the UID of an owner that took over a stream which was there before it.
const ADOPTED: &str = "adopted:";

type Name = Path<(String, String)>;

pub(super) fn check_account(account: &str, name: &str) -> Result<(), Refusal> {
    if account == ACCOUNT {
        return Ok(());
    }
    Err(Refusal::not_found(format!("there is no stream {name} in account {account}: the only account is {ACCOUNT}")))
}

fn entry(context: &Context, name: &str) -> Option<StreamEntry> {
    context.meta.read(|c| c.stream_by_name(&StreamKey::new(ACCOUNT, name)).cloned())
}

fn owner_report(owner: &Owner) -> wire::Owner {
    let uid = owner.uid.as_deref().unwrap_or_default();
    let (adopted, uid) = match uid.strip_prefix(ADOPTED) {
        Some(uid) => (true, uid),
        None => (false, uid),
    };
    wire::Owner { namespace: owner.namespace.clone(), name: owner.name.clone(), uid: uid.to_owned(), adopted }
}

fn owner_record(owner: &wire::Owner) -> Owner {
    let uid = if owner.adopted { format!("{ADOPTED}{}", owner.uid) } else { owner.uid.clone() };
    Owner { namespace: owner.namespace.clone(), name: owner.name.clone(), uid: Some(uid).filter(|u| !u.is_empty()) }
}

/// The catalogue's entry in the admin API's words.
pub(crate) fn stream_report(entry: &StreamEntry) -> StreamReport {
    let created = serde_json::to_value(ApiTime::from_ns(entry.created.get()));
    StreamReport {
        account: entry.key.account.clone(),
        name: entry.key.name.clone(),
        config: entry.config.clone(),
        owner: entry.owner.as_ref().map(owner_report),
        generation: entry.generation.get(),
        created: created.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default(),
    }
}

pub(super) async fn get(
    State(admin): State<Arc<Admin>>,
    Path((account, name)): Name,
    uri: Uri,
    peer: Option<Extension<FromPeer>>,
) -> Result<Response, Refusal> {
    check_account(&account, &name)?;
    if !admin.context.meta.leads() {
        // Only the leader's copy is the newest: "there is none" from another would be a guess.
        let call = Call {
            method: Method::GET,
            path: uri.path().to_owned(),
            forwarded: peer.is_some(),
            body: axum::body::Bytes::new(),
        };
        return admin.forward_to_meta_leader(&call).await;
    }
    let entry = entry(&admin.context, &name).ok_or_else(|| Refusal::not_found(format!("there is no stream {name}")))?;
    Ok(Json(stream_report(&entry)).into_response())
}

pub(super) async fn put(
    State(admin): State<Arc<Admin>>,
    Path((account, name)): Name,
    call: Call,
) -> Result<Response, Refusal> {
    check_account(&account, &name)?;
    let put: StreamPut = call.parse()?;
    if !admin.context.meta.leads() {
        return admin.forward_to_meta_leader(&call).await;
    }
    let entry = put_here(&admin.context, &name, put).await?;
    Ok(Json(stream_report(&entry)).into_response())
}

async fn put_here(context: &Arc<Context>, name: &str, put: StreamPut) -> Result<StreamEntry, Refusal> {
    let config: StreamConfig = headwater_protocol::json::from_value(put.config)
        .map_err(|e| Refusal::bad("bad_config", format!("config is not a stream configuration: {e}")))?;
    if config.name != name {
        return Err(Refusal::bad("bad_config", format!("config.name is {:?}, the path says {name:?}", config.name)));
    }
    let fence = FenceNumber::new(put.fence);
    // Where nothing is left to do the catalogue is not written, so the fence is asked for in any case.
    super::fence::verify(context, put.fence).await?;
    let owner = put.owner.as_ref().map(owner_record);
    let Some(current) = entry(context, name) else {
        if put.generation != 0 {
            return Err(Refusal::not_found(format!("the stream {name} of generation {} is gone", put.generation)));
        }
        return Ok(create_in_catalogue(context, config, false, owner, Some(fence)).await?.entry);
    };
    if current.generation.get() != put.generation {
        let same_owner = owner.is_none() || owner == current.owner;
        if same_owner && config.is_same_request(&config_of(&current)) {
            // The same call again.
            return Ok(current);
        }
        return Err(Refusal::conflict(
            "stale_generation",
            format!("the stream has generation {}, the change was planned from {}", current.generation, put.generation),
        ));
    }
    Ok(update_in_catalogue(context, config, false, Some(current.generation), owner, Some(fence)).await?)
}

pub(super) async fn delete(
    State(admin): State<Arc<Admin>>,
    Path((account, name)): Name,
    call: Call,
) -> Result<Response, Refusal> {
    check_account(&account, &name)?;
    let delete: StreamDelete = call.parse()?;
    if !admin.context.meta.leads() {
        return admin.forward_to_meta_leader(&call).await;
    }
    let context = &admin.context;
    let current = entry(context, &name).ok_or_else(|| Refusal::not_found(format!("there is no stream {name}")))?;
    if current.generation.get() != delete.generation {
        return Err(Refusal::conflict(
            "stale_generation",
            format!(
                "the stream has generation {}, the decision was made from {}",
                current.generation, delete.generation
            ),
        ));
    }
    let theirs = current.owner.as_ref().map(owner_report);
    let owned = match (&delete.owner, &theirs) {
        (None, None) => true,
        (Some(asking), Some(owner)) => asking.same(owner),
        _ => false,
    };
    if !owned {
        let whose = theirs.map_or_else(|| "nobody".to_owned(), |o| o.to_string());
        return Err(Refusal::conflict("not_owner", format!("the stream belongs to {whose}")));
    }
    delete_in_catalogue(context, &name, current.owner, Some(FenceNumber::new(delete.fence))).await?;
    Ok(Json(json!({"deleted": true})).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_what_it_was_after_the_catalogue_kept_it() {
        for adopted in [false, true] {
            for uid in ["", "0b3c"] {
                let owner = wire::Owner { namespace: "shop".into(), name: "orders".into(), uid: uid.into(), adopted };
                assert_eq!(owner_report(&owner_record(&owner)), owner);
            }
        }
    }
}
