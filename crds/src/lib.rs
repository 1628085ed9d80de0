//! The Kubernetes kinds of Headwater: [`Stream`] and [`StreamCluster`].
//!
//! This crate holds the types, their validation rules (CEL, evaluated by the API server) and the
//! translation of a `Stream` into a JetStream stream configuration. It does no IO and links no
//! Kubernetes client, so the node and `headwater dev` read the same manifests as the operator.
//!
//! Defaults live in [`StreamSpec::defaults`], not in the CRD schema: a stored object then says what
//! its author wrote, and "unset" stays visible, which adoption of an existing stream depends on.

pub mod cluster;
pub mod conditions;
pub mod crd;
pub mod duration;
pub mod jetstream;
pub mod status;
pub mod stream;

pub use cluster::{ExternalCluster, NodeStatus, SecretKeyRef, StreamCluster, StreamClusterSpec, StreamClusterStatus};
pub use conditions::{ClusterReason, Condition, ConditionStatus, ConditionType, Reason};
pub use duration::GoDuration;
pub use status::{
    DurabilityStatus, FlushMode, FlushStatus, LastApplied, OperationStatus, ReplicaPhase, ReplicaRole, ReplicaStatus,
    SnapshotStatus, StreamStatus,
};
pub use stream::{
    AdoptionPolicy, ClusterRef, DeletionPolicy, Discard, Retention, Storage, Stream, StreamSpec, SyncMode, UpdatePolicy,
};

/// API group of every kind here.
pub const GROUP: &str = "headwater.dev";
/// The only served version.
pub const VERSION: &str = "v1alpha1";
/// The cluster a `Stream` belongs to when it names none.
pub const DEFAULT_CLUSTER: &str = "headwater";
/// Finalizer of a `Stream` whose deletion policy is `Delete`; other streams carry none.
pub const STREAM_FINALIZER: &str = "headwater.dev/stream";
/// Annotation `headwater.dev/paused: "true"` stops every change, while status stays live.
pub const PAUSED_ANNOTATION: &str = "headwater.dev/paused";
/// Annotation that drops the finalizer although the cluster could not be asked.
pub const FORCE_FINALIZE_ANNOTATION: &str = "headwater.dev/force-finalize";
