//! Each rule refuses the plan that breaks it.

use headwater_crds::ReplicaPhase;
use headwater_plan::lint::Rule;
use headwater_plan::{Desired, Observed, Plan, Step, StreamView, lint};

use crate::world::{World, wish};

const ASYNC: &str = "replicas: 3, allowAsyncFlush: true";
const SYNC: &str = "replicas: 3, allowAsyncFlush: false";

/// A world in which a change to sync is in the log and nobody has moved: n1 leads.
fn changing() -> (World, Desired) {
    let mut world = World::with(&wish(ASYNC), 3);
    let wanted = wish(SYNC);
    for _ in 0..2 {
        let seen = world.observe();
        let next = headwater_plan::plan(&wanted, &seen, world.now());
        world.take(&wanted, &seen, &next).unwrap();
    }
    assert_eq!(world.generation, 2);
    (world, wanted)
}

fn grant(node: &str, generation: u64) -> Step {
    Step::GrantDurability { node: node.into(), generation }
}

fn transfer(from: &str, to: &str) -> Step {
    Step::TransferLeadership { from: from.into(), to: to.into() }
}

fn refused(world: &World, wanted: &Desired, seen: &Observed, step: Step) -> Vec<Rule> {
    let violations = lint(wanted, seen, &Plan::step(step), world.now()).unwrap_err();
    let mut rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

#[test]
fn the_planners_own_step_passes() {
    let (world, wanted) = changing();
    let plan = Plan::step(grant("n2", 2));
    assert_eq!(lint(&wanted, &world.observe(), &plan, world.now()), Ok(()));
}

#[test]
fn mutated_grants_are_refused() {
    let (mut world, wanted) = changing();
    let seen = world.observe();
    assert_eq!(refused(&world, &wanted, &seen, grant("n1", 2)), [Rule::LeaderLast]);
    assert_eq!(refused(&world, &wanted, &seen, grant("n2", 1)), [Rule::GenerationSeen]);
    assert_eq!(refused(&world, &wanted, &seen, grant("n9", 2)), [Rule::GrantNeeded]);

    world.node("n3").up = false;
    assert_eq!(
        refused(&world, &wanted, &world.observe(), grant("n2", 2)),
        [Rule::EveryVoterInView, Rule::TightenOnlySound]
    );
    world.node("n3").up = true;
    world.node("n3").phase = ReplicaPhase::Persisting;
    assert_eq!(refused(&world, &wanted, &world.observe(), grant("n2", 2)), [Rule::TightenOnlySound]);
    world.node("n3").phase = ReplicaPhase::Recovered;
    world.node("n3").granted = Some(2);
    assert_eq!(refused(&world, &wanted, &world.observe(), grant("n2", 2)), [Rule::OneInMotion]);
    world.node("n3").granted = None;
    world.node("n2").effective = world.desired;
    assert_eq!(refused(&world, &wanted, &world.observe(), grant("n2", 2)), [Rule::GrantNeeded]);
    world.leader = None;
    assert_eq!(refused(&world, &wanted, &world.observe(), grant("n2", 2)), [Rule::EveryVoterInView]);
}

#[test]
fn a_view_that_has_aged_since_allows_no_grant() {
    let (mut world, wanted) = changing();
    let seen = world.observe();
    world.now_ms += 60_000;
    assert_eq!(refused(&world, &wanted, &seen, grant("n2", 2)), [Rule::EveryVoterInView]);
}

#[test]
fn mutated_transfers_are_refused() {
    let (mut world, wanted) = changing();
    assert_eq!(refused(&world, &wanted, &world.observe(), transfer("n1", "n2")), [Rule::LeaderLast, Rule::HeirFit]);
    for name in ["n2", "n3"] {
        world.node(name).effective = world.desired;
    }
    let seen = world.observe();
    let plan = Plan::step(transfer("n1", "n2"));
    assert_eq!(lint(&wanted, &seen, &plan, world.now()), Ok(()));
    assert_eq!(refused(&world, &wanted, &seen, transfer("n2", "n3")), [Rule::HeirFit]);
    assert_eq!(refused(&world, &wanted, &seen, transfer("n1", "n1")), [Rule::HeirFit]);
    world.node("n2").phase = ReplicaPhase::CatchingUp;
    assert_eq!(refused(&world, &wanted, &world.observe(), transfer("n1", "n2")), [Rule::HeirFit]);
}

#[test]
fn writes_to_the_catalogue_need_ownership_policy_and_the_generation_seen() {
    let mut world = World::with(&wish(ASYNC), 3);
    let seen = world.observe();
    let StreamView::Present(server) = seen.stream.clone() else {
        panic!("no stream");
    };
    let mut config = server.config.clone();
    config["max_msgs"] = 5.into();
    let update = |config: &serde_json::Value, generation| Step::UpdateStream {
        config: config.clone(),
        changes: Vec::new(),
        generation,
    };
    let wanted = wish("replicas: 3, maxMsgs: 5");
    let step = Plan::step(update(&config, 1));
    assert_eq!(lint(&wanted, &seen, &step, world.now()), Ok(()));
    assert_eq!(refused(&world, &wanted, &seen, update(&config, 9)), [Rule::GenerationSeen]);
    let observe = wish("replicas: 3, maxMsgs: 5, updatePolicy: ObserveOnly");
    assert_eq!(refused(&world, &observe, &seen, update(&config, 1)), [Rule::PolicyAllows]);

    config["storage"] = "memory".into();
    config["name"] = "X".into();
    assert_eq!(refused(&world, &wanted, &seen, update(&config, 1)), [Rule::ImmutableStays]);

    world.node("n2").granted = Some(1);
    let mut config = server.config.clone();
    config["num_replicas"] = 1.into();
    let busy = world.observe();
    assert_eq!(refused(&world, &wanted, &busy, update(&config, 1)), [Rule::ResizeAlone]);

    world.set_owner(None);
    let seen = world.observe();
    assert_eq!(refused(&world, &wanted, &seen, update(&server.config, 1)), [Rule::PolicyAllows]);
    let never = wish("replicas: 3, adoptionPolicy: Never");
    let adopt = Step::Adopt { config: server.config, changes: Vec::new(), generation: 1, previous: None };
    assert_eq!(refused(&world, &never, &seen, adopt), [Rule::PolicyAllows]);
}

#[test]
fn creation_and_deletion_need_to_be_wanted_and_known() {
    let world = World::with(&wish(ASYNC), 3);
    let seen = world.observe();
    let wanted = wish("replicas: 3, deletionPolicy: Delete");
    let create = Step::CreateStream { config: wanted.new_config().unwrap().clone() };
    let delete = Step::DeleteStream { generation: 1 };
    assert_eq!(refused(&world, &wanted, &seen, create.clone()), [Rule::CreateOnlyAbsent]);
    assert_eq!(refused(&world, &wanted, &Observed::nothing("?"), create), [Rule::CreateOnlyAbsent]);
    assert_eq!(refused(&world, &wanted, &seen, delete.clone()), [Rule::DeleteOnlyOnRequest]);
    assert_eq!(refused(&world, &wanted, &Observed::nothing("?"), delete.clone()), [Rule::KnownStream]);
    let mut retained = wish(ASYNC);
    retained.deleting = true;
    assert_eq!(refused(&world, &retained, &seen, delete.clone()), [Rule::DeleteOnlyOnRequest]);
    let mut paused = wanted;
    paused.deleting = true;
    paused.paused = true;
    assert_eq!(refused(&world, &paused, &seen, delete), [Rule::PausedMeansStill]);
    assert_eq!(refused(&world, &retained, &seen, grant("n2", 1)), [Rule::DeletingMeansDelete, Rule::GrantNeeded]);
}

#[test]
fn silence_needs_everything_to_be_as_wanted() {
    let (world, wanted) = changing();
    let silent = Plan::default();
    let violations = lint(&wanted, &world.observe(), &silent, world.now()).unwrap_err();
    assert_eq!(violations[0].rule, Rule::WaitingSaysWhy);
    assert!(lint(&wanted, &Observed::nothing("?"), &silent, world.now()).is_err());
    let still = World::with(&wish(ASYNC), 3);
    assert_eq!(lint(&wish(ASYNC), &still.observe(), &silent, still.now()), Ok(()));
}
