//! `headwater recovery`: every replica of every stream, as its own node sees it.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use futures::future::join_all;
use headwater_crds::{ReplicaPhase, ReplicaRole};
use headwater_plan::wire::{Durability, GroupReport, RecoveryReport, Snapshot};
use serde_json::json;

use super::table::Table;
use crate::planner::{AdminClient, Member};

/// Pause between two looks with `--watch`.
const PACE: Duration = Duration::from_secs(1);
/// What stands in place of a stream's name for the meta group.
const CATALOGUE: &str = "(catalogue)";

/// Arguments of `headwater recovery`.
#[derive(clap::Args)]
pub(crate) struct RecoveryArgs {
    /// Admin URL of a node; given once, the others are found through it, given more often, exactly these are asked
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8222")]
    url: Vec<String>,
    /// Look again every second
    #[arg(long)]
    watch: bool,
    /// Show only this stream; fails if no node that answers has it
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Print JSON: one object per node, and per look one line
    #[arg(long)]
    json: bool,
}

/// One node's answer.
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) report: Result<RecoveryReport, String>,
}

pub(crate) async fn run(args: RecoveryArgs) -> anyhow::Result<ExitCode> {
    let client = AdminClient::new(None)?;
    loop {
        let mut seen = look(&client, &members(&client, &args.url).await).await;
        let missing = args.stream.as_deref().filter(|name| keep_only(&mut seen, name) == 0);
        let text = if args.json { render_json(&seen) } else { render(&seen, None) };
        let mut out = std::io::stdout().lock();
        let written = if args.watch && !args.json && out.is_terminal() {
            // Home, text, and whatever stood below it away: no flicker.
            let lines = text.replace('\n', "\x1b[K\n");
            write!(out, "\x1b[H{lines}\x1b[J")
        } else {
            out.write_all(text.as_bytes())
        };
        if written.and_then(|()| out.flush()).is_err() {
            // The reader has closed the pipe.
            return Ok(ExitCode::SUCCESS);
        }
        drop(out);
        let answered = seen.iter().filter(|node| node.report.is_ok()).count();
        if let Some(name) = missing.filter(|_| answered > 0) {
            eprintln!("headwater: there is no stream {name} on the {answered} of {} nodes that answered", seen.len());
            if !args.watch {
                return Ok(ExitCode::FAILURE);
            }
        }
        if !args.watch {
            return Ok(exit_code(&seen));
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Leaves one stream's replicas; how many there are.
fn keep_only(seen: &mut [Seen], stream: &str) -> usize {
    let reports = seen.iter_mut().filter_map(|node| node.report.as_mut().ok());
    reports
        .map(|report| {
            report.groups.retain(|group| group.stream == stream);
            report.groups.len()
        })
        .sum()
}

/// Success if at least one node answered.
fn exit_code(seen: &[Seen]) -> ExitCode {
    if seen.iter().any(|node| node.report.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The nodes to ask: those named, or, if one is named, all that it knows.
pub(super) async fn members(client: &AdminClient, urls: &[String]) -> Vec<Member> {
    let named = |url: &String| {
        let url = url.trim_end_matches('/');
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        Member { name: url.split("://").last().unwrap_or(&url).to_owned(), url }
    };
    let members: Vec<Member> = urls.iter().map(named).collect();
    if let [only] = members.as_slice()
        && let Ok(known) = client.members(&only.url).await
        && !known.is_empty()
    {
        return known;
    }
    members
}

/// Asks every node at once.
pub(crate) async fn look(client: &AdminClient, members: &[Member]) -> Vec<Seen> {
    join_all(members.iter().map(|member| async {
        let report = client.recovery(&member.url).await;
        let name = report.as_ref().map_or_else(|_| member.name.clone(), |r| r.node.clone());
        Seen { name, url: member.url.clone(), report: report.map_err(|e| e.to_string()) }
    }))
    .await
}

fn render_json(seen: &[Seen]) -> String {
    let nodes: Vec<_> = seen
        .iter()
        .map(|node| match &node.report {
            Ok(report) => json!({"url": node.url, "report": report}),
            Err(why) => json!({"url": node.url, "name": node.name, "error": why}),
        })
        .collect();
    format!("{}\n", json!(nodes))
}

/// The table, one row per replica, streams together.
pub(crate) fn render(seen: &[Seen], only: Option<&str>) -> String {
    let mut table = Table::new(&[
        ("NODE", false),
        ("STREAM", false),
        ("ROLE", false),
        ("PHASE", false),
        ("APPLIED", true),
        ("PERSISTED", true),
        ("BEHIND", true),
        ("SNAPSHOT", false),
        ("FLUSH", false),
        ("SYNC", false),
        ("PROMISE", false),
    ]);
    let wanted = |group: &&GroupReport| only.is_none_or(|name| group.stream == name);
    let mut rows: Vec<(&str, &GroupReport)> = seen
        .iter()
        .filter_map(|node| Some((node.name.as_str(), node.report.as_ref().ok()?)))
        .flat_map(|(name, report)| report.groups.iter().filter(wanted).map(move |group| (name, group)))
        .collect();
    rows.sort_by(|(a, x), (b, y)| (&x.stream, a).cmp(&(&y.stream, b)));
    for (node, group) in &rows {
        let committed = rows.iter().filter(|(_, g)| g.group == group.group).map(|(_, g)| g.watermarks.committed).max();
        table.row(cells(node, group, committed.unwrap_or(0)));
    }
    for node in seen {
        if let Err(why) = &node.report {
            table.remark(node.name.clone(), format!("unreachable: {why}"));
        }
    }
    let mut text = table.render();
    for node in seen {
        if let Some(space) = node.report.as_ref().ok().and_then(|report| report.space).filter(|space| space.is_low) {
            text += &format!(
                "{}: takes no new messages: {} bytes free on the store's file system, less than {}\n",
                node.name, space.free_bytes, space.min_free_bytes
            );
        }
    }
    for (node, group) in &rows {
        if let Some(why) = &group.phase_why {
            text += &format!("{node}: {}: {why}\n", stream_name(group));
        }
    }
    text
}

fn stream_name(group: &GroupReport) -> &str {
    if group.stream.is_empty() { CATALOGUE } else { &group.stream }
}

fn cells(node: &str, group: &GroupReport, committed: u64) -> Vec<String> {
    let marks = &group.watermarks;
    vec![
        node.to_owned(),
        stream_name(group).to_owned(),
        role(group.role).to_owned(),
        group.phase.as_str().to_owned(),
        marks.applied.to_string(),
        marks.persisted.to_string(),
        // Entries known to be committed anywhere that this replica has not applied.
        committed.saturating_sub(marks.applied).to_string(),
        group.snapshot.map_or_else(|| "-".to_owned(), snapshot),
        if group.effective.allow_async_flush { "async" } else { "sync" }.to_owned(),
        sync(group.effective),
        group.promise.to_string(),
    ]
}

fn role(role: ReplicaRole) -> &'static str {
    match role {
        ReplicaRole::Leader => "leader",
        ReplicaRole::Follower => "follower",
        ReplicaRole::Candidate => "candidate",
        ReplicaRole::Learner => "learner",
        ReplicaRole::Unknown => "unknown",
    }
}

fn snapshot(snapshot: Snapshot) -> String {
    if snapshot.r#async {
        format!("{} async, {} missing", snapshot.index, snapshot.missing)
    } else {
        snapshot.index.to_string()
    }
}

fn sync(durability: Durability) -> String {
    match durability.sync_interval_ms {
        Some(ms) => format!("{}({})", durability.sync_mode, headwater_crds::GoDuration::from_millis(ms)),
        None => durability.sync_mode.to_string(),
    }
}

/// Whether every replica of the stream answers, has recovered, and follows the same leader.
pub(crate) fn is_recovered(seen: &[Seen], stream: &str) -> bool {
    seen.iter().all(|node| {
        let group = node.report.as_ref().ok().and_then(|r| r.stream(headwater_plan::ACCOUNT, stream));
        group.is_some_and(|g| g.phase == ReplicaPhase::Recovered && g.leader.is_some())
    })
}

#[cfg(test)]
mod tests {
    use headwater_crds::SyncMode;
    use headwater_plan::wire::{StoreSpace, Watermarks};

    use super::*;

    fn seen(name: &str, role: ReplicaRole, applied: u64, snapshot: Snapshot) -> Seen {
        let durability =
            Durability { sync_mode: SyncMode::Interval, sync_interval_ms: Some(120_000), allow_async_flush: true };
        let group = GroupReport {
            group: 3,
            stream: "ORDERS".into(),
            account: "$G".into(),
            role,
            leader: Some("n1".into()),
            term: 1,
            watermarks: Watermarks { applied, committed: applied, persisted: 5, ..Watermarks::default() },
            snapshot: Some(snapshot),
            phase: ReplicaPhase::Recovered,
            phase_why: None,
            effective: durability,
            desired: durability,
            promise: durability,
            generation: 1,
            barrier: None,
            quorum_acked_ms: None,
            voters: Vec::new(),
            learners: Vec::new(),
        };
        let report = RecoveryReport {
            cluster_id: "c".into(),
            node: name.into(),
            node_id: 1,
            boot_id: "b".into(),
            groups: vec![group],
            space: Some(StoreSpace { free_bytes: 90, min_free_bytes: 100, is_low: name == "n2" }),
        };
        Seen { name: name.into(), url: "http://x".into(), report: Ok(report) }
    }

    #[test]
    fn every_replica_is_a_row_and_so_is_a_silent_node() {
        let mut all = vec![
            seen("n1", ReplicaRole::Leader, 120, Snapshot { index: 110, r#async: true, missing: 105 }),
            seen("n2", ReplicaRole::Follower, 90, Snapshot { index: 5, r#async: false, missing: 0 }),
        ];
        assert!(is_recovered(&all, "ORDERS"));
        all.push(Seen { name: "n3".into(), url: "http://y".into(), report: Err("connection refused".into()) });
        assert!(!is_recovered(&all, "ORDERS"));
        let expected = "\
NODE  STREAM  ROLE      PHASE      APPLIED  PERSISTED  BEHIND  SNAPSHOT                FLUSH  SYNC          PROMISE
n1    ORDERS  leader    Recovered      120          5       0  110 async, 105 missing  async  interval(2m)  interval(2m)+async
n2    ORDERS  follower  Recovered       90          5      30  5                       async  interval(2m)  interval(2m)+async
n3    unreachable: connection refused
n2: takes no new messages: 90 bytes free on the store's file system, less than 100
";
        assert_eq!(render(&all, None), expected);
        assert!(!render(&all, Some("OTHER")).contains("ORDERS"));
        assert_eq!(keep_only(&mut all, "ORDERS"), 2);
        assert_eq!(render(&all, None), expected);
        assert_eq!(keep_only(&mut all, "OTHER"), 0);
        assert!(!render(&all, None).contains("ORDERS") && !render_json(&all).contains("ORDERS"));
    }
}
