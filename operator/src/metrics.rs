//! The catalogue of the operator's own metrics. Labels come from closed sets only: never an object's name or an error's text.

use std::fmt::Write as _;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// A closed set of label values, each spelled once.
macro_rules! label_values {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$vdoc])* $variant),+ }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                encoder.write_str(match self { $(Self::$variant => $text),+ })
            }
        }
    };
}

label_values! {
    /// Which of the two controllers.
    Kind { Stream = "stream", StreamCluster = "streamcluster" }
}

label_values! {
    /// How one reconcile ended.
    Outcome {
        /// Everything as desired.
        Settled = "settled",
        /// A step was taken, or something is on its way.
        Progressing = "progressing",
        /// Waiting for something outside, with the reason in status.
        Blocked = "blocked",
        /// Needs a person.
        Stalled = "stalled",
        /// The Kubernetes API refused or did not answer.
        Error = "error",
    }
}

label_values! {
    /// A call to a node's admin API.
    NodeCall {
        Observe = "observe",
        Fence = "fence",
        PutStream = "put_stream",
        DeleteStream = "delete_stream",
        DurabilityStep = "durability_step",
        Leadership = "leadership",
    }
}

label_values! {
    /// Whether a node did what it was asked.
    Answered { Yes = "yes", No = "no" }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReconcileLabels {
    kind: Kind,
    outcome: Outcome,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: Kind,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NodeCallLabels {
    call: NodeCall,
    ok: Answered,
}

/// All metrics of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_seconds: Family<KindLabel, Histogram>,
    status_writes: Family<KindLabel, Counter>,
    node_calls: Family<NodeCallLabels, Counter>,
    leader: Gauge,
    lease_transitions: Gauge,
}

/// 5 ms to 20 s: a reconcile's own deadline is 30 s.
fn seconds() -> Histogram {
    Histogram::new([0.005, 0.02, 0.08, 0.3, 1.25, 5.0, 20.0])
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("headwater_operator");
        let reconciles = Family::<ReconcileLabels, Counter>::default();
        registry.register("reconciles", "Reconciles by kind and outcome", reconciles.clone());
        let reconcile_seconds = Family::<KindLabel, Histogram>::new_with_constructor(seconds);
        registry.register_with_unit(
            "reconcile_duration",
            "Duration of a reconcile",
            Unit::Seconds,
            reconcile_seconds.clone(),
        );
        let status_writes = Family::<KindLabel, Counter>::default();
        registry.register("status_writes", "Writes of an object's status", status_writes.clone());
        let node_calls = Family::<NodeCallLabels, Counter>::default();
        registry.register("node_calls", "Calls to nodes' admin API", node_calls.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this process holds the lease", leader.clone());
        let lease_transitions = Gauge::default();
        registry.register(
            "lease_transitions",
            "How often the lease had changed hands when this process took it",
            lease_transitions.clone(),
        );
        Self { registry, reconciles, reconcile_seconds, status_writes, node_calls, leader, lease_transitions }
    }

    pub(crate) fn reconciled(&self, kind: Kind, outcome: Outcome, took: Duration) {
        self.reconciles.get_or_create(&ReconcileLabels { kind, outcome }).inc();
        self.reconcile_seconds.get_or_create(&KindLabel { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn status_written(&self, kind: Kind) {
        self.status_writes.get_or_create(&KindLabel { kind }).inc();
    }

    pub(crate) fn node_called(&self, call: NodeCall, ok: bool) {
        let ok = if ok { Answered::Yes } else { Answered::No };
        self.node_calls.get_or_create(&NodeCallLabels { call, ok }).inc();
    }

    pub(crate) fn leading(&self, transitions: i32) {
        self.leader.set(1);
        self.lease_transitions.set(i64::from(transitions));
    }

    pub(crate) fn stopped_leading(&self) {
        self.leader.set(0);
    }

    /// OpenMetrics text.
    ///
    /// # Errors
    /// Only if a metric cannot be formatted.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_every_metric_with_its_closed_labels() {
        let metrics = Metrics::new();
        metrics.reconciled(Kind::Stream, Outcome::Blocked, Duration::from_millis(3));
        metrics.status_written(Kind::StreamCluster);
        metrics.node_called(NodeCall::PutStream, false);
        metrics.leading(7);
        let text = metrics.text().unwrap();
        for line in [
            r#"headwater_operator_reconciles_total{kind="stream",outcome="blocked"} 1"#,
            r#"headwater_operator_status_writes_total{kind="streamcluster"} 1"#,
            r#"headwater_operator_node_calls_total{call="put_stream",ok="no"} 1"#,
            "headwater_operator_leader 1",
            "headwater_operator_lease_transitions 7",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
