use std::collections::BTreeSet;

use headwater_protocol::subject;
use proptest::prelude::*;
use serde_json::json;

use super::placement::{PlacementRequest, place};
use super::*;
use crate::ids::{Generation, RaftNodeId};

const SECOND: u64 = 1_000_000_000;

/// A catalogue with its log.
#[derive(Default)]
struct Log {
    catalog: Catalog,
    entries: Vec<CatalogEntry>,
}

impl Log {
    fn with_nodes(count: u64) -> Self {
        let mut log = Self::default();
        for node in 1..=count {
            assert_eq!(log.run(register(&format!("n{node}"), node * 100, 1)), CatalogResponse::Done);
        }
        log
    }

    fn run(&mut self, command: CatalogCommand) -> CatalogResponse {
        let at = self.entries.len() as u64;
        self.run_at(at * SECOND, None, command)
    }

    fn run_at(&mut self, ts: u64, fence: Option<FenceNumber>, command: CatalogCommand) -> CatalogResponse {
        let entry = CatalogEntry::new(Timestamp::new(ts), fence, command);
        let entry = CatalogEntry::decode(&entry.encode()).unwrap();
        self.entries.push(entry.clone());
        self.catalog.apply(LogIndex::new(self.entries.len() as u64), &entry)
    }

    fn create(&mut self, name: &str, subjects: &[&str]) -> CatalogResponse {
        self.run(create(name, subjects, json!({"name": name, "subjects": subjects})))
    }
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

fn register(name: &str, incarnation: u64, boot_epoch: u64) -> CatalogCommand {
    CatalogCommand::RegisterNode {
        name: node(name),
        incarnation: RaftNodeId::new(incarnation),
        addresses: Addresses::default(),
        boot_epoch,
        last_boot_epoch: Some(boot_epoch - 1),
        tags: BTreeSet::new(),
        zone: None,
    }
}

fn create(name: &str, subjects: &[&str], config: serde_json::Value) -> CatalogCommand {
    CatalogCommand::CreateStream {
        key: StreamKey::new("$G", name),
        subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
        config,
        replicas: vec![Replica { node: node("n1"), raft_id: RaftNodeId::new(100) }],
        owner: None,
    }
}

fn refusal(response: CatalogResponse) -> CatalogRefusal {
    match response {
        CatalogResponse::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn creating_again_is_idempotent_and_a_difference_is_10058() {
    let mut log = Log::with_nodes(1);
    let created = log.create("S", &["a.>"]);
    let CatalogResponse::Created { id, .. } = created else {
        panic!("{created:?}");
    };
    assert_eq!(id.get(), log.catalog.applied().get(), "a stream's id is its log index");
    assert_eq!(log.create("S", &["a.>"]), CatalogResponse::Existing { id });
    assert_eq!(refusal(log.create("S", &["b.>"])).err_code(), Some(10058));
    assert_eq!(log.catalog.streams().count(), 1);
}

#[test]
fn absent_durability_metadata_means_unchanged() {
    let existing = json!({"name": "S", "metadata": {"headwater.sync_mode": "interval", "_nats.ver": "2", "a": "b"}});
    let table = [
        (json!({"name": "S", "metadata": {"a": "b"}}), true),
        (json!({"name": "S", "metadata": {"a": "b", "headwater.sync_mode": "interval"}}), true),
        (json!({"name": "S", "metadata": {"a": "b", "headwater.sync_mode": "always"}}), false),
        (json!({"name": "S", "metadata": {"a": "c"}}), false),
        (json!({"name": "S"}), false),
        (json!({"name": "S", "metadata": {"a": "b"}, "max_msgs": 1}), false),
        (json!({"name": "S", "metadata": {"a": "b"}, "placement": null}), true),
    ];
    for (wanted, same) in table {
        assert_eq!(same_config(&existing, &wanted), same, "{wanted}");
    }
}

/// Every node applies this, and again whenever it reads its log: not in time with the square of the subjects.
#[test]
fn streams_of_very_many_subjects_are_compared_in_time_with_their_number() {
    let mut log = Log::with_nodes(1);
    let many = |kind: fn(usize) -> String| (0..30_000).map(kind).collect::<Vec<_>>();
    let create_many = |log: &mut Log, name: &str, subjects: &[String]| {
        log.create(name, &subjects.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (left, right) = (many(|i| format!("a{i}.x")), many(|i| format!("*.y{i}")));
    assert!(matches!(create_many(&mut log, "L", &left), CatalogResponse::Created { .. }));
    assert!(matches!(create_many(&mut log, "R", &right), CatalogResponse::Created { .. }));
    let overlap = refusal(log.create("Q", &["z.z.z", "a17.*"]));
    assert_eq!(overlap, CatalogRefusal::SubjectsOverlap { with: "L".into() });
}

#[test]
fn overlapping_subjects_are_refused_within_an_account_only() {
    let mut log = Log::with_nodes(1);
    log.create("S", &["a.*", "b"]);
    let overlap = log.create("T", &["c", "a.x"]);
    assert_eq!(refusal(overlap).err_code(), Some(10065));
    assert!(matches!(log.create("T", &["c", "a.x.y"]), CatalogResponse::Created { .. }));
    let own = log.create("U", &["d.>", "d.e"]);
    assert!(matches!(refusal(own), CatalogRefusal::InvalidSubject { .. }));
    let bad = log.create("U", &["d..e"]);
    assert!(matches!(refusal(bad), CatalogRefusal::InvalidSubject { .. }));
    let other_account = CatalogCommand::CreateStream {
        key: StreamKey::new("other", "S"),
        subjects: vec!["a.*".to_owned()],
        config: json!({}),
        replicas: vec![Replica { node: node("n1"), raft_id: RaftNodeId::new(100) }],
        owner: None,
    };
    assert!(matches!(log.run(other_account), CatalogResponse::Created { .. }));
    assert_eq!(log.catalog.streams_of("$G").count(), 2);
    let found = log.catalog.stream_for_subject("$G", b"a.x.y").unwrap();
    assert_eq!(found.key.name, "T");
}

#[test]
fn an_update_keeps_its_own_subjects_and_checks_the_generation() {
    let mut log = Log::with_nodes(1);
    let CatalogResponse::Created { id, .. } = log.create("S", &["a"]) else {
        panic!("not created");
    };
    let update = |subjects: &[&str], expected: u64| CatalogCommand::UpdateStream {
        id,
        subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
        config: json!({"name": "S", "subjects": subjects}),
        expected_generation: Some(Generation::new(expected)),
        owner: None,
    };
    let second = CatalogResponse::Updated { generation: Generation::new(2) };
    assert_eq!(log.run(update(&["a", "b"], 1)), second);
    assert_eq!(log.run(update(&["a", "b"], 2)), second, "no change, no generation");
    assert!(matches!(refusal(log.run(update(&["c"], 1))), CatalogRefusal::WrongGeneration { .. }));
}

#[test]
fn data_goes_only_on_a_removal_record() {
    let mut log = Log::with_nodes(3);
    let CatalogResponse::Created { id, .. } = log.create("S", &["a"]) else {
        panic!("not created");
    };
    assert_eq!(log.catalog.verdict(id, &node("n1")), Verdict::Keep);
    assert_eq!(log.catalog.verdict(id, &node("n2")), Verdict::NotPlacedHere);
    assert_eq!(log.catalog.verdict(StreamId::new(999), &node("n1")), Verdict::Unknown);
    let wrong = CatalogCommand::RemoveStream {
        id,
        expected_owner: Some(Owner { namespace: "x".to_owned(), name: "y".to_owned(), uid: None }),
    };
    assert_eq!(refusal(log.run(wrong)), CatalogRefusal::WrongOwner);
    let remove = CatalogCommand::RemoveStream { id, expected_owner: None };
    assert_eq!(log.run(remove.clone()), CatalogResponse::Done);
    assert_eq!(log.run(remove), CatalogResponse::Done, "asked twice");
    assert_eq!(log.catalog.verdict(id, &node("n1")), Verdict::Removed);
    let again = log.create("S", &["a"]);
    assert!(matches!(again, CatalogResponse::Created { id: new, .. } if new != id), "the name is free, the id is not");
    assert_eq!(log.catalog.verdict(id, &node("n1")), Verdict::Removed);
    log.run(CatalogCommand::ConfirmRemoval { id, node: node("n1") });
    assert_eq!(log.catalog.removals().count(), 0);
    assert_eq!(log.catalog.verdict(id, &node("n1")), Verdict::Unknown, "forgotten is not removed");
}

#[test]
fn incarnations_are_never_reused_and_a_rolled_back_disk_is_seen() {
    let mut log = Log::with_nodes(2);
    assert_eq!(log.run(register("n1", 100, 5)), CatalogResponse::Done);
    assert!(matches!(refusal(log.run(register("n1", 100, 4))), CatalogRefusal::RolledBack { .. }));
    // The next boot of a copy of the disk that was taken before boot 5: it remembers boot 3 only.
    let copy = |boot_epoch: u64, last: u64| match register("n1", 100, boot_epoch) {
        CatalogCommand::RegisterNode { name, incarnation, addresses, boot_epoch, tags, zone, .. } => {
            let last_boot_epoch = Some(last);
            CatalogCommand::RegisterNode { name, incarnation, addresses, boot_epoch, last_boot_epoch, tags, zone }
        }
        other => other,
    };
    assert_eq!(refusal(log.run(copy(9, 3))), CatalogRefusal::RolledBack { given: 3, known: 5 });
    assert_eq!(log.run(copy(5, 3)), CatalogResponse::Done, "the same boot says it again");
    assert_eq!(log.run(copy(9, 5)), CatalogResponse::Done);
    assert!(matches!(refusal(log.run(register("n1", 200, 1))), CatalogRefusal::IncarnationReused { .. }));
    assert_eq!(log.run(register("n1", 101, 1)), CatalogResponse::Done);
    assert!(matches!(refusal(log.run(register("n1", 100, 9))), CatalogRefusal::IncarnationReused { .. }));
    assert!(matches!(refusal(log.run(register("n3", 100, 9))), CatalogRefusal::IncarnationReused { .. }));
    let entry = log.catalog.node(&node("n1")).unwrap();
    assert_eq!(entry.past, BTreeSet::from([RaftNodeId::new(100)]));
    let stale_replica = log.create("S", &["a"]);
    assert!(matches!(refusal(stale_replica), CatalogRefusal::BadReplica { .. }), "placed under the past incarnation");
}

#[test]
fn a_node_in_use_cannot_be_removed() {
    let mut log = Log::with_nodes(2);
    log.create("S", &["a"]);
    let remove = |name: &str| CatalogCommand::SetNodeState { name: node(name), state: NodeState::Removed };
    assert_eq!(refusal(log.run(remove("n1"))), CatalogRefusal::NodeInUse { streams: 1 });
    assert_eq!(log.run(remove("n2")), CatalogResponse::Done);
    assert!(matches!(refusal(log.run(remove("n9"))), CatalogRefusal::NodeNotFound { .. }));
}

#[test]
fn an_older_fence_is_refused() {
    let mut log = Log::with_nodes(1);
    let acquire = |holder: &str| CatalogCommand::AcquireFence { holder: holder.to_owned(), ttl_ns: 10 * SECOND };
    let number = |response: CatalogResponse| match response {
        CatalogResponse::Fenced { number, .. } => number,
        other => panic!("{other:?}"),
    };
    let set = || CatalogCommand::SetNodeState { name: node("n1"), state: NodeState::Draining };
    let one = number(log.run_at(100 * SECOND, None, acquire("a")));
    let held = refusal(log.run_at(101 * SECOND, None, acquire("b")));
    assert!(matches!(held, CatalogRefusal::Fence(FenceRefusal::Held { .. })));
    assert_eq!(log.run_at(102 * SECOND, Some(one), set()), CatalogResponse::Done);
    let expired = refusal(log.run_at(110 * SECOND, Some(one), set()));
    assert!(matches!(expired, CatalogRefusal::Fence(FenceRefusal::Expired { .. })));
    let two = number(log.run_at(110 * SECOND, None, acquire("b")));
    assert!(two > one);
    let stale = refusal(log.run_at(111 * SECOND, Some(one), set()));
    assert!(matches!(stale, CatalogRefusal::Fence(FenceRefusal::Stale { .. })));
    let unknown = refusal(log.run_at(111 * SECOND, Some(FenceNumber::new(99)), set()));
    assert!(matches!(unknown, CatalogRefusal::Fence(FenceRefusal::Unknown { .. })));
    // A leader whose clock is behind does not bring an expired fence back to life.
    let renewed = log.run_at(115 * SECOND, None, CatalogCommand::RenewFence { number: two, ttl_ns: SECOND });
    assert_eq!(number(renewed), two);
    log.run_at(117 * SECOND, None, CatalogCommand::InitCluster { cluster_id: "c".to_owned() });
    let late = refusal(log.run_at(115 * SECOND, Some(two), set()));
    assert!(matches!(late, CatalogRefusal::Fence(FenceRefusal::Expired { .. })));
    assert_eq!(log.run_at(118 * SECOND, None, CatalogCommand::ReleaseFence { number: two }), CatalogResponse::Done);
    assert!(!log.catalog.fence().is_live(Timestamp::new(118 * SECOND)));
}

#[test]
fn placement_spreads_zones_then_load() {
    let mut log = Log::default();
    for (name, zone) in [("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b"), ("n5", "c")] {
        let CatalogCommand::RegisterNode { addresses, boot_epoch, tags, .. } = register(name, 1, 1) else {
            panic!("not a registration");
        };
        let incarnation = RaftNodeId::new(name.as_bytes()[1].into());
        log.run(CatalogCommand::RegisterNode {
            name: node(name),
            incarnation,
            addresses,
            boot_epoch,
            last_boot_epoch: None,
            tags,
            zone: Some(zone.to_owned()),
        });
    }
    for stream in 0..30 {
        let name = format!("S{stream}");
        let key = StreamKey::new("$G", &name);
        let request = PlacementRequest { replicas: 3, ..PlacementRequest::default() };
        let replicas = place(&log.catalog, &key, &request).unwrap();
        assert_eq!(replicas, place(&log.catalog, &key, &request).unwrap());
        let zones: BTreeSet<_> =
            replicas.iter().map(|replica| log.catalog.node(&replica.node).unwrap().zone.clone()).collect();
        assert_eq!(zones.len(), 3);
        let created = log.run(CatalogCommand::CreateStream {
            key,
            subjects: vec![name.clone()],
            config: json!({"name": name}),
            replicas,
            owner: None,
        });
        assert!(matches!(created, CatalogResponse::Created { .. }));
    }
    let leads = |name: &str| log.catalog.streams().filter(|stream| stream.replicas[0].node == node(name)).count();
    for name in ["n1", "n2", "n3", "n4", "n5"] {
        assert!((4..=8).contains(&leads(name)), "{name} leads {}", leads(name));
    }
    let too_many = PlacementRequest {
        replicas: 4,
        avoid: BTreeSet::from([node("n1"), node("n2")]),
        ..PlacementRequest::default()
    };
    let none = place(&log.catalog, &StreamKey::new("$G", "X"), &too_many);
    assert_eq!(none.unwrap_err().found, 3);
    let keep = PlacementRequest {
        replicas: 3,
        keep: vec![node("n1"), node("n2")],
        preferred: Some(node("n2")),
        ..PlacementRequest::default()
    };
    let kept = place(&log.catalog, &StreamKey::new("$G", "X"), &keep).unwrap();
    assert_eq!(kept[0].node, node("n2"));
    assert!(kept.iter().any(|replica| replica.node == node("n1")));
}

#[test]
fn damaged_images_are_errors_not_empty_catalogues() {
    let mut log = Log::with_nodes(2);
    log.create("S", &["a"]);
    let image = log.catalog.image();
    assert_eq!(Catalog::from_image(&image).unwrap(), log.catalog);
    assert!(Catalog::from_image(b"").is_err());
    assert!(Catalog::from_image(&image[..image.len() / 2]).is_err());
    assert!(matches!(Catalog::from_image(br#"{"version":2,"catalog":{}}"#), Err(MalformedImage::Version { found: 2 })));
    assert!(matches!(CatalogEntry::decode(br#"{"version":9}"#), Err(MalformedCommand::Version { found: 9 })));
}

fn command() -> impl Strategy<Value = CatalogCommand> {
    let name = prop::sample::select(vec!["n1", "n2", "n3"]);
    let stream = prop::sample::select(vec!["S", "T", "U"]);
    let subject = prop::sample::select(vec!["a", "a.*", "b.>", "b.c", ">"]);
    prop_oneof![
        (name.clone(), 1u64..8, 1u64..4).prop_map(|(name, inc, epoch)| register(name, inc * 100, epoch)),
        (stream, subject.clone(), 1u64..4).prop_map(|(name, subject, inc)| {
            let mut command = create(name, &[subject], json!({ "subject": subject }));
            if let CatalogCommand::CreateStream { replicas, .. } = &mut command {
                replicas[0].raft_id = RaftNodeId::new(inc * 100);
            }
            command
        }),
        (1u64..60, subject).prop_map(|(id, subject)| CatalogCommand::UpdateStream {
            id: StreamId::new(id),
            subjects: vec![subject.to_owned()],
            config: json!({ "subject": subject }),
            expected_generation: None,
            owner: None,
        }),
        (1u64..60).prop_map(|id| CatalogCommand::RemoveStream { id: StreamId::new(id), expected_owner: None }),
        (1u64..60, name.clone())
            .prop_map(|(id, name)| CatalogCommand::ConfirmRemoval { id: StreamId::new(id), node: node(name) }),
        (1u64..60, 1u64..9, 1u64..4, 900u64..905).prop_map(|(id, from, source, to)| CatalogCommand::RegroupStream {
            id: StreamId::new(id),
            from: GroupId::new(from),
            source: RaftNodeId::new(source * 100),
            replicas: vec![Replica { node: node("n1"), raft_id: RaftNodeId::new(to) }],
        }),
        prop::collection::btree_set((1u64..8).prop_map(|inc| RaftNodeId::new(inc * 100)), 0..3)
            .prop_map(|incarnations| CatalogCommand::LoseNodes { incarnations }),
        (name, any::<bool>()).prop_map(|(name, removed)| CatalogCommand::SetNodeState {
            name: node(name),
            state: if removed { NodeState::Removed } else { NodeState::Active },
        }),
        (prop::sample::select(vec!["a", "b"]), 1u64..5).prop_map(|(holder, ttl)| {
            CatalogCommand::AcquireFence { holder: holder.to_owned(), ttl_ns: ttl * SECOND }
        }),
    ]
}

proptest! {
    #[test]
    fn replay_from_any_image_gives_the_same_catalogue(
        commands in prop::collection::vec((command(), prop::option::of(0u64..6)), 1..60),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut log = Log::default();
        let mut images = vec![log.catalog.image()];
        let mut groups = BTreeSet::new();
        for (at, (command, fence)) in commands.into_iter().enumerate() {
            let before = log.catalog.clone();
            let response = log.run_at(at as u64 * SECOND, fence.map(FenceNumber::new), command);
            match response {
                CatalogResponse::Created { group, .. } | CatalogResponse::Regrouped { group } => {
                    prop_assert!(groups.insert(group), "group ids are never reused");
                }
                CatalogResponse::Refused(_) => {
                    let mut same = before.clone();
                    same.applied = log.catalog.applied;
                    same.clock = log.catalog.clock;
                    prop_assert_eq!(&same, &log.catalog, "a refusal changes nothing");
                }
                _ => {}
            }
            for left in log.catalog.streams() {
                for right in log.catalog.streams().filter(|right| right.id != left.id) {
                    for (a, b) in left.subjects.iter().flat_map(|a| right.subjects.iter().map(move |b| (a, b))) {
                        prop_assert!(!subject::overlaps(a.as_bytes(), b.as_bytes()));
                    }
                }
            }
            for gone in before.streams().filter(|stream| log.catalog.stream(stream.id).is_none()) {
                prop_assert_eq!(log.catalog.verdict(gone.id, &gone.replicas[0].node), Verdict::Removed);
            }
            images.push(log.catalog.image());
        }
        let cut = cut.index(images.len());
        let mut replayed = Catalog::from_image(&images[cut]).unwrap();
        for (at, entry) in log.entries.iter().enumerate().skip(cut) {
            replayed.apply(LogIndex::new(at as u64 + 1), entry);
        }
        prop_assert_eq!(&replayed, &log.catalog);
        prop_assert_eq!(replayed.image(), log.catalog.image());
    }
}

#[test]
fn a_stream_whose_replica_was_replaced_is_never_founded_again() {
    let mut log = Log::with_nodes(3);
    let CatalogResponse::Created { id, .. } = log.create("S", &["a"]) else { panic!("not created") };
    let replicas = log.catalog.stream(id).unwrap().replicas.clone();
    let place = |log: &mut Log, replicas: Vec<Replica>| log.run(CatalogCommand::PlaceStream { id, replicas });
    assert_eq!(place(&mut log, replicas), CatalogResponse::Done);
    assert!(!log.catalog.stream(id).unwrap().replaced, "nothing has changed");
    log.run(register("n1", 101, 1));
    let moved = vec![Replica { node: node("n1"), raft_id: RaftNodeId::new(101) }];
    assert_eq!(place(&mut log, moved), CatalogResponse::Done);
    assert!(log.catalog.stream(id).unwrap().replaced, "the old replica's group exists, whoever is left of it");
}

#[test]
fn a_replica_rejoins_under_a_new_id_while_most_others_vote() {
    let mut log = Log::with_nodes(3);
    let replicas: Vec<Replica> = [("n1", 100), ("n2", 101), ("n3", 102)]
        .into_iter()
        .map(|(name, id)| Replica { node: node(name), raft_id: RaftNodeId::new(id) })
        .collect();
    for (replica, n) in replicas.iter().zip(1..) {
        log.run(register(replica.node.as_str(), replica.raft_id.get(), n));
    }
    let CatalogCommand::CreateStream { key, subjects, config, owner, .. } = create("S", &["a"], json!({})) else {
        panic!("a creation")
    };
    let created = log.run(CatalogCommand::CreateStream { key, subjects, config, replicas, owner });
    let CatalogResponse::Created { id, .. } = created else { panic!("{created:?}") };
    let rejoin = |log: &mut Log, name: &str, from: u64, to: u64| {
        let (from, to) = (RaftNodeId::new(from), RaftNodeId::new(to));
        log.run(CatalogCommand::RejoinReplica { id, node: node(name), from, to })
    };
    let used = refusal(rejoin(&mut log, "n1", 100, 102));
    assert!(matches!(used, CatalogRefusal::IncarnationReused { .. }), "{used}");
    assert!(matches!(refusal(rejoin(&mut log, "n1", 101, 900)), CatalogRefusal::BadReplica { .. }));
    assert_eq!(rejoin(&mut log, "n1", 100, 900), CatalogResponse::Done);
    let entry = log.catalog.stream(id).unwrap().clone();
    assert!(entry.replaced);
    assert_eq!(entry.replicas[0].raft_id, RaftNodeId::new(900));
    assert_eq!(entry.incarnation_of(&entry.replicas[0]), RaftNodeId::new(100));
    assert_eq!(entry.incarnation_of(&entry.replicas[1]), RaftNodeId::new(101));
    // Its two peers are all that vote now.
    assert_eq!(refusal(rejoin(&mut log, "n2", 101, 901)), CatalogRefusal::TooManyRejoining { rejoining: 1 });
    assert_eq!(rejoin(&mut log, "n1", 900, 902), CatalogResponse::Done, "the same one again");
    log.run(CatalogCommand::MemberVotes { id, raft_id: RaftNodeId::new(902) });
    assert_eq!(rejoin(&mut log, "n2", 101, 901), CatalogResponse::Done);
    log.run(CatalogCommand::MemberVotes { id, raft_id: RaftNodeId::new(901) });
    // A new disk in the place of the third: its replica has no vote either.
    log.run(register("n3", 103, 1));
    let mut placed = log.catalog.stream(id).unwrap().replicas.clone();
    assert!(!log.catalog.hosts(log.catalog.stream(id).unwrap(), &placed[2]));
    placed[2].raft_id = RaftNodeId::new(103);
    assert_eq!(log.run(CatalogCommand::PlaceStream { id, replicas: placed.clone() }), CatalogResponse::Done);
    assert!(log.catalog.hosts(log.catalog.stream(id).unwrap(), &placed[2]));
    assert_eq!(refusal(rejoin(&mut log, "n1", 902, 903)), CatalogRefusal::TooManyRejoining { rejoining: 1 });
    log.run(CatalogCommand::MemberVotes { id, raft_id: RaftNodeId::new(103) });
    assert_eq!(rejoin(&mut log, "n1", 902, 903), CatalogResponse::Done);
    let image = log.catalog.image();
    assert_eq!(Catalog::from_image(&image).unwrap().stream(id), log.catalog.stream(id));
}

#[test]
fn a_stream_goes_on_from_one_replica_in_a_new_group() {
    let mut log = Log::with_nodes(3);
    let replicas: Vec<Replica> =
        (1..4).map(|n: u64| Replica { node: node(&format!("n{n}")), raft_id: RaftNodeId::new(n * 100) }).collect();
    let CatalogCommand::CreateStream { key, subjects, config, owner, .. } = create("S", &["a"], json!({})) else {
        panic!("a creation")
    };
    let created = log.run(CatalogCommand::CreateStream { key, subjects, config, replicas, owner });
    let CatalogResponse::Created { id, group: from } = created else { panic!("{created:?}") };
    let regroup = |log: &mut Log, from: GroupId, source: u64, ids: &[u64]| {
        let nodes = ["n1", "n2", "n3", "n3"];
        let replicas = nodes.iter().zip(ids).map(|(n, id)| Replica { node: node(n), raft_id: RaftNodeId::new(*id) });
        let source = RaftNodeId::new(source);
        log.run(CatalogCommand::RegroupStream { id, from, source, replicas: replicas.collect() })
    };
    let elsewhere = GroupId::new(from.get() + 1);
    assert_eq!(
        refusal(regroup(&mut log, elsewhere, 100, &[901, 902, 903])),
        CatalogRefusal::WrongGroup { current: from }
    );
    for used in [[901, 902, 300], [901, 902, 902]] {
        let why = refusal(regroup(&mut log, from, 100, &used));
        assert!(matches!(why, CatalogRefusal::IncarnationReused { .. }), "{why}");
    }
    for nodes in [&[901, 902][..], &[901, 902, 903, 904]] {
        let why = refusal(regroup(&mut log, from, 100, nodes));
        assert_eq!(why, CatalogRefusal::BadReplica { node: node("n3") }, "{nodes:?}");
    }
    let nobody = refusal(regroup(&mut log, from, 400, &[901, 902, 903]));
    assert_eq!(nobody, CatalogRefusal::NotAMember { raft_id: RaftNodeId::new(400) });

    let done = regroup(&mut log, from, 200, &[901, 902, 903]);
    let CatalogResponse::Regrouped { group } = done else { panic!("{done:?}") };
    let entry = log.catalog.stream(id).unwrap().clone();
    assert!(group != from && entry.group == group && entry.past_groups == [from].into() && entry.replaced);
    let (source, founder) = (RaftNodeId::new(200), RaftNodeId::new(902));
    assert_eq!(entry.regrouped, Some(Regrouped { from, source, founder }));
    let votes: Vec<bool> = entry.replicas.iter().map(|replica| entry.rejoined[&replica.raft_id].votes).collect();
    assert_eq!(votes, [false, true, false], "who went on alone votes, the others come as new members");
    assert_eq!(entry.incarnation_of(&entry.replicas[2]), RaftNodeId::new(300), "the disks are the same");
    assert_eq!(Catalog::from_image(&log.catalog.image()).unwrap(), log.catalog);
    // Asked twice, it is done once.
    assert!(matches!(refusal(regroup(&mut log, from, 200, &[911, 912, 913])), CatalogRefusal::WrongGroup { .. }));
}

#[test]
fn a_lost_node_is_never_admitted_again_and_its_name_comes_back_with_another_disk() {
    let mut log = Log::with_nodes(3);
    log.create("S", &["a"]);
    let lost = RaftNodeId::new(300);
    assert_eq!(log.run(CatalogCommand::LoseNodes { incarnations: [lost].into() }), CatalogResponse::Done);
    assert!(log.catalog.node(&node("n3")).unwrap().is_lost());
    assert_eq!(refusal(log.run(register("n3", 300, 2))), CatalogRefusal::NodeLost);
    let request = PlacementRequest { replicas: 3, ..PlacementRequest::default() };
    assert!(place(&log.catalog, &StreamKey::new("$G", "X"), &request).is_err(), "nothing is placed on it");
    assert_eq!(log.run(register("n3", 301, 1)), CatalogResponse::Done);
    assert!(!log.catalog.node(&node("n3")).unwrap().is_lost());
    assert!(matches!(refusal(log.run(register("n3", 300, 3))), CatalogRefusal::IncarnationReused { .. }));
    assert!(place(&log.catalog, &StreamKey::new("$G", "X"), &request).is_ok());
}
