//! Conditions: their types and reasons as enums, so that every wait has a name that scripts can use.
//!
//! `Reconciling` and `Stalled` follow kstatus (abnormal when true). Each condition carries its own
//! `observedGeneration`, because `kubectl wait` compares that first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One condition, in the shape of `metav1.Condition`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which question it answers.
    #[schemars(length(min = 1, max = 316))]
    pub r#type: String,
    /// The answer.
    pub status: ConditionStatus,
    /// The `metadata.generation` the answer speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// When the answer last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Why, in one word.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// Why, for a person; says what is awaited.
    #[schemars(length(max = 32768))]
    pub message: String,
}

impl Condition {
    /// A condition whose answer changed at `now`, unless `previous` already gave the same answer.
    pub fn new(
        r#type: ConditionType,
        status: ConditionStatus,
        reason: &str,
        message: impl Into<String>,
        generation: i64,
        previous: &[Condition],
        now: &str,
    ) -> Self {
        let since = previous
            .iter()
            .find(|old| old.r#type == r#type.as_str() && old.status == status)
            .map_or(now, |old| old.last_transition_time.as_str());
        Self {
            r#type: r#type.as_str().to_owned(),
            status,
            observed_generation: Some(generation),
            last_transition_time: since.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// The condition of that type, if present.
pub fn find(conditions: &[Condition], r#type: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.r#type == r#type.as_str())
}

/// An answer; `Unknown` is one too.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    /// `True` or `False`.
    pub fn from_bool(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }

    /// The spelling in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The spelling in the API.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Condition types.
    ConditionType {
        /// A leader exists, the configuration is applied, publishes are confirmed.
        Ready,
        /// A change is on its way, or a replica is missing. Abnormal when true.
        Reconciling,
        /// Nothing will happen until a person acts. Abnormal when true.
        Stalled,
        /// The server's configuration equals the spec.
        ConfigSynced,
        /// Every replica has recovered since its node started.
        Recovered,
        /// Every voter's durability equals the spec.
        DurabilityInSync,
        /// The stream was made anew although it had been there before. Present only when true.
        DataLost,
    }
}

words! {
    /// Reasons of a Stream's conditions.
    Reason {
        // Ready
        Available,
        NotReconciled,
        ClusterNotFound,
        ClusterUnreachable,
        NoLeader,
        NoQuorum,
        ConfigNotApplied,
        StreamMissing,
        // ConfigSynced
        InSync,
        Creating,
        Updating,
        Adopting,
        DriftIgnored,
        // Recovered
        AllRecovered,
        ReplicaRecovering,
        ReplicaMissing,
        ReplicaFailed,
        // DurabilityInSync
        Draining,
        Rolling,
        Proposing,
        // Reconciling
        Converged,
        Waiting,
        // Stalled
        NotStalled,
        InvalidSpec,
        AdoptionRefused,
        ImmutableField,
        Refused,
        NameTaken,
        // general
        Paused,
        Deleting,
        DeletionBlocked,
        StreamRecreated,
        Unknown,
    }
}

words! {
    /// Reasons of a StreamCluster's conditions.
    ClusterReason {
        /// Every node answers and none is on the way to recovery.
        Available,
        /// Not looked at yet.
        NotReconciled,
        /// A majority of the nodes answers, but not all.
        NodesMissing,
        /// No majority answers.
        Unreachable,
        /// Nodes answer that belong to different clusters.
        MixedClusters,
        /// The admin token could not be read.
        TokenNotFound,
        /// The admin token was refused.
        TokenRefused,
        /// The spec cannot be used as it is.
        InvalidSpec,
        /// Nothing is awaited.
        Converged,
        /// Nothing is stalled.
        NotStalled,
    }
}
