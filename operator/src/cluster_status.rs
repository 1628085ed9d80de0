//! What the answers of its nodes mean for a StreamCluster's status. Pure.

use headwater_crds::{
    ClusterReason, Condition, ConditionStatus, ConditionType, NodeStatus, Reason, ReplicaPhase, ReplicaRole,
    StreamClusterStatus,
};
use headwater_plan::{NodeAnswer, Now};

use crate::observatory::TokenProblem;

/// What is wrong, worst first; `None` when nothing is.
struct Verdict {
    ready: (ConditionStatus, &'static str, String),
    /// Why something is awaited.
    reconciling: Option<(&'static str, String)>,
    /// Why only a person can go on.
    stalled: Option<(&'static str, String)>,
}

/// The whole status.
pub(crate) fn report(
    generation: i64,
    answers: &[NodeAnswer],
    token: Result<(), &TokenProblem>,
    published: Option<&StreamClusterStatus>,
    now: Now,
) -> StreamClusterStatus {
    let verdict = judge(answers, token);
    let old = published.map(|published| published.conditions.as_slice()).unwrap_or_default();
    let at = now.to_string();
    let make =
        |kind, status, reason: &str, text: String| Condition::new(kind, status, reason, text, generation, old, &at);
    let (ready, reason, text) = verdict.ready;
    let calm = |found: Option<(&'static str, String)>, otherwise: ClusterReason| match found {
        Some((reason, text)) => (ConditionStatus::True, reason, text),
        None => (ConditionStatus::False, otherwise.as_str(), String::new()),
    };
    let (reconciling, why, awaited) = calm(verdict.reconciling, ClusterReason::Converged);
    let (stalled, stall, settle) = calm(verdict.stalled, ClusterReason::NotStalled);
    let answering = answers.iter().filter(|answer| answer.report.is_ok()).count();
    StreamClusterStatus {
        observed_generation: Some(generation),
        cluster_id: cluster_ids(answers)
            .first()
            .map(|id| (*id).to_owned())
            .or_else(|| published.and_then(|published| published.cluster_id.clone())),
        nodes_ready: Some(format!("{answering}/{}", answers.len())),
        nodes: answers.iter().map(|answer| node(answer, published)).collect(),
        conditions: vec![
            make(ConditionType::Ready, ready, reason, text),
            make(ConditionType::Reconciling, reconciling, why, awaited),
            make(ConditionType::Stalled, stalled, stall, settle),
        ],
    }
}

/// Whether a new status differs in more than the wording of a node's message.
pub(crate) fn differs(old: &StreamClusterStatus, new: &StreamClusterStatus) -> bool {
    let quiet = |status: &StreamClusterStatus| {
        let mut status = status.clone();
        for node in &mut status.nodes {
            node.message = None;
        }
        for condition in &mut status.conditions {
            condition.message = String::new();
        }
        status
    };
    quiet(old) != quiet(new)
}

fn judge(answers: &[NodeAnswer], token: Result<(), &TokenProblem>) -> Verdict {
    let stalled = |reason: ClusterReason, text: String| Verdict {
        ready: (ConditionStatus::False, reason.as_str(), text.clone()),
        reconciling: None,
        stalled: Some((reason.as_str(), text)),
    };
    match token {
        Err(TokenProblem::NotFound(why)) => {
            return stalled(ClusterReason::TokenNotFound, format!("adminTokenSecretRef: {why}"));
        }
        Err(TokenProblem::Refused(why)) => {
            return stalled(ClusterReason::TokenRefused, format!("the admin token was refused: {why}"));
        }
        Ok(()) => {}
    }
    let ids = cluster_ids(answers);
    if let [first, second, ..] = ids.as_slice() {
        let text = format!("the nodes belong to different clusters: {first} and {second}");
        return stalled(ClusterReason::MixedClusters, text);
    }
    if let Some((url, other, name)) = same_node(answers) {
        let text = format!("adminURLs: {url} and {other} are the same node, {name}");
        return stalled(ClusterReason::InvalidSpec, text);
    }
    let silent: Vec<String> = answers
        .iter()
        .filter_map(|answer| Some(format!("{}: {}", answer.name, answer.report.as_ref().err()?)))
        .collect();
    let answering = answers.len() - silent.len();
    if answering * 2 <= answers.len() {
        let text = format!("{answering} of {} nodes answer; {}", answers.len(), silent.join("; "));
        let reason = ClusterReason::Unreachable.as_str();
        return Verdict {
            ready: (ConditionStatus::False, reason, text.clone()),
            reconciling: Some((reason, text)),
            stalled: None,
        };
    }
    if !silent.is_empty() {
        let text = format!("{answering} of {} nodes answer; {}", answers.len(), silent.join("; "));
        let reason = ClusterReason::NodesMissing.as_str();
        return Verdict {
            ready: (ConditionStatus::True, reason, text.clone()),
            reconciling: Some((reason, text)),
            stalled: None,
        };
    }
    let recovering: Vec<String> = answers.iter().filter_map(recovering).collect();
    let reconciling = (!recovering.is_empty()).then(|| (Reason::ReplicaRecovering.as_str(), recovering.join("; ")));
    Verdict {
        ready: (
            ConditionStatus::True,
            ClusterReason::Available.as_str(),
            format!("all of {} nodes answer", answers.len()),
        ),
        reconciling,
        stalled: None,
    }
}

/// Distinct cluster ids, in the order of the nodes. A node that has not joined yet has none.
fn cluster_ids(answers: &[NodeAnswer]) -> Vec<&str> {
    let mut ids: Vec<&str> = Vec::new();
    for report in answers.iter().filter_map(|answer| answer.report.as_ref().ok()) {
        if !report.cluster_id.is_empty() && !ids.contains(&report.cluster_id.as_str()) {
            ids.push(&report.cluster_id);
        }
    }
    ids
}

/// Two URLs behind which one node answers, and its name.
fn same_node(answers: &[NodeAnswer]) -> Option<(&str, &str, &str)> {
    answers.iter().enumerate().find_map(|(at, answer)| {
        let report = answer.report.as_ref().ok()?;
        let earlier = answers.iter().take(at).find(|earlier| {
            let other = earlier.report.as_ref();
            other.is_ok_and(|other| other.node == report.node || other.node_id == report.node_id)
        })?;
        Some((earlier.url.as_str(), answer.url.as_str(), report.node.as_str()))
    })
}

fn recovering(answer: &NodeAnswer) -> Option<String> {
    let groups = &answer.report.as_ref().ok()?.groups;
    let done = groups.iter().filter(|group| group.phase == ReplicaPhase::Recovered).count();
    (done < groups.len()).then(|| format!("{}: {done} of {} groups recovered", answer.name, groups.len()))
}

fn node(answer: &NodeAnswer, published: Option<&StreamClusterStatus>) -> NodeStatus {
    match &answer.report {
        Ok(report) => {
            let groups = &report.groups;
            let count = |n: usize| i32::try_from(n).ok();
            NodeStatus {
                url: answer.url.clone(),
                name: Some(report.node.clone()),
                reachable: true,
                node_id: Some(report.node_id.to_string()),
                boot_id: Some(report.boot_id.clone()),
                leader_of: count(groups.iter().filter(|group| group.role == ReplicaRole::Leader).count()),
                groups: count(groups.len()),
                groups_recovered: count(groups.iter().filter(|group| group.phase == ReplicaPhase::Recovered).count()),
                message: None,
            }
        }
        Err(why) => {
            let known = published.and_then(|published| published.nodes.iter().find(|node| node.url == answer.url));
            NodeStatus {
                url: answer.url.clone(),
                // Who it was stays useful; what it did then is no longer known.
                name: known.and_then(|known| known.name.clone()),
                reachable: false,
                node_id: known.and_then(|known| known.node_id.clone()),
                boot_id: None,
                leader_of: None,
                groups: None,
                groups_recovered: None,
                message: Some(why.clone()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_plan::wire::RecoveryReport;

    use super::*;

    fn answer(n: u64, cluster: Result<&str, &str>) -> NodeAnswer {
        NodeAnswer {
            name: format!("n{n}"),
            url: format!("http://n{n}"),
            pod: None,
            at: Now::from_unix_ms(0),
            report: cluster.map_err(str::to_owned).map(|id| RecoveryReport {
                cluster_id: id.to_owned(),
                node: format!("n{n}"),
                node_id: n,
                boot_id: "b".to_owned(),
                groups: Vec::new(),
                space: None,
            }),
        }
    }

    fn judged(answers: &[NodeAnswer], token: Result<(), &TokenProblem>) -> Vec<(String, &'static str, String)> {
        let status = report(1, answers, token, None, Now::from_unix_ms(0));
        let condition = |c: Condition| (c.r#type, c.status.as_str(), c.reason);
        status.conditions.into_iter().map(condition).collect()
    }

    #[test]
    fn each_fault_has_its_reason() {
        let missing = TokenProblem::NotFound("Secret a/b: does not exist".to_owned());
        let refused = TokenProblem::Refused("401".to_owned());
        let (up, down) = (Ok("c"), Err("connection refused"));
        let table = [
            ([up, up, up], Ok(()), "True", "Available", "False", "False"),
            ([up, up, down], Ok(()), "True", "NodesMissing", "True", "False"),
            ([up, down, down], Ok(()), "False", "Unreachable", "True", "False"),
            ([up, up, Ok("other")], Ok(()), "False", "MixedClusters", "False", "True"),
            ([up, up, Ok("")], Ok(()), "True", "Available", "False", "False"),
            ([up, up, up], Err(&missing), "False", "TokenNotFound", "False", "True"),
            ([up, up, up], Err(&refused), "False", "TokenRefused", "False", "True"),
        ];
        for (nodes, token, ready, reason, reconciling, stalled) in table {
            let answers: Vec<_> = (1..).zip(nodes).map(|(n, node)| answer(n, node)).collect();
            let found = judged(&answers, token);
            let answers: Vec<_> = found.iter().map(|(_, status, _)| *status).collect();
            assert_eq!(answers, [ready, reconciling, stalled], "{nodes:?} {token:?}: {found:?}");
            assert_eq!(found[0].2, reason, "{nodes:?} {token:?}");
        }
    }

    #[test]
    fn one_node_under_two_urls_is_told() {
        let mut twin = answer(1, Ok("c"));
        twin.url = "http://other".to_owned();
        assert_eq!(judged(&[answer(1, Ok("c")), twin], Ok(()))[0].2, "InvalidSpec");
    }

    #[test]
    fn a_silent_node_keeps_its_name() {
        let before = report(1, &[answer(1, Ok("c"))], Ok(()), None, Now::from_unix_ms(0));
        let after = report(1, &[answer(1, Err("gone"))], Ok(()), Some(&before), Now::from_unix_ms(0));
        assert_eq!(after.nodes[0].name.as_deref(), Some("n1"));
        assert_eq!(after.cluster_id.as_deref(), Some("c"));
        assert_eq!(after.nodes_ready.as_deref(), Some("0/1"));
        assert!(differs(&before, &after));
    }
}
