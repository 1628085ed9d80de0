//! What a server writes. Every function appends to the connection's output buffer and allocates nothing of its own.

use bytes::BufMut;

use crate::info::Info;
use crate::wire_error::WireError;

/// Appends a decimal.
#[inline]
pub fn number(out: &mut impl BufMut, value: u64) {
    out.put_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// `INFO {json}`.
pub fn info(out: &mut impl BufMut, info: &Info) {
    out.put_slice(b"INFO ");
    out.put_slice(crate::json::to_string(info).as_bytes());
    out.put_slice(b"\r\n");
}

/// `PING`.
pub fn ping(out: &mut impl BufMut) {
    out.put_slice(b"PING\r\n");
}

/// `PONG`.
pub fn pong(out: &mut impl BufMut) {
    out.put_slice(b"PONG\r\n");
}

/// `+OK`, for verbose clients only.
pub fn ok(out: &mut impl BufMut) {
    out.put_slice(b"+OK\r\n");
}

/// `-ERR '<text>'`; nothing when the error has no text.
pub fn err(out: &mut impl BufMut, error: &WireError) {
    if let Some(text) = error.text() {
        out.put_slice(b"-ERR '");
        out.put_slice(text.as_bytes());
        out.put_slice(b"'\r\n");
    }
}

/// The address part of a delivery: subject, subscription, reply.
#[derive(Debug, Clone, Copy)]
pub struct Address<'a> {
    /// The subject the message was published to.
    pub subject: &'a [u8],
    /// The subscriber's name for its subscription.
    pub sid: &'a [u8],
    /// Where the subscriber may answer.
    pub reply: Option<&'a [u8]>,
}

impl Address<'_> {
    #[inline]
    fn put(&self, out: &mut impl BufMut) {
        out.put_slice(self.subject);
        out.put_u8(b' ');
        out.put_slice(self.sid);
        out.put_u8(b' ');
        if let Some(reply) = self.reply {
            out.put_slice(reply);
            out.put_u8(b' ');
        }
    }
}

/// `MSG` with its payload.
#[inline]
pub fn msg(out: &mut impl BufMut, to: Address<'_>, payload: &[u8]) {
    msg_line(out, to, payload.len());
    out.put_slice(payload);
    out.put_slice(b"\r\n");
}

/// The `MSG` line alone: the caller sends `payload_len` bytes and CRLF after it.
#[inline]
pub fn msg_line(out: &mut impl BufMut, to: Address<'_>, payload_len: usize) {
    out.put_slice(b"MSG ");
    to.put(out);
    number(out, payload_len as u64);
    out.put_slice(b"\r\n");
}

/// `HMSG` with its header block and payload.
#[inline]
pub fn hmsg(out: &mut impl BufMut, to: Address<'_>, headers: &[u8], payload: &[u8]) {
    hmsg_line(out, to, headers.len(), headers.len() + payload.len());
    out.put_slice(headers);
    out.put_slice(payload);
    out.put_slice(b"\r\n");
}

/// The `HMSG` line alone: the caller sends `total_len` bytes (headers first) and CRLF after it.
#[inline]
pub fn hmsg_line(out: &mut impl BufMut, to: Address<'_>, headers_len: usize, total_len: usize) {
    out.put_slice(b"HMSG ");
    to.put(out);
    number(out, headers_len as u64);
    out.put_u8(b' ');
    number(out, total_len as u64);
    out.put_slice(b"\r\n");
}

/// A message as this client can take it: `MSG` without headers or when it did not ask for header support.
#[inline]
pub fn deliver(out: &mut impl BufMut, to: Address<'_>, headers: &[u8], payload: &[u8], headers_supported: bool) {
    if headers.is_empty() || !headers_supported {
        msg(out, to, payload);
    } else {
        hmsg(out, to, headers, payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Address<'static> = Address { subject: b"a.b", sid: b"7", reply: None };
    const TO_WITH_REPLY: Address<'static> = Address { reply: Some(b"_R"), ..TO };

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn deliveries() {
        assert_eq!(written(|o| msg(o, TO, b"hi")), "MSG a.b 7 2\r\nhi\r\n");
        assert_eq!(written(|o| msg(o, TO_WITH_REPLY, b"")), "MSG a.b 7 _R 0\r\n\r\n");
        let headers = b"NATS/1.0\r\n\r\n";
        assert_eq!(
            written(|o| hmsg(o, TO_WITH_REPLY, headers, b"hi")),
            "HMSG a.b 7 _R 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        );
        assert_eq!(written(|o| deliver(o, TO, headers, b"hi", false)), "MSG a.b 7 2\r\nhi\r\n");
        assert_eq!(written(|o| deliver(o, TO, b"", b"hi", true)), "MSG a.b 7 2\r\nhi\r\n");
    }

    #[test]
    fn control_lines() {
        assert_eq!(written(|o| err(o, &WireError::StaleConnection)), "-ERR 'Stale Connection'\r\n");
        assert_eq!(written(|o| err(o, &WireError::MalformedArguments)), "");
        assert_eq!(written(|o| (ping(o), pong(o), ok(o)).0), "PING\r\nPONG\r\n+OK\r\n");
        assert_eq!(written(|o| number(o, u64::MAX)), "18446744073709551615");
    }
}
