//! `StreamCluster`: the nodes that keep streams. At this stage only nodes that run elsewhere.

#![expect(unreachable_pub, reason = "the schema derive repeats each type, with its visibility, inside a function")]
#![expect(clippy::duplicated_attributes, reason = "two columns may well have the same type")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;

/// The nodes that keep streams.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "headwater.dev",
    version = "v1alpha1",
    kind = "StreamCluster",
    plural = "streamclusters",
    singular = "streamcluster",
    shortname = "stc",
    category = "headwater",
    namespaced,
    status = "StreamClusterStatus",
    derive = "PartialEq",
    doc = "A cluster of Headwater nodes that keeps streams.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether a majority of the nodes serves"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the Ready condition"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.nodesReady",
        description = "Nodes that answer, of all"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".spec.external.clientURL",
        priority = 1,
        description = "Where clients connect"
    )
)]
#[x_kube(
    validation = Rule::new("has(self.external)")
        .message("external is required: this version manages streams on nodes that already run")
        .reason(Reason::FieldValueRequired)
        .field_path(".external")
)]
#[serde(rename_all = "camelCase")]
pub struct StreamClusterSpec {
    /// Nodes that run outside the operator's care.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalCluster>,
}

/// Nodes that run outside the operator's care: it manages their streams, never their processes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalCluster {
    /// Where NATS clients connect, for documentation and status.
    #[serde(rename = "clientURL")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^(nats|tls)://[^\s]+$"))]
    pub client_url: String,
    /// Base URL of the admin API of every node: list each node, because a node that is not asked counts as missing.
    #[serde(rename = "adminURLs")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 1024), regex(pattern = r"^https?://[^\s]+$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub admin_urls: Vec<String>,
    /// Secret, in the same namespace, with the admin token. Without it, calls carry no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_token_secret_ref: Option<SecretKeyRef>,
}

/// One key of a Secret in the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret. Default: token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

impl SecretKeyRef {
    /// The key to read.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or("token")
    }
}

/// What is known about a cluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StreamClusterStatus {
    /// The `metadata.generation` this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Identity the nodes share; minted once, kept on their disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Nodes that answer, of all, as `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_ready: Option<String>,
    /// One entry per node, by admin URL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["url".into()]))]
    pub nodes: Vec<NodeStatus>,
    /// What holds of the cluster, by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One node, as it answered.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The admin URL that was asked.
    #[schemars(length(min = 1, max = 1024))]
    pub url: String,
    /// Name the node gave itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it answered.
    pub reachable: bool,
    /// Its Raft incarnation, as text because it exceeds 2^53.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Identity of its current start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Groups it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub leader_of: Option<i32>,
    /// Groups it takes part in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub groups: Option<i32>,
    /// Groups that have recovered there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub groups_recovered: Option<i32>,
    /// Why it did not answer, or what it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
