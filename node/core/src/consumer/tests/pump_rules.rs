//! What a client sees of one consumer, rule by rule.

use headwater_protocol::ack::AckSubject;

use super::world::*;
use crate::consumer::*;
use crate::ids::{StreamSeq, Timestamp};

fn world() -> World {
    World::new(explicit(), Tracking::LoggedFirst)
}

#[test]
fn a_message_is_sent_only_after_its_entry_is_applied() {
    let mut world = world();
    world.publish(2);
    world.pull(request("a", 2));
    world.poll();
    assert!(world.actions.is_empty());
    assert_eq!(world.log.len(), 1, "one proposal for the whole turn");
    world.apply_one();
    assert_eq!(delivered(&world.actions), [(1, 1), (2, 1)]);
    let PumpAction::Deliver(first) = &world.actions[0] else {
        panic!("{:?}", world.actions);
    };
    assert_eq!((first.cseq.get(), first.pending, &first.to[..]), (1, 1, &b"a"[..]));
}

/// What this replica cannot read its peers can: it is not passed over, not even where nobody acknowledges.
#[test]
fn what_cannot_be_read_here_waits_for_another_leader() {
    let ack_none = ConsumerConfig { ack_policy: AckPolicy::None, ..explicit() };
    for (config, tracking) in [
        (explicit(), Tracking::LoggedFirst),
        (ack_none.clone(), Tracking::LoggedFirst),
        (ack_none.clone(), Tracking::LoggedAfter),
        (ack_none, Tracking::Local),
    ] {
        let mut world = World::new(config, tracking);
        world.publish(3);
        world.messages.unreadable.insert(2);
        world.pull(request("a", 3));
        assert_eq!(delivered(&world.settle()), [(1, 1)]);
        let again = world.pump.next_deadline(world.state()).expect("it is looked at again");
        assert!(again > Timestamp::new(world.now) && again <= Timestamp::new(world.now + SECOND));
        world.messages.unreadable.clear();
        world.wait(SECOND);
        assert_eq!(delivered(&world.settle()), [(2, 1), (3, 1)], "{tracking:?}");
    }
}

#[test]
fn tracking_after_the_fact_sends_at_once() {
    for tracking in [Tracking::LoggedAfter, Tracking::Local] {
        let mut world = World::new(explicit(), tracking);
        world.publish(1);
        world.pull(request("a", 1));
        world.poll();
        assert_eq!(delivered(&world.actions), [(1, 1)]);
        assert_eq!(world.log.is_empty(), tracking == Tracking::Local);
        world.settle();
        assert_eq!(world.info().num_ack_pending, 1);
        world.ack_with_reply(1, AckVerb::Ack, Some("r"));
        let actions = world.settle();
        assert_eq!(actions, [PumpAction::AckReply { to: "r".into() }]);
        assert_eq!(world.info().num_ack_pending, 0);
        let replicated = world.state().delivered().stream.get();
        assert_eq!(replicated, u64::from(tracking != Tracking::Local));
    }
}

#[test]
fn tracking_follows_config_and_stream() {
    let limits = StreamTraits { replicated: true, limits_retention: true };
    let work_queue = StreamTraits { limits_retention: false, ..limits };
    let single = StreamTraits { replicated: false, ..limits };
    let memory = ConsumerConfig { mem_storage: true, ..explicit() };
    let ack_none = ConsumerConfig { ack_policy: AckPolicy::None, ..explicit() };
    let one_replica = ConsumerConfig { replicas: 1, ..explicit() };
    let table = [
        (&explicit(), limits, Tracking::LoggedFirst),
        (&memory, limits, Tracking::Local),
        (&memory, work_queue, Tracking::LoggedFirst),
        (&one_replica, limits, Tracking::Local),
        (&one_replica, single, Tracking::LoggedAfter),
        (&ack_none, limits, Tracking::LoggedAfter),
        (&explicit(), single, Tracking::LoggedAfter),
    ];
    for (config, stream, expected) in table {
        assert_eq!(Tracking::of(config, stream), expected, "{config:?} {stream:?}");
    }
}

#[test]
fn requests_are_served_in_turn() {
    let mut world = world();
    world.pull(request("a", 3));
    world.pull(request("b", 2));
    world.settle();
    world.publish(5);
    let to: Vec<String> = world
        .settle()
        .iter()
        .filter_map(|action| match action {
            PumpAction::Deliver(delivery) => Some(String::from_utf8_lossy(&delivery.to).into_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(to, ["a", "b", "a", "b", "a"]);
    assert_eq!(world.info().num_waiting, 0);
}

#[test]
fn a_request_that_does_not_wait_gets_what_there_is() {
    let mut world = world();
    let no_wait = |reply: &str, batch| PullRequest { no_wait: true, ..request(reply, batch) };
    world.pull(no_wait("empty", 5));
    assert_eq!(statuses(&world.settle()), ["empty 404 No Messages"]);
    world.publish(2);
    world.pull(no_wait("some", 5));
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(1, 1), (2, 1)]);
    assert_eq!(statuses(&actions), ["some 408 Request Timeout"]);
    // With an expiry it waits for the first message, then takes what there is.
    world.pull(PullRequest { expires_ns: Some(5 * SECOND), ..no_wait("later", 5) });
    assert_eq!(world.settle(), []);
    world.publish(1);
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(3, 1)]);
    assert_eq!(statuses(&actions), ["later 408 Request Timeout"]);
    // What was not logged before it was sent ends with another status.
    let mut world = World::new(explicit(), Tracking::LoggedAfter);
    world.publish(2);
    world.pull(no_wait("some", 5));
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(1, 1), (2, 1)]);
    assert_eq!(statuses(&actions), ["some 404 No Messages"]);
    // Others are waiting for more than there is.
    let mut config = explicit();
    config.max_ack_pending = Some(1);
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(2);
    world.pull(request("greedy", 9));
    world.settle();
    world.pull(no_wait("late", 1));
    assert_eq!(statuses(&world.settle()), ["late 408 Requests Pending"]);
}

#[test]
fn a_turn_is_as_long_as_it_may_be_and_a_paused_pump_waits() {
    let mut world = World::new(explicit(), Tracking::LoggedAfter);
    world.publish(5);
    world.pull(request("a", 5));
    world.pump.limit_turn(2);
    world.poll();
    assert_eq!(delivered(&world.actions), [(1, 1), (2, 1)]);
    assert_eq!(world.pump.next_deadline(world.state()), Some(Timestamp::ZERO));
    let until = world.now + SECOND;
    world.pump.pause(Timestamp::new(until));
    assert_eq!(world.pump.next_deadline(world.state()), Some(Timestamp::new(until)));
    world.poll();
    assert_eq!(world.actions.len(), 2);
    world.wait(SECOND);
    world.pump.limit_turn(usize::MAX);
    world.poll();
    assert_eq!(world.actions.len(), 5);
}

#[test]
fn expiry_tells_what_is_missing() {
    let mut world = world();
    world.publish(1);
    world.pull(PullRequest { expires_ns: Some(5 * SECOND), max_bytes: Some(1000), ..request("a", 3) });
    assert_eq!(delivered(&world.settle()), [(1, 1)]);
    let deadline = world.pump.next_deadline(world.state()).unwrap();
    assert_eq!(deadline.get(), world.now + 5 * SECOND);
    world.wait(5 * SECOND);
    let actions = world.settle();
    let [PumpAction::Status { status: Status::RequestTimeout(unserved), .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(unserved.messages, 2);
    assert!(unserved.bytes > 0 && unserved.bytes < 900, "{unserved:?}");
}

#[test]
fn an_expired_request_waits_for_its_deliveries_in_flight() {
    let mut world = world();
    world.publish(1);
    world.pull(PullRequest { expires_ns: Some(SECOND), ..request("a", 2) });
    world.poll();
    world.wait(SECOND);
    world.poll();
    assert!(statuses(&world.actions).is_empty());
    world.apply_one();
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(1, 1)]);
    assert_eq!(statuses(&actions), ["a 408 Request Timeout"]);
}

#[test]
fn limits_of_requests_are_refused_with_their_texts() {
    let mut config = explicit();
    config.max_batch = Some(10);
    config.max_expires_ns = Some(SECOND);
    config.max_bytes = Some(500);
    config.max_waiting = Some(1);
    let mut world = World::new(config, Tracking::LoggedFirst);
    let heartbeat = |heartbeat, expires| PullRequest {
        heartbeat_ns: Some(heartbeat),
        expires_ns: Some(expires),
        ..request("h", 1)
    };
    world.pull(request("a", 11));
    world.pull(PullRequest { expires_ns: Some(2 * SECOND), ..request("b", 1) });
    world.pull(PullRequest { max_bytes: Some(501), ..request("c", 1) });
    world.pull(heartbeat(SECOND / 2 + 1, SECOND));
    world.pull(request("ok", 1));
    world.pull(request("d", 1));
    world.pull(heartbeat(SECOND / 2, SECOND));
    assert_eq!(
        statuses(&world.settle()),
        [
            "a 409 Exceeded MaxRequestBatch of 10",
            "b 409 Exceeded MaxRequestExpires of 1s",
            "c 409 Exceeded MaxRequestMaxBytes of 500",
            "h 400 Bad Request - heartbeat value too large",
            "d 409 Exceeded MaxWaiting",
        ],
        "and silence for the last one, which wants heartbeats"
    );
}

#[test]
fn byte_limits_end_requests() {
    let mut world = world();
    world.publish(3);
    world.pull(PullRequest { max_bytes: Some(MESSAGE_LEN / 2), ..request("small", 1) });
    assert_eq!(statuses(&world.settle()), ["small 409 Message Size Exceeds MaxBytes"]);
    world.pull(PullRequest { max_bytes: Some(2 * MESSAGE_LEN), ..request("one", 9) });
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(1, 1)]);
    assert_eq!(statuses(&actions), ["one 409 Message Size Exceeds MaxBytes"]);
    world.pull(PullRequest { max_bytes: Some(10 * MESSAGE_LEN), ..request("full", 2) });
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(2, 1), (3, 1)]);
    assert_eq!(statuses(&actions), ["full 409 Batch Completed"]);
}

/// Clients count subject, reply subject, headers and payload of every message.
#[test]
fn byte_limits_count_every_byte_of_the_reply_subject() {
    let ack_len = |delivery: &Delivery| {
        let mut subject = Vec::new();
        let ack = AckSubject {
            domain: None,
            stream: STREAM,
            consumer: "C",
            delivered: u64::from(delivery.deliveries),
            stream_seq: delivery.seq.get(),
            consumer_seq: delivery.cseq.get(),
            timestamp_ns: 1_700_000_000_000_000_000,
            pending: delivery.pending,
        };
        ack.write(&mut subject);
        subject.len() as u64
    };
    let mut world = world();
    world.publish(12);
    // The second has 10 behind it, the third 9: a digit less. The last one is a second delivery.
    let mut expected = vec![1; 12];
    expected.push(2);
    for deliveries in expected {
        // Learned from one world, asked for in its like.
        let seq = if deliveries == 2 { 1 } else { world.state().delivered().stream.get() + 1 };
        if deliveries == 2 {
            world.ack(1, AckVerb::Nak { delay_ns: None });
            world.settle();
        }
        let cseq = world.state().delivered().consumer.next();
        let delivery = Delivery {
            to: "x".into(),
            seq: StreamSeq::new(seq),
            cseq,
            deliveries,
            pending: if deliveries == 2 { 0 } else { 12 - seq },
        };
        let len = MESSAGE_LEN + ack_len(&delivery);
        world.pull(PullRequest { max_bytes: Some(len - 1), ..request("short", 1) });
        assert_eq!(statuses(&world.settle()), ["short 409 Message Size Exceeds MaxBytes"], "{delivery:?}");
        world.pull(PullRequest { max_bytes: Some(len), ..request("x", 1) });
        assert_eq!(world.settle(), [PumpAction::Deliver(delivery)], "{len} bytes");
    }
}

#[test]
fn silence_is_filled_with_heartbeats() {
    let mut world = world();
    world.publish(1);
    world.pull(PullRequest { heartbeat_ns: Some(SECOND), expires_ns: Some(10 * SECOND), ..request("a", 2) });
    world.settle();
    world.wait(SECOND);
    let actions = world.settle();
    let [PumpAction::Status { status: Status::IdleHeartbeat { last_consumer, last_stream }, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!((last_consumer.get(), last_stream.get()), (1, 1));
    world.wait(SECOND / 2);
    assert_eq!(world.settle(), []);
    world.publish(1);
    world.wait(SECOND / 2);
    assert_eq!(delivered(&world.settle()), [(2, 1)], "served and closed");
    assert_eq!(world.pump.next_deadline(world.state()).unwrap().get(), 31 * SECOND, "the first ack wait");
}

#[test]
fn max_ack_pending_stalls_and_acks_resume() {
    let mut config = explicit();
    config.max_ack_pending = Some(2);
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(5);
    world.pull(request("a", 5));
    assert_eq!(delivered(&world.settle()), [(1, 1), (2, 1)]);
    world.ack(2, AckVerb::Ack);
    assert_eq!(delivered(&world.settle()), [(3, 1)]);
    let info = world.info();
    assert_eq!((info.num_ack_pending, info.num_pending, info.num_waiting), (2, 2, 1));
    assert_eq!((info.ack_floor.stream.get(), info.delivered.stream.get()), (0, 3));
    world.ack(1, AckVerb::Term { reason: None });
    assert_eq!(delivered(&world.settle()), [(4, 1)]);
    assert_eq!(world.info().ack_floor.stream.get(), 2);
}

#[test]
fn removed_messages_do_not_hold_up_the_consumer() {
    // B57: pending slots of purged, deleted or evicted messages are free again, on every replica.
    let mut config = explicit();
    config.max_ack_pending = Some(10);
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(30);
    world.pull(request("a", 30));
    assert_eq!(delivered(&world.settle()).len(), 10);
    world.remove(1, 9);
    assert_eq!(delivered(&world.settle()).len(), 9);
    world.remove(10, 10);
    // Removed while their delivery is on its way: neither delivered nor pending.
    world.poll();
    world.remove(20, 20);
    let actions = world.settle();
    assert!(!delivered(&actions).iter().any(|(seq, _)| *seq == 20), "{actions:?}");
    assert!(delivered(&actions).iter().any(|(seq, _)| *seq == 21), "{actions:?}");
    assert_eq!(world.info().num_ack_pending, 10);
    assert_eq!(world.info().num_pending, 9);
    world.fail_over();
    assert_eq!(world.info().num_ack_pending, 10);
    assert_eq!(world.info().num_pending, 9);
}

#[test]
fn unacknowledged_messages_come_again_until_max_deliver() {
    let mut config = explicit();
    config.max_deliver = Some(2);
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(1);
    world.pull(request("a", 5));
    assert_eq!(delivered(&world.settle()), [(1, 1)]);
    world.wait(30 * SECOND - 1);
    assert_eq!(delivered(&world.settle()), []);
    world.wait(1);
    assert_eq!(delivered(&world.settle()), [(1, 2)]);
    assert_eq!(world.info().num_redelivered, 1);
    world.wait(30 * SECOND);
    let actions = world.settle();
    let gave_up = ConsumerEvent::MaxDeliveries { seq: StreamSeq::new(1), deliveries: 2 };
    assert_eq!(actions, [PumpAction::Event(gave_up)]);
    let info = world.info();
    assert_eq!((info.num_ack_pending, info.ack_floor.stream.get(), info.ack_floor.consumer.get()), (0, 1, 2));
    assert!(world.state().needs(StreamSeq::new(1), b"s"), "given up is not acknowledged");
    world.ack(1, AckVerb::Ack);
    world.settle();
    assert!(!world.state().needs(StreamSeq::new(1), b"s"));
}

#[test]
fn naks_bring_messages_back() {
    let mut world = world();
    world.publish(2);
    world.pull(request("a", 9));
    world.settle();
    world.ack(1, AckVerb::Nak { delay_ns: None });
    world.ack(2, AckVerb::Nak { delay_ns: Some(SECOND) });
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(1, 2)]);
    let naked = actions.iter().filter(|action| matches!(action, PumpAction::Event(ConsumerEvent::Naked { .. })));
    assert_eq!(naked.count(), 2);
    assert_eq!(world.pump.next_deadline(world.state()).unwrap().get(), world.now + SECOND);
    world.wait(SECOND);
    assert_eq!(delivered(&world.settle()), [(2, 2)]);
    // A delay survives the leader.
    world.ack(1, AckVerb::Nak { delay_ns: Some(50 * SECOND) });
    world.settle();
    world.fail_over();
    world.pull(request("b", 9));
    world.wait(30 * SECOND);
    assert_eq!(delivered(&world.settle()), [(2, 3)]);
    world.wait(20 * SECOND);
    assert_eq!(delivered(&world.settle()), [(1, 3)]);
}

#[test]
fn backoff_replaces_the_ack_wait() {
    let mut config = explicit();
    config.backoff_ns = vec![SECOND, 5 * SECOND];
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(1);
    world.pull(request("a", 9));
    world.settle();
    for (wait, deliveries) in [(1, 2), (5, 3), (5, 4)] {
        world.wait(wait * SECOND - 1);
        assert_eq!(delivered(&world.settle()), []);
        world.wait(1);
        assert_eq!(delivered(&world.settle()), [(1, deliveries)]);
    }
}

#[test]
fn progress_starts_the_wait_again() {
    let mut world = world();
    world.publish(1);
    world.pull(request("a", 9));
    world.settle();
    world.wait(20 * SECOND);
    world.ack(1, AckVerb::Progress);
    world.settle();
    world.wait(20 * SECOND);
    assert_eq!(delivered(&world.settle()), []);
    world.wait(10 * SECOND);
    assert_eq!(delivered(&world.settle()), [(1, 2)]);
}

#[test]
fn ack_all_settles_everything_up_to_it() {
    let mut config = explicit();
    config.ack_policy = AckPolicy::All;
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(5);
    world.pull(request("a", 5));
    world.settle();
    world.ack_with_reply(3, AckVerb::Ack, Some("r"));
    assert_eq!(world.settle(), [PumpAction::AckReply { to: "r".into() }]);
    let info = world.info();
    assert_eq!((info.num_ack_pending, info.ack_floor.stream.get()), (2, 3));
    world.ack_with_reply(2, AckVerb::Ack, Some("again"));
    assert_eq!(world.settle(), [PumpAction::AckReply { to: "again".into() }]);
}

#[test]
fn where_an_ack_settles_all_a_term_does_too() {
    let config = ConsumerConfig { ack_policy: AckPolicy::All, ..explicit() };
    for tracking in [Tracking::LoggedFirst, Tracking::LoggedAfter, Tracking::Local] {
        let mut world = World::new(config.clone(), tracking);
        world.publish(6);
        world.pull(request("a", 6));
        world.settle();
        world.ack(3, AckVerb::Ack);
        world.settle();
        world.ack_with_reply(5, AckVerb::Term { reason: Some("bad".into()) }, Some("r"));
        let actions = world.settle();
        assert!(actions.contains(&PumpAction::AckReply { to: "r".into() }), "{actions:?}");
        let terminated = actions.iter().filter_map(|action| match action {
            PumpAction::Event(ConsumerEvent::Terminated { seq, .. }) => Some(seq.get()),
            _ => None,
        });
        assert_eq!(terminated.collect::<Vec<_>>(), [5], "{actions:?}");
        let info = world.info();
        assert_eq!((info.num_ack_pending, info.ack_floor.stream.get()), (1, 5));
        world.ack(4, AckVerb::Term { reason: None });
        assert_eq!(world.settle(), [], "that was settled");
    }
}

#[test]
fn a_double_ack_is_confirmed_only_when_applied_also_if_repeated() {
    let mut world = world();
    world.publish(1);
    world.pull(request("a", 1));
    world.settle();
    world.ack_with_reply(1, AckVerb::Ack, Some("r1"));
    world.poll();
    world.ack_with_reply(1, AckVerb::Ack, Some("r2"));
    world.poll();
    assert!(world.actions.is_empty());
    assert_eq!(world.log.len(), 1);
    world.refuse_all();
    world.poll();
    assert!(world.actions.is_empty());
    let mut replies: Vec<PumpAction> = world.settle();
    replies.sort_by_key(|action| format!("{action:?}"));
    assert_eq!(replies, [PumpAction::AckReply { to: "r1".into() }, PumpAction::AckReply { to: "r2".into() }]);
    assert_eq!(world.info().num_ack_pending, 0);
}

#[test]
fn an_ack_of_what_a_former_leader_sent_is_not_confirmed_and_the_message_comes_again() {
    let mut world = world();
    world.publish(2);
    world.ack_with_reply(1, AckVerb::Ack, Some("r"));
    assert_eq!(world.settle(), []);
    world.pull(request("a", 2));
    assert_eq!(delivered(&world.settle()), [(1, 1), (2, 1)]);
}

#[test]
fn ack_and_next_does_both() {
    let mut world = world();
    world.publish(2);
    world.pull(request("a", 1));
    world.settle();
    world.ack(1, AckVerb::Next(request("b", 1)));
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(2, 1)]);
    assert_eq!(world.info().ack_floor.stream.get(), 1);
}

#[test]
fn a_refused_proposal_is_made_again() {
    let mut world = world();
    world.publish(4);
    world.pull(request("a", 3));
    world.poll();
    world.pull(request("b", 1));
    world.poll();
    assert_eq!(world.log.len(), 2);
    world.refuse_all();
    assert_eq!(world.pump.next_deadline(world.state()), Some(Timestamp::ZERO));
    let actions = world.settle();
    assert_eq!(delivered(&actions).len(), 4);
    assert_eq!(world.state().delivered().consumer.get(), 4, "no consumer sequence is lost");
}

#[test]
fn ends_are_told_to_every_request() {
    for (reason, text) in [
        (EndReason::LeadershipChange, "409 Leadership Change"),
        (EndReason::ConsumerDeleted, "409 Consumer Deleted"),
        (EndReason::ServerShutdown, "409 Server Shutdown"),
    ] {
        let mut world = world();
        world.pull(request("a", 1));
        world.settle();
        world.pull(request("b", 1));
        let mut out = Vec::new();
        world.pump.end(reason, &mut out);
        assert_eq!(statuses(&out), [format!("a {text}"), format!("b {text}")]);
    }
}

#[test]
fn an_idle_ephemeral_is_deleted_through_the_log() {
    for tracking in [Tracking::LoggedFirst, Tracking::Local] {
        let mut config = explicit();
        config.inactive_threshold_ns = Some(5 * SECOND);
        let mut world = World::new(config, tracking);
        world.pull(PullRequest { expires_ns: Some(20 * SECOND), ..request("a", 1) });
        world.settle();
        world.wait(20 * SECOND);
        world.settle();
        assert_eq!(world.set.len(), 1, "a waiting request keeps it alive");
        world.wait(4 * SECOND);
        world.settle();
        assert_eq!(world.set.len(), 1);
        world.wait(SECOND);
        world.settle();
        assert_eq!(world.set.len(), 0, "{tracking:?}");
        assert_eq!(world.effects.deleted, [(world.id, "C".to_owned())]);
    }
}

/// Its creator still asks for its description.
#[test]
fn an_ephemeral_with_hardly_any_threshold_lives_for_a_moment() {
    for tracking in [Tracking::LoggedFirst, Tracking::Local] {
        let config = ConsumerConfig { inactive_threshold_ns: Some(1), ..explicit() };
        let mut world = World::new(config, tracking);
        world.settle();
        world.wait(SECOND / 2);
        world.settle();
        assert_eq!(world.set.len(), 1, "{tracking:?}");
        let deadline = world.pump.next_deadline(world.state()).unwrap();
        assert_eq!(deadline.get(), world.now + SECOND / 2);
        world.wait(SECOND / 2);
        world.settle();
        assert_eq!(world.set.len(), 0, "{tracking:?}");
    }
}

#[test]
fn filters_choose_and_counts_are_exact() {
    let mut config = explicit();
    config.filters = Filters::new(["a.*", "b"]);
    let mut world = World::new(config, Tracking::LoggedFirst);
    for subject in ["x", "a.1", "b", "a.b.c", "a.2", "x", "b"] {
        world.messages.publish(subject, world.now);
    }
    assert_eq!(world.info().num_pending, 4);
    world.pull(request("a", 2));
    assert_eq!(delivered(&world.settle()), [(2, 1), (3, 1)]);
    assert_eq!(world.info().num_pending, 2);
    world.remove(5, 5);
    assert_eq!(world.info().num_pending, 1);
    world.messages.publish("a.9", world.now);
    world.messages.publish("x", world.now);
    assert_eq!(world.info().num_pending, 2);
    world.pull(request("a", 9));
    assert_eq!(delivered(&world.settle()), [(7, 1), (8, 1)]);
    assert_eq!(world.info().num_pending, 0);
}

#[test]
fn last_per_subject_starts_with_the_current_values() {
    let mut messages = Messages::default();
    for subject in ["k1", "k2", "k1", "k3", "k2"] {
        messages.publish(subject, 0);
    }
    let config = ConsumerConfig { deliver_policy: DeliverPolicy::LastPerSubject, ..explicit() };
    let mut world = World::over(messages, config, Tracking::LoggedFirst);
    assert_eq!(world.info().num_pending, 3);
    // The first of them is 3: what is before it is behind the consumer.
    assert_eq!(world.info().delivered.stream.get(), 2);
    assert_eq!(world.info().ack_floor.stream.get(), 2);
    world.messages.publish("k1", 0);
    assert_eq!(world.info().num_pending, 4);
    world.pull(request("a", 1));
    assert_eq!(delivered(&world.settle()), [(3, 1)]);
    assert_eq!(world.info().num_pending, 3);
    world.fail_over();
    world.pull(request("a", 9));
    assert_eq!(delivered(&world.settle()), [(4, 1), (5, 1), (6, 1)]);
    assert_eq!(world.info().num_pending, 0);
    world.messages.publish("k1", 0);
    assert_eq!(delivered(&world.settle()), [(7, 1)]);
}

#[test]
fn deliver_policies_start_where_they_say() {
    let mut messages = Messages::default();
    for (at, subject) in ["a", "b", "a", "b"].into_iter().enumerate() {
        messages.publish(subject, at as u64 * SECOND);
    }
    let table = [
        (DeliverPolicy::All, vec![1, 2, 3, 4, 5]),
        (DeliverPolicy::New, vec![5]),
        (DeliverPolicy::Last, vec![4, 5]),
        (DeliverPolicy::ByStartSequence(StreamSeq::new(3)), vec![3, 4, 5]),
        (DeliverPolicy::ByStartTime(Timestamp::new(SECOND + 1)), vec![3, 4, 5]),
    ];
    for (deliver_policy, expected) in table {
        let config = ConsumerConfig { deliver_policy, ..explicit() };
        let mut world = World::over(messages.clone(), config, Tracking::LoggedFirst);
        world.publish(1);
        world.pull(request("a", 9));
        let got: Vec<u64> = delivered(&world.settle()).iter().map(|(seq, _)| *seq).collect();
        assert_eq!(got, expected, "{deliver_policy:?}");
    }
}

#[test]
fn a_long_stretch_without_matches_is_skipped_in_the_log() {
    let mut config = explicit();
    config.filters = Filters::new(["rare"]);
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.messages.last = 70_000;
    world.pull(request("a", 1));
    world.settle();
    assert_eq!(world.state().delivered().stream.get(), 70_000);
    assert_eq!(world.info().ack_floor.stream.get(), 70_000);
    world.messages.publish("rare", 0);
    assert_eq!(delivered(&world.settle()), [(70_001, 1)]);
}

#[test]
fn a_pause_holds_deliveries_until_it_ends() {
    let mut config = explicit();
    config.pause_until = Some(Timestamp::new(10 * SECOND));
    let mut world = World::new(config, Tracking::LoggedFirst);
    world.publish(1);
    world.pull(request("a", 1));
    assert_eq!(delivered(&world.settle()), []);
    assert_eq!(world.info().paused_until, Some(Timestamp::new(10 * SECOND)));
    assert_eq!(world.pump.next_deadline(world.state()), Some(Timestamp::new(10 * SECOND)));
    world.wait(9 * SECOND);
    assert_eq!(delivered(&world.settle()), [(1, 1)]);
}

#[test]
fn an_ack_of_a_removed_message_makes_no_room() {
    let config = ConsumerConfig { max_ack_pending: Some(3), ..explicit() };
    let mut world = World::new(config, Tracking::LoggedAfter);
    world.publish(3);
    world.pull(request("a", 3));
    world.poll();
    assert_eq!(delivered(&world.actions), [(1, 1), (2, 1), (3, 1)]);
    // Another leader, which has not heard of these deliveries; then one of the messages goes.
    world.refuse_all();
    world.fail_over();
    world.remove(3, 3);
    world.publish(1);
    world.pull(request("b", 9));
    world.poll();
    world.ack(3, AckVerb::Ack);
    world.publish(2);
    world.settle();
    assert_eq!(world.state().pending_count(), 3);
}

#[test]
fn requests_without_listeners_are_dropped() {
    let mut world = world();
    world.pull(request("gone", 1));
    world.pull(request("here", 1));
    world.settle();
    world.pump.retain_requests(Timestamp::new(world.now), |inbox| inbox == b"here");
    world.publish(1);
    let actions = world.settle();
    assert_eq!(delivered(&actions), [(1, 1)]);
    assert!(matches!(&actions[0], PumpAction::Deliver(delivery) if &delivery.to[..] == b"here"));
}

#[test]
fn a_new_filter_counts_from_what_was_delivered() {
    let mut world = world();
    for subject in ["a", "b", "a", "b"] {
        world.messages.publish(subject, 0);
    }
    world.pull(request("r", 1));
    world.settle();
    let config = ConsumerConfig { filters: Filters::new(["b"]), ..explicit() };
    let update =
        ConsumerOp::Update { id: world.id, update: Box::new(UpdateConsumer { config, config_json: "{}".to_owned() }) };
    world.set.apply(&update, &world.messages, &mut world.effects);
    assert_eq!(world.effects.updated, [world.id]);
    world.pump.config_changed(world.set.get(world.id).unwrap());
    world.settle();
    assert_eq!(world.info().num_pending, 2);
    let reset = ConsumerOp::Reset { id: world.id, next: StreamSeq::new(3) };
    world.set.apply(&reset, &world.messages, &mut world.effects);
    world.pump.position_reset(world.set.get(world.id).unwrap());
    world.pull(request("r", 9));
    assert_eq!(delivered(&world.settle()), [(4, 1)]);
    assert_eq!(world.info().delivered.consumer.get(), 1);
}
