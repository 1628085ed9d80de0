//! What people and `kubectl wait` see.

use headwater_crds::conditions::find;
use headwater_crds::{ConditionType, FlushMode, ReplicaPhase, StreamStatus};
use headwater_plan::{Desired, Problems, plan, status};

use crate::world::{World, manifest, wish};

const ASYNC: &str = "replicas: 3, allowAsyncFlush: true";
const SYNC: &str = "replicas: 3, allowAsyncFlush: false";

fn report(world: &World, wanted: &Desired, previous: Option<&StreamStatus>) -> StreamStatus {
    let seen = world.observe();
    let next = plan(wanted, &seen, world.now());
    status::report(wanted, &seen, &next, previous, world.now())
}

/// The stream and its world when nothing is left to do.
fn at_rest() -> (World, StreamStatus) {
    let world = World::with(&wish(ASYNC), 3);
    let status = report(&world, &wish(ASYNC), None);
    (world, status)
}

/// `Type=Status/Reason`, one per line.
fn conditions(status: &StreamStatus) -> Vec<String> {
    status.conditions.iter().map(|c| format!("{}={}/{}\n", c.r#type, c.status.as_str(), c.reason)).collect()
}

/// Those conditions that are not as at rest, and those that are at rest only.
fn differs(status: &StreamStatus) -> String {
    let (_, resting) = at_rest();
    let known = conditions(&resting);
    let unlike = conditions(status).into_iter().filter(|line| !known.contains(line));
    let missing = resting.conditions.iter().filter(|c| status.conditions.iter().all(|other| other.r#type != c.r#type));
    unlike.chain(missing.map(|c| format!("{} is missing\n", c.r#type))).collect()
}

#[test]
fn a_stream_at_rest_is_ready_and_nothing_else_is_true_that_should_not_be() {
    let (_, status) = at_rest();
    insta::assert_snapshot!(conditions(&status).concat(), @r"
    Ready=True/Available
    Reconciling=False/Converged
    Stalled=False/NotStalled
    ConfigSynced=True/InSync
    Recovered=True/AllRecovered
    DurabilityInSync=True/InSync
    ");
    assert_eq!(status.leader.as_deref(), Some("n1"));
    assert_eq!(status.flush.unwrap().mode, FlushMode::Async);
    assert_eq!(status.observed_generation, Some(1));
    assert!(status.conditions.iter().all(|c| c.observed_generation == Some(1)));
    assert!(status.last_applied.is_some());
}

#[test]
fn a_drain_shows_as_reconciling_and_leaves_the_stream_ready() {
    let (mut world, _) = at_rest();
    world.committed = 100;
    let wanted = wish(SYNC);
    for _ in 0..3 {
        let seen = world.observe();
        let next = plan(&wanted, &seen, world.now());
        world.take(&wanted, &seen, &next).unwrap();
    }
    world.node("n2").persisted = 101;
    let first = report(&world, &wanted, None);
    insta::assert_snapshot!(differs(&first), @r"
    Reconciling=True/Draining
    DurabilityInSync=False/Draining
    ");
    let flush = first.flush.clone().unwrap();
    assert_eq!(flush.mode, FlushMode::Draining);
    assert_eq!(flush.barrier_index, Some(101));
    assert_eq!((flush.replicas_past_barrier, flush.replicas_total), (Some(1), Some(3)));
    assert!(first.promise.as_ref().unwrap().allow_async_flush);

    world.now_ms += 5_000;
    let second = report(&world, &wanted, Some(&first));
    assert_eq!(second.flush.unwrap().started_at, flush.started_at);
    assert_eq!(
        find(&second.conditions, ConditionType::Ready).unwrap().last_transition_time,
        find(&first.conditions, ConditionType::Ready).unwrap().last_transition_time
    );
}

#[test]
fn a_missing_replica_does_not_page() {
    let (mut world, _) = at_rest();
    world.node("n3").up = false;
    let status = report(&world, &wish(ASYNC), None);
    insta::assert_snapshot!(differs(&status), @r"
    Reconciling=True/ReplicaMissing
    Recovered=False/ReplicaMissing
    ");
    let replica = status.replicas.iter().find(|r| r.node == "n3").unwrap();
    assert_eq!(replica.phase, ReplicaPhase::Unknown);
    assert_eq!(replica.applied_index, None);
    assert_eq!(replica.message.as_deref(), Some("connection refused"));
}

#[test]
fn a_lost_quorum_does() {
    let (mut world, _) = at_rest();
    world.node("n2").up = false;
    world.node("n3").up = false;
    insta::assert_snapshot!(differs(&report(&world, &wish(ASYNC), None)), @r"
    Ready=False/NoQuorum
    Reconciling=True/ReplicaMissing
    Recovered=False/ReplicaMissing
    ");
}

#[test]
fn no_leader_is_said() {
    let (mut world, _) = at_rest();
    world.leader = None;
    let status = report(&world, &wish(ASYNC), None);
    assert_eq!(find(&status.conditions, ConditionType::Ready).unwrap().reason, "NoLeader");
}

#[test]
fn a_refused_adoption_stalls() {
    let (mut world, _) = at_rest();
    world.set_owner(None);
    let status = report(&world, &wish("adoptionPolicy: Never"), None);
    insta::assert_snapshot!(differs(&status), @r"
    Ready=False/AdoptionRefused
    Reconciling=False/AdoptionRefused
    Stalled=True/AdoptionRefused
    ConfigSynced=False/AdoptionRefused
    ");
}

#[test]
fn drift_under_create_only_is_visible_and_ready() {
    let (world, _) = at_rest();
    let status = report(&world, &wish("replicas: 3, maxMsgs: 9, updatePolicy: CreateOnly"), None);
    insta::assert_snapshot!(differs(&status), @r"
    Ready=True/DriftIgnored
    ConfigSynced=False/DriftIgnored
    ");
}

#[test]
fn a_stream_that_vanished_is_made_anew_with_the_loss_on_record() {
    let wanted = wish(ASYNC);
    let (mut world, before) = at_rest();
    world.stream = None;
    world.leader = None;
    let gone = report(&world, &wanted, Some(&before));
    let lost = find(&gone.conditions, ConditionType::DataLost).unwrap();
    assert_eq!(lost.reason, "StreamRecreated");
    assert!(lost.message.contains("gone from the server"), "{}", lost.message);

    let seen = world.observe();
    let next = plan(&wanted, &seen, world.now());
    world.take(&wanted, &seen, &next).unwrap();
    let anew = report(&world, &wanted, Some(&gone));
    assert!(find(&anew.conditions, ConditionType::DataLost).is_some());
    assert_eq!(find(&anew.conditions, ConditionType::Ready).unwrap().reason, "Available");
    let later = report(&world, &wanted, Some(&anew));
    assert!(find(&later.conditions, ConditionType::DataLost).is_some(), "the record stays");
}

#[test]
fn settings_without_effect_say_so() {
    for (spec, expected) in [
        ("replicas: 1", "one replica"),
        ("replicas: 3, storage: memory", "memory stream"),
        ("replicas: 3, syncMode: noWait, allowAsyncFlush: false", "noWait implies"),
    ] {
        let world = World::with(&wish(spec), 3);
        let note = report(&world, &wish(spec), None).flush.unwrap().note.unwrap();
        assert!(note.contains(expected), "{spec}: {note}");
    }
    assert_eq!(at_rest().1.flush.unwrap().note, None);
}

#[test]
fn an_invalid_spec_stalls_and_a_missing_cluster_does_not() {
    let problems: Problems = Desired::from_stream(&manifest("replicas: 9")).unwrap_err();
    let now = World::empty(1).now();
    let invalid = status::invalid(4, &problems, None, now);
    insta::assert_snapshot!(differs(&invalid), @r"
    Ready=False/InvalidSpec
    Reconciling=False/InvalidSpec
    Stalled=True/InvalidSpec
    ConfigSynced=False/InvalidSpec
    Recovered=Unknown/InvalidSpec
    DurabilityInSync=Unknown/InvalidSpec
    ");
    assert!(invalid.conditions[0].message.contains("spec.replicas"));
    let missing = status::cluster_not_found(4, "main", "shop", None, now);
    insta::assert_snapshot!(differs(&missing), @r"
    Ready=False/ClusterNotFound
    Reconciling=True/ClusterNotFound
    ConfigSynced=Unknown/ClusterNotFound
    Recovered=Unknown/ClusterNotFound
    DurabilityInSync=Unknown/ClusterNotFound
    ");
    let text = &missing.conditions[0].message;
    assert!(text.contains("main") && text.contains("shop") && text.contains("create it"), "{text}");
    let silent = status::unreachable(4, "timeout", Some(&missing), now);
    assert_eq!(silent.conditions[0].status.as_str(), "Unknown");
}

#[test]
fn index_numbers_alone_are_written_seldom_and_words_at_once() {
    let (mut world, before) = at_rest();
    assert!(!status::write_due(&before, &before, i64::MAX));
    world.pass(10, 5);
    let numbers = report(&world, &wish(ASYNC), Some(&before));
    assert_ne!(before, numbers);
    assert!(!status::write_due(&before, &numbers, 30_000));
    assert!(status::write_due(&before, &numbers, 60_000));
    world.node("n2").phase = ReplicaPhase::CatchingUp;
    let words = report(&world, &wish(ASYNC), Some(&before));
    assert!(status::write_due(&before, &words, 0));
    world.pass(10, 5);
    let busy = report(&world, &wish(ASYNC), Some(&words));
    assert!(!status::write_due(&words, &busy, 9_000));
    assert!(status::write_due(&words, &busy, 10_000));
}

#[test]
fn an_operation_keeps_its_start_and_fence_until_it_changes() {
    let mut world = World::empty(3);
    let wanted = wish(ASYNC);
    let mut first = report(&world, &wanted, None);
    let operation = first.operation.as_mut().unwrap();
    assert_eq!(operation.r#type, "CreateStream");
    operation.fence = Some(7);
    world.now_ms += 9_000;
    let second = report(&world, &wanted, Some(&first)).operation.unwrap();
    assert_eq!(Some(&second), first.operation.as_ref());
}
