//! Whole changes as a person would read them.

use headwater_crds::ReplicaPhase;
use headwater_plan::wire::Owner;

use crate::world::{Script, World, wish};

const ASYNC: &str = "replicas: 3, allowAsyncFlush: true";
const SYNC: &str = "replicas: 3, allowAsyncFlush: false";

/// Three nodes with a stream as `from` says, and the wish for `to`.
fn script(from: &str, to: &str) -> Script {
    Script::new(World::with(&wish(from), 3), wish(to))
}

/// The transcript of such a change, with up to `drain` entries persisted between two rounds; `before` says what else is
/// so when it begins.
fn change(from: &str, to: &str, drain: u64, before: impl FnOnce(&mut World)) -> String {
    let mut script = script(from, to);
    before(&mut script.world);
    script.finish(drain);
    script.text
}

fn other() -> Owner {
    Owner { namespace: "shop".into(), name: "other".into(), uid: "u2".into(), adopted: false }
}

#[test]
fn a_stream_is_created_and_then_at_rest() {
    let mut script = Script::new(World::empty(3), wish(ASYNC));
    script.finish(100);
    insta::assert_snapshot!(script.text, @r"
    do create the stream
    done
    ");
}

#[test]
fn async_to_sync_drains_followers_first_the_lagging_one_last_and_the_leader_after_handing_over() {
    let text = change(ASYNC, SYNC, 150, |world| {
        world.committed = 1_000;
        for (name, persisted) in [("n1", 990), ("n2", 300), ("n3", 980)] {
            world.node(name).persisted = persisted;
        }
    });
    insta::assert_snapshot!(text, @r"
    do update at generation 1: metadata.headwater.allow_async_flush true → false
    do propose durability always+sync as generation 2
    do grant generation 2 to n3
    do grant generation 2 to n2
    wait: n2 drains: persisted 900, barrier 1011
    do transfer leadership from n1 to n3
    do grant generation 2 to n1
    done
    ");
}

#[test]
fn sync_to_async_holds_at_each_grant() {
    insta::assert_snapshot!(change(SYNC, ASYNC, 0, |_| {}), @r"
    do update at generation 1: metadata.headwater.allow_async_flush false → true
    do propose durability always+async as generation 2
    do grant generation 2 to n2
    do grant generation 2 to n3
    do transfer leadership from n1 to n2
    do grant generation 2 to n1
    done
    ");
}

#[test]
fn an_unreachable_voter_blocks_every_grant_and_returns_to_the_change() {
    let mut script = script(ASYNC, SYNC);
    script.world.node("n3").up = false;
    script.note("n3 is down");
    for _ in 0..3 {
        script.round();
        script.world.pass(0, 100);
    }
    script.note("n3 returns, catching up");
    script.world.node("n3").up = true;
    script.world.node("n3").phase = ReplicaPhase::CatchingUp;
    script.round();
    script.note("n3 has recovered");
    script.world.node("n3").phase = ReplicaPhase::Recovered;
    script.finish(100);
    insta::assert_snapshot!(script.text, @r"
    -- n3 is down
    do update at generation 1: metadata.headwater.allow_async_flush true → false
    do propose durability always+sync as generation 2
    wait: voter n3 does not answer: connection refused
    -- n3 returns, catching up
    wait: n3 is CatchingUp
    -- n3 has recovered
    do grant generation 2 to n2
    do grant generation 2 to n3
    do transfer leadership from n1 to n2
    do grant generation 2 to n1
    done
    ");
}

#[test]
fn a_leader_that_changes_in_the_middle_is_still_last() {
    let mut script = script(ASYNC, SYNC);
    script.rounds(3);
    script.world.pass(0, 100);
    script.note("n3 is elected");
    script.world.elect("n3");
    script.finish(100);
    insta::assert_snapshot!(script.text, @r"
    do update at generation 1: metadata.headwater.allow_async_flush true → false
    do propose durability always+sync as generation 2
    do grant generation 2 to n2
    -- n3 is elected
    do grant generation 2 to n1
    do transfer leadership from n3 to n1
    do grant generation 2 to n3
    done
    ");
}

#[test]
fn a_reversal_in_the_middle_is_a_new_generation() {
    let mut script = script(ASYNC, SYNC);
    script.world.committed = 500;
    script.rounds(4);
    script.note("the manifest goes back to async");
    script.wish = wish(ASYNC);
    script.finish(1_000);
    insta::assert_snapshot!(script.text, @r"
    do update at generation 1: metadata.headwater.allow_async_flush true → false
    do propose durability always+sync as generation 2
    do grant generation 2 to n2
    wait: n2 drains: persisted 1, barrier 501
    -- the manifest goes back to async
    do update at generation 2: metadata.headwater.allow_async_flush false → true
    do propose durability always+async as generation 3
    do grant generation 3 to n2
    done
    ");
}

#[test]
fn no_leader_means_waiting() {
    let mut script = script(ASYNC, ASYNC);
    script.world.leader = None;
    script.round();
    script.world.nodes.values_mut().for_each(|node| node.up = false);
    script.round();
    insta::assert_snapshot!(script.text, @r"
    wait: no leader: no replica leads
    wait: no leader: no replica answers
    ");
}

#[test]
fn a_single_replica_has_nobody_to_hand_over_to() {
    let mut script = Script::new(World::with(&wish("replicas: 1"), 1), wish("replicas: 1, syncMode: noWait"));
    script.finish(100);
    script.note("allowAsyncFlush has no effect on one replica");
    script.wish = wish("replicas: 1, syncMode: noWait, allowAsyncFlush: false");
    script.finish(100);
    insta::assert_snapshot!(script.text, @r"
    do update at generation 1: metadata.headwater.sync_mode always → noWait
    do propose durability noWait+async as generation 2
    do grant generation 2 to n1
    done
    -- allowAsyncFlush has no effect on one replica
    do update at generation 2: metadata.headwater.allow_async_flush true → false
    done
    ");
}

#[test]
fn a_change_by_a_plain_client_is_carried_out_without_a_manifest() {
    let mut world = World::with(&wish(ASYNC), 3);
    world.set_owner(None);
    world.set_metadata("headwater.sync_mode", "noWait");
    let mut script = Script::new(world, headwater_plan::Desired::unmanaged("$G", "ORDERS"));
    script.finish(100);
    insta::assert_snapshot!(script.text, @r"
    do propose durability noWait+async as generation 2
    do grant generation 2 to n2
    do grant generation 2 to n3
    do transfer leadership from n1 to n2
    do grant generation 2 to n1
    done
    ");
}

#[test]
fn a_stream_that_was_there_is_adopted_with_its_own_values() {
    let mut world = World::with(&wish("replicas: 3, maxAge: 1h, allowDirect: true"), 3);
    world.set_owner(None);
    let mut script = Script::new(world, wish("maxMsgs: 10"));
    script.finish(100);
    let kept = &script.world.stream.as_ref().unwrap().config;
    assert_eq!(kept["num_replicas"], 3);
    assert_eq!(kept["allow_direct"], true);
    insta::assert_snapshot!(script.text, @r"
    do adopt the stream: max_msgs -1 → 10
    done
    ");
}

#[test]
fn somebody_elses_stream_is_left_alone() {
    let mut world = World::with(&wish(ASYNC), 3);
    world.set_owner(Some(other()));
    let mut script = Script::new(world, wish(SYNC));
    script.round();
    script.wish = wish("replicas: 3, adoptionPolicy: Always");
    script.round();
    insta::assert_snapshot!(script.text, @r"
    wait: the stream belongs to shop/other; delete that object, use another name, or set adoptionPolicy: Always
    do adopt the stream from shop/other: nothing changes
    ");
}

#[test]
fn what_cannot_change_is_said_and_nothing_is_done() {
    let mut script = script("replicas: 3, storage: memory, denyPurge: true", "replicas: 3, storage: file");
    script.round();
    insta::assert_snapshot!(script.text, @r"
    wait: storage is memory and cannot become file; correct the manifest, or delete the stream to create it anew
    ");
}

#[test]
fn a_change_of_size_waits_for_the_durability_change_and_other_fields_do_not() {
    let mut script = script(ASYNC, SYNC);
    script.rounds(3);
    script.note("the manifest asks for one replica and an age limit");
    script.wish = wish("replicas: 1, maxAge: 1h, allowAsyncFlush: false");
    script.finish(1);
    insta::assert_snapshot!(script.text, @r"
    do update at generation 1: metadata.headwater.allow_async_flush true → false
    do propose durability always+sync as generation 2
    do grant generation 2 to n2
    -- the manifest asks for one replica and an age limit
    do update at generation 2: max_age 0 → 3600000000000
    do grant generation 2 to n3
    wait: the number of replicas changes once every voter answers and the durability change is complete
    do transfer leadership from n1 to n2
    wait: the number of replicas changes once every voter answers and the durability change is complete
    do grant generation 2 to n1
    wait: the number of replicas changes once every voter answers and the durability change is complete
    do update at generation 3: num_replicas 3 → 1
    done
    ");
}

#[test]
fn a_size_that_cannot_be_reached_can_be_corrected() {
    let mut script = script(ASYNC, ASYNC);
    script.note("five replicas were asked for, and there are three nodes");
    script.world.stream.as_mut().unwrap().config["num_replicas"] = 5.into();
    script.world.set_metadata("headwater.allow_async_flush", "false");
    script.wish = wish("replicas: 5, allowAsyncFlush: false");
    script.rounds(2);
    script.note("three again");
    script.wish = wish(SYNC);
    script.finish(100);
    insta::assert_snapshot!(script.text, @r"
    -- five replicas were asked for, and there are three nodes
    do propose durability always+sync as generation 2
    wait: replicas are changing: 3 of 5 vote, 0 still learning
    -- three again
    do update at generation 2: num_replicas 5 → 3
    do grant generation 2 to n2
    do grant generation 2 to n3
    do transfer leadership from n1 to n2
    do grant generation 2 to n1
    done
    ");
}

#[test]
fn a_stream_is_deleted_only_under_policy_delete_and_only_if_it_is_ours() {
    let mut script = script(ASYNC, ASYNC);
    script.wish.deleting = true;
    script.note("policy Retain");
    script.round();
    script.note("policy Delete, not ours");
    script.wish = wish("deletionPolicy: Delete");
    script.wish.deleting = true;
    script.world.set_owner(Some(other()));
    script.round();
    script.note("policy Delete, ours");
    script.world.set_owner(Some(script.wish.owner.clone()));
    script.rounds(2);
    insta::assert_snapshot!(script.text, @r"
    -- policy Retain
    done
    -- policy Delete, not ours
    done
    -- policy Delete, ours
    do delete the stream and its messages
    done
    ");
}

#[test]
fn paused_and_restrained_wishes_change_nothing() {
    let mut script = script(ASYNC, "replicas: 3, maxMsgs: 5");
    script.wish.paused = true;
    script.round();
    script.wish = wish("replicas: 3, maxMsgs: 5, updatePolicy: CreateOnly");
    script.round();
    script.wish = wish("replicas: 3, maxMsgs: 5, updatePolicy: ObserveOnly");
    script.round();
    script.world.stream = None;
    script.round();
    insta::assert_snapshot!(script.text, @r"
    wait: changes are paused by the annotation headwater.dev/paused
    wait: not corrected, by updatePolicy: max_msgs
    wait: not corrected, by updatePolicy: max_msgs
    wait: the stream does not exist, and updatePolicy: ObserveOnly forbids creating it
    ");
}
