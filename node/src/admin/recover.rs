//! `POST /v1/groups/{id}/recover`: a person orders a group to go on from the replicas that are left.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use headwater_core::catalog::NodeName;
use headwater_core::ids::GroupId;
use headwater_core::regroup::{Order, RegroupRefusal};
use headwater_plan::wire::{GroupRecover, GroupRecovered};

use super::Admin;
use super::call::Call;
use super::error::Refusal;
use crate::meta;
use crate::regroup::{self, NotRegrouped, Plan};

/// Most voters that an order may name.
const VOTERS_MAX: usize = 16;

pub(super) async fn post(
    State(admin): State<Arc<Admin>>,
    Path(group): Path<u64>,
    call: Call,
) -> Result<Response, Refusal> {
    let body: GroupRecover = call.parse()?;
    if body.voters.len() > VOTERS_MAX {
        return Err(Refusal::bad("bad_body", format!("at most {VOTERS_MAX} voters can be named")));
    }
    let named = body.voters.iter().map(|name| NodeName::new(name.as_str())).collect();
    let group = GroupId::new(group);
    if group == meta::GROUP {
        // Who is shut out for good and runs would go on by itself: no force helps.
        let order = Order { named, less_will_do: false, shuts_out: true };
        catalogue(&admin, &body, &order, &call).await
    } else {
        let order = Order { named, less_will_do: body.force, shuts_out: false };
        stream(&admin, group, &body, &order).await.map(|answer| Json(answer).into_response())
    }
}

async fn stream(admin: &Admin, group: GroupId, body: &GroupRecover, order: &Order) -> Result<GroupRecovered, Refusal> {
    let context = &admin.context;
    let (entry, plan) = regroup::plan_stream(context, group, order).await?;
    let mut answer = answer(group, &entry.key.name, &plan);
    if body.accept_loss {
        answer.goes_on_as = Some(regroup::regroup_stream(context, &entry, &plan).await?.get());
        answer.done = true;
    }
    Ok(answer)
}

async fn catalogue(admin: &Arc<Admin>, body: &GroupRecover, order: &Order, call: &Call) -> Result<Response, Refusal> {
    let context = &admin.context;
    let plan = regroup::plan_catalogue(context, order).await?;
    if plan.source.as_str() != context.config.name {
        return admin.forward(call, plan.source_id.get()).await;
    }
    let mut answer = answer(meta::GROUP, "", &plan);
    if body.accept_loss {
        regroup::regroup_catalogue(context, &plan, order).await?;
        answer.goes_on_as = Some(meta::GROUP.get());
        answer.done = true;
    }
    Ok(Json(answer).into_response())
}

fn answer(group: GroupId, stream: &str, plan: &Plan) -> GroupRecovered {
    GroupRecovered {
        done: false,
        group: group.get(),
        goes_on_as: None,
        stream: stream.to_owned(),
        source: plan.source.to_string(),
        last_index: plan.known.last.index.get(),
        last_term: plan.known.last.term.get(),
        given_up: plan.given_up.iter().map(ToString::to_string).collect(),
        missing_entries: plan.known.missing(),
        heard_ms: plan.known.heard_ms,
        may_be_lost: plan.known.may_be_lost(),
    }
}

impl From<NotRegrouped> for Refusal {
    fn from(why: NotRegrouped) -> Self {
        let message = why.to_string();
        match why {
            NotRegrouped::NoSuchGroup(_) => Self::not_found(message),
            NotRegrouped::OneReplica(_) => Self::bad("one_replica", message),
            NotRegrouped::Refused(RegroupRefusal::MajorityAnswers(_)) => Self::conflict("majority_answers", message),
            NotRegrouped::Refused(RegroupRefusal::NobodyNamed | RegroupRefusal::NotAMember(_)) => {
                Self::bad("bad_voters", message)
            }
            NotRegrouped::Refused(_) => Self::conflict("bad_voters", message),
            NotRegrouped::Catalogue(why) => why.into(),
            NotRegrouped::ByCatalogue(why) => why.into(),
            NotRegrouped::Busy => Self::conflict("busy", message),
            NotRegrouped::NotDeclared(..) | NotRegrouped::Log(_) => Self::unavailable("not_done", message),
        }
    }
}
