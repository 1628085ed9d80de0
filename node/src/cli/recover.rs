//! `headwater recover`: a person orders a stream, or the catalogue, to go on from the replicas that are left.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use headwater_plan::wire::{GroupRecover, GroupRecovered};

use super::recovery::{look, members};
use crate::planner::{AdminClient, AdminToken, ClientError};

/// Longest wait for a leader of what goes on, and for a catalogue that takes the order.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(500);
/// The catalogue's group.
const CATALOGUE: u64 = 0;

/// Arguments of `headwater recover`.
#[derive(clap::Args)]
#[command(
    after_help = "For nodes that never come back. While a majority answers, nothing is done. Without --accept-loss \
nothing is changed either, and it is said what would be lost. Voters of the catalogue that are not named are shut out for \
good: they come back with an empty disk only.\n\n\
Exit code: 0 if it is done, or nothing was to do; 1 otherwise."
)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(false)))]
pub(crate) struct RecoverArgs {
    /// The stream to go on with
    #[arg(value_name = "STREAM", group = "what")]
    stream: Option<String>,
    /// The catalogue, which every other order needs
    #[arg(long, group = "what")]
    catalogue: bool,
    /// The catalogue, and every stream of which the named nodes have replicas
    #[arg(long, group = "what")]
    all: bool,
    /// The nodes that are left, comma separated; the one whose log reaches furthest is gone on from
    #[arg(long, value_name = "NAMES", required = true, value_delimiter = ',')]
    voters: Vec<String>,
    /// Do it, and lose what only the others had
    #[arg(long)]
    accept_loss: bool,
    /// Go on from the named ones although another that answers has more
    #[arg(long)]
    force: bool,
    /// Admin URL of a node that is left
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8222")]
    url: String,
    /// File with the nodes' admin token
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
}

pub(crate) async fn run(args: RecoverArgs) -> anyhow::Result<ExitCode> {
    let token = args.admin_token_file.as_deref().map(read_token).transpose()?;
    let client = AdminClient::new(token)?;
    let url = args.url.trim_end_matches('/');
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let mut done = true;
    if args.catalogue || args.all {
        done &= order(&client, &url, CATALOGUE, &args).await?;
    }
    if !args.catalogue {
        let groups = groups(&client, &url, args.stream.as_deref()).await;
        if let (Some(name), []) = (&args.stream, groups.as_slice()) {
            bail!("no node that answers has a replica of {name}");
        }
        for group in groups {
            done &= order(&client, &url, group, &args).await?;
        }
    }
    if !done {
        eprintln!("headwater: nothing was changed; --accept-loss does it");
    }
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[expect(clippy::disallowed_methods, reason = "a token file, not a store")]
fn read_token(path: &str) -> anyhow::Result<AdminToken> {
    let text = std::fs::read_to_string(path).with_context(|| format!("--admin-token-file {path:?}"))?;
    Ok(AdminToken::new(&text))
}

/// The streams' groups on the nodes that answer.
async fn groups(client: &AdminClient, url: &str, stream: Option<&str>) -> Vec<u64> {
    let seen = look(client, &members(client, &[url.to_owned()]).await).await;
    let reports = seen.iter().filter_map(|node| node.report.as_ref().ok());
    let wanted = reports.flat_map(|report| &report.groups).filter(|group| match stream {
        Some(name) => group.stream == name,
        None => group.group != CATALOGUE,
    });
    let mut groups: Vec<u64> = wanted.map(|group| group.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Orders one group to go on, and waits until it has a leader. False if nothing was changed that should be.
async fn order(client: &AdminClient, url: &str, group: u64, args: &RecoverArgs) -> anyhow::Result<bool> {
    let name = if group == CATALOGUE { "the catalogue".to_owned() } else { format!("group {group}") };
    let order = GroupRecover { voters: args.voters.clone(), accept_loss: args.accept_loss, force: args.force };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let answer = loop {
        match client.recover_group(url, group, &order).await {
            Ok(answer) => break answer,
            // The catalogue may have just lost its leader, or just found one.
            Err(ClientError::Refused { code, .. }) if code == "no_leader" && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(RETRY).await;
            }
            Err(ClientError::Refused { code, message, .. }) => {
                let nothing_to_do = matches!(code.as_str(), "majority_answers" | "one_replica");
                if nothing_to_do && args.all {
                    println!("{name}: {message}");
                    return Ok(true);
                }
                bail!("{name}: {message}");
            }
            Err(error) => return Err(error).context(name),
        }
    };
    print!("{}", text(&name, &answer));
    if !answer.done {
        return Ok(false);
    }
    let goes_on_as = answer.goes_on_as.unwrap_or(group);
    while !has_leader(client, url, goes_on_as, &answer.source).await {
        if tokio::time::Instant::now() > deadline {
            bail!("{name} has no leader yet: see `headwater recovery`, and the log of {}", answer.source);
        }
        tokio::time::sleep(RETRY).await;
    }
    println!("{} has a leader", if group == CATALOGUE { name } else { format!("group {goes_on_as}") });
    Ok(true)
}

/// Whether the node that a group goes on from says who leads it.
async fn has_leader(client: &AdminClient, url: &str, group: u64, source: &str) -> bool {
    let seen = look(client, &members(client, &[url.to_owned()]).await).await;
    let report = seen.iter().filter(|node| node.name == source).find_map(|node| node.report.as_ref().ok());
    report.is_some_and(|report| {
        let is_led = |g: &headwater_plan::wire::GroupReport| g.group == group && g.leader.is_some();
        // Of its own voters it is the only one until the others have caught up.
        report.groups.iter().any(|g| is_led(g) && g.voters.iter().any(|voter| voter.node == source))
    })
}

fn text(name: &str, answer: &GroupRecovered) -> String {
    let of = if answer.stream.is_empty() { name.to_owned() } else { format!("{} ({name})", answer.stream) };
    let verb = if answer.done { "goes" } else { "would go" };
    let as_group = match answer.goes_on_as {
        Some(group) if group != answer.group => format!(" as group {group}"),
        _ => String::new(),
    };
    format!(
        "{of} {verb} on{as_group} from {}, whose log ends at entry {} of term {}\n  given up: {}\n  may be lost: {}\n",
        answer.source,
        answer.last_index,
        answer.last_term,
        if answer.given_up.is_empty() { "nobody".to_owned() } else { answer.given_up.join(", ") },
        answer.may_be_lost
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_would_be_lost_before_it_is_done() {
        let answer = GroupRecovered {
            done: false,
            group: 3,
            goes_on_as: None,
            stream: "ORDERS".into(),
            source: "n1".into(),
            last_index: 90,
            last_term: 4,
            given_up: vec!["n2".into(), "n3".into()],
            missing_entries: 0,
            heard_ms: Some(1200),
            may_be_lost: "a little".into(),
        };
        let expected = "ORDERS (group 3) would go on from n1, whose log ends at entry 90 of term 4\n  given up: n2, n3\n  \
                        may be lost: a little\n";
        assert_eq!(text("group 3", &answer), expected);
        let done = text("group 3", &GroupRecovered { done: true, goes_on_as: Some(7), ..answer });
        assert!(done.starts_with("ORDERS (group 3) goes on as group 7 from n1"), "{done}");
    }
}
