//! Status messages: an empty body whose header block starts with a code and a text.
//!
//! SDKs compare the texts, so they are fixed here once.

use std::borrow::Cow;

use crate::headers::HeaderBuilder;

/// A status line, `NATS/1.0 <code> <text>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The number, as in HTTP.
    pub code: u16,
    /// The text, possibly empty.
    pub text: Cow<'static, str>,
}

impl Status {
    /// A status with a fixed text.
    pub const fn new(code: u16, text: &'static str) -> Self {
        Self { code, text: Cow::Borrowed(text) }
    }

    /// The header block, without further headers.
    pub fn block(&self) -> Vec<u8> {
        self.builder().finish()
    }

    /// The header block, to be extended.
    pub fn builder(&self) -> HeaderBuilder {
        HeaderBuilder::status(self.code, &self.text)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

/// Nobody is subscribed to the subject of a request.
pub const NO_RESPONDERS: Status = Status::new(503, "");

/// The block that tells a requester that nobody listens on `subject`.
pub fn no_responders(subject: &[u8]) -> Vec<u8> {
    let mut builder = NO_RESPONDERS.builder();
    builder.add(crate::headers::name::SUBJECT, subject);
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_responders_names_the_subject() {
        assert_eq!(no_responders(b"nosuch"), b"NATS/1.0 503\r\nNats-Subject: nosuch\r\n\r\n");
    }
}
