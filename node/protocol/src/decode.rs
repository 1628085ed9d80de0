//! Client protocol operations, parsed in place from a server's read buffer.
//!
//! [`next`] looks at the front of the buffer and either returns one operation that borrows from it, or says how many
//! bytes the buffer must hold before another look is worth it. It keeps no state, so a caller may move or grow the
//! buffer freely between calls. Nothing is checked for UTF-8 here and subjects are not validated: see
//! [`crate::subject::is_valid_literal`].

use memchr::{memchr, memchr2};

use crate::wire_error::WireError;

/// What a connection may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument part of a line, in bytes (nats-server: 4096).
    pub control_line_bytes_max: usize,
    /// Largest headers plus payload of one message, in bytes (nats-server: 1 MiB).
    pub payload_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { control_line_bytes_max: 4096, payload_bytes_max: 1024 * 1024 }
    }
}

/// A message to publish. PUB and HPUB look alike: PUB has empty headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Where to; not validated.
    pub subject: &'a [u8],
    /// Where replies and acknowledgements go; not validated.
    pub reply: Option<&'a [u8]>,
    /// The header block as sent, empty without one.
    pub headers: &'a [u8],
    /// The message body.
    pub payload: &'a [u8],
}

/// One operation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientOp<'a> {
    /// The JSON document of CONNECT.
    Connect(&'a [u8]),
    /// PING.
    Ping,
    /// PONG.
    Pong,
    /// PUB or HPUB.
    Pub(Publish<'a>),
    /// SUB.
    Sub {
        /// The filter; not validated.
        subject: &'a [u8],
        /// The queue group.
        queue: Option<&'a [u8]>,
        /// The client's name for this subscription, opaque.
        sid: &'a [u8],
    },
    /// UNSUB.
    Unsub {
        /// Which subscription.
        sid: &'a [u8],
        /// Deliveries, counted from the start of the subscription, after which it ends. `None`: at once.
        max: Option<u64>,
    },
    /// `+OK` or INFO from a client: no effect.
    Ignored,
}

/// The outcome of one look at the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Not a whole operation yet.
    Need {
        /// Bytes the buffer must hold, counted from its front, before another call can succeed. Exact when a payload
        /// is awaited, otherwise one more than now.
        total: usize,
    },
    /// A whole operation.
    Op {
        /// What was asked.
        op: ClientOp<'a>,
        /// Bytes to drop from the front of the buffer.
        consumed: usize,
    },
}

/// Room for the longest verb and the line end when a line is judged before its end has arrived.
const VERB_BYTES_MAX: usize = 10;

/// Looks for one operation at the front of `buf`.
///
/// # Errors
/// A [`WireError`] that closes the connection; the buffer is of no further use then.
pub fn next<'a>(buf: &'a [u8], limits: &Limits) -> Result<Step<'a>, WireError> {
    let Some(newline) = memchr(b'\n', buf) else {
        return incomplete_line(buf, limits);
    };
    // Before anything else: a line must not be judged by how much of it one read brought.
    if newline > limits.control_line_bytes_max + VERB_BYTES_MAX {
        return Err(WireError::ControlLineTooLong);
    }
    let line_end = newline + 1;
    let line = trim_cr(&buf[..newline]);
    // Publishes first, and matched in one step: they are nearly everything a busy connection sends.
    match line {
        [b'P' | b'p', b'U' | b'u', b'B' | b'b', b' ' | b'\t', args @ ..] => {
            check_line(args, limits)?;
            publish(buf, line_end, args, limits)
        }
        [b'H' | b'h', b'P' | b'p', b'U' | b'u', b'B' | b'b', b' ' | b'\t', args @ ..] => {
            check_line(args, limits)?;
            publish_with_headers(buf, line_end, args, limits)
        }
        _ => {
            let (verb, args) = split_verb(line);
            check_line(args, limits)?;
            Ok(Step::Op { op: control_op(verb, args, line)?, consumed: line_end })
        }
    }
}

#[inline]
fn check_line(args: &[u8], limits: &Limits) -> Result<(), WireError> {
    if args.len() > limits.control_line_bytes_max { Err(WireError::ControlLineTooLong) } else { Ok(()) }
}

fn trim_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn split_verb(line: &[u8]) -> (&[u8], &[u8]) {
    // Verbs are at most seven bytes: a short loop beats a call.
    let end = line.iter().take(VERB_BYTES_MAX).position(|b| matches!(b, b' ' | b'\t')).unwrap_or(line.len());
    line.split_at(end)
}

#[inline]
fn is_verb(have: &[u8], want: &[u8]) -> bool {
    have.len() == want.len() && have.eq_ignore_ascii_case(want)
}

/// Takes the next argument, skipping blanks before it.
#[inline]
fn take_arg<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut bytes = *rest;
    while let [b' ' | b'\t', tail @ ..] = bytes {
        bytes = tail;
    }
    if bytes.is_empty() {
        *rest = bytes;
        return None;
    }
    let end = memchr2(b' ', b'\t', bytes).unwrap_or(bytes.len());
    let (arg, tail) = bytes.split_at(end);
    *rest = tail;
    Some(arg)
}

/// A decimal of one to nine digits, as nats-server takes sizes.
#[inline]
fn parse_size(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0usize, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| value * 10 + usize::from(digit))
    })
}

#[inline]
fn publish<'a>(buf: &'a [u8], line_end: usize, args: &'a [u8], limits: &Limits) -> Result<Step<'a>, WireError> {
    let mut rest = args;
    let (subject, reply, size) = match (take_arg(&mut rest), take_arg(&mut rest), take_arg(&mut rest)) {
        (Some(subject), Some(size), None) => (subject, None, size),
        (Some(subject), Some(reply), Some(size)) if take_arg(&mut rest).is_none() => (subject, Some(reply), size),
        _ => return Err(WireError::MalformedArguments),
    };
    let size = parse_size(size).ok_or(WireError::MalformedArguments)?;
    finish_publish(buf, line_end, subject, reply, 0, size, limits)
}

#[inline]
fn publish_with_headers<'a>(
    buf: &'a [u8],
    line_end: usize,
    args: &'a [u8],
    limits: &Limits,
) -> Result<Step<'a>, WireError> {
    let mut rest = args;
    let (Some(subject), Some(second), Some(third)) = (take_arg(&mut rest), take_arg(&mut rest), take_arg(&mut rest))
    else {
        return Err(WireError::MalformedArguments);
    };
    let (reply, header_size, size) = match (take_arg(&mut rest), take_arg(&mut rest)) {
        (None, _) => (None, second, third),
        (Some(size), None) => (Some(second), third, size),
        (Some(_), Some(_)) => return Err(WireError::MalformedArguments),
    };
    let header_size = parse_size(header_size).ok_or(WireError::MalformedArguments)?;
    let size = parse_size(size).ok_or(WireError::MalformedArguments)?;
    if header_size > size {
        return Err(WireError::MalformedArguments);
    }
    finish_publish(buf, line_end, subject, reply, header_size, size, limits)
}

#[inline]
fn finish_publish<'a>(
    buf: &'a [u8],
    line_end: usize,
    subject: &'a [u8],
    reply: Option<&'a [u8]>,
    header_size: usize,
    size: usize,
    limits: &Limits,
) -> Result<Step<'a>, WireError> {
    if size > limits.payload_bytes_max {
        return Err(WireError::PayloadTooLarge);
    }
    let consumed = line_end + size + 2;
    let Some(body) = buf.get(line_end..consumed) else {
        return Ok(Step::Need { total: consumed });
    };
    let (message, terminator) = body.split_at(size);
    if terminator != b"\r\n" {
        return Err(WireError::UnknownOperation);
    }
    let (headers, payload) = message.split_at(header_size);
    Ok(Step::Op { op: ClientOp::Pub(Publish { subject, reply, headers, payload }), consumed })
}

fn control_op<'a>(verb: &'a [u8], args: &'a [u8], line: &'a [u8]) -> Result<ClientOp<'a>, WireError> {
    if is_verb(verb, b"SUB") {
        return subscribe(args);
    }
    if is_verb(verb, b"UNSUB") {
        return unsubscribe(args);
    }
    // Like nats-server, whatever follows these two on the line is skipped.
    if starts_with_verb(line, b"PING") {
        return Ok(ClientOp::Ping);
    }
    if starts_with_verb(line, b"PONG") {
        return Ok(ClientOp::Pong);
    }
    if is_verb(verb, b"CONNECT") {
        let json = args.trim_ascii();
        return if json.is_empty() { Err(WireError::MalformedArguments) } else { Ok(ClientOp::Connect(json)) };
    }
    if starts_with_verb(line, b"+OK") {
        return Ok(ClientOp::Ignored);
    }
    if is_verb(verb, b"INFO") {
        return if args.is_empty() { Err(WireError::MalformedArguments) } else { Ok(ClientOp::Ignored) };
    }
    Err(if is_verb(verb, b"-ERR") { WireError::ClientError } else { WireError::UnknownOperation })
}

fn starts_with_verb(line: &[u8], verb: &[u8]) -> bool {
    line.get(..verb.len()).is_some_and(|start| start.eq_ignore_ascii_case(verb))
}

fn subscribe(args: &[u8]) -> Result<ClientOp<'_>, WireError> {
    if args.is_empty() {
        return Err(WireError::UnknownOperation);
    }
    let mut rest = args;
    match (take_arg(&mut rest), take_arg(&mut rest), take_arg(&mut rest), take_arg(&mut rest)) {
        (Some(subject), Some(sid), None, _) => Ok(ClientOp::Sub { subject, queue: None, sid }),
        (Some(subject), Some(queue), Some(sid), None) => Ok(ClientOp::Sub { subject, queue: Some(queue), sid }),
        _ => Err(WireError::MalformedArguments),
    }
}

fn unsubscribe(args: &[u8]) -> Result<ClientOp<'_>, WireError> {
    if args.is_empty() {
        return Err(WireError::UnknownOperation);
    }
    let mut rest = args;
    match (take_arg(&mut rest), take_arg(&mut rest), take_arg(&mut rest)) {
        // An unreadable or zero maximum means "now", as in nats-server.
        (Some(sid), max, None) => {
            let max = max.and_then(parse_size).filter(|max| *max > 0).map(|max| max as u64);
            Ok(ClientOp::Unsub { sid, max })
        }
        _ => Err(WireError::MalformedArguments),
    }
}

/// Refuses early what no further byte can mend, so that a peer that speaks something else is not waited for.
#[cold]
fn incomplete_line<'a>(buf: &'a [u8], limits: &Limits) -> Result<Step<'a>, WireError> {
    const VERBS: [&[u8]; 10] =
        [b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"PONG", b"CONNECT", b"+OK", b"-ERR", b"INFO"];
    let plausible = VERBS.iter().any(|verb| {
        let shared = verb.len().min(buf.len());
        starts_with_verb(buf, &verb[..shared])
    });
    if !plausible {
        return Err(WireError::UnknownOperation);
    }
    if buf.len() > limits.control_line_bytes_max + VERB_BYTES_MAX {
        return Err(WireError::ControlLineTooLong);
    }
    Ok(Step::Need { total: buf.len() + 1 })
}

#[cfg(test)]
mod tests;
