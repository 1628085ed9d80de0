//! What is worth an event: pure comparisons of two statuses.

use headwater_crds::conditions::find;
use headwater_crds::{
    Condition, ConditionStatus, ConditionType, FORCE_FINALIZE_ANNOTATION, FlushMode, ReplicaPhase, StreamStatus,
};
use headwater_plan::{Now, Step, render};

use crate::events::Reason;

/// The event of a step that was taken.
///
/// An update of an object whose newest generation had been applied puts back what somebody else changed.
pub(crate) fn of_step(step: &Step, published: Option<&StreamStatus>, generation: i64) -> (Reason, String) {
    let note = render::step(step);
    let reason = match step {
        Step::CreateStream { .. } => Reason::StreamCreated,
        Step::UpdateStream { .. } if was_synced(published, generation) => Reason::DriftCorrected,
        Step::UpdateStream { .. } => Reason::ConfigApplied,
        Step::Adopt { .. } => Reason::Adopted,
        Step::ProposeDurability { .. } | Step::GrantDurability { .. } => Reason::DurabilityStep,
        Step::TransferLeadership { .. } => Reason::LeaderTransferred,
        Step::DeleteStream { .. } => Reason::StreamDeleted,
    };
    (reason, note)
}

fn was_synced(published: Option<&StreamStatus>, generation: i64) -> bool {
    published.is_some_and(|status| {
        find(&status.conditions, ConditionType::ConfigSynced).is_some_and(|condition| {
            condition.status == ConditionStatus::True && condition.observed_generation == Some(generation)
        })
    })
}

/// Events that follow from the difference of two statuses, in a fixed order.
pub(crate) fn between(old: &StreamStatus, new: &StreamStatus) -> Vec<(Reason, String)> {
    let mut news = Vec::new();
    if let Some(message) = became(old, new, ConditionType::Ready, ConditionStatus::False)
        && reason_of(new, ConditionType::Ready) == Some(headwater_crds::Reason::ClusterNotFound.as_str())
    {
        news.push((Reason::ClusterNotFound, message));
    }
    if let Some(message) = became(old, new, ConditionType::Stalled, ConditionStatus::True) {
        let refused = headwater_crds::Reason::AdoptionRefused.as_str();
        let reason = if reason_of(new, ConditionType::Stalled) == Some(refused) {
            Reason::AdoptionRefused
        } else {
            Reason::Stalled
        };
        news.push((reason, message));
    }
    for replica in &new.replicas {
        let before = old.replicas.iter().find(|before| before.node == replica.node);
        let Some(before) = before.map(|before| before.phase) else {
            continue;
        };
        match (before, replica.phase) {
            (ReplicaPhase::Unknown, ReplicaPhase::Unknown) => {}
            (_, ReplicaPhase::Unknown) => {
                let why = replica.message.clone().unwrap_or_default();
                news.push((Reason::NodeUnreachable, format!("{}: {why}", replica.node)));
            }
            (ReplicaPhase::Unknown, phase) => {
                news.push((Reason::NodeReachable, format!("{} answers: {}", replica.node, phase.as_str())));
            }
            _ => {}
        }
    }
    let draining = |status: &StreamStatus| status.flush.as_ref().is_some_and(|flush| flush.mode == FlushMode::Draining);
    if draining(new) && !draining(old) {
        let barrier = new.flush.as_ref().and_then(|flush| flush.barrier_index);
        let note = barrier.map_or_else(String::new, |barrier| format!(" up to index {barrier}"));
        news.push((Reason::FlushDraining, format!("replicas persist what was written before{note}")));
    }
    if draining(old) && !draining(new) && new.flush.is_some() {
        news.push((Reason::FlushDrained, "every replica persists before it confirms".to_owned()));
    }
    let missing = headwater_crds::Reason::ReplicaMissing.as_str();
    if reason_of(new, ConditionType::Reconciling) == Some(missing)
        && reason_of(old, ConditionType::Reconciling) != Some(missing)
        && is(new, ConditionType::DurabilityInSync, ConditionStatus::False)
    {
        let message = find(&new.conditions, ConditionType::Reconciling).map(|c| c.message.clone());
        news.push((Reason::RollBlocked, message.unwrap_or_default()));
    }
    if is(old, ConditionType::Recovered, ConditionStatus::False)
        && let Some(message) = became(old, new, ConditionType::Recovered, ConditionStatus::True)
    {
        news.push((Reason::Recovered, message));
    }
    news
}

/// The condition's message, if it has that answer now and had another before.
fn became(old: &StreamStatus, new: &StreamStatus, kind: ConditionType, answer: ConditionStatus) -> Option<String> {
    let condition = find(&new.conditions, kind).filter(|condition| condition.status == answer)?;
    let before = find(&old.conditions, kind);
    let same = before.is_some_and(|before| before.status == answer && before.reason == condition.reason);
    (!same).then(|| condition.message.clone())
}

fn is(status: &StreamStatus, kind: ConditionType, answer: ConditionStatus) -> bool {
    find(&status.conditions, kind).is_some_and(|condition| condition.status == answer)
}

fn reason_of(status: &StreamStatus, kind: ConditionType) -> Option<&str> {
    find(&status.conditions, kind).map(|condition| condition.reason.as_str())
}

/// Says in `Reconciling` why a deletion waits, and how to end the wait by force.
pub(crate) fn hold_deletion(
    status: &mut StreamStatus,
    why: &str,
    generation: i64,
    published: Option<&StreamStatus>,
    now: Now,
) {
    let old = published.map(|published| published.conditions.as_slice()).unwrap_or_default();
    let message = format!(
        "the stream's data cannot be deleted yet: {why}; annotate this object with {FORCE_FINALIZE_ANNOTATION}=true to let it go and leave the data"
    );
    let held = Condition::new(
        ConditionType::Reconciling,
        ConditionStatus::True,
        headwater_crds::Reason::DeletionBlocked.as_str(),
        message,
        generation,
        old,
        &now.to_string(),
    );
    status.conditions.retain(|condition| condition.r#type != held.r#type);
    status.conditions.push(held);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(value: serde_json::Value) -> StreamStatus {
        serde_json::from_value(value).unwrap()
    }

    fn condition(kind: &str, answer: &str, reason: &str, message: &str) -> serde_json::Value {
        json!({"type": kind, "status": answer, "reason": reason, "message": message,
               "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn replica(phase: &str) -> serde_json::Value {
        json!([{"node": "n1", "role": "Follower", "phase": phase, "message": "connection refused"}])
    }

    #[test]
    fn transitions_are_told_once() {
        let fine = status(json!({"replicas": replica("Recovered"), "conditions": [
            condition("Stalled", "False", "NotStalled", ""), condition("Recovered", "True", "AllRecovered", "3")]}));
        let lost = status(json!({"replicas": replica("Unknown"), "conditions": [
            condition("Stalled", "True", "Refused", "no"), condition("Recovered", "False", "ReplicaMissing", "n1"),
            condition("DurabilityInSync", "False", "Rolling", "n1"),
            condition("Reconciling", "True", "ReplicaMissing", "voter n1 does not answer")]}));
        let reasons = |old, new| between(old, new).into_iter().map(|(reason, _)| reason).collect::<Vec<_>>();
        assert_eq!(reasons(&fine, &lost), [Reason::Stalled, Reason::NodeUnreachable, Reason::RollBlocked]);
        assert_eq!(reasons(&lost, &lost), []);
        assert_eq!(reasons(&lost, &fine), [Reason::NodeReachable, Reason::Recovered]);
    }

    #[test]
    fn an_update_is_drift_only_after_this_generation_was_applied() {
        let step = Step::UpdateStream { config: json!({}), changes: Vec::new(), generation: 4 };
        let synced = status(json!({"conditions": [condition("ConfigSynced", "True", "InSync", "")]}));
        assert_eq!(of_step(&step, Some(&synced), 3).0, Reason::DriftCorrected);
        assert_eq!(of_step(&step, Some(&synced), 4).0, Reason::ConfigApplied);
        assert_eq!(of_step(&step, None, 3).0, Reason::ConfigApplied);
    }

    #[test]
    fn a_held_deletion_names_the_annotation_that_ends_it() {
        let mut held = status(json!({"conditions": [condition("Reconciling", "True", "Deleting", "x")]}));
        hold_deletion(&mut held, "nobody answers", 3, None, Now::from_unix_ms(0));
        let found = find(&held.conditions, ConditionType::Reconciling).unwrap();
        assert_eq!(held.conditions.len(), 1);
        assert!(
            found.message.contains("headwater.dev/force-finalize=true") && found.message.contains("nobody answers")
        );
    }
}
