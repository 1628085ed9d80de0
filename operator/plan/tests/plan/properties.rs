//! Random worlds, random and stale views of them: what must never happen, and what must happen in the end.

use headwater_crds::ReplicaPhase;
use headwater_plan::{Desired, Step, lint, plan};
use proptest::prelude::*;

use crate::world::{World, wish};

const SETTINGS: [&str; 6] = [
    "allowAsyncFlush: true",
    "allowAsyncFlush: false",
    "syncMode: interval, syncInterval: 1s",
    "syncMode: interval, syncInterval: 50ms, allowAsyncFlush: false",
    "syncMode: noWait",
    "syncMode: always, allowAsyncFlush: false, maxMsgs: 100",
];

fn setting(which: usize, replicas: usize) -> Desired {
    wish(&format!("replicas: {replicas}, {}", SETTINGS[which % SETTINGS.len()]))
}

/// What may happen between two plans.
#[derive(Clone, Debug)]
enum Event {
    Pass {
        publishes: u64,
        persists: u64,
    },
    Stop(usize),
    Start(usize),
    Recover(usize),
    Elect(usize),
    Wish(usize),
    /// Plan from a view taken this many events ago.
    Stale(usize),
    Plan,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..50u64, 0..80u64).prop_map(|(publishes, persists)| Event::Pass { publishes, persists }),
        1 => (0..5usize).prop_map(Event::Stop),
        2 => (0..5usize).prop_map(Event::Start),
        2 => (0..5usize).prop_map(Event::Recover),
        1 => (0..5usize).prop_map(Event::Elect),
        1 => (0..SETTINGS.len()).prop_map(Event::Wish),
        3 => (1..12usize).prop_map(Event::Stale),
        6 => Just(Event::Plan),
    ]
}

fn name(world: &World, which: usize) -> String {
    let names: Vec<&String> = world.nodes.keys().collect();
    names[which % names.len()].clone()
}

/// Replicas that have been told to move and have not, plus those away: all that is not at its post.
fn in_motion(world: &World) -> usize {
    world.nodes.values().filter(|node| node.granted.is_some()).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn planning_and_executing_again_and_again_ends(
        replicas in prop_oneof![Just(1usize), Just(2), Just(3), Just(5)],
        from in 0..SETTINGS.len(),
        to in 0..SETTINGS.len(),
        leader in 0..5usize,
        persisted in prop::collection::vec(0..900u64, 5),
    ) {
        let mut world = World::with(&setting(from, replicas), replicas);
        world.committed = 1_000;
        for (node, persisted) in world.nodes.values_mut().zip(persisted) {
            node.persisted = persisted;
        }
        let leader = name(&world, leader);
        world.elect(&leader);
        let wish = setting(to, replicas);
        let mut moves = Vec::new();
        for round in 0.. {
            prop_assert!(round < 60, "not done after {moves:?}");
            let seen = world.observe();
            let next = plan(&wish, &seen, world.now());
            lint(&wish, &seen, &next, world.now()).unwrap();
            if next.is_done() {
                break;
            }
            if let Some(Step::GrantDurability { node, .. }) = &next.step {
                moves.push(node.clone());
            }
            world.take(&wish, &seen, &next).unwrap();
            world.pass(0, 200);
        }
        // Each voter moved once at most, and whoever led moved last.
        let mut once = moves.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), moves.len(), "{:?}", moves);
        if !moves.is_empty() {
            prop_assert_eq!(moves.last(), Some(&leader));
        }
        for node in world.nodes.values() {
            prop_assert_eq!(node.effective, world.desired);
        }
    }

    #[test]
    fn from_stale_views_too_never_two_in_motion_and_never_the_leader(
        replicas in prop_oneof![Just(3usize), Just(5)],
        events in prop::collection::vec(event(), 1..80),
    ) {
        let mut wanted = setting(0, replicas);
        let mut world = World::with(&wanted, replicas);
        let mut past = vec![world.observe()];
        for event in events {
            let seen = match event {
                Event::Pass { publishes, persists } => {
                    world.pass(publishes, persists);
                    None
                }
                Event::Stop(which) => {
                    let name = name(&world, which);
                    world.node(&name).up = false;
                    None
                }
                Event::Start(which) => {
                    let name = name(&world, which);
                    let node = world.node(&name);
                    if !node.up {
                        node.up = true;
                        node.phase = ReplicaPhase::CatchingUp;
                    }
                    None
                }
                Event::Recover(which) => {
                    let name = name(&world, which);
                    world.node(&name).phase = ReplicaPhase::Recovered;
                    None
                }
                Event::Elect(which) => {
                    let name = name(&world, which);
                    if world.node(&name).up {
                        world.elect(&name);
                    }
                    None
                }
                Event::Wish(which) => {
                    wanted = setting(which, replicas);
                    None
                }
                Event::Stale(age) => Some(past[past.len().saturating_sub(age)].clone()),
                Event::Plan => Some(world.observe()),
            };
            if let Some(seen) = seen {
                let now = world.now();
                let next = plan(&wanted, &seen, now);
                if let Err(violations) = lint(&wanted, &seen, &next, now) {
                    panic!("{violations:?} in {next:?}");
                }
                let busy = in_motion(&world);
                match &next.step {
                    Some(Step::GrantDurability { node, .. }) => {
                        // What the planner saw: everybody in view, this one not leading.
                        prop_assert!(seen.voters().all(|voter| voter.reach.is_reachable()));
                        prop_assert_ne!(Some(node.as_str()), seen.leader());
                    }
                    Some(Step::TransferLeadership { to, .. }) => {
                        prop_assert!(seen.replica(to).unwrap().is_sound());
                    }
                    _ => {}
                }
                // A step from a stale view may be refused by the log; it never does harm.
                let refused = world.take(&wanted, &seen, &next).is_err();
                prop_assert!(in_motion(&world) <= 1, "{busy} were in motion before {next:?}, refused: {refused}");
            }
            past.push(world.observe());
        }

        // Whatever happened, once all nodes are well the wish is fulfilled.
        for node in world.nodes.values_mut() {
            node.up = true;
            node.phase = ReplicaPhase::Recovered;
        }
        let leader = name(&world, 0);
        world.elect(&leader);
        for round in 0.. {
            prop_assert!(round < 100);
            world.pass(0, 10_000);
            let seen = world.observe();
            let next = plan(&wanted, &seen, world.now());
            lint(&wanted, &seen, &next, world.now()).unwrap();
            if next.is_done() {
                break;
            }
            world.take(&wanted, &seen, &next).unwrap();
        }
    }

    #[test]
    fn nothing_known_means_nothing_done(which in 0..SETTINGS.len(), deleting in any::<bool>()) {
        let mut wanted = wish(&format!("deletionPolicy: Delete, {}", SETTINGS[which]));
        wanted.deleting = deleting;
        let seen = headwater_plan::Observed::nothing("no answer");
        let next = plan(&wanted, &seen, World::empty(1).now());
        prop_assert!(next.step.is_none());
        prop_assert!(!next.waiting.is_empty());
    }
}
