//! Matching a literal subject against a filter with wildcards.

/// Whether `filter` (tokens, `*` for one, a final `>` for one or more) covers the literal `subject`.
pub fn matches(filter: &[u8], subject: &[u8]) -> bool {
    let (mut filter, mut subject) = (filter, subject);
    loop {
        let (token, filter_rest) = split(filter);
        if token == b">" && filter_rest.is_none() {
            return !subject.is_empty();
        }
        let (word, subject_rest) = split(subject);
        if token != b"*" && token != word {
            return false;
        }
        if token == b"*" && word.is_empty() {
            return false;
        }
        match (filter_rest, subject_rest) {
            (None, None) => return true,
            (Some(f), Some(s)) => (filter, subject) = (f, s),
            _ => return false,
        }
    }
}

fn split(subject: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'.', subject) {
        Some(dot) => (&subject[..dot], Some(&subject[dot + 1..])),
        None => (subject, None),
    }
}

/// Whether a filter names exactly one subject.
pub fn is_literal(filter: &[u8]) -> bool {
    !filter.split(|&b| b == b'.').any(|token| token == b"*" || token == b">")
}

/// Whether a filter covers every subject.
pub fn is_everything(filter: &[u8]) -> bool {
    filter.is_empty() || filter == b">"
}

#[cfg(test)]
mod tests {
    use super::{is_literal, matches};

    #[test]
    fn wildcards_cover_what_they_should() {
        for (filter, subject, expected) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "a.b", false),
            ("a.*", "a.b", true),
            ("a.*", "a", false),
            ("a.*", "a.b.c", false),
            ("*.b", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("*", "a", true),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b.d", false),
            ("a.*.>", "a.b.c.d", true),
            ("a.b*", "a.b*", true),
            ("a.b*", "a.bc", false),
        ] {
            assert_eq!(matches(filter.as_bytes(), subject.as_bytes()), expected, "{filter} against {subject}");
        }
    }

    #[test]
    fn a_star_inside_a_token_is_literal() {
        assert!(is_literal(b"a.b*"));
        assert!(!is_literal(b"a.*"));
        assert!(!is_literal(b"a.>"));
    }
}
