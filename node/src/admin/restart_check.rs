//! `GET /v1/restart-check`: would every group keep a quorum of recovered voters without this node?

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures::future::join_all;
use headwater_core::catalog::NodeState;
use headwater_crds::{ReplicaPhase, SyncMode};
use headwater_plan::wire::{GroupReport, RecoveryReport, RestartCheck, RestartRisk};

use super::{Admin, peer, recovery};
use crate::transport::NodeId;

/// Longest wait for another node's report. Who does not answer in time does not count.
const DEADLINE: Duration = Duration::from_millis(1500);
/// A voter that is this many entries behind still counts: it catches up within moments.
const LAG_ENTRIES_MAX: u64 = 1024;

/// What each other node said, by name.
type Reports = HashMap<String, Result<RecoveryReport, String>>;

pub(super) async fn get(State(admin): State<Arc<Admin>>) -> Json<RestartCheck> {
    // Ours first: what the others say after it can only be further on.
    let own = recovery::report(&admin.context);
    let reports = ask(&admin).await;
    Json(check(&own, &reports))
}

async fn ask(admin: &Admin) -> Reports {
    let context = &admin.context;
    let others: Vec<(String, NodeId)> = context.meta.read(|c| {
        let others = c.nodes().filter(|n| n.state != NodeState::Removed && n.name.as_str() != context.config.name);
        others.map(|n| (n.name.as_str().to_owned(), n.incarnation.get())).collect()
    });
    let asked = others.into_iter().map(|(name, node)| async move {
        let report = peer::get(context, node, "/v1/recovery", DEADLINE).await;
        (name, report.map_err(|e| format!("no report: {e}")))
    });
    join_all(asked).await.into_iter().collect()
}

fn check(own: &RecoveryReport, reports: &Reports) -> RestartCheck {
    let blocked: Vec<RestartRisk> = own
        .groups
        .iter()
        .filter_map(|group| {
            let why = risk(own, group, reports)?;
            Some(RestartRisk { group: group.group, stream: group.stream.clone(), account: group.account.clone(), why })
        })
        .collect();
    RestartCheck { safe: blocked.is_empty(), blocked }
}

/// Why the group would be without a quorum, if it would.
fn risk(own: &RecoveryReport, group: &GroupReport, reports: &Reports) -> Option<String> {
    if group.voters.is_empty() {
        return Some("its voters are not known here".to_owned());
    }
    if !group.voters.iter().any(|voter| voter.node_id == own.node_id) {
        return None;
    }
    if group.voters.len() == 1 {
        return Some("its only replica is here: it does not serve until this node is back".to_owned());
    }
    let quorum = group.voters.len() / 2 + 1;
    let mut unfit = Vec::new();
    let mut fit = 0;
    for voter in group.voters.iter().filter(|voter| voter.node_id != own.node_id) {
        match fitness(group, voter.node_id, reports.get(&voter.node)) {
            Ok(()) => fit += 1,
            Err(why) => unfit.push(format!("{}: {why}", voter.node)),
        }
    }
    (fit < quorum).then(|| format!("{fit} of the {quorum} voters it needs would be left: {}", unfit.join("; ")))
}

/// Whether a voter can be counted on. What is not known is not counted on.
fn fitness(group: &GroupReport, id: u64, report: Option<&Result<RecoveryReport, String>>) -> Result<(), String> {
    let report = match report {
        None => return Err("the catalogue does not know it".to_owned()),
        Some(Err(why)) => return Err(why.clone()),
        Some(Ok(report)) => report,
    };
    if report.node_id != id {
        return Err(format!("it runs as incarnation {}, and {id} votes", report.node_id));
    }
    let Some(theirs) = report.groups.iter().find(|g| g.group == group.group) else {
        return Err("it has no replica of the group".to_owned());
    };
    if theirs.phase != ReplicaPhase::Recovered {
        return Err(format!("it is {}", theirs.phase.as_str()));
    }
    // As safe there as a confirmation promises in the group's mode.
    let (at, word) = match group.effective.sync_mode {
        SyncMode::Always => (theirs.watermarks.synced, "synced"),
        SyncMode::Interval => (theirs.watermarks.written, "written"),
        SyncMode::NoWait => (theirs.watermarks.accepted, "accepted"),
    };
    let committed = group.watermarks.committed;
    if at.saturating_add(LAG_ENTRIES_MAX) < committed {
        return Err(format!("it has {word} {at} of {committed}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use headwater_plan::wire::{Durability, Voter, Watermarks};

    use super::*;

    const ALWAYS: Durability =
        Durability { sync_mode: SyncMode::Always, sync_interval_ms: None, allow_async_flush: true };

    fn report(id: u64, voters: &[u64], phase: ReplicaPhase, at: u64) -> RecoveryReport {
        let group = GroupReport {
            group: 1,
            stream: "S".into(),
            account: "$G".into(),
            role: headwater_crds::ReplicaRole::Follower,
            leader: None,
            term: 1,
            watermarks: Watermarks { committed: at, accepted: at, synced: at, written: at, ..Watermarks::default() },
            snapshot: None,
            phase,
            phase_why: None,
            effective: ALWAYS,
            desired: ALWAYS,
            promise: ALWAYS,
            generation: 1,
            barrier: None,
            quorum_acked_ms: None,
            voters: voters
                .iter()
                .map(|id| Voter {
                    node: format!("n{id}"),
                    node_id: *id,
                    effective: ALWAYS,
                    generation: 1,
                    granted: None,
                })
                .collect(),
            learners: Vec::new(),
        };
        RecoveryReport {
            cluster_id: "c".into(),
            node: format!("n{id}"),
            node_id: id,
            boot_id: "b".into(),
            groups: vec![group],
            space: None,
        }
    }

    fn with(others: &[(u64, ReplicaPhase, u64)]) -> RestartCheck {
        let voters = [1, 2, 3];
        let own = report(1, &voters, ReplicaPhase::Recovered, 50_000);
        let reports = others.iter().map(|(id, phase, at)| (format!("n{id}"), Ok(report(*id, &voters, *phase, *at))));
        check(&own, &reports.collect())
    }

    #[test]
    fn safe_only_if_the_others_are_a_sound_quorum() {
        use ReplicaPhase::{CatchingUp, Recovered};
        assert!(with(&[(2, Recovered, 50_000), (3, Recovered, 49_999)]).safe);
        for others in [
            vec![(2, Recovered, 50_000)],
            vec![(2, Recovered, 50_000), (3, CatchingUp, 50_000)],
            vec![(2, Recovered, 50_000), (3, Recovered, 10)],
        ] {
            let check = with(&others);
            assert!(!check.safe && check.blocked[0].why.contains("n3"), "{check:?}");
        }
    }

    #[test]
    fn an_only_replica_does_not_serve_without_its_node() {
        let own = report(1, &[1], ReplicaPhase::Recovered, 5);
        assert!(!check(&own, &Reports::new()).safe);
        let elsewhere = report(1, &[2], ReplicaPhase::Recovered, 5);
        assert!(check(&elsewhere, &Reports::new()).safe, "a learner is not counted");
    }
}
