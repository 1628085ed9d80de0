//! Every check must see the fault it is for, and must not see it where there is none.

use super::*;

/// A ledger of `n` messages of publisher 1, confirmed at 1..=n, and a true view of them.
fn sound(n: u64) -> (Ledger, NodeState, Vec<Stored>) {
    let ledger = Ledger::named("run");
    for i in 0..n {
        let id = ledger.open(1, format!("s.{i}"), format!("payload {i}").as_bytes());
        ledger.attempt(id, 1);
        ledger.answer(id, 1, Outcome::Acked { seq: i + 1, duplicate: false });
    }
    let view: Vec<_> = (0..n).map(|i| stored(&ledger, i + 1, i)).collect();
    let state = NodeState { messages: n, bytes: 100 * n, first_seq: 1, last_seq: n, num_deleted: 0, num_subjects: n };
    (ledger, state, view)
}

/// Message `number` of publisher 1, as if stored at `seq`.
fn stored(ledger: &Ledger, seq: u64, number: u64) -> Stored {
    let payload = format!("payload {number}");
    Stored {
        seq,
        subject: format!("s.{number}"),
        msg_id: Some(ledger.msg_id(MessageId { publisher: 1, number })),
        payload: Digest::of(payload.as_bytes()),
        whole: Digest::of(format!("{payload} at {seq}").as_bytes()),
        len: payload.len() as u64,
    }
}

fn report(ledger: &Ledger, views: &[(&NodeState, &[Stored])]) -> Report {
    let mut audit = Audit::new(ledger, Vec::new(), false);
    for (i, (state, view)) in views.iter().enumerate() {
        audit.state(&format!("n{i}"), state);
        audit.view(&format!("n{i}"), state, view);
    }
    audit.finish(0.0)
}

fn kinds(report: &Report) -> Vec<Invariant> {
    report.counts.keys().copied().collect()
}

#[test]
fn nothing_wrong() {
    let (ledger, state, view) = sound(5);
    let report = report(&ledger, &[(&state, &view), (&state, &view)]);
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.confirmed, report.read), (5, 10));
    assert!(report.to_string().starts_with("confirmed 5, lost 0, duplicated 0, reordered 0\n"));
}

#[test]
fn nothing_read_is_not_clean() {
    assert!(!report(&Ledger::named("run"), &[]).is_clean());
}

#[test]
fn a_confirmed_message_gone() {
    let (ledger, state, view) = sound(3);
    let report = report(
        &ledger,
        &[(&NodeState { messages: 2, num_subjects: 2, num_deleted: 1, ..state }, &[view[0].clone(), view[2].clone()])],
    );
    assert_eq!((report.lost, kinds(&report)), (1, vec![Invariant::Lost]), "{report}");
}

#[test]
fn gone_by_right_is_not_lost() {
    let (ledger, state, view) = sound(3);
    let state = NodeState { messages: 2, num_subjects: 2, num_deleted: 1, ..state };
    let mut audit = Audit::new(&ledger, vec![2..=2], false);
    audit.view("n1", &state, &[view[0].clone(), view[2].clone()]);
    let report = audit.finish(0.0);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.removed, 1);

    let state = NodeState { first_seq: 3, messages: 1, num_subjects: 1, num_deleted: 0, ..state };
    let mut audit = Audit::new(&ledger, vec![], true);
    audit.view("n1", &state, &view[2..]);
    assert!(audit.finish(0.0).is_clean());
}

#[test]
fn another_payload() {
    let (ledger, state, mut view) = sound(3);
    view[1].payload = Digest::of(b"other");
    let report = report(&ledger, &[(&state, &view)]);
    assert_eq!((report.lost, kinds(&report)), (1, vec![Invariant::TwoContents]), "{report}");
}

#[test]
fn moved_to_another_sequence() {
    let (ledger, _, mut view) = sound(3);
    view[2] = stored(&ledger, 4, 2);
    let state = NodeState { messages: 3, bytes: 300, first_seq: 1, last_seq: 4, num_deleted: 1, num_subjects: 3 };
    let report = report(&ledger, &[(&state, &view)]);
    assert_eq!((report.lost, kinds(&report)), (1, vec![Invariant::Lost]), "{report}");
}

#[test]
fn stored_twice() {
    let (ledger, _, mut view) = sound(3);
    view.push(stored(&ledger, 4, 1));
    let state = NodeState { messages: 4, bytes: 400, first_seq: 1, last_seq: 4, num_deleted: 0, num_subjects: 3 };
    let report = report(&ledger, &[(&state, &view)]);
    assert_eq!((report.duplicated, report.lost), (1, 0), "{report}");
    assert_eq!(kinds(&report), [Invariant::Duplicated]);
}

#[test]
fn an_unconfirmed_message_may_be_stored_once() {
    let (ledger, _, mut view) = sound(2);
    let id = ledger.open(1, "s.2".into(), b"payload 2");
    ledger.attempt(id, 1);
    view.push(stored(&ledger, 3, 2));
    let state = NodeState { messages: 3, bytes: 300, first_seq: 1, last_seq: 3, num_deleted: 0, num_subjects: 3 };
    let once = report(&ledger, &[(&state, &view)]);
    assert!(once.is_clean(), "{once}");
    assert_eq!(once.stored_unconfirmed, 1);

    view.push(stored(&ledger, 4, 2));
    let state = NodeState { messages: 4, last_seq: 4, ..state };
    assert_eq!(report(&ledger, &[(&state, &view)]).duplicated, 1);
}

#[test]
fn order_broken_by_first_attempts_only() {
    let build = |attempts: u64| {
        let ledger = Ledger::named("run");
        for (i, seq) in [(0, 1), (1, 3), (2, 2)] {
            let id = ledger.open(1, format!("s.{i}"), format!("payload {i}").as_bytes());
            for _ in 0..if i == 1 { attempts } else { 1 } {
                ledger.attempt(id, 1);
            }
            ledger.answer(id, 1, Outcome::Acked { seq, duplicate: false });
        }
        let view = [stored(&ledger, 1, 0), stored(&ledger, 2, 2), stored(&ledger, 3, 1)];
        let state = NodeState { messages: 3, bytes: 300, first_seq: 1, last_seq: 3, num_deleted: 0, num_subjects: 3 };
        report(&ledger, &[(&state, &view)])
    };
    let broken = build(1);
    assert_eq!((broken.reordered, kinds(&broken)), (1, vec![Invariant::Reordered]));
    assert!(build(2).is_clean(), "a retried message has no promised place");
}

#[test]
fn views_that_differ() {
    let (ledger, state, view) = sound(3);
    let mut other = view.clone();
    other[1].whole = Digest::of(b"another time or header");
    assert_eq!(kinds(&report(&ledger, &[(&state, &view), (&state, &other)])), [Invariant::ViewsDiffer]);

    // A foreign message (none of ours) that only one node holds.
    let foreign =
        Stored { seq: 4, subject: "x".into(), msg_id: None, payload: Digest::of(b""), whole: Digest::of(b"f"), len: 0 };
    let long = NodeState { messages: 4, bytes: 400, last_seq: 4, num_subjects: 4, ..state };
    let mut more = view.clone();
    more.push(foreign);
    let short = NodeState { last_seq: 4, num_deleted: 1, ..state };
    assert_eq!(kinds(&report(&ledger, &[(&long, &more), (&short, &view)])), [Invariant::ViewsDiffer]);
}

#[test]
fn reported_states_that_differ() {
    let (ledger, state, _) = sound(1);
    let mut audit = Audit::new(&ledger, vec![], false);
    let other = NodeState { bytes: 7, ..state };
    audit.states_equal(&[("n1".into(), state.clone()), ("n2".into(), state), ("n3".into(), other)]);
    assert_eq!(audit.finish(0.0).counts[&Invariant::ViewsDiffer], 1);
}

#[test]
fn going_backwards() {
    let (ledger, state, view) = sound(3);
    let short = NodeState { messages: 2, last_seq: 2, num_subjects: 2, ..state };
    let report_short = report(&ledger, &[(&short, &view[..2])]);
    assert_eq!(kinds(&report_short), [Invariant::Lost, Invariant::WentBack]);

    ledger.note_seen(2, 9);
    let report_seen = report(&ledger, &[(&state, &view)]);
    assert_eq!(report_seen.counts[&Invariant::WentBack], 2, "{report_seen}");
}

#[test]
fn wrong_counts() {
    let (ledger, state, view) = sound(3);
    let wrong = NodeState { messages: 4, num_subjects: 1, num_deleted: 5, bytes: 1, ..state };
    assert_eq!(report(&ledger, &[(&wrong, &view)]).counts[&Invariant::WrongCount], 4);
}

#[test]
fn two_confirmations_of_one_sequence() {
    let ledger = Ledger::named("run");
    for _ in 0..2 {
        let id = ledger.open(1, "s".into(), b"x");
        ledger.attempt(id, 1);
        ledger.answer(id, 1, Outcome::Acked { seq: 1, duplicate: false });
    }
    assert_eq!(Audit::new(&ledger, vec![], false).finish(0.0).counts[&Invariant::TwoContents], 1);
}

#[test]
fn consumers_beyond_the_stream() {
    let (ledger, state, _) = sound(3);
    let mut audit = Audit::new(&ledger, vec![], false);
    let consumer = |delivered, floor| ConsumerState {
        name: "c".into(),
        delivered_stream_seq: delivered,
        delivered_consumer_seq: delivered,
        ack_floor_stream_seq: floor,
        ack_floor_consumer_seq: floor,
    };
    audit.consumer("n1", &consumer(3, 3), &state);
    audit.consumer("n1", &consumer(4, 3), &state);
    audit.consumer("n1", &consumer(2, 3), &state);
    assert_eq!(audit.finish(0.0).counts[&Invariant::Consumer], 2);
}
