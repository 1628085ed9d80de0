use bytes::Bytes;

use super::world::{Replica, World, fresh};
use crate::consumer::{AckPolicy, ConsumerConfig, ConsumerOp, CreateConsumer, SeqRun, StartAt, encode_ops};
use crate::frame::Frame;
use crate::ids::{LogIndex, LogPosition, StreamSeq, Term, Timestamp};
use crate::stream::{
    Command, Damaged, DeleteMessage, Expire, Limits, Outcome, Purge, Rebuild as _, Rejection, Retention, Settings,
    StreamEvent, StreamState, Void,
};

fn filled(settings: Settings, subjects: &[&str]) -> World {
    let mut world = World::new(settings);
    for subject in subjects {
        world.seq(subject, &[]);
        world.now += 10;
    }
    world.drain();
    world
}

fn purge(seq: Option<u64>, keep: Option<u64>, filter: Option<&str>) -> Command {
    Command::Purge(Purge {
        seq: seq.map(StreamSeq::new),
        keep,
        filter: filter.map(Into::into),
        up_to_last: StreamSeq::ZERO,
    })
}

/// Ten messages, a and b in turn, with 4 deleted: the boundaries of `seq` and `keep`.
#[test]
fn purge_boundaries() {
    let subjects = ["a", "b", "a", "b", "a", "b", "a", "b", "a", "b"];
    type Case = (Option<u64>, Option<u64>, Option<&'static str>, &'static [u64]);
    let cases: [Case; 19] = [
        (None, None, None, &[]),
        (Some(0), None, None, &[]),
        (Some(1), None, None, &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
        (Some(2), None, None, &[2, 3, 5, 6, 7, 8, 9, 10]),
        (Some(5), None, None, &[5, 6, 7, 8, 9, 10]),
        (Some(10), None, None, &[10]),
        (Some(11), None, None, &[]),
        (Some(1 << 63), None, None, &[]),
        (None, Some(0), None, &[]),
        (None, Some(1), None, &[10]),
        (None, Some(9), None, &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
        (None, Some(10), None, &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
        (None, None, Some("a"), &[2, 6, 8, 10]),
        (Some(1), None, Some("a"), &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
        (Some(5), None, Some("a"), &[2, 5, 6, 7, 8, 9, 10]),
        (None, Some(2), Some("a"), &[2, 6, 7, 8, 9, 10]),
        (None, Some(9), Some("b"), &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
        (None, None, Some("*"), &[]),
        (None, None, Some("c"), &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
    ];
    for (seq, keep, filter, left) in cases {
        let mut world = filled(Settings::default(), &subjects);
        world.propose(Command::DeleteMessage(DeleteMessage { seq: StreamSeq::new(4), erase: false }));
        let applied = world.propose(purge(seq, keep, filter));
        let name = format!("seq {seq:?} keep {keep:?} filter {filter:?}");
        assert_eq!(world.live(), left, "{name}");
        assert_eq!(applied.removed_count, 9 - left.len() as u64, "{name}");
        assert_eq!(world.leader.state.last_seq().get(), 10, "{name}");
        world.leader.restart();
        assert_eq!(world.seq("a", &[]), 11, "{name}");
        world.drain();
        world.check_replicas(&Settings::default());
    }
}

#[test]
fn a_purge_never_touches_what_came_after_it() {
    let mut world = filled(Settings::default(), &["a", "a"]);
    world.admission.propose(&world.leader.state, purge(None, None, None), Timestamp::new(9)).unwrap();
    world.seq("a", &[]);
    world.drain();
    assert_eq!(world.live(), [3]);
}

#[test]
fn entries_of_other_terms_ordinals_and_streams_are_void() {
    let mut world = filled(Settings::default(), &["a"]);
    world.seq("b", &[]);
    let (_, bytes) = world.admission.seal().unwrap();
    let frame = Frame::parse(bytes).unwrap();
    let index = LogIndex::new(world.log.len() as u64 + 1);
    let at = |term, index| LogPosition { term: Term::new(term), index };
    let store = &world.leader.store;
    let mut other = StreamState::new(
        crate::ids::StreamId::new(8),
        Settings::default(),
        String::new(),
        Default::default(),
        Default::default(),
        Timestamp::ZERO,
        None,
    );
    let outcome = other.apply(at(1, index), &frame, store).unwrap().outcome;
    assert_eq!(outcome, Outcome::Void(Void::OtherStream));
    let state = &mut world.leader.state;
    let outcome = state.apply(at(2, index), &frame, store).unwrap().outcome;
    assert_eq!(outcome, Outcome::Void(Void::Term));
    assert_eq!(state.applied(), at(2, index), "a void entry is applied all the same");
    let outcome = state.apply(at(1, index), &frame, store).unwrap().outcome;
    assert_eq!(outcome, Outcome::Void(Void::AlreadyApplied));
    assert_eq!(state.apply(at(1, index.next()), &frame, store).unwrap().outcome, Outcome::Done);
    let outcome = state.apply(at(1, index.next().next()), &frame, store).unwrap().outcome;
    assert_eq!(outcome, Outcome::Void(Void::Ordinal));
    assert_eq!(state.last_seq().get(), 2);
    let mut empty = fresh(&Settings::default());
    let outcome = empty.apply(at(1, index), &frame, store).unwrap().outcome;
    assert_eq!(outcome, Outcome::Void(Void::Term), "no Begin of this term yet");
}

#[test]
fn limits_evict_the_oldest() {
    let limits = Limits { max_msgs: Some(3), ..Limits::default() };
    let world = filled(Settings { limits, ..Settings::default() }, &["a", "b", "a", "b", "a"]);
    assert_eq!(world.live(), [3, 4, 5]);
    let limits = Limits { max_msgs_per_subject: Some(1), ..Limits::default() };
    let mut world = filled(Settings { limits, ..Settings::default() }, &["a", "b", "a", "b", "c"]);
    assert_eq!(world.live(), [3, 4, 5]);
    let limits = Limits { max_bytes: Some(64), ..Limits::default() };
    let applied = world.configure(Settings { limits, ..Settings::default() });
    assert_eq!(applied.removed_count, 1);
    assert_eq!(world.live(), [4, 5]);
}

#[test]
fn rollups_remove_what_is_older() {
    let settings = Settings { allow_rollup: true, ..Settings::default() };
    let mut world = filled(settings.clone(), &["a", "b", "a"]);
    world.seq("a", &[("Nats-Rollup", "sub")]);
    world.seq("b", &[]);
    world.drain();
    assert_eq!(world.live(), [2, 4, 5]);
    world.seq("c", &[("Nats-Rollup", "all")]);
    world.seq("a", &[]);
    world.drain();
    assert_eq!(world.live(), [6, 7]);
    world.check_replicas(&settings);
}

#[test]
fn deletes_advance_the_first_and_keep_the_last_sequence() {
    let mut world = filled(Settings::default(), &["a"; 6]);
    let mut delete = |seq, erase| {
        let seq = StreamSeq::new(seq);
        let applied = world.propose(Command::DeleteMessage(DeleteMessage { seq, erase }));
        let counts = world.leader.state.counts();
        (applied.outcome, counts.first_seq, counts.last_seq, counts.num_deleted, applied.events)
    };
    assert_eq!(delete(3, true), (Outcome::Done, 1, 6, 1, vec![StreamEvent::Erase(StreamSeq::new(3))]));
    assert_eq!(delete(3, false), (Outcome::Rejected(Rejection::NotFound), 1, 6, 1, vec![]));
    assert_eq!(delete(2, false).3, 2);
    assert_eq!(delete(1, false), (Outcome::Done, 4, 6, 0, vec![]));
    assert_eq!(delete(6, false), (Outcome::Done, 4, 6, 1, vec![]));
    assert_eq!(delete(4, false), (Outcome::Done, 5, 6, 1, vec![]));
    assert_eq!(delete(5, false), (Outcome::Done, 7, 6, 0, vec![]));
    assert_eq!(world.seq("a", &[]), 7);
}

#[test]
fn a_gap_of_many_is_jumped() {
    let mut world = filled(Settings::default(), &["keep"]);
    for _ in 0..5_000 {
        world.seq("drop", &[]);
    }
    world.seq("keep", &[]);
    world.drain();
    world.propose(purge(None, None, Some("drop")));
    let state = &world.leader.state;
    assert_eq!(state.deleted().len(), 5_000);
    assert_eq!(state.next_live(StreamSeq::new(2)), Some(StreamSeq::new(5_002)));
    assert_eq!(state.last_live_up_to(StreamSeq::new(5_001)), Some(StreamSeq::FIRST));
    assert_eq!(state.live_count_from(StreamSeq::new(2)), 1);
    world.propose(Command::DeleteMessage(DeleteMessage { seq: StreamSeq::FIRST, erase: false }));
    assert_eq!(world.leader.state.first_seq().get(), 5_002);
    assert!(world.leader.state.deleted().is_empty());
}

#[test]
fn age_and_ttl_follow_the_logs_time() {
    let limits = Limits { max_age_ns: Some(100), ..Limits::default() };
    let settings = Settings { limits, allow_msg_ttl: true, ..Settings::default() };
    let mut world = World::new(settings.clone());
    world.seq("a", &[("Nats-TTL", "never")]);
    world.seq("a", &[]);
    world.now += 50;
    world.seq("a", &[]);
    world.drain();
    let expire = |world: &mut World, now| {
        let now = Timestamp::new(now);
        world.propose(Command::Expire(Expire { now, max_count: 1_000 })).removed_count
    };
    assert_eq!(world.leader.state.next_expiry(&world.leader.store), Some(Timestamp::new(1_100)));
    assert_eq!(expire(&mut world, 1_099), 0);
    assert_eq!(expire(&mut world, 1_100), 1);
    assert_eq!(world.live(), [1, 3]);
    let forever = Settings { limits: Limits::default(), ..settings.clone() };
    world.configure(forever);
    assert_eq!(expire(&mut world, 5_000), 0, "the limit in force decides");
    world.now = 10_000;
    world.seq("a", &[("Nats-TTL", "2s")]);
    world.drain();
    world.leader.restart();
    assert_eq!(expire(&mut world, 2_000_009_999), 0);
    assert_eq!(expire(&mut world, 2_000_010_000), 1);
    assert_eq!(world.live(), [1, 3]);
    world.check_replicas(&settings);
}

#[test]
fn damage_stops_the_state_and_stays() {
    let limits = Limits { max_msgs: Some(2), ..Limits::default() };
    let mut world = filled(Settings { limits, ..Settings::default() }, &["a", "b"]);
    world.leader.store.lose(1);
    world.seq("c", &[]);
    let (_, bytes) = world.admission.seal().unwrap();
    let frame = Frame::parse(bytes).unwrap();
    let at = |n| LogPosition { term: Term::new(1), index: LogIndex::new(n) };
    let Replica { state, store, .. } = &mut world.leader;
    let damaged = Err(Damaged { seq: StreamSeq::new(1) });
    assert_eq!(state.apply(at(50), &frame, store), damaged);
    assert_eq!(state.apply(at(51), &frame, store), damaged);
}

/// The only copy goes on around a message that cannot be read, to the same state as one that can read it.
#[test]
fn what_cannot_be_read_is_removed_by_its_outline() {
    let limits = Limits { max_msgs: Some(4), max_bytes: Some(4_000), ..Limits::default() };
    let settings = Settings { limits, allow_msg_ttl: true, ..Settings::default() };
    let mut world = filled(settings.clone(), &["a", "b", "a"]);
    world.seq("b", &[("Nats-TTL", "5s")]);
    world.drain();
    for damaged in [1, 2, 4] {
        world.leader.store.damage(damaged);
    }
    world.seq("c", &[]);
    world.drain();
    assert_eq!(world.live(), [2, 3, 4, 5], "the limit pushed out the first");
    let delete = Command::DeleteMessage(DeleteMessage { seq: StreamSeq::new(2), erase: false });
    assert_eq!(world.propose(delete).outcome, Outcome::Done);
    world.propose(purge(None, None, Some("b")));
    assert_eq!(world.live(), [3, 5]);
    assert_eq!(world.leader.state.next_ttl(), None);
    world.check_replicas(&settings);
}

#[test]
fn what_cannot_be_read_expires_with_what_comes_behind_it() {
    let limits = Limits { max_age_ns: Some(100), ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let mut world = filled(settings, &["a", "b", "c", "d"]);
    let (state, store) = (&world.leader.state, &mut world.leader.store);
    let from = |store: &_, at| state.first_at_or_after(Timestamp::new(at), store).map(StreamSeq::get);
    assert_eq!([1_000, 1_001, 1_010, 1_011, 1_021].map(|at| from(store, at)), [1, 2, 2, 3, 4].map(Some));
    for damaged in [1, 2] {
        store.damage(damaged);
    }
    // Whether one of the first two is meant nobody can tell: whoever reads the answer is told so.
    assert_eq!([1_000, 1_011, 1_020, 1_021].map(|at| from(store, at)), [1, 1, 1, 4].map(Some));
    assert_eq!(from(store, 1_031), None);
    assert_eq!(state.next_expiry(store), Some(Timestamp::new(1_120)));
    let expire = |world: &mut World, now| {
        let now = Timestamp::new(now);
        world.propose(Command::Expire(Expire { now, max_count: 1_000 })).removed_count
    };
    assert_eq!(expire(&mut world, 1_119), 0);
    assert_eq!(expire(&mut world, 1_120), 3);
    world.leader.store.damage(4);
    assert_eq!(expire(&mut world, 1_129), 0, "the last one's time is known");
    assert_eq!(expire(&mut world, 1_130), 1);
}

/// Of each message, and of each two, gone from a block without an index.
#[test]
fn a_rebuild_with_holes_goes_on_without_what_is_gone() {
    let mut world = World::new(Settings::default());
    for subject in ["a", "b", "a", "b", "a"] {
        world.seq(subject, &[]);
        world.drain();
    }
    world.propose(Command::DeleteMessage(DeleteMessage { seq: StreamSeq::new(3), erase: false }));
    let image = world.leader.state.image();
    for gone in [&[1][..], &[2], &[4], &[5], &[1, 2], &[2, 4], &[4, 5], &[1, 5], &[1, 2, 4, 5]] {
        let mut back = StreamState::from_image(&image).unwrap();
        for frame in world.leader.frames() {
            match gone.contains(&frame.header().base_seq.get()) {
                true => back.hole(),
                false => back.rebuild(frame),
            }
        }
        assert_eq!(back.finish_rebuild().unwrap(), gone.len() as u64, "{gone:?}");
        let live: Vec<u64> = back.live_from(StreamSeq::FIRST).map(StreamSeq::get).collect();
        let left: Vec<u64> = [1, 2, 4, 5].into_iter().filter(|seq| !gone.contains(seq)).collect();
        assert_eq!(live, left);
        assert_eq!(back.last_seq(), StreamSeq::new(5), "it never goes back");
        super::invariants::assert_consistent(&back);
        StreamState::from_image(&back.image()).expect("the next checkpoint says so");
    }
}

#[test]
fn a_rebuild_that_finds_other_messages_is_a_mismatch() {
    let mut world = filled(Settings::default(), &["a", "b"]);
    let image = world.leader.state.image();
    let mut back = StreamState::from_image(&image).unwrap();
    assert_eq!(back.finish_rebuild().unwrap_err().what, "messages");
    for cut in 0..image.len() {
        assert!(StreamState::from_image(&image[..cut]).is_err());
    }
    world.leader.restart();
}

fn consumers(ops: &[ConsumerOp]) -> Command {
    let mut body = Vec::new();
    encode_ops(ops, &mut body);
    Command::Consumers(Bytes::from(body))
}

fn create(name: &str) -> ConsumerOp {
    let config = ConsumerConfig {
        name: name.into(),
        durable: true,
        ack_policy: AckPolicy::Explicit,
        ..ConsumerConfig::default()
    };
    let start = StartAt::Next(StreamSeq::FIRST);
    let create = Box::new(CreateConsumer { config, config_json: "{}".into(), start });
    ConsumerOp::Create { ts: Timestamp::new(5), create }
}

#[test]
fn a_work_queue_removes_what_is_acknowledged() {
    let settings = Settings { retention: Retention::WorkQueue, ..Settings::default() };
    let mut world = filled(settings.clone(), &["a", "a", "a"]);
    world.propose(consumers(&[create("c")]));
    let (id, _) = world.leader.state.consumers().by_name("c").unwrap();
    let run = |seq, len| SeqRun { seq: StreamSeq::new(seq), len };
    let delivered = ConsumerOp::Delivered {
        id,
        ts: Timestamp::new(6),
        runs: vec![crate::consumer::DeliveredRun {
            seq: StreamSeq::new(1),
            cseq: crate::ids::ConsumerSeq::new(1),
            len: 3,
        }],
    };
    let applied = world.propose(consumers(&[delivered, ConsumerOp::Ack { id, runs: vec![run(2, 1)] }]));
    assert_eq!(applied.removed_count, 1);
    assert_eq!(world.live(), [1, 3]);
    world.leader.restart();
    assert_eq!(world.leader.state.consumers().len(), 1);
    let malformed = world.propose(Command::Consumers(Bytes::from_static(&[0xff])));
    assert_eq!(malformed.outcome, Outcome::Rejected(Rejection::Malformed));
    world.check_replicas(&settings);
}

#[test]
fn an_interest_stream_keeps_only_what_someone_wants() {
    let settings = Settings { retention: Retention::Interest, ..Settings::default() };
    let mut world = filled(settings.clone(), &["a"]);
    assert_eq!(world.live(), [0u64; 0]);
    assert_eq!(world.leader.state.last_seq().get(), 1);
    world.propose(consumers(&[create("c")]));
    world.seq("a", &[]);
    world.drain();
    assert_eq!(world.live(), [2]);
    let (id, _) = world.leader.state.consumers().by_name("c").unwrap();
    world.propose(consumers(&[ConsumerOp::Delete { id }]));
    assert_eq!(world.live(), [0u64; 0]);
    world.check_replicas(&settings);
}
