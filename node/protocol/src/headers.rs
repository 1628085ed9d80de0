//! `NATS/1.0` header blocks: a version line, `Name: value` lines, an empty line.
//!
//! Names compare byte for byte (nats-server does not fold case here, nor does it take blanks off), the first of several
//! equal names wins, and a value starts after the blanks that follow the colon and runs to the line end, trailing blanks
//! included. Only CR LF ends a line: a bare LF is a byte like others.

use memchr::{memchr, memchr_iter};

/// The version line of every block.
pub const VERSION_LINE: &[u8] = b"NATS/1.0\r\n";

/// Header names that the server writes or reads; those of a publish and of
/// a pull request's end are in the core crate.
pub mod name {
    macro_rules! names {
        ($($(#[$doc:meta])* $id:ident = $text:literal;)*) => { $($(#[$doc])* pub const $id: &str = $text;)* };
    }

    names! {
        /// Lowest API level that understands this request.
        REQUIRED_API_LEVEL = "Nats-Required-Api-Level";
        /// Stream of a directly read message.
        STREAM = "Nats-Stream";
        /// Original subject.
        SUBJECT = "Nats-Subject";
        /// Stream sequence.
        SEQUENCE = "Nats-Sequence";
        /// Store time, RFC 3339 with nanoseconds.
        TIME_STAMP = "Nats-Time-Stamp";
        /// Sequence before this one in a batch of direct reads.
        LAST_SEQUENCE = "Nats-Last-Sequence";
        /// Messages still to come.
        NUM_PENDING = "Nats-Num-Pending";
        /// The point in time of a multi-subject read.
        UP_TO_SEQUENCE = "Nats-UpTo-Sequence";
        /// Body size when only headers are delivered.
        MSG_SIZE = "Nats-Msg-Size";
    }
}

/// A borrowed header block. Any bytes may be wrapped; malformed lines are passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderBlock<'a>(pub &'a [u8]);

impl<'a> HeaderBlock<'a> {
    /// Name and value of each line, in order. Lines without a colon are skipped.
    pub fn iter(self) -> Headers<'a> {
        let rest = line_end(self.0).and_then(|at| self.0.get(at + 2..)).unwrap_or_default();
        Headers { rest }
    }

    /// The first value of `name`.
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        self.iter().find(|(have, _)| *have == name.as_bytes()).map(|(_, value)| value)
    }

    /// Whether the block has the version line and ends with an empty line.
    pub fn is_well_formed(self) -> bool {
        self.0.starts_with(b"NATS/1.0") && self.0.ends_with(b"\r\n\r\n")
    }

    /// Code and text of a status block such as `NATS/1.0 503`.
    pub fn status(self) -> Option<(u16, &'a str)> {
        let line = self.0.strip_prefix(b"NATS/1.0 ")?;
        let end = memchr(b'\r', line)?;
        let text = std::str::from_utf8(line.get(..end)?).ok()?;
        let (code, description) = text.split_once(' ').unwrap_or((text, ""));
        Some((code.parse().ok()?, description.trim()))
    }
}

/// Iterator over the lines of a block.
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(end) = line_end(self.rest) {
            let (line, rest) = self.rest.split_at(end);
            self.rest = rest.get(2..).unwrap_or_default();
            if let Some(colon) = memchr(b':', line) {
                let (name, value) = line.split_at(colon);
                return Some((name, trim_start(value.get(1..).unwrap_or_default())));
            }
        }
        None
    }
}

/// Where the first line's CR LF is.
fn line_end(bytes: &[u8]) -> Option<usize> {
    memchr_iter(b'\n', bytes).filter_map(|at| at.checked_sub(1)).find(|at| bytes.get(*at) == Some(&b'\r'))
}

fn trim_start(value: &[u8]) -> &[u8] {
    let blanks = value.iter().take_while(|byte| **byte == b' ').count();
    value.get(blanks..).unwrap_or_default()
}

/// Builds or edits a block.
#[derive(Debug, Clone)]
pub struct HeaderBuilder {
    /// Version line and header lines, without the final empty line.
    bytes: Vec<u8>,
}

impl Default for HeaderBuilder {
    fn default() -> Self {
        Self { bytes: VERSION_LINE.to_vec() }
    }
}

impl HeaderBuilder {
    /// An empty block.
    pub fn new() -> Self {
        Self::default()
    }

    /// A block that starts with a status line; `description` may be empty.
    pub fn status(code: u16, description: &str) -> Self {
        let mut bytes = b"NATS/1.0 ".to_vec();
        crate::encode::number(&mut bytes, u64::from(code));
        if !description.is_empty() {
            bytes.push(b' ');
            bytes.extend_from_slice(description.as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        Self { bytes }
    }

    /// Starts from an existing block, whose lines are kept as they are; a status line is dropped.
    pub fn from_block(block: &[u8]) -> Self {
        let mut bytes = VERSION_LINE.to_vec();
        let lines = line_end(block).and_then(|at| block.get(at + 2..)).unwrap_or_default();
        let lines = lines.strip_suffix(b"\r\n").unwrap_or(lines);
        bytes.extend_from_slice(lines);
        if !bytes.ends_with(b"\r\n") {
            bytes.extend_from_slice(b"\r\n");
        }
        Self { bytes }
    }

    /// Appends a line. Line breaks in `value` become blanks, so that a value cannot forge a header.
    pub fn add(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        let value = value.as_ref().iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte });
        self.bytes.extend(value);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }

    /// Appends a line with a decimal value.
    pub fn add_number(&mut self, name: &str, value: u64) -> &mut Self {
        self.add(name, itoa::Buffer::new().format(value))
    }

    /// Removes every line named `name`.
    pub fn remove(&mut self, name: &str) -> &mut Self {
        let mut kept = Vec::with_capacity(self.bytes.len());
        let mut rest = self.bytes.as_slice();
        // A line ends with CR LF, as it does for whoever reads the block: a lone LF is part of a value.
        while let Some(end) = line_end(rest) {
            let (line, after) = rest.split_at(end + 2);
            let named = line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b":"));
            if kept.is_empty() || !named {
                kept.extend_from_slice(line);
            }
            rest = after;
        }
        self.bytes = kept;
        self
    }

    /// Replaces every line named `name` by one.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        self.remove(name).add(name, value)
    }

    /// The finished block, with its empty line.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: &[u8] = b"NATS/1.0\r\nFoo: bar\r\nNats-Msg-Id:x y \r\nno colon\r\nFoo: second\r\nempty:\r\n\r\n";

    #[test]
    fn names_are_exact_and_the_first_wins() {
        let block = HeaderBlock(BLOCK);
        assert_eq!(block.get("Foo"), Some(&b"bar"[..]));
        assert_eq!(block.get("foo"), None);
        assert_eq!(block.get("Nats-Msg-Id"), Some(&b"x y "[..]));
        assert_eq!(block.get("empty"), Some(&b""[..]));
        assert_eq!(block.iter().count(), 4);
        assert!(block.is_well_formed());
        assert_eq!(HeaderBlock(b"").iter().count(), 0);
        let odd = HeaderBlock(b"NATS/1.0\r\nA : 1\r\n B: 2\r\nC:  \t3 \r\nD: x\nE: 5\r\n\r\n");
        assert_eq!((odd.get("A"), odd.get("B"), odd.get("E")), (None, None, None));
        assert_eq!((odd.get("C"), odd.get("D")), (Some(&b"\t3 "[..]), Some(&b"x\nE: 5"[..])));
    }

    #[test]
    fn builder_edits() {
        let mut builder = HeaderBuilder::from_block(BLOCK);
        builder.remove("Foo").set("empty", "no more").add_number("N", 7);
        let block = builder.finish();
        assert_eq!(
            std::str::from_utf8(&block).unwrap(),
            "NATS/1.0\r\nNats-Msg-Id:x y \r\nno colon\r\nempty: no more\r\nN: 7\r\n\r\n"
        );
    }

    #[test]
    fn values_cannot_forge_headers() {
        let mut builder = HeaderBuilder::new();
        builder.add("A", "b\r\nEvil: 1");
        assert_eq!(HeaderBlock(&builder.finish()).iter().count(), 1);
    }

    /// Found by fuzzing: reading and editing must agree on where a line ends.
    #[test]
    fn a_lone_line_feed_is_part_of_a_value_to_whoever_edits_the_block_too() {
        let block: &[u8] = b"NATS/1.0 404\nA: 1\r\nB: 2\nEvil: 3\r\n\r\n";
        let lines = |block: &[u8]| HeaderBlock(block).iter().map(|(name, _)| name.to_vec()).collect::<Vec<_>>();
        assert_eq!(lines(block), [b"B"]);
        let kept = HeaderBuilder::from_block(block).finish();
        assert_eq!(lines(&kept), [b"B"]);
        let mut builder = HeaderBuilder::from_block(block);
        assert_eq!(builder.remove("Evil").clone().finish(), kept);
        assert_eq!(builder.remove("B").clone().finish(), b"NATS/1.0\r\n\r\n");
    }

    #[test]
    fn status_lines() {
        let block = HeaderBuilder::status(409, "Consumer Deleted").finish();
        assert_eq!(block, b"NATS/1.0 409 Consumer Deleted\r\n\r\n");
        assert_eq!(HeaderBlock(&block).status(), Some((409, "Consumer Deleted")));
        assert_eq!(HeaderBlock(&HeaderBuilder::status(503, "").finish()).status(), Some((503, "")));
        assert_eq!(HeaderBlock(BLOCK).status(), None);
        assert_eq!(HeaderBuilder::from_block(b"NATS/1.0 503\r\nA: b\r\n\r\n").finish(), b"NATS/1.0\r\nA: b\r\n\r\n");
        assert_eq!(HeaderBuilder::from_block(b"").finish(), b"NATS/1.0\r\n\r\n");
    }

    proptest! {
        #[test]
        fn any_bytes_are_readable(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let block = HeaderBlock(&bytes);
            prop_assert!(block.iter().count() <= bytes.len());
            let _ = block.status();
            prop_assert!(HeaderBlock(&HeaderBuilder::from_block(&bytes).finish()).is_well_formed());
        }

        #[test]
        fn what_is_added_is_found(name in "[A-Za-z-]{1,12}", value in "[a-z0-9][ -9;-~]{0,20}") {
            let mut builder = HeaderBuilder::new();
            builder.add("Other", "1").add(&format!("X{name}"), &value);
            let block = builder.finish();
            prop_assert_eq!(HeaderBlock(&block).get(&format!("X{name}")), Some(value.as_bytes()));
        }
    }
}
