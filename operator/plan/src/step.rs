//! The planner's answer: a step, and what is awaited.

use std::fmt;

use headwater_crds::jetstream::FieldChange;
use headwater_crds::{Reason, ReplicaPhase};
use serde_json::Value;

use crate::wire::{Durability, Owner};

/// At most one step, and everything that is awaited. Neither means that all is as wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The next step.
    pub step: Option<Step>,
    /// What must happen before the step after it; never silent when nothing is done.
    pub waiting: Vec<WaitingOn>,
}

impl Plan {
    /// A step, and nothing awaited.
    pub fn step(step: Step) -> Self {
        Self { step: Some(step), waiting: Vec::new() }
    }

    /// No step, because of these.
    pub fn wait(waiting: Vec<WaitingOn>) -> Self {
        Self { step: None, waiting }
    }

    /// Whether all is as wanted.
    pub fn is_done(&self) -> bool {
        self.step.is_none() && self.waiting.is_empty()
    }

    /// What a person must settle, if anything.
    pub fn stalled(&self) -> Option<&WaitingOn> {
        self.waiting.iter().find(|w| w.needs_a_person())
    }
}

/// One idempotent step. All but the last three leave every replica as available as it was.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create the stream.
    CreateStream {
        /// Its whole configuration.
        config: Value,
    },
    /// Change the configuration of an own stream.
    UpdateStream {
        /// The whole new configuration.
        config: Value,
        /// What changes.
        changes: Vec<FieldChange>,
        /// Generation of the entry this was planned from.
        generation: u64,
    },
    /// Take over a stream that was there before.
    Adopt {
        /// The whole configuration from then on.
        config: Value,
        /// What changes.
        changes: Vec<FieldChange>,
        /// Generation of the entry this was planned from.
        generation: u64,
        /// Who owned it.
        previous: Option<Owner>,
    },
    /// Put a new durability, and with it a barrier, into the group's log.
    ProposeDurability {
        /// Its generation: the one after the group's.
        generation: u64,
        /// The new setting.
        durability: Durability,
    },
    /// Let one replica move to the durability of that generation.
    GrantDurability {
        /// The replica.
        node: String,
        /// The generation.
        generation: u64,
    },
    /// Hand leadership over, so that the leader can move last.
    TransferLeadership {
        /// Node that leads.
        from: String,
        /// Node that shall lead.
        to: String,
    },
    /// Delete the stream and its messages.
    DeleteStream {
        /// Generation of the entry the decision was made from.
        generation: u64,
    },
}

impl Step {
    /// Name of the step, for status, events and metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CreateStream { .. } => "CreateStream",
            Self::UpdateStream { .. } => "UpdateStream",
            Self::Adopt { .. } => "Adopt",
            Self::ProposeDurability { .. } => "ProposeDurability",
            Self::GrantDurability { .. } => "GrantDurability",
            Self::TransferLeadership { .. } => "TransferLeadership",
            Self::DeleteStream { .. } => "DeleteStream",
        }
    }

    /// Whether the step touches a replica that serves: only one such at a time.
    pub fn is_disruptive(&self) -> bool {
        match self {
            Self::GrantDurability { .. } | Self::TransferLeadership { .. } | Self::DeleteStream { .. } => true,
            Self::CreateStream { .. }
            | Self::UpdateStream { .. }
            | Self::Adopt { .. }
            | Self::ProposeDurability { .. } => false,
        }
    }

    /// The node it concerns.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::GrantDurability { node, .. } => Some(node),
            Self::TransferLeadership { from, .. } => Some(from),
            Self::CreateStream { .. }
            | Self::UpdateStream { .. }
            | Self::Adopt { .. }
            | Self::ProposeDurability { .. }
            | Self::DeleteStream { .. } => None,
        }
    }

    /// The generation it was planned from, or brings.
    pub fn generation(&self) -> Option<u64> {
        match self {
            Self::UpdateStream { generation, .. }
            | Self::Adopt { generation, .. }
            | Self::ProposeDurability { generation, .. }
            | Self::GrantDurability { generation, .. }
            | Self::DeleteStream { generation } => Some(*generation),
            Self::CreateStream { .. } | Self::TransferLeadership { .. } => None,
        }
    }
}

/// Why nothing more is done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingOn {
    /// Changes are paused.
    Paused,
    /// Nobody could say whether the stream exists.
    StreamUnknown {
        /// Why.
        why: String,
    },
    /// The stream does not exist, and the policy forbids creating it.
    StreamMissing,
    /// Fewer nodes than replicas.
    TooFewNodes {
        /// Nodes known.
        have: usize,
        /// Replicas wanted.
        need: usize,
    },
    /// The stream is somebody else's, or was there before and may not be adopted.
    AdoptionRefused {
        /// Who owns it.
        owner: Option<Owner>,
    },
    /// The stream differs in what cannot be changed.
    ImmutableField {
        /// The field, as JetStream spells it.
        field: String,
        /// The server's value.
        server: String,
        /// The wanted value.
        wanted: String,
    },
    /// The stream differs, and the policy forbids correcting it.
    DriftIgnored {
        /// The fields.
        fields: Vec<String>,
    },
    /// The group has no leader that was seen to lead.
    Leader {
        /// What was seen instead.
        why: String,
    },
    /// A voter did not answer.
    Voter {
        /// Its node.
        node: String,
        /// Why nothing is known.
        why: String,
    },
    /// Replicas are being added or removed.
    Membership {
        /// Voters there are.
        voters: usize,
        /// Replicas wanted.
        replicas: usize,
        /// Replicas that are still learning.
        learners: usize,
    },
    /// A replica has not recovered.
    Recovery {
        /// Its node.
        node: String,
        /// How far it has come.
        phase: ReplicaPhase,
        /// Why.
        why: Option<String>,
    },
    /// A replica was told to move and persists what came before.
    Drain {
        /// Its node.
        node: String,
        /// Persisted so far.
        persisted: Option<u64>,
        /// Must be persisted.
        barrier: Option<u64>,
    },
    /// The log says that a replica has moved; the replica does not say so yet.
    Settling {
        /// Its node.
        node: String,
    },
    /// No follower is fit to lead.
    TransferTarget {
        /// The node that leads.
        leader: String,
    },
    /// A change to the number of replicas waits for the durability change under way.
    ReplicasChange,
    /// The server refused a step, and will until something changes.
    Refused {
        /// What was refused, and why.
        why: String,
    },
}

impl WaitingOn {
    /// Whether only a person can end the wait.
    pub fn needs_a_person(&self) -> bool {
        match self {
            Self::StreamMissing | Self::AdoptionRefused { .. } | Self::ImmutableField { .. } | Self::Refused { .. } => {
                true
            }
            Self::Paused
            | Self::StreamUnknown { .. }
            | Self::TooFewNodes { .. }
            | Self::DriftIgnored { .. }
            | Self::Leader { .. }
            | Self::Voter { .. }
            | Self::Membership { .. }
            | Self::Recovery { .. }
            | Self::Drain { .. }
            | Self::Settling { .. }
            | Self::TransferTarget { .. }
            | Self::ReplicasChange => false,
        }
    }

    /// The word for conditions and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Paused => Reason::Paused,
            Self::StreamUnknown { .. } => Reason::ClusterUnreachable,
            Self::StreamMissing => Reason::StreamMissing,
            Self::TooFewNodes { .. } | Self::Voter { .. } | Self::Membership { .. } => Reason::ReplicaMissing,
            Self::AdoptionRefused { .. } => Reason::AdoptionRefused,
            Self::ImmutableField { .. } => Reason::ImmutableField,
            Self::DriftIgnored { .. } => Reason::DriftIgnored,
            Self::Leader { .. } | Self::TransferTarget { .. } => Reason::NoLeader,
            Self::Recovery { .. } => Reason::ReplicaRecovering,
            Self::Drain { .. } => Reason::Draining,
            Self::Settling { .. } | Self::ReplicasChange => Reason::Rolling,
            Self::Refused { .. } => Reason::Refused,
        }
    }
}

impl fmt::Display for WaitingOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("changes are paused by the annotation headwater.dev/paused"),
            Self::StreamUnknown { why } => write!(f, "no node could say whether the stream exists: {why}"),
            Self::StreamMissing => {
                f.write_str("the stream does not exist, and updatePolicy: ObserveOnly forbids creating it")
            }
            Self::TooFewNodes { have, need } => {
                write!(f, "{need} replicas need {need} nodes, and the cluster has {have}")
            }
            Self::AdoptionRefused { owner: Some(owner) } => write!(
                f,
                "the stream belongs to {owner}; delete that object, use another name, or set adoptionPolicy: Always"
            ),
            Self::AdoptionRefused { owner: None } => f.write_str(
                "the stream was there before; set adoptionPolicy: IfUnowned to take it over, or use another name",
            ),
            Self::ImmutableField { field, server, wanted } => write!(
                f,
                "{field} is {server} and cannot become {wanted}; correct the manifest, or delete the stream to create it anew"
            ),
            Self::DriftIgnored { fields } => {
                write!(f, "not corrected, by updatePolicy: {}", fields.join(", "))
            }
            Self::Leader { why } => write!(f, "no leader: {why}"),
            Self::Voter { node, why } => write!(f, "voter {node} does not answer: {why}"),
            Self::Membership { voters, replicas, learners } => {
                write!(f, "replicas are changing: {voters} of {replicas} vote, {learners} still learning")
            }
            Self::Recovery { node, phase, why } => {
                write!(f, "{node} is {}", phase.as_str())?;
                match why {
                    Some(why) => write!(f, ": {why}"),
                    None => Ok(()),
                }
            }
            Self::Drain { node, persisted, barrier } => {
                write!(f, "{node} drains: persisted ")?;
                index(f, *persisted)?;
                f.write_str(", barrier ")?;
                index(f, *barrier)
            }
            Self::Settling { node } => write!(f, "{node} has yet to report the new durability"),
            Self::TransferTarget { leader } => {
                write!(f, "no follower is fit to take leadership over from {leader}")
            }
            Self::ReplicasChange => f.write_str(
                "the number of replicas changes once every voter answers and the durability change is complete",
            ),
            Self::Refused { why } => write!(f, "the server refused: {why}"),
        }
    }
}

fn index(f: &mut fmt::Formatter<'_>, index: Option<u64>) -> fmt::Result {
    match index {
        Some(index) => write!(f, "{index}"),
        None => f.write_str("unknown"),
    }
}
