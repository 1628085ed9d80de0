//! The grammar of subjects and subject filters.
//!
//! A subject is a list of non-empty tokens joined by `.`. In a filter the token `*` stands for exactly one
//! token and a final `>` for one or more.

use thiserror::Error;

/// Why a text is not a subject filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Error)]
pub enum InvalidFilter {
    /// The text is empty, or has two dots in a row, or a dot at an end.
    #[error("subject has an empty token")]
    EmptyToken,
    /// `>` stands somewhere else than at the end.
    #[error("'>' may only be the last token")]
    MisplacedFullWildcard,
    /// A space, tab, carriage return or line feed.
    #[error("subject contains white space")]
    WhiteSpace,
}

/// Checks that `filter` is a subject or a subject filter.
pub fn check_filter(filter: &[u8]) -> Result<(), InvalidFilter> {
    let mut tokens = tokens(filter).peekable();
    while let Some(token) = tokens.next() {
        if token.is_empty() {
            return Err(InvalidFilter::EmptyToken);
        }
        if token == b">" && tokens.peek().is_some() {
            return Err(InvalidFilter::MisplacedFullWildcard);
        }
        if token.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0c)) {
            return Err(InvalidFilter::WhiteSpace);
        }
    }
    Ok(())
}

/// Whether `filter` has no wildcard token, so that it names exactly one subject.
pub fn is_literal(filter: &[u8]) -> bool {
    // Most subjects have neither byte, so the token walk is the rare path.
    if memchr::memchr2(b'*', b'>', filter).is_none() {
        return true;
    }
    tokens(filter).all(|token| token != b"*" && token != b">")
}

/// The tokens of a subject or filter, in order; an empty text has one empty token.
pub fn tokens(subject: &[u8]) -> impl Iterator<Item = &[u8]> {
    subject.split(|byte| *byte == b'.')
}

/// Whether `subject` (without wildcards) is one of those that `filter` names.
pub fn filter_matches(filter: &[u8], subject: &[u8]) -> bool {
    if filter == b">" {
        return true;
    }
    let mut wanted = tokens(filter);
    let mut given = tokens(subject);
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(b">"), Some(_)) => return true,
            (Some(b"*"), Some(_)) => {}
            (Some(want), Some(have)) if want == have => {}
            _ => return false,
        }
    }
}

/// Whether some subject is named by both filters.
pub fn filters_overlap(left: &[u8], right: &[u8]) -> bool {
    let mut left = tokens(left);
    let mut right = tokens(right);
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(b">"), Some(_)) | (Some(_), Some(b">")) => return true,
            (Some(a), Some(b)) if a == b || a == b"*" || b == b"*" => {}
            _ => return false,
        }
    }
}

/// Whether every subject that `inner` names is also named by `outer`.
pub fn filter_covers(outer: &[u8], inner: &[u8]) -> bool {
    let mut outer = tokens(outer);
    let mut inner = tokens(inner);
    loop {
        match (outer.next(), inner.next()) {
            (None, None) => return true,
            (Some(b">"), Some(_)) => return true,
            (_, Some(b">")) => return false,
            (Some(b"*"), Some(_)) => {}
            (Some(a), Some(b)) if a == b && b != b"*" => {}
            _ => return false,
        }
    }
}
