//! `POST /v1/streams/{account}/{name}/durability/step`: one step of a durability change, at the stream's leader.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use headwater_core::durability::{Durability, DurabilityCommand, FlushMode, SyncMode};
use headwater_core::ids::{Generation, RaftNodeId};
use headwater_core::stream::Command;
use headwater_plan::wire::{self, DurabilityStep, DurabilityStepKind};
use serde_json::json;

use super::call::Call;
use super::error::Refusal;
use super::streams::check_account;
use super::{Admin, Taken, fence};
use crate::node::{Context, Owner};
use crate::stream::StreamReplica;

pub(super) async fn post(
    State(admin): State<Arc<Admin>>,
    Path((account, name)): Path<(String, String)>,
    call: Call,
) -> Result<Response, Refusal> {
    check_account(&account, &name)?;
    let body: DurabilityStep = call.parse()?;
    match step(&admin.context, &name, &body).await? {
        Taken::Here => Ok(Json(json!({"generation": body.generation})).into_response()),
        Taken::By(node) => admin.forward(&call, node).await,
    }
}

/// Takes the step if the stream is led here. Taking it again does no more than taking it once.
pub(crate) async fn step(context: &Arc<Context>, name: &str, step: &DurabilityStep) -> Result<Taken, Refusal> {
    let id = context.streams.id_of(name).ok_or_else(|| Refusal::not_found(format!("there is no stream {name}")))?;
    let replica = match context.streams.owner(id) {
        Owner::Here(replica) => replica,
        Owner::Node(node) => return Ok(Taken::By(node)),
        Owner::Nobody => return Err(Refusal::no_leader(format!("stream {name} has no leader"))),
    };
    fence::verify(context, step.fence).await?;
    match step.kind {
        DurabilityStepKind::Propose => propose(&replica, step).await?,
        DurabilityStepKind::Grant => grant(context, &replica, step).await?,
    }
    Ok(Taken::Here)
}

async fn propose(replica: &Arc<StreamReplica>, step: &DurabilityStep) -> Result<(), Refusal> {
    let desired = step.desired.ok_or_else(|| Refusal::bad("bad_body", "a proposal needs `desired`"))?;
    let desired = from_wire(desired)?;
    let (current, generation) = {
        let inner = replica.lock();
        (inner.state.durability().desired(), inner.state.durability().generation())
    };
    if current == desired && generation.get() == step.generation {
        return Ok(());
    }
    if step.generation <= generation.get() {
        return Err(stale(step.generation, generation));
    }
    // Every voter is pinned to what it has; grants move them on.
    let change =
        DurabilityCommand::Change { desired, generation: Generation::new(step.generation), voters: replica.voters() };
    replica.command(Command::Durability(change)).await?;
    Ok(())
}

async fn grant(context: &Context, replica: &Arc<StreamReplica>, step: &DurabilityStep) -> Result<(), Refusal> {
    let node = step.node.as_deref().ok_or_else(|| Refusal::bad("bad_body", "a grant needs `node`"))?;
    let generation = replica.lock().state.durability().generation();
    if step.generation != generation.get() {
        return Err(stale(step.generation, generation));
    }
    let names = context.node_names();
    let is_named = |id: &RaftNodeId| names.get(&id.get()).is_some_and(|n| n == node);
    let Some(voter) = replica.voters().into_iter().find(is_named) else {
        return Err(Refusal::conflict("not_a_voter", format!("{node} does not vote in {}", replica.spec.name)));
    };
    replica.grant(generation, voter).await?;
    Ok(())
}

fn stale(given: u64, current: Generation) -> Refusal {
    Refusal::conflict("stale_generation", format!("the step is for generation {given}, the stream is at {current}"))
}

fn from_wire(d: wire::Durability) -> Result<Durability, Refusal> {
    let ms = d.sync_interval_ms.unwrap_or(0);
    let durability = Durability {
        sync: match d.sync_mode {
            headwater_crds::SyncMode::Always => SyncMode::Always,
            headwater_crds::SyncMode::Interval => SyncMode::Interval,
            headwater_crds::SyncMode::NoWait => SyncMode::NoWait,
        },
        interval_ms: u32::try_from(ms)
            .map_err(|_| Refusal::bad("bad_durability", format!("sync_interval_ms {ms} is too long")))?,
        flush: if d.allow_async_flush { FlushMode::Async } else { FlushMode::Sync },
    };
    durability.validate().map_err(|e| Refusal::bad("bad_durability", e.to_string()))?;
    Ok(durability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_contradict_themselves_are_refused() {
        let wire =
            |sync_mode, sync_interval_ms| wire::Durability { sync_mode, sync_interval_ms, allow_async_flush: true };
        use headwater_crds::SyncMode as Wire;
        assert!(from_wire(wire(Wire::Always, None)).is_ok());
        assert!(from_wire(wire(Wire::Interval, Some(100))).is_ok());
        for bad in [wire(Wire::Interval, None), wire(Wire::Interval, Some(u64::MAX)), wire(Wire::Always, Some(5))] {
            assert_eq!(from_wire(bad).unwrap_err().code, "bad_durability", "{bad}");
        }
    }
}
