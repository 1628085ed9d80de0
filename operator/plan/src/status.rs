//! What the plan and the observation mean for `Stream.status`.
//!
//! `Ready` pages people, so it is about serving alone: a leader, the configuration, confirmed
//! publishes. A change on its way or a missing replica shows as `Reconciling`, and as
//! `DurabilityInSync` or `Recovered` being false.

mod blocked;
mod write;

use headwater_crds::{
    Condition, ConditionStatus, ConditionType, DurabilityStatus, FlushMode, FlushStatus, GoDuration, LastApplied,
    OperationStatus, Reason, ReplicaPhase, ReplicaRole, ReplicaStatus, SnapshotStatus, Storage, StreamStatus, SyncMode,
};
use serde_json::Value;

use crate::desired::Desired;
use crate::observed::{GroupView, Observed, Reach, ReplicaView, ServerStream, StreamView};
use crate::rollout;
use crate::safety::{self, Acting, Progress};
use crate::step::{Plan, Step, WaitingOn};
use crate::time::Now;
use crate::wire::Durability;

pub use blocked::{cluster_not_found, invalid, refused, unreachable};
pub use write::{INDEX_WRITE_BUSY_MS, INDEX_WRITE_STEADY_MS, write_due};

/// The status that follows from what is wanted, what was seen and what will be done.
pub fn report(
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    previous: Option<&StreamStatus>,
    now: Now,
) -> StreamStatus {
    let server = match &observed.stream {
        StreamView::Present(server) => Some(server),
        StreamView::Absent | StreamView::Unknown { .. } => None,
    };
    let report = Report { desired, observed, plan, server, previous, now: now.to_string() };
    report.status()
}

/// A loss stays on record until somebody deletes the object.
fn keep_data_lost(conditions: &mut Vec<Condition>, old: &[Condition]) {
    conditions.extend(headwater_crds::conditions::find(old, ConditionType::DataLost).cloned());
}

struct Report<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    plan: &'a Plan,
    server: Option<&'a ServerStream>,
    previous: Option<&'a StreamStatus>,
    now: String,
}

/// One answer: status, reason, text.
type Answer = (ConditionStatus, Reason, String);

const YES: ConditionStatus = ConditionStatus::True;
const NO: ConditionStatus = ConditionStatus::False;
const UNKNOWN: ConditionStatus = ConditionStatus::Unknown;

impl Report<'_> {
    fn status(&self) -> StreamStatus {
        let config = self.config_synced();
        let durability = self.durability();
        let recovered = self.recovered();
        let ready = self.ready(&config);
        let stalled = match self.plan.stalled() {
            Some(waiting) => (YES, waiting.reason(), waiting.to_string()),
            None => (NO, Reason::NotStalled, String::new()),
        };
        let reconciling = self.reconciling(&stalled, &recovered);
        let mut conditions: Vec<Condition> = [
            (ConditionType::Ready, ready),
            (ConditionType::Reconciling, reconciling),
            (ConditionType::Stalled, stalled),
            (ConditionType::ConfigSynced, config.clone()),
            (ConditionType::Recovered, recovered),
            (ConditionType::DurabilityInSync, durability),
        ]
        .into_iter()
        .map(|(kind, (status, reason, text))| self.condition(kind, status, reason, text))
        .collect();
        match self.data_lost() {
            Some(text) => conditions.push(self.condition(ConditionType::DataLost, YES, Reason::StreamRecreated, text)),
            None => keep_data_lost(&mut conditions, self.old()),
        }

        let applied = self.observed.replicas.iter().filter_map(|replica| {
            let marks = replica.watermarks?;
            Some(marks.applied.saturating_sub(marks.persisted))
        });
        StreamStatus {
            observed_generation: Some(self.desired.generation),
            name: Some(self.desired.name.clone()),
            leader: self.observed.leader().map(str::to_owned),
            promise: self.observed.promise().map(durability_status),
            flush: self.flush(),
            commit_index: self.observed.group.as_ref().map(|group| index(group.committed)),
            max_persist_lag: applied.max().map(index),
            replicas: self.replicas(),
            operation: self.operation(),
            last_applied: self.last_applied(config.0 == YES),
            conditions,
        }
    }

    fn old(&self) -> &[Condition] {
        self.previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default()
    }

    fn condition(&self, kind: ConditionType, status: ConditionStatus, reason: Reason, text: String) -> Condition {
        let generation = self.desired.generation;
        let old = self.old();
        Condition::new(kind, status, reason.as_str(), text, generation, old, &self.now)
    }

    fn config_synced(&self) -> Answer {
        match (&self.plan.step, &self.observed.stream) {
            (_, StreamView::Unknown { why }) => (UNKNOWN, Reason::ClusterUnreachable, why.clone()),
            (Some(step @ Step::CreateStream { .. }), _) => answer(NO, Reason::Creating, step),
            (Some(step @ Step::UpdateStream { .. }), _) => answer(NO, Reason::Updating, step),
            (Some(step @ Step::Adopt { .. }), _) => answer(NO, Reason::Adopting, step),
            (Some(step @ Step::DeleteStream { .. }), _) => answer(NO, Reason::Deleting, step),
            _ => {
                let differs = self.plan.waiting.iter().find(|waiting| {
                    matches!(
                        waiting,
                        WaitingOn::StreamMissing
                            | WaitingOn::TooFewNodes { .. }
                            | WaitingOn::AdoptionRefused { .. }
                            | WaitingOn::ImmutableField { .. }
                            | WaitingOn::DriftIgnored { .. }
                            | WaitingOn::ReplicasChange
                    )
                });
                if let Some(waiting) = differs {
                    return (NO, waiting.reason(), waiting.to_string());
                }
                self.config_compared()
            }
        }
    }

    /// The plan says nothing about the configuration: it is equal, or changes are paused.
    fn config_compared(&self) -> Answer {
        let Some(server) = self.server else {
            return (NO, Reason::StreamMissing, "the stream does not exist".to_owned());
        };
        let adopted = !rollout::owns(self.desired, server) || server.owner.as_ref().is_some_and(|owner| owner.adopted);
        let wanted = self.desired.config_for(server, adopted);
        let changes = headwater_crds::jetstream::differences(&server.config, &wanted);
        if changes.is_empty() {
            let text = "the server's configuration equals the spec".to_owned();
            return (YES, Reason::InSync, text);
        }
        let fields: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
        let reason = if self.desired.paused { Reason::Paused } else { Reason::Updating };
        (NO, reason, format!("differs: {}", fields.join(", ")))
    }

    fn ready(&self, config: &Answer) -> Answer {
        if let StreamView::Unknown { why } = &self.observed.stream {
            return (UNKNOWN, Reason::ClusterUnreachable, why.clone());
        }
        if self.server.is_none() {
            let (reason, text) = match &self.plan.step {
                Some(step @ Step::CreateStream { .. }) => (Reason::Creating, crate::render::step(step)),
                _ => match self.plan.waiting.first() {
                    Some(waiting) => (waiting.reason(), waiting.to_string()),
                    None => (Reason::StreamMissing, "the stream does not exist".to_owned()),
                },
            };
            return (NO, reason, text);
        }
        if self.desired.deleting {
            return (NO, Reason::Deleting, "the object is being deleted".to_owned());
        }
        let Some(group) = &self.observed.group else {
            let why = self.observed.no_leader.clone().unwrap_or_default();
            return (NO, Reason::NoLeader, format!("no leader: {why}"));
        };
        if let Err(why) = self.observed.serves() {
            return (NO, Reason::NoQuorum, why);
        }
        if config.0 != YES {
            // What the policy or the pause forbids to correct does not keep the stream from serving.
            let tolerated = config.1 == Reason::DriftIgnored || config.1 == Reason::Paused;
            if !tolerated {
                let reason = match config.1 {
                    Reason::Adopting | Reason::Updating | Reason::Rolling => Reason::ConfigNotApplied,
                    other => other,
                };
                return (NO, reason, config.2.clone());
            }
            return (YES, config.1, config.2.clone());
        }
        let text = format!("{} leads in term {}; promises {}", group.leader, group.term, group.promise);
        (YES, Reason::Available, text)
    }

    fn reconciling(&self, stalled: &Answer, recovered: &Answer) -> Answer {
        if stalled.0 == YES {
            return (NO, stalled.1, stalled.2.clone());
        }
        if self.desired.paused {
            return (NO, Reason::Paused, WaitingOn::Paused.to_string());
        }
        if let Some(step) = &self.plan.step {
            let reason = match step {
                Step::CreateStream { .. } => Reason::Creating,
                Step::UpdateStream { .. } => Reason::Updating,
                Step::Adopt { .. } => Reason::Adopting,
                Step::DeleteStream { .. } => Reason::Deleting,
                Step::ProposeDurability { .. } => Reason::Proposing,
                Step::GrantDurability { .. } | Step::TransferLeadership { .. } => Reason::Rolling,
            };
            return answer(YES, reason, step);
        }
        let awaited: Vec<&WaitingOn> =
            self.plan.waiting.iter().filter(|waiting| !matches!(waiting, WaitingOn::DriftIgnored { .. })).collect();
        if let Some(first) = awaited.first() {
            let texts: Vec<String> = awaited.iter().map(ToString::to_string).collect();
            return (YES, first.reason(), texts.join("; "));
        }
        if recovered.0 == NO {
            return (YES, recovered.1, recovered.2.clone());
        }
        (NO, Reason::Converged, "nothing is awaited".to_owned())
    }

    fn recovered(&self) -> Answer {
        if self.observed.replicas.is_empty() {
            let why = self.observed.no_leader.clone().unwrap_or_default();
            return (UNKNOWN, Reason::Unknown, why);
        }
        let mut reason = Reason::AllRecovered;
        let mut texts = Vec::new();
        for replica in &self.observed.replicas {
            match &replica.reach {
                Reach::Unreachable { why } => {
                    reason = worse(reason, Reason::ReplicaMissing);
                    texts.push(format!("{} does not answer: {why}", replica.node));
                }
                Reach::Reachable if replica.phase == ReplicaPhase::Recovered => {}
                Reach::Reachable => {
                    let kind = if crate::observed::failed(replica.phase) {
                        Reason::ReplicaFailed
                    } else {
                        Reason::ReplicaRecovering
                    };
                    reason = worse(reason, kind);
                    let why = replica.phase_why.as_deref().map(|why| format!(": {why}"));
                    let why = why.unwrap_or_default();
                    texts.push(format!("{} is {}{why}", replica.node, replica.phase.as_str()));
                }
            }
        }
        if texts.is_empty() {
            let text = format!("{} of {0} replicas", self.observed.replicas.len());
            return (YES, Reason::AllRecovered, text);
        }
        (NO, reason, texts.join("; "))
    }

    fn acting(&self) -> Option<(Acting, &GroupView, &ServerStream)> {
        let server = self.server?;
        let group = self.observed.group.as_ref()?;
        Some((rollout::acting(server), group, server))
    }

    fn durability(&self) -> Answer {
        let Some((acting, group, server)) = self.acting() else {
            let why = self.observed.no_leader.clone().unwrap_or_default();
            return (UNKNOWN, Reason::Unknown, why);
        };
        let target = Durability::from_config(&server.config);
        if !acting.same(target, group.desired) {
            let text = format!("{target} is not yet in the group's log, which wants {}", group.desired);
            return (NO, Reason::Proposing, text);
        }
        let mut texts = Vec::new();
        let mut reason = Reason::InSync;
        for voter in self.observed.voters() {
            let stage = match safety::progress(voter, group, acting) {
                Progress::Done => continue,
                // A voter that is away has what the log recorded, and returns with it.
                Progress::Settling if !voter.reach.is_reachable() && recorded(voter, group, acting) => {
                    continue;
                }
                Progress::Moving => {
                    reason = Reason::Draining;
                    "drains"
                }
                Progress::Settling => "settles",
                Progress::Pending => "waits for its turn",
            };
            if reason == Reason::InSync {
                reason = Reason::Rolling;
            }
            texts.push(format!("{} {stage}", voter.node));
        }
        if texts.is_empty() {
            let text = format!("every voter has {target}");
            return (YES, Reason::InSync, text);
        }
        (NO, reason, format!("to {target}: {}", texts.join(", ")))
    }

    fn flush(&self) -> Option<FlushStatus> {
        let (acting, group, _) = self.acting()?;
        let lagging = group.promise.acting(acting.storage, acting.replicas).allow_async_flush;
        let wanted = group.desired.acting(acting.storage, acting.replicas).allow_async_flush;
        let mode = match (lagging, wanted) {
            (true, true) => FlushMode::Async,
            (false, _) => FlushMode::Sync,
            (true, false) => FlushMode::Draining,
        };
        let draining = mode == FlushMode::Draining;
        let earlier = self
            .previous
            .and_then(|previous| previous.flush.as_ref())
            .filter(|flush| flush.mode == FlushMode::Draining)
            .and_then(|flush| flush.started_at.clone());
        let past = self.observed.voters().filter(|voter| match (group.barrier, voter.persisted()) {
            (Some(barrier), Some(persisted)) => persisted >= barrier,
            (None, _) => true,
            (Some(_), None) => false,
        });
        Some(FlushStatus {
            mode,
            note: flush_note(group.desired, acting),
            barrier_index: group.barrier.filter(|_| draining).map(index),
            started_at: draining.then(|| earlier.unwrap_or_else(|| self.now.clone())),
            replicas_past_barrier: draining.then(|| count(past.count())),
            replicas_total: draining.then(|| count(self.observed.voters().count())),
        })
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        let desired = self.observed.group.as_ref().map(|group| group.desired);
        self.observed
            .replicas
            .iter()
            .map(|replica| {
                let marks = replica.watermarks;
                let known = replica.reach.is_reachable();
                ReplicaStatus {
                    node: replica.node.clone(),
                    pod: replica.pod.clone(),
                    role: if known { replica.role } else { ReplicaRole::Unknown },
                    applied_index: marks.map(|marks| index(marks.applied)),
                    persisted_index: marks.map(|marks| index(marks.persisted)),
                    synced_index: marks.map(|marks| index(marks.synced)),
                    snapshot: replica.snapshot.map(|snapshot| SnapshotStatus {
                        index: index(snapshot.index),
                        r#async: snapshot.r#async,
                        missing: index(snapshot.missing),
                    }),
                    phase: replica.phase,
                    message: match &replica.reach {
                        Reach::Unreachable { why } => Some(why.clone()),
                        Reach::Reachable => replica.phase_why.clone(),
                    },
                    desired: desired.map(durability_status),
                    effective: replica.effective.map(durability_status),
                    boot_id: replica.boot_id.clone(),
                    observed_at: Some(replica.at.to_string()),
                }
            })
            .collect()
    }

    fn operation(&self) -> Option<OperationStatus> {
        let step = self.plan.step.as_ref()?;
        let mut operation = OperationStatus {
            r#type: step.kind().to_owned(),
            node: step.node().map(str::to_owned),
            generation: step.generation().map(index),
            fence: None,
            started_at: None,
        };
        // The same step again is still the same operation.
        let earlier = self.previous.and_then(|previous| previous.operation.as_ref()).filter(|earlier| {
            earlier.r#type == operation.r#type
                && earlier.node == operation.node
                && earlier.generation == operation.generation
        });
        operation.fence = earlier.and_then(|earlier| earlier.fence);
        operation.started_at =
            earlier.and_then(|earlier| earlier.started_at.clone()).or_else(|| Some(self.now.clone()));
        Some(operation)
    }

    fn last_applied(&self, synced: bool) -> Option<LastApplied> {
        let earlier = self.previous.and_then(|previous| previous.last_applied.clone());
        let Some(server) = self.server.filter(|server| synced && rollout::owns(self.desired, server)) else {
            return earlier;
        };
        let config_hash = fingerprint(&server.config);
        match earlier {
            Some(earlier)
                if earlier.config_hash == config_hash && earlier.created.as_deref() == Some(&server.created) =>
            {
                Some(earlier)
            }
            _ => Some(LastApplied { config_hash, time: self.now.clone(), created: Some(server.created.clone()) }),
        }
    }

    /// Why data that this object had written is gone, if it is.
    fn data_lost(&self) -> Option<String> {
        let known = self.previous?.last_applied.as_ref()?.created.as_deref()?;
        match &self.observed.stream {
            StreamView::Unknown { .. } => None,
            StreamView::Absent if self.desired.deleting => None,
            StreamView::Absent => {
                Some(format!("the stream created {known} is gone from the server; its messages are lost"))
            }
            StreamView::Present(server) if server.created != known => Some(format!(
                "the stream created {known} was replaced by one created {}; earlier messages are lost",
                server.created
            )),
            StreamView::Present(_) => None,
        }
    }
}

fn answer(status: ConditionStatus, reason: Reason, step: &Step) -> Answer {
    (status, reason, crate::render::step(step))
}

/// The graver of two reasons.
fn worse(a: Reason, b: Reason) -> Reason {
    let rank = |reason| match reason {
        Reason::ReplicaFailed => 3,
        Reason::ReplicaMissing => 2,
        Reason::ReplicaRecovering => 1,
        _ => 0,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// Whether the log says that the voter has what is wanted.
fn recorded(voter: &ReplicaView, group: &GroupView, acting: Acting) -> bool {
    voter.recorded.is_some_and(|recorded| recorded.granted.is_none() && acting.same(recorded.effective, group.desired))
}

fn flush_note(desired: Durability, acting: Acting) -> Option<String> {
    let text = if acting.storage == Storage::Memory {
        "allowAsyncFlush has no effect: a memory stream has no files"
    } else if acting.replicas <= 1 {
        "allowAsyncFlush has no effect: with one replica there is no log behind the store"
    } else if desired.sync_mode == SyncMode::NoWait && !desired.allow_async_flush {
        "allowAsyncFlush: false has no effect: syncMode noWait implies asynchronous flush"
    } else {
        return None;
    };
    Some(text.to_owned())
}

fn durability_status(durability: Durability) -> DurabilityStatus {
    DurabilityStatus {
        sync_mode: durability.sync_mode,
        sync_interval: durability.sync_interval_ms.map(|ms| GoDuration::from_millis(ms).to_string()),
        allow_async_flush: durability.allow_async_flush,
    }
}

/// Kubernetes numbers are signed; an index beyond 2^63 is out of any log's reach.
fn index(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// FNV-1a over the canonical text: tells configurations apart, protects nothing.
fn fingerprint(config: &Value) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in canonical(config).bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// JSON with sorted keys, whatever order the map type keeps.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: std::collections::BTreeMap<&String, String> =
                map.iter().map(|(key, value)| (key, canonical(value))).collect();
            let fields: Vec<String> = sorted.iter().map(|(k, v)| format!("{k:?}:{v}")).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}
