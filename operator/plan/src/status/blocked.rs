//! Status of objects that are not planned at all: what is wrong, and what would help.

use headwater_crds::{Condition, ConditionStatus, ConditionType, Reason, StreamStatus};

use super::keep_data_lost;
use crate::desired::Problems;
use crate::step::WaitingOn;
use crate::time::Now;

/// The status of an object whose spec cannot be used.
pub fn invalid(generation: i64, problems: &Problems, previous: Option<&StreamStatus>, now: Now) -> StreamStatus {
    let text = problems.to_string();
    blocked(
        generation,
        (ConditionStatus::False, Reason::InvalidSpec, &text),
        Some((Reason::InvalidSpec, &text)),
        previous,
        now,
    )
}

/// The status of an object whose cluster does not exist; it heals when the cluster appears.
pub fn cluster_not_found(
    generation: i64,
    cluster: &str,
    namespace: &str,
    previous: Option<&StreamStatus>,
    now: Now,
) -> StreamStatus {
    let text = format!(
        "StreamCluster {cluster:?} does not exist in namespace {namespace:?}; create it there, or create this Stream anew with spec.clusterRef.name set to one that does"
    );
    blocked(generation, (ConditionStatus::False, Reason::ClusterNotFound, &text), None, previous, now)
}

/// The status when the cluster could not be asked at all.
pub fn unreachable(generation: i64, why: &str, previous: Option<&StreamStatus>, now: Now) -> StreamStatus {
    blocked(generation, (ConditionStatus::Unknown, Reason::ClusterUnreachable, why), None, previous, now)
}

/// Adds that the server refused a step for a reason that will not pass by itself.
pub fn refused(status: &mut StreamStatus, generation: i64, why: &str, now: Now) {
    let now = now.to_string();
    let old = status.conditions.clone();
    status.conditions.retain(|c| c.r#type != ConditionType::Stalled.as_str());
    status.conditions.push(Condition::new(
        ConditionType::Stalled,
        ConditionStatus::True,
        Reason::Refused.as_str(),
        WaitingOn::Refused { why: why.to_owned() }.to_string(),
        generation,
        &old,
        &now,
    ));
}

fn blocked(
    generation: i64,
    (ready, reason, text): (ConditionStatus, Reason, &str),
    stalled: Option<(Reason, &str)>,
    previous: Option<&StreamStatus>,
    now: Now,
) -> StreamStatus {
    let old = previous.map(|p| p.conditions.as_slice()).unwrap_or_default();
    let now = now.to_string();
    let make = |kind, status, reason: Reason, text: &str| {
        Condition::new(kind, status, reason.as_str(), text, generation, old, &now)
    };
    let (no, unknown) = (ConditionStatus::False, ConditionStatus::Unknown);
    let (stall, why, stall_text) = match stalled {
        Some((reason, text)) => (ConditionStatus::True, reason, text),
        None => (no, Reason::NotStalled, ""),
    };
    let reconciling = ConditionStatus::from_bool(stalled.is_none());
    let mut conditions = vec![
        make(ConditionType::Ready, ready, reason, text),
        make(ConditionType::Reconciling, reconciling, reason, text),
        make(ConditionType::Stalled, stall, why, stall_text),
    ];
    // An invalid spec says something about the configuration; a silent cluster says nothing.
    let synced = if stalled.is_some() { no } else { unknown };
    conditions.push(make(ConditionType::ConfigSynced, synced, reason, text));
    for kind in [ConditionType::Recovered, ConditionType::DurabilityInSync] {
        conditions.push(make(kind, unknown, reason, text));
    }
    keep_data_lost(&mut conditions, old);
    StreamStatus {
        observed_generation: Some(generation),
        name: previous.and_then(|p| p.name.clone()),
        last_applied: previous.and_then(|p| p.last_applied.clone()),
        conditions,
        ..StreamStatus::default()
    }
}
