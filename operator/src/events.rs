//! Kubernetes events about what was decided, with reasons from a closed set.

use k8s_openapi::api::core::v1::ObjectReference;
use kube_client::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::warn;

/// The API server refuses longer notes (bytes).
const NOTE_BYTES_MAX: usize = 1024;

/// Why an event is written. Each is a promise that docs and alerts may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    StreamCreated,
    ConfigApplied,
    DriftCorrected,
    Adopted,
    AdoptionRefused,
    FlushDraining,
    FlushDrained,
    DurabilityStep,
    LeaderTransferred,
    RollBlocked,
    Stalled,
    Recovered,
    StreamDeleted,
    DataRetained,
    FinalizerForced,
    ClusterGone,
    ClusterNotFound,
    NodeUnreachable,
    NodeReachable,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Self::StreamCreated => "StreamCreated",
            Self::ConfigApplied => "ConfigApplied",
            Self::DriftCorrected => "DriftCorrected",
            Self::Adopted => "Adopted",
            Self::AdoptionRefused => "AdoptionRefused",
            Self::FlushDraining => "FlushDraining",
            Self::FlushDrained => "FlushDrained",
            Self::DurabilityStep => "DurabilityStep",
            Self::LeaderTransferred => "LeaderTransferred",
            Self::RollBlocked => "RollBlocked",
            Self::Stalled => "Stalled",
            Self::Recovered => "Recovered",
            Self::StreamDeleted => "StreamDeleted",
            Self::DataRetained => "DataRetained",
            Self::FinalizerForced => "FinalizerForced",
            Self::ClusterGone => "ClusterGone",
            Self::ClusterNotFound => "ClusterNotFound",
            Self::NodeUnreachable => "NodeUnreachable",
            Self::NodeReachable => "NodeReachable",
        }
    }

    fn kind(self) -> EventType {
        match self {
            Self::AdoptionRefused
            | Self::RollBlocked
            | Self::Stalled
            | Self::FinalizerForced
            | Self::ClusterGone
            | Self::ClusterNotFound
            | Self::NodeUnreachable => EventType::Warning,
            Self::StreamCreated
            | Self::ConfigApplied
            | Self::DriftCorrected
            | Self::Adopted
            | Self::FlushDraining
            | Self::FlushDrained
            | Self::DurabilityStep
            | Self::LeaderTransferred
            | Self::Recovered
            | Self::StreamDeleted
            | Self::DataRetained
            | Self::NodeReachable => EventType::Normal,
        }
    }
}

/// Writes events; a failure is logged and otherwise ignored, because an event is never the only record of a decision.
#[derive(Clone)]
pub(crate) struct Events {
    recorder: Recorder,
}

impl Events {
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter { controller: "headwater-operator".to_owned(), instance: Some(identity.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    pub(crate) async fn publish(&self, about: &ObjectReference, reason: Reason, note: impl Into<String>) {
        let event = Event {
            type_: reason.kind(),
            reason: reason.text().to_owned(),
            note: Some(shortened(note.into())),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, about).await {
            warn!(%error, reason = reason.text(), "event not written");
        }
    }
}

/// Cuts at a character boundary.
fn shortened(mut note: String) -> String {
    if note.len() > NOTE_BYTES_MAX {
        let end = (0..=NOTE_BYTES_MAX - 3).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
        note.truncate(end);
        note.push_str("...");
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_at_a_character_boundary() {
        let note = shortened("é".repeat(NOTE_BYTES_MAX));
        assert!(note.len() <= NOTE_BYTES_MAX && note.ends_with("é..."));
        assert_eq!(shortened("short".to_owned()), "short");
    }
}
