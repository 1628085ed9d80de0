//! The next safe step.
//!
//! Order of concern: is deletion wanted; does the stream exist; is it ours; is its configuration as
//! wanted; does the group's log want the same durability; does every voter have it. The first that
//! is not so decides. Durability moves one replica at a time, followers first (the most caught up
//! first), leader last, after handing leadership over. Never is a second replica put in motion, and tightening waits
//! while a voter is behind or away (I-12).

use std::cmp::Reverse;

use headwater_crds::jetstream::{FieldChange, differences};
use headwater_crds::{AdoptionPolicy, DeletionPolicy, UpdatePolicy};
use serde_json::Value;

use crate::desired::Desired;
use crate::observed::{GroupView, Observed, ReplicaView, ServerStream, StreamView};
use crate::safety::{self, Acting, Progress};
use crate::step::{Plan, Step, WaitingOn};
use crate::time::Now;
use crate::wire::Durability;

/// Plans the next step towards `desired` from what was seen.
///
/// `now` ages the answers in `observed` once more, so that a plan from an old observation is a wait.
pub fn plan(desired: &Desired, observed: &Observed, now: Now) -> Plan {
    if desired.deleting {
        return deletion(desired, observed);
    }
    if desired.paused {
        return Plan::wait(vec![WaitingOn::Paused]);
    }
    match &observed.stream {
        StreamView::Unknown { why } => Plan::wait(vec![WaitingOn::StreamUnknown { why: why.clone() }]),
        StreamView::Absent => creation(desired, observed),
        StreamView::Present(server) => existing(desired, observed, server, now),
    }
}

fn deletion(desired: &Desired, observed: &Observed) -> Plan {
    if desired.deletion == DeletionPolicy::Retain || !desired.is_managed() {
        return Plan::default();
    }
    match &observed.stream {
        StreamView::Unknown { why } => Plan::wait(vec![WaitingOn::StreamUnknown { why: why.clone() }]),
        // Gone, or somebody else's: nothing here is ours to delete.
        StreamView::Absent => Plan::default(),
        StreamView::Present(server) if !owns(desired, server) => Plan::default(),
        StreamView::Present(_) if desired.paused => Plan::wait(vec![WaitingOn::Paused]),
        StreamView::Present(server) => Plan::step(Step::DeleteStream { generation: server.generation }),
    }
}

fn creation(desired: &Desired, observed: &Observed) -> Plan {
    let Some(config) = desired.new_config() else {
        return Plan::default();
    };
    if desired.update == UpdatePolicy::ObserveOnly {
        return Plan::wait(vec![WaitingOn::StreamMissing]);
    }
    let (have, need) = (observed.nodes.len(), desired.replicas());
    if have < need {
        return Plan::wait(vec![WaitingOn::TooFewNodes { have, need }]);
    }
    Plan::step(Step::CreateStream { config: config.clone() })
}

fn existing(desired: &Desired, observed: &Observed, server: &ServerStream, now: Now) -> Plan {
    let mut waiting = Vec::new();
    if desired.is_managed() {
        match configuration(desired, observed, server) {
            Decision::Settled(notes) => waiting = notes,
            Decision::Act(plan) => return plan,
        }
    }
    let mut plan = durability(observed, server, now);
    // What is being waited for comes first; standing remarks about drift follow.
    plan.waiting.append(&mut waiting);
    plan
}

enum Decision {
    /// The configuration needs nothing; remarks that stand nevertheless.
    Settled(Vec<WaitingOn>),
    /// This comes first.
    Act(Plan),
}

/// Whether the stream belongs to the object behind `desired`.
pub(crate) fn owns(desired: &Desired, server: &ServerStream) -> bool {
    server.owner.as_ref().is_some_and(|owner| owner.same(&desired.owner))
}

fn configuration(desired: &Desired, observed: &Observed, server: &ServerStream) -> Decision {
    let owned = owns(desired, server);
    let adopted = !owned || server.owner.as_ref().is_some_and(|owner| owner.adopted);
    let wanted = desired.config_for(server, adopted);
    let changes = differences(&server.config, &wanted);

    if desired.update == UpdatePolicy::ObserveOnly || (owned && desired.update == UpdatePolicy::CreateOnly) {
        return Decision::Settled(drift(&changes));
    }
    if !owned && !may_adopt(desired.adoption, server) {
        let owner = server.owner.clone();
        return Decision::Act(Plan::wait(vec![WaitingOn::AdoptionRefused { owner }]));
    }
    if let Some(fixed) = immutable(&changes) {
        return Decision::Act(Plan::wait(vec![fixed]));
    }
    if !owned {
        return Decision::Act(Plan::step(Step::Adopt {
            config: wanted,
            changes,
            generation: server.generation,
            previous: server.owner.clone(),
        }));
    }
    if changes.is_empty() {
        return Decision::Settled(Vec::new());
    }
    update(observed, server, wanted, changes)
}

fn may_adopt(policy: AdoptionPolicy, server: &ServerStream) -> bool {
    match policy {
        AdoptionPolicy::Never => false,
        AdoptionPolicy::IfUnowned => server.owner.is_none(),
        AdoptionPolicy::Always => true,
    }
}

fn drift(changes: &[FieldChange]) -> Vec<WaitingOn> {
    if changes.is_empty() {
        return Vec::new();
    }
    vec![WaitingOn::DriftIgnored { fields: changes.iter().map(|change| change.field.clone()).collect() }]
}

/// The first change that no server makes.
pub(crate) fn immutable(changes: &[FieldChange]) -> Option<WaitingOn> {
    let fixed = changes.iter().find(|change| match change.field.as_str() {
        "storage" => true,
        "deny_delete" | "deny_purge" => change.to == Value::Bool(false),
        _ => false,
    })?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(WaitingOn::ImmutableField { field: fixed.field.clone(), server: text(&fixed.from), wanted: text(&fixed.to) })
}

/// Changes the configuration; a change of size waits until nothing else moves.
fn update(observed: &Observed, server: &ServerStream, mut wanted: Value, mut changes: Vec<FieldChange>) -> Decision {
    let resizes = changes.iter().any(|change| change.field == "num_replicas");
    if resizes && !may_resize(observed, server) {
        changes.retain(|change| change.field != "num_replicas");
        if changes.is_empty() {
            return Decision::Settled(vec![WaitingOn::ReplicasChange]);
        }
        if let Some(config) = wanted.as_object_mut() {
            config.insert("num_replicas".into(), server.replicas().into());
        }
    }
    Decision::Act(Plan::step(Step::UpdateStream { config: wanted, changes, generation: server.generation }))
}

/// Whether every voter is in view and none is on its way to another durability.
///
/// A change that has yet to reach some voters goes first, unless replicas are changing already: then
/// that is what holds the durability change up, and a corrected number is the way out.
pub(crate) fn may_resize(observed: &Observed, server: &ServerStream) -> bool {
    let Some(group) = &observed.group else {
        return false;
    };
    let acting = acting(server);
    let resizing = safety::membership(observed, server.replicas()).is_some();
    safety::missing(observed).is_empty()
        && observed.voters().all(|voter| match safety::progress(voter, group, acting) {
            Progress::Done => true,
            Progress::Pending => resizing,
            Progress::Moving | Progress::Settling => false,
        })
}

pub(crate) fn acting(server: &ServerStream) -> Acting {
    Acting { storage: Desired::storage(&server.config), replicas: server.replicas() }
}

/// Carries the durability in the server's configuration into the group's log and to every voter.
fn durability(observed: &Observed, server: &ServerStream, now: Now) -> Plan {
    let Some(group) = &observed.group else {
        let why = observed.no_leader.clone().unwrap_or_default();
        return Plan::wait(vec![WaitingOn::Leader { why }]);
    };
    let mut away = safety::missing(observed);
    away.extend(stale(observed, now));
    let acting = acting(server);
    let target = Durability::from_config(&server.config);
    if !acting.same(target, group.desired) {
        // A wish, not yet a move: it is recorded although a voter is away, which then returns with it.
        if stale(observed, now).iter().any(|w| is_about(w, &group.leader)) {
            return Plan::wait(away);
        }
        return Plan::step(Step::ProposeDurability {
            generation: group.generation.saturating_add(1),
            durability: target,
        });
    }
    if !away.is_empty() {
        return Plan::wait(away);
    }
    if let Some(waiting) = safety::membership(observed, server.replicas()) {
        return Plan::wait(vec![waiting]);
    }
    match under_way(observed, group, acting) {
        waiting if !waiting.is_empty() => Plan::wait(waiting),
        _ => next_move(observed, group, acting),
    }
}

/// Voters whose answer has grown old since it was put together.
pub(crate) fn stale(observed: &Observed, now: Now) -> Vec<WaitingOn> {
    observed
        .voters()
        .filter(|voter| voter.reach.is_reachable())
        .filter(|voter| now.since_ms(voter.at) > crate::observed::ANSWER_AGE_MAX_MS)
        .map(|voter| WaitingOn::Voter {
            node: voter.node.clone(),
            why: format!("its last answer is {} s old", now.since_ms(voter.at) / 1_000),
        })
        .collect()
}

fn is_about(waiting: &WaitingOn, name: &str) -> bool {
    matches!(waiting, WaitingOn::Voter { node, .. } if node == name)
}

fn under_way(observed: &Observed, group: &GroupView, acting: Acting) -> Vec<WaitingOn> {
    observed
        .voters()
        .filter_map(|voter| match safety::progress(voter, group, acting) {
            Progress::Done | Progress::Pending => None,
            Progress::Moving => Some(WaitingOn::Drain {
                node: voter.node.clone(),
                persisted: voter.persisted(),
                barrier: group.barrier,
            }),
            Progress::Settling => Some(WaitingOn::Settling { node: voter.node.clone() }),
        })
        .collect()
}

/// The next replica to move, once none is on its way.
fn next_move(observed: &Observed, group: &GroupView, acting: Acting) -> Plan {
    let mut pending: Vec<&ReplicaView> =
        observed.voters().filter(|voter| safety::progress(voter, group, acting) == Progress::Pending).collect();
    // Most caught up first: it drains fastest, and the promise rises with the last one anyway.
    pending.sort_by_key(|voter| (Reverse(safety::standing(voter)), voter.node.clone()));
    let Some(first) = pending.first() else {
        // All voters have what is wanted; one that has not recovered is status, not work.
        return Plan::default();
    };

    let tightens = pending
        .iter()
        .any(|voter| voter.recorded.is_some_and(|recorded| acting.tightens(recorded.effective, group.desired)));
    // A relaxation frees a group that cannot keep up, so it does not wait for replicas to catch up.
    let unfit = if tightens { safety::unrecovered(observed) } else { safety::broken(observed) };
    if !unfit.is_empty() {
        return Plan::wait(unfit);
    }

    let follower = pending.iter().find(|voter| voter.node != group.leader);
    let alone = observed.voters().count() == 1;
    if let Some(node) = follower.or(alone.then_some(first)) {
        return Plan::step(Step::GrantDurability { node: node.node.clone(), generation: group.generation });
    }
    hand_over(observed, group, acting)
}

/// Only the leader is left: somebody who has moved already takes over.
fn hand_over(observed: &Observed, group: &GroupView, acting: Acting) -> Plan {
    let heir = observed
        .voters()
        .filter(|voter| voter.node != group.leader && voter.is_sound())
        .filter(|voter| safety::progress(voter, group, acting) == Progress::Done)
        .min_by_key(|voter| {
            let (persisted, accepted) = safety::standing(voter);
            // To lead, the log counts first.
            (Reverse((accepted, persisted)), voter.node.clone())
        });
    match heir {
        Some(heir) => Plan::step(Step::TransferLeadership { from: group.leader.clone(), to: heir.node.clone() }),
        None => Plan::wait(vec![WaitingOn::TransferTarget { leader: group.leader.clone() }]),
    }
}
