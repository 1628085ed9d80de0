//! `Stream`: what its author asks for. Status is in [`crate::status`].

#![expect(unreachable_pub, reason = "the schema derive repeats each type, with its visibility, inside a function")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::StreamStatus;

/// A JetStream stream kept by a Headwater cluster.
///
/// Field names and meanings follow NACK's `Stream` where both have the field, so such a manifest
/// needs a new `apiVersion` and a `clusterRef` in place of its connection fields.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "headwater.dev",
    version = "v1alpha1",
    kind = "Stream",
    plural = "streams",
    singular = "stream",
    shortname = "stm",
    category = "headwater",
    namespaced,
    status = "StreamStatus",
    derive = "PartialEq",
    doc = "A durable, replicated stream kept by a Headwater cluster.",
    selectable = ".spec.clusterRef.name",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether publishes are confirmed under the wanted configuration"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the Ready condition"
    ),
    printcolumn(
        name = "Async",
        type_ = "string",
        json_path = ".status.flush.mode",
        description = "Whether stores lag behind the log: Async, Sync or Draining"
    ),
    printcolumn(
        name = "Sync",
        type_ = "string",
        json_path = ".status.promise.syncMode",
        description = "When a publish is confirmed, as the weakest voter keeps it"
    ),
    printcolumn(
        name = "Leader",
        type_ = "string",
        json_path = ".status.leader",
        description = "Node that leads the stream"
    ),
    printcolumn(
        name = "PersistLag",
        type_ = "integer",
        json_path = ".status.maxPersistLag",
        description = "Largest applied minus persisted index of a replica"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Name-On-Server",
        type_ = "string",
        json_path = ".status.name",
        priority = 1,
        description = "Name of the stream in JetStream"
    ),
    printcolumn(name = "Subjects", type_ = "string", json_path = ".spec.subjects", priority = 1),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas", priority = 1),
    validation = Rule::new(
        "(has(self.spec.name) ? self.spec.name : self.metadata.name) == (has(oldSelf.spec.name) ? oldSelf.spec.name : oldSelf.metadata.name)"
    ).message("spec.name is immutable: a stream is never renamed; create another Stream and delete this one"),
    validation = Rule::new("has(self.spec.name) || !self.metadata.name.contains('.')")
        .message("spec.name is required when metadata.name contains a dot, because a stream name may not"),
    // Free until the stream has the number; an adopted stream's own number may be written down later, too.
    validation = Rule::new(
        "(has(self.spec.replicas) ? self.spec.replicas : 1) == (has(oldSelf.spec.replicas) ? oldSelf.spec.replicas : 1) || !has(oldSelf.status) || !has(oldSelf.status.lastApplied) || (has(self.spec.replicas) && has(oldSelf.status.leader) && has(oldSelf.status.replicas) && self.spec.replicas == size(oldSelf.status.replicas))"
    ).message("spec.replicas cannot change yet; create another Stream").field_path(".spec.replicas")
)]
#[x_kube(
    validation = Rule::new(
        "(has(self.storage) ? self.storage : 'file') == (has(oldSelf.storage) ? oldSelf.storage : 'file')"
    ).message("storage is immutable").field_path(".storage"),
    validation = Rule::new(
        "(has(self.syncMode) && self.syncMode == 'interval') == has(self.syncInterval)"
    ).message("syncInterval is required with syncMode: interval, and only then").field_path(".syncInterval"),
    validation = Rule::new(
        "!has(self.discardPerSubject) || !self.discardPerSubject || (has(self.discard) && self.discard == 'new' && has(self.maxMsgsPerSubject) && self.maxMsgsPerSubject > 0)"
    ).message("discardPerSubject needs discard: new and maxMsgsPerSubject above 0").field_path(".discardPerSubject"),
    validation = Rule::new(
        "!(has(self.denyPurge) && self.denyPurge && has(self.allowRollup) && self.allowRollup)"
    ).message("denyPurge and allowRollup exclude each other: a rollup purges").field_path(".denyPurge"),
    validation = Rule::new(
        "!has(self.duplicateWindow) || !has(self.maxAge) || duration(self.maxAge) == duration('0s') || duration(self.duplicateWindow) <= duration(self.maxAge)"
    ).message("duplicateWindow may not exceed maxAge").field_path(".duplicateWindow"),
    validation = Rule::new(
        "!(has(oldSelf.denyDelete) && oldSelf.denyDelete) || (has(self.denyDelete) && self.denyDelete)"
    ).message("denyDelete cannot be taken back").field_path(".denyDelete"),
    validation = Rule::new(
        "!(has(oldSelf.denyPurge) && oldSelf.denyPurge) || (has(self.denyPurge) && self.denyPurge)"
    ).message("denyPurge cannot be taken back").field_path(".denyPurge"),
    validation = Rule::new(
        "!(has(self.preventDelete) && self.preventDelete && has(self.deletionPolicy) && self.deletionPolicy == 'Delete')"
    ).message("preventDelete: true contradicts deletionPolicy: Delete").field_path(".preventDelete"),
    validation = Rule::new(
        "!(has(self.preventUpdate) && self.preventUpdate && has(self.updatePolicy) && self.updatePolicy == 'Enforce')"
    ).message("preventUpdate: true contradicts updatePolicy: Enforce").field_path(".preventUpdate")
)]
#[serde(rename_all = "camelCase")]
pub struct StreamSpec {
    /// The StreamCluster, in the same namespace, that keeps this stream. Immutable.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self.name == oldSelf.name").message("clusterRef.name is immutable: data does not move between clusters"))]
    pub cluster_ref: ClusterRef,

    /// Name of the stream in JetStream. Immutable. Default: the object's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[^\s.*>/\\]+$"))]
    pub name: Option<String>,

    /// Free text, kept with the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,

    /// Subjects the stream stores; wildcards `*` and `>` are allowed. Default: the stream's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 256),
        inner(length(min = 1, max = 255), regex(pattern = r"^[^\s.]+(\.[^\s.]+)*$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub subjects: Option<Vec<String>>,

    /// Where messages are kept. Immutable. Default: file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,

    /// When messages are removed; only `limits` for now. Default: limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,

    /// Number of copies, 1 to 5; odd numbers tolerate most for their cost. Cannot change yet once the stream exists.
    /// Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: Option<i32>,

    /// Most messages kept; -1 or 0 is unlimited. Default: -1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub max_msgs: Option<i64>,

    /// Most bytes kept; -1 or 0 is unlimited. Default: -1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub max_bytes: Option<i64>,

    /// Oldest message kept, as a duration such as `72h`; `0s` is unlimited, else at least `100ms`.
    /// Default: 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"))]
    #[x_kube(validation = Rule::new("duration(self) == duration('0s') || duration(self) >= duration('100ms')").message("maxAge must be 0s (unlimited) or at least 100ms"))]
    pub max_age: Option<String>,

    /// Largest message in bytes, headers included; -1 or 0 is the server's limit. Default: -1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 2_147_483_647))]
    pub max_msg_size: Option<i64>,

    /// Most messages kept per subject; -1 or 0 is unlimited. Default: -1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub max_msgs_per_subject: Option<i64>,

    /// What gives way at a limit: the oldest message, or the new one. Default: old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard: Option<Discard>,

    /// Refuse, rather than evict, at `maxMsgsPerSubject` too. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_per_subject: Option<bool>,

    /// How long message ids are remembered, at least `100ms` and at most `maxAge`.
    /// Default: 2m, or `maxAge` if that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('100ms')").message("duplicateWindow must be at least 100ms"))]
    pub duplicate_window: Option<String>,

    /// Refuse deletion of single messages; cannot be taken back. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_delete: Option<bool>,

    /// Refuse purges; cannot be taken back. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_purge: Option<bool>,

    /// Accept the `Nats-Rollup` header. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_rollup: Option<bool>,

    /// Serve direct gets, from any replica. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_direct: Option<bool>,

    /// Key-value pairs kept with the stream. Keys starting with `headwater.` or `_nats.` are reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = serde_json::json!({"type": "string", "maxLength": 4096})
    ))]
    #[x_kube(validation = Rule::new("self.all(k, !k.startsWith('headwater.') && !k.startsWith('_nats.'))").message("metadata keys starting with headwater. or _nats. are reserved"))]
    pub metadata: Option<BTreeMap<String, String>>,

    /// May the store lag behind the log? `true`: stores are written in large extents behind the
    /// synced log. `false`: a publish also waits for the leader's store. Effective for file storage
    /// with more than one replica; status says so where it has no effect. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_async_flush: Option<bool>,

    /// When a publish is confirmed. `always`: a quorum has synced it. `interval`: a quorum has
    /// written it, and it is synced every `syncInterval`. `noWait`: a quorum has it in memory.
    /// Default: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_mode: Option<SyncMode>,

    /// Time between syncs with `syncMode: interval`, from `10ms` to `5m`; required then, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('10ms') && duration(self) <= duration('5m')").message("syncInterval must be between 10ms and 5m"))]
    pub sync_interval: Option<String>,

    /// What happens to the data when this object is deleted. Default: Retain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,

    /// How far the operator may change the stream. Default: Enforce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_policy: Option<UpdatePolicy>,

    /// Whether a stream of that name that this object did not create is taken over. Unset fields
    /// keep an adopted stream's values. Default: IfUnowned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption_policy: Option<AdoptionPolicy>,

    /// NACK's spelling of `deletionPolicy: Retain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prevent_delete: Option<bool>,

    /// NACK's spelling of `updatePolicy: CreateOnly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prevent_update: Option<bool>,
}

/// Names a StreamCluster in the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRef {
    /// Name of the StreamCluster.
    #[serde(default = "default_cluster")]
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

impl Default for ClusterRef {
    fn default() -> Self {
        Self { name: default_cluster() }
    }
}

fn default_cluster() -> String {
    crate::DEFAULT_CLUSTER.to_owned()
}

/// Where messages are kept. Immutable. Default: file.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    #[default]
    File,
    Memory,
}

/// When messages are removed; only `limits` for now. Default: limits.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Retention {
    #[default]
    Limits,
}

/// What gives way at a limit: the oldest message, or the new one. Default: old.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    #[default]
    Old,
    New,
}

/// When a publish is confirmed. `always`: a quorum has synced it. `interval`: a quorum has written
/// it, and it is synced every `syncInterval`. `noWait`: a quorum has it in memory. Default: always.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub enum SyncMode {
    #[default]
    Always,
    Interval,
    NoWait,
}

impl SyncMode {
    /// The spelling used in manifests, stream metadata and status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Interval => "interval",
            Self::NoWait => "noWait",
        }
    }
}

impl std::fmt::Display for SyncMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens to the data when the object is deleted: `Retain` keeps the stream on the server,
/// `Delete` deletes it with its messages. Default: Retain.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    /// The stream stays on the server.
    #[default]
    Retain,
    /// The stream and its messages are deleted.
    Delete,
}

/// How far the operator may change the stream. `Enforce`: create it and keep it as the spec says.
/// `CreateOnly`: create it, then only report differences. `ObserveOnly`: never write. Default: Enforce.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdatePolicy {
    /// Create it, and keep it as the spec says.
    #[default]
    Enforce,
    /// Create it, then report differences without correcting them.
    CreateOnly,
    /// Never write; report only.
    ObserveOnly,
}

/// Whether an existing stream of that name is taken over: `Never`, `IfUnowned` (no other object owns
/// it) or `Always`. Unset fields keep an adopted stream's values. Default: IfUnowned.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdoptionPolicy {
    /// Never; status explains.
    Never,
    /// If no other object owns it.
    #[default]
    IfUnowned,
    /// Even from another object.
    Always,
}

impl StreamSpec {
    /// The spec with every default filled in, for an object of this name.
    ///
    /// `syncInterval` has no default, and `duplicateWindow` keeps what cannot be parsed.
    pub fn defaults(&self, metadata_name: &str) -> Self {
        let name = self.name.clone().unwrap_or_else(|| metadata_name.to_owned());
        let max_age = self.max_age.clone().unwrap_or_else(|| "0s".to_owned());
        Self {
            cluster_ref: self.cluster_ref.clone(),
            description: Some(self.description.clone().unwrap_or_default()),
            subjects: Some(self.subjects.clone().unwrap_or_else(|| vec![name.clone()])),
            storage: Some(self.storage.unwrap_or_default()),
            retention: Some(self.retention.unwrap_or_default()),
            replicas: Some(self.replicas.unwrap_or(1)),
            max_msgs: Some(self.max_msgs.unwrap_or(-1)),
            max_bytes: Some(self.max_bytes.unwrap_or(-1)),
            max_msg_size: Some(self.max_msg_size.unwrap_or(-1)),
            max_msgs_per_subject: Some(self.max_msgs_per_subject.unwrap_or(-1)),
            discard: Some(self.discard.unwrap_or_default()),
            discard_per_subject: Some(self.discard_per_subject.unwrap_or(false)),
            duplicate_window: Some(
                self.duplicate_window.clone().unwrap_or_else(|| crate::jetstream::default_duplicate_window(&max_age)),
            ),
            max_age: Some(max_age),
            deny_delete: Some(self.deny_delete.unwrap_or(false)),
            deny_purge: Some(self.deny_purge.unwrap_or(false)),
            allow_rollup: Some(self.allow_rollup.unwrap_or(false)),
            allow_direct: Some(self.allow_direct.unwrap_or(false)),
            metadata: Some(self.metadata.clone().unwrap_or_default()),
            allow_async_flush: Some(self.allow_async_flush.unwrap_or(true)),
            sync_mode: Some(self.sync_mode.unwrap_or_default()),
            sync_interval: self.sync_interval.clone(),
            deletion_policy: Some(self.deletion()),
            update_policy: Some(self.update()),
            adoption_policy: Some(self.adoption_policy.unwrap_or_default()),
            prevent_delete: self.prevent_delete,
            prevent_update: self.prevent_update,
            name: Some(name),
        }
    }

    /// The deletion policy in force, NACK's `preventDelete` included.
    pub fn deletion(&self) -> DeletionPolicy {
        if self.prevent_delete == Some(true) {
            return DeletionPolicy::Retain;
        }
        self.deletion_policy.unwrap_or_default()
    }

    /// The update policy in force, NACK's `preventUpdate` included.
    pub fn update(&self) -> UpdatePolicy {
        match (self.update_policy, self.prevent_update) {
            (Some(policy), _) => policy,
            (None, Some(true)) => UpdatePolicy::CreateOnly,
            (None, _) => UpdatePolicy::Enforce,
        }
    }
}
