use super::world::World;
use crate::ids::{StreamSeq, Timestamp};
use crate::stream::{
    Command, Discard, Limits, Outcome, PubRefusal, Publish, Purge, Remove, Settings, Void, stored_len,
};

fn limited(limits: Limits) -> Settings {
    Settings { limits, discard: Discard::New, ..Settings::default() }
}

#[test]
fn refusals_have_jetstreams_numbers_and_texts() {
    for (why, err_code, text) in [
        (PubRefusal::MaxMessages, 10_077, "maximum messages exceeded"),
        (PubRefusal::MaxBytes, 10_077, "maximum bytes exceeded"),
        (PubRefusal::MaxMessagesPerSubject, 10_077, "maximum messages per subject exceeded"),
        (PubRefusal::WrongLastSequence(StreamSeq::new(7)), 10_071, "wrong last sequence: 7"),
        (PubRefusal::WrongLastSequenceInFlight, 10_164, "wrong last sequence"),
        (PubRefusal::MessageTooLarge, 10_054, "message size exceeds maximum allowed"),
        (PubRefusal::Sealed, 10_109, "invalid operation on sealed stream"),
        (PubRefusal::WrongStream, 10_060, "expected stream does not match"),
    ] {
        assert_eq!((why.err_code(), why.description()), (err_code, text.to_owned()));
    }
}

#[test]
fn a_refused_message_takes_no_sequence() {
    let mut world = World::new(limited(Limits { max_msgs: Some(2), ..Limits::default() }));
    assert_eq!(world.seq("a", &[]), 1);
    assert_eq!(world.seq("a", &[]), 2);
    assert_eq!(world.publish("a", &[], b""), Err(PubRefusal::MaxMessages));
    world.drain();
    assert_eq!(world.publish("a", &[], b""), Err(PubRefusal::MaxMessages));
    world.propose(Command::Purge(Purge { seq: Some(StreamSeq::new(2)), ..Purge::default() }));
    assert_eq!(world.seq("a", &[]), 3);
}

#[test]
fn admission_and_enforcement_count_alike_to_the_byte() {
    let len = stored_len(Default::default(), 1, 0, 10);
    for slack in 0..len {
        let max_bytes = Some(2 * len + slack);
        let mut world = World::new(limited(Limits { max_bytes, ..Limits::default() }));
        for _ in 0..2 {
            world.publish("a", &[], &[0; 10]).unwrap();
        }
        assert_eq!(world.publish("a", &[], &[0; 10]), Err(PubRefusal::MaxBytes), "slack {slack}");
        world.drain();
        assert_eq!(world.live(), [1, 2]);
        assert_eq!(world.leader.state.bytes(), 2 * len);
    }
}

#[test]
fn discard_new_never_deletes_what_it_confirmed() {
    let mut world = World::new(limited(Limits { max_msgs: Some(10), ..Limits::default() }));
    for _ in 0..10 {
        world.seq("a", &[]);
    }
    world.drain();
    let lower = limited(Limits { max_msgs: Some(3), max_bytes: Some(50), ..Limits::default() });
    assert_eq!(world.configure(lower).removed_count, 0);
    assert_eq!(world.leader.state.messages(), 10);
    assert_eq!(world.publish("a", &[], b"x"), Err(PubRefusal::MaxMessages));
}

#[test]
fn a_full_subject_makes_room_for_its_own_unless_told_to_refuse() {
    let limits = Limits { max_msgs: Some(2), max_msgs_per_subject: Some(1), ..Limits::default() };
    let mut world = World::new(limited(limits));
    world.seq("a", &[]);
    world.seq("b", &[]);
    assert_eq!(world.seq("a", &[]), 3, "the total stays");
    assert_eq!(world.publish("c", &[], b""), Err(PubRefusal::MaxMessages));
    world.drain();
    assert_eq!(world.live(), [2, 3]);
    world.configure(Settings { discard_new_per_subject: true, ..limited(limits) });
    assert_eq!(world.publish("a", &[], b""), Err(PubRefusal::MaxMessagesPerSubject));
}

#[test]
fn a_full_stream_lets_a_key_be_replaced_by_one_of_its_size() {
    let len = stored_len(Default::default(), 1, 0, 10);
    let limits = Limits { max_bytes: Some(2 * len), max_msgs_per_subject: Some(1), ..Limits::default() };
    let mut world = World::new(limited(limits));
    world.publish("a", &[], &[0; 10]).unwrap();
    world.publish("b", &[], &[0; 10]).unwrap();
    world.drain();
    assert_eq!(world.publish("a", &[], &[0; 11]), Err(PubRefusal::MaxBytes));
    world.publish("a", &[], &[0; 10]).unwrap();
    world.drain();
    assert_eq!(world.leader.state.bytes(), 2 * len);
}

#[test]
fn expectations_count_what_is_in_flight() {
    let mut world = World::new(Settings { name: "S".into(), ..Settings::default() });
    let subject_seq = "Nats-Expected-Last-Subject-Sequence";
    let last_seq = "Nats-Expected-Last-Sequence";
    assert_eq!(world.seq("a", &[(subject_seq, "0")]), 1);
    let wrong = |seq| Err(PubRefusal::WrongLastSequence(StreamSeq::new(seq)));
    assert_eq!(world.publish("a", &[(subject_seq, "0")], b""), wrong(1));
    assert_eq!(world.seq("a", &[(subject_seq, "1")]), 2);
    assert_eq!(world.seq("b", &[(last_seq, "2")]), 3);
    assert_eq!(world.publish("b", &[(last_seq, "2")], b""), wrong(3));
    assert_eq!(world.publish("b", &[(last_seq, "x")], b""), wrong(3));
    world.drain();
    assert_eq!(world.publish("a", &[(subject_seq, "1")], b""), wrong(2));
    let other = "Nats-Expected-Last-Subject-Sequence-Subject";
    assert_eq!(world.publish("c", &[(subject_seq, "2"), (other, "*")], b""), wrong(3));
    assert_eq!(world.seq("c", &[(subject_seq, "3"), (other, "*")]), 4);
    assert_eq!(world.publish("c", &[(other, "a")], b""), Err(PubRefusal::LastSubjectWithoutSequence));
    assert_eq!(world.publish("c", &[("Nats-Expected-Stream", "T")], b""), Err(PubRefusal::WrongStream));
    let msg_id = "Nats-Expected-Last-Msg-Id";
    world.seq("c", &[("Nats-Msg-Id", "one")]);
    assert_eq!(world.publish("c", &[(msg_id, "two")], b""), Err(PubRefusal::WrongLastMsgId("one".into())));
    assert_eq!(world.seq("c", &[(msg_id, "one")]), 6);
    assert_eq!(world.publish("c", &[(msg_id, "one")], b""), Err(PubRefusal::WrongLastMsgId(String::new())));
}

#[test]
fn a_subject_expectation_does_not_guess_past_a_purge_in_flight() {
    let mut world = World::new(Settings::default());
    world.seq("a", &[]);
    world.drain();
    let purge = Command::Purge(Purge::default());
    world.admission.propose(&world.leader.state, purge, Timestamp::new(2_000)).unwrap();
    let expect_none = [("Nats-Expected-Last-Subject-Sequence", "0")];
    assert_eq!(world.publish("a", &expect_none, b""), Err(PubRefusal::WrongLastSequenceInFlight));
    world.drain();
    assert_eq!(world.seq("a", &expect_none), 2);
}

#[test]
fn a_duplicate_is_confirmed_with_its_original() {
    let mut world = World::new(Settings { duplicate_window_ns: 500, ..Settings::default() });
    let id = [("Nats-Msg-Id", "x")];
    let original = world.publish("a", &id, b"").unwrap();
    world.publish("a", &[], b"").unwrap();
    let duplicate = world.publish("a", &id, b"").unwrap();
    assert_eq!(duplicate.duplicate_of, Some(original.seq));
    assert_eq!(duplicate.ordinal, original.ordinal, "it waits for the original's entry");
    world.drain();
    let duplicate = world.publish("a", &id, b"").unwrap();
    assert_eq!((duplicate.duplicate_of, duplicate.ordinal), (Some(original.seq), None));
    world.now += 500;
    let again = world.publish("a", &id, b"").unwrap();
    assert_eq!((again.seq.get(), again.duplicate_of), (3, None));
    world.drain();
    assert_eq!(world.publish("a", &id, b"").unwrap().duplicate_of, Some(again.seq));
}

#[test]
fn a_wrong_sequence_is_told_even_with_a_known_id() {
    let mut world = World::new(Settings { name: "S".into(), ..Settings::default() });
    let id = ("Nats-Msg-Id", "x");
    let (last_seq, subject_seq) = ("Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence");
    let subject = ("Nats-Expected-Last-Subject-Sequence-Subject", "a");
    assert_eq!(world.seq("a", &[id]), 1);
    assert_eq!(world.seq("b", &[("Nats-Msg-Id", "y")]), 2);
    let wrong = |seq| Err(PubRefusal::WrongLastSequence(StreamSeq::new(seq)));
    // In flight and applied alike.
    for _ in 0..2 {
        assert_eq!(world.publish("a", &[id, (last_seq, "9")], b""), wrong(2));
        assert_eq!(world.publish("a", &[id, (last_seq, "x")], b""), wrong(2));
        assert_eq!(world.publish("a", &[id, (subject_seq, "9")], b""), wrong(1));
        assert_eq!(world.publish("a", &[id, (last_seq, "9"), (subject_seq, "9")], b""), wrong(1));
        assert_eq!(world.publish("a", &[id, subject], b""), Err(PubRefusal::LastSubjectWithoutSequence));
        assert_eq!(world.publish("a", &[id, ("Nats-Expected-Stream", "T")], b""), Err(PubRefusal::WrongStream));
        // What is only about the message itself comes after the id: it is not stored again.
        for rest in [(last_seq, "2"), (subject_seq, "1"), ("Nats-Expected-Last-Msg-Id", "z"), ("Nats-Rollup", "sub")] {
            let duplicate = world.publish("a", &[id, rest], b"").unwrap();
            assert_eq!(duplicate.duplicate_of, Some(StreamSeq::new(1)), "{rest:?}");
        }
        world.drain();
    }
}

#[test]
fn an_id_whose_message_was_lost_with_its_leader_is_not_a_duplicate() {
    let mut world = World::new(Settings::default());
    let id = [("Nats-Msg-Id", "x")];
    assert_eq!(world.seq("a", &id), 1);
    world.new_term();
    let retry = world.publish("a", &id, b"").unwrap();
    assert_eq!((retry.seq.get(), retry.duplicate_of), (1, None));
    world.drain();
    assert_eq!(world.publish("a", &id, b"").unwrap().duplicate_of, Some(retry.seq));
}

#[test]
fn a_removed_messages_id_is_remembered_over_a_restart() {
    let mut world = World::new(Settings::default());
    let id = [("Nats-Msg-Id", "x")];
    world.seq("a", &id);
    world.drain();
    world.propose(Command::Purge(Purge::default()));
    world.leader.restart();
    assert!(world.publish("a", &id, b"").unwrap().duplicate_of.is_some());
}

#[test]
fn rollups_and_ttls_need_permission() {
    let mut world = World::new(Settings::default());
    let denied = Err(PubRefusal::Rollup("rollup not permitted".into()));
    assert_eq!(world.publish("a", &[("Nats-Rollup", "sub")], b""), denied);
    assert_eq!(world.publish("a", &[("Nats-TTL", "5")], b""), Err(PubRefusal::TtlDisabled));
    let open = Settings { allow_rollup: true, allow_msg_ttl: true, ..Settings::default() };
    world.configure(Settings { deny_purge: true, ..open.clone() });
    assert_eq!(world.publish("a", &[("Nats-Rollup", "sub")], b""), denied);
    world.configure(open);
    let invalid = Err(PubRefusal::Rollup("rollup value invalid: \"x\"".into()));
    assert_eq!(world.publish("a", &[("Nats-Rollup", "x")], b""), invalid);
    assert_eq!(world.publish("a", &[("Nats-TTL", "1ms")], b""), Err(PubRefusal::TtlInvalid));
    assert_eq!(world.publish("a", &[("Nats-Batch-Id", "b")], b""), Err(PubRefusal::AtomicDisabled));
    let forged = world.publish("a", &[("Nats-Stream-Source", "OTHER 1 > >")], b"").unwrap_err();
    assert_eq!((forged.code(), forged.err_code()), (400, 10_227));
    world.seq("a", &[("Nats-Rollup", "sub"), ("Nats-TTL", "5s")]);
    let last = world.seq("a", &[("Nats-Rollup", "ALL")]);
    world.drain();
    assert_eq!(world.live(), [last]);
}

#[test]
fn sealing_and_removing_act_on_what_is_admitted_after_them() {
    let mut world = World::new(Settings::default());
    let state = &world.leader.state;
    let generation = state.generation().next();
    let sealed = Command::Config(Box::new(crate::stream::ConfigChange {
        settings: Settings { sealed: true, ..Settings::default() },
        config_json: String::new(),
        generation,
    }));
    world.admission.propose(state, sealed, Timestamp::new(5)).unwrap();
    assert_eq!(world.publish("a", &[], b""), Err(PubRefusal::Sealed));
    world.drain();
    world.configure(Settings::default());
    let state = &world.leader.state;
    let remove = Command::Remove(Remove { generation: state.generation() });
    world.admission.propose(state, remove, Timestamp::new(5)).unwrap();
    assert_eq!(world.publish("a", &[], b""), Err(PubRefusal::StreamNotFound));
    world.drain();
    assert!(world.leader.state.is_removed());
    assert_eq!(world.publish("a", &[], b""), Err(PubRefusal::StreamNotFound));
}

#[test]
fn size_limits() {
    let limits = Limits { max_msg_size: Some(10), max_bytes: Some(90), ..Limits::default() };
    let mut world = World::new(Settings { limits, ..Settings::default() });
    world.publish("a", &[], &[0; 10]).unwrap();
    assert_eq!(world.publish("a", &[], &[0; 11]), Err(PubRefusal::MessageTooLarge));
    let limits = Limits { max_bytes: Some(90), ..Limits::default() };
    world.configure(Settings { limits, ..Settings::default() });
    assert_eq!(world.publish("a", &[], &[0; 60]), Err(PubRefusal::MaxBytes));
    world.configure(Settings::default());
    let long = "x".repeat(70_000);
    assert_eq!(world.publish("a", &[("H", &long)], b""), Err(PubRefusal::HeadersTooLarge));
}

#[test]
fn frames_are_cut_at_their_target_and_times_never_go_back() {
    let mut world = World::new(Settings::default());
    for i in 0..600u64 {
        world.now = 10_000 - i;
        world.publish("a", &[], &[0; 1000]).unwrap();
    }
    world.now = 20_000_000_000;
    world.publish("a", &[], b"").unwrap();
    let applied = world.drain();
    let stored: Vec<u64> = applied.iter().filter_map(|a| a.stored).map(|s| s.last.get() - s.first.get() + 1).collect();
    // 24 + 1 + 1000 + 2 bytes a record and 4 for its offset: 254 of them and the header fit 256 KiB.
    assert_eq!(stored, [254, 254, 92, 1]);
    assert_eq!(world.leader.state.last_ts().get(), 20_000_000_000);
}

#[test]
fn after_a_refused_proposal_everything_behind_it_is_void() {
    let mut world = World::new(Settings::default());
    let mut frames = Vec::new();
    for subject in ["a", "b", "c"] {
        world.seq(subject, &[]);
        frames.push(world.admission.seal().unwrap());
    }
    // The log takes the first, refuses the second, and takes the third later.
    world.append(&frames[0].1);
    let (first, last) = world.admission.refused(frames[1].0);
    assert_eq!((first, last), (frames[1].0, frames[2].0));
    assert_eq!(world.publish("d", &[], b""), Err(PubRefusal::NotReady));
    world.admission.reset(&world.leader.state, world.admission.term());
    assert_eq!(world.append(&frames[2].1).outcome, Outcome::Void(Void::Ordinal));
    assert_eq!(world.seq("d", &[]), 2);
    world.drain();
    // And once more, after the new Begin.
    let late = world.append(&frames[1].1);
    assert_eq!(late.outcome, Outcome::Void(Void::Ordinal));
    assert_eq!(world.live(), [1, 2]);
    assert_eq!(world.leader.state.last_by_subject(b"d"), Some(StreamSeq::new(2)));
    world.check_replicas(&Settings::default());
}

#[test]
fn a_begin_that_built_on_another_state_is_void_and_so_is_what_follows_it() {
    let mut world = World::new(Settings::default());
    world.seq("a", &[]);
    let in_flight = world.admission.seal().unwrap();
    world.admission.refused(in_flight.0);
    world.admission.reset(&world.leader.state, world.admission.term());
    world.seq("b", &[]);
    // The proposal that was said to be refused is in the log after all, before the Begin.
    assert_eq!(world.append(&in_flight.1).outcome, Outcome::Done);
    let mut outcomes = Vec::new();
    while let Some((_, bytes)) = world.admission.seal() {
        outcomes.push(world.append(&bytes).outcome);
    }
    assert_eq!(outcomes, [Outcome::Void(Void::Fence), Outcome::Void(Void::Ordinal)]);
    world.admission.reset(&world.leader.state, world.admission.term());
    assert_eq!(world.seq("b", &[]), 2);
    world.drain();
    assert_eq!(world.live(), [1, 2]);
}

#[test]
fn in_flight_is_counted_in_bytes() {
    let mut world = World::new(Settings::default());
    assert_eq!(world.admission.in_flight_bytes(), 0);
    while world.admission.has_room() {
        world.publish("a", &[], &[0; 100_000]).unwrap();
    }
    assert!(world.admission.in_flight_bytes() < crate::stream::IN_FLIGHT_BYTES_MAX + 200_000);
    world.drain();
    assert!(world.admission.has_room());
    let publish = Publish { subject: b"a", headers: b"", payload: b"", now: Timestamp::new(1) };
    let world = &mut world;
    world.admission.admit(&world.leader.state, &world.leader.store, publish).unwrap();
    assert!(world.admission.in_flight_bytes() > 64);
}
