//! A node's own account of its recovery, `GET /v1/recovery`, and moving leadership.
//!
//! Read with types of our own, not the server's: these tests also hold the JSON to what is
//! documented.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::json;

/// What a node says of itself.
#[derive(Debug, Clone, Deserialize)]
pub struct Recovery {
    pub cluster_id: String,
    pub node: String,
    /// Its Raft incarnation, as text.
    pub node_id: String,
    /// Identity of this start.
    pub boot_id: String,
    pub groups: Vec<Group>,
}

/// One replica on that node. All positions are log indexes.
#[derive(Debug, Clone, Deserialize)]
pub struct Group {
    /// The stream's name; empty for the meta group.
    pub stream: String,
    pub role: String,
    #[serde(default)]
    pub leader: Option<String>,
    pub term: u64,
    pub watermarks: Watermarks,
    #[serde(default)]
    pub snapshot: Option<Snapshot>,
    pub phase: String,
    #[serde(default)]
    pub phase_why: Option<String>,
    pub effective: Durability,
    pub desired: Durability,
    pub promise: Durability,
}

/// `purged ≤ persisted ≤ stored ≤ applied ≤ committed`, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Watermarks {
    pub purged: u64,
    pub persisted: u64,
    pub stored: u64,
    pub applied: u64,
    pub committed: u64,
    pub accepted: u64,
    pub synced: u64,
    pub written: u64,
}

/// A snapshot; `async` if it's ahead of the data on disk.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Snapshot {
    pub index: u64,
    pub r#async: bool,
}

/// A durability setting.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Durability {
    pub sync_mode: String,
    #[serde(default)]
    pub sync_interval_ms: Option<u64>,
    pub allow_async_flush: bool,
}

impl Recovery {
    /// Asks a node.
    ///
    /// # Errors
    /// If it doesn't answer within 2 s, or not with a recovery document.
    pub async fn get(client: &reqwest::Client, http: &str) -> anyhow::Result<Recovery> {
        let url = format!("{http}/v1/recovery");
        let answer = client.get(&url).timeout(Duration::from_secs(2)).send().await?.error_for_status()?;
        let text = answer.text().await?;
        serde_json::from_str(&text).with_context(|| format!("{url} answered {text}"))
    }

    /// True if every group is recovered.
    pub fn is_recovered(&self) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|group| group.phase == "Recovered")
    }

    /// The replica of a stream.
    pub fn stream(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.stream == name)
    }
}

/// Moves a stream's leadership from one node to another, through the node with this URL.
pub(crate) async fn transfer(
    client: &reqwest::Client,
    http: &str,
    stream: &str,
    from: &str,
    to: &str,
) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct Fence {
        number: u64,
    }
    let post = async |path: &str, body: serde_json::Value| -> anyhow::Result<String> {
        let answer = client.post(format!("{http}{path}")).json(&body).timeout(Duration::from_secs(5)).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "POST {path}: {status} {text}");
        Ok(text)
    };
    let fence: Fence =
        serde_json::from_str(&post("/v1/fence", json!({"holder": "cluster-tests", "ttl_ms": 2000})).await?)?;
    let body = json!({"account": "$G", "stream": stream, "from": from, "to": to, "fence": fence.number});
    post("/v1/leadership/transfer", body).await?;
    Ok(())
}
