use proptest::prelude::*;

use super::*;

/// The slow and obvious index the real one is compared with.
#[derive(Default)]
struct Naive {
    entries: Vec<(String, Option<String>, u32)>,
}

impl Naive {
    fn matches(&self, subject: &str) -> (Vec<u32>, Vec<(String, Vec<u32>)>) {
        let mut plain = Vec::new();
        let mut queues: Vec<(String, Vec<u32>)> = Vec::new();
        for (filter, queue, subscriber) in &self.entries {
            if !naive_match(filter, subject) {
                continue;
            }
            match queue {
                None => plain.push(*subscriber),
                Some(name) => match queues.iter_mut().find(|(have, _)| have == name) {
                    Some((_, members)) => members.push(*subscriber),
                    None => queues.push((name.clone(), vec![*subscriber])),
                },
            }
        }
        plain.sort_unstable();
        queues.iter_mut().for_each(|(_, members)| members.sort_unstable());
        queues.sort();
        (plain, queues)
    }
}

fn naive_match(filter: &str, subject: &str) -> bool {
    let filter: Vec<&str> = filter.split('.').collect();
    let subject: Vec<&str> = subject.split('.').collect();
    fn go(filter: &[&str], subject: &[&str]) -> bool {
        match (filter.first(), subject.first()) {
            (None, None) => true,
            (Some(&">"), Some(_)) => true,
            (Some(want), Some(have)) => (*want == "*" || want == have) && go(&filter[1..], &subject[1..]),
            _ => false,
        }
    }
    go(&filter, &subject)
}

fn sorted(result: &MatchResult<u32>) -> (Vec<u32>, Vec<(String, Vec<u32>)>) {
    let mut plain = result.plain.clone();
    plain.sort_unstable();
    let mut queues: Vec<(String, Vec<u32>)> = result
        .queues
        .iter()
        .map(|group| {
            let mut members = group.members.clone();
            members.sort_unstable();
            (String::from_utf8(group.name.to_vec()).unwrap(), members)
        })
        .collect();
    queues.sort();
    (plain, queues)
}

fn filter() -> impl Strategy<Value = String> {
    (prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "*"]), 1..4), any::<bool>()).prop_map(
        |(mut tokens, open)| {
            if open {
                tokens.push(">");
            }
            tokens.join(".")
        },
    )
}

fn subject() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d"]), 1..5).prop_map(|tokens| tokens.join("."))
}

#[derive(Clone, Debug)]
enum Step {
    Insert(String, Option<String>, u32),
    Remove(usize),
    RemoveUnknown(String),
    Match(String),
}

fn step() -> impl Strategy<Value = Step> {
    let queue = prop::option::of(prop::sample::select(vec!["q".to_owned(), "r".to_owned()]));
    prop_oneof![
        3 => (filter(), queue, 0u32..6).prop_map(|(filter, queue, sub)| Step::Insert(filter, queue, sub)),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => filter().prop_map(Step::RemoveUnknown),
        4 => subject().prop_map(Step::Match),
    ]
}

proptest! {
    #[test]
    fn sublist_answers_like_the_naive_one(steps in prop::collection::vec(step(), 1..120)) {
        let mut real = Sublist::new();
        let mut naive = Naive::default();
        for step in steps {
            match step {
                Step::Insert(filter, queue, sub) => {
                    real.insert(filter.as_bytes(), queue.as_deref().map(str::as_bytes), sub).unwrap();
                    naive.entries.push((filter, queue, sub));
                }
                Step::Remove(at) if !naive.entries.is_empty() => {
                    let (filter, queue, sub) = naive.entries.swap_remove(at % naive.entries.len());
                    prop_assert!(real.remove(filter.as_bytes(), queue.as_deref().map(str::as_bytes), &sub));
                }
                Step::Remove(_) => {}
                Step::RemoveUnknown(filter) => prop_assert!(!real.remove(filter.as_bytes(), None, &99)),
                Step::Match(subject) => {
                    let expected = naive.matches(&subject);
                    let interest = !expected.0.is_empty() || !expected.1.is_empty();
                    prop_assert_eq!(real.has_interest(subject.as_bytes()), interest);
                    prop_assert_eq!(sorted(real.matches(subject.as_bytes())), expected);
                }
            }
            prop_assert_eq!(real.len(), naive.entries.len());
        }
        let mut listed = Vec::new();
        real.for_each(|filter, queue, sub| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            listed.push((text(filter), queue.map(text), *sub));
        });
        listed.sort();
        naive.entries.sort();
        prop_assert_eq!(listed, naive.entries);
    }
}

#[test]
fn emptied_index_frees_its_nodes() {
    let mut list = Sublist::new();
    for round in 0..100u32 {
        list.insert(b"a.*.c.>", None, round).unwrap();
        list.insert(b"_INBOX.x.*", Some(b"q"), round).unwrap();
        list.insert(b"plain", None, round).unwrap();
        assert!(list.remove(b"a.*.c.>", None, &round));
        assert!(list.remove(b"_INBOX.x.*", Some(b"q"), &round));
        assert!(list.remove(b"plain", None, &round));
    }
    assert!(list.is_empty());
    assert!(list.matches(b"plain").is_empty());
    assert!(!list.has_interest(b"a.b.c.d"));
}

#[test]
fn bad_filters_are_refused() {
    let mut list = Sublist::new();
    for bad in ["", ".", "a.", ".a", "a..b", "a.>.b", ">.a", "a b", "a\tb"] {
        assert!(list.insert(bad.as_bytes(), None, 1u32).is_err(), "{bad:?}");
    }
    assert!(list.is_empty());
}

#[test]
fn counted_interest_tells_only_first_and_last() {
    let mut list = CountedSublist::default();
    assert_eq!(list.add(b"a.*", None, 7u64, 2), Ok(Transition::Began));
    assert_eq!(list.add(b"a.*", None, 7, 1), Ok(Transition::Counted));
    assert_eq!(list.matches(b"a.b").plain, vec![7]);
    assert_eq!(list.sub(b"a.*", None, 7, 2), Transition::Counted);
    assert_eq!(list.sub(b"a.*", None, 7, 1), Transition::Ended);
    assert_eq!(list.sub(b"a.*", None, 7, 1), Transition::Unknown);
    assert!(!list.has_interest(b"a.b"));
    list.add(b"x.>", Some(b"q"), 1, 1).unwrap();
    list.add(b"y", None, 2, 1).unwrap();
    list.forget(&1);
    assert!(!list.has_interest(b"x.y"));
    assert!(list.has_interest(b"y"));
    assert_eq!(list.len(), 1);
}
