//! Decodes messages as servers give them, so that every way of reading gives the same [`Stored`].

use async_nats::{HeaderMap, Message};

use crate::checks::Stored;
use crate::digest::Digest;
use crate::reader::{ReadError, error};
use crate::time::parse_rfc3339;

/// The headers a direct get adds, which are not part of the message.
const ADDED: [&str; 6] =
    ["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence"];

pub(crate) fn direct_message(message: &Message) -> Result<Stored, ReadError> {
    let headers = message.headers.as_ref().ok_or_else(|| error("a direct get without headers"))?;
    let text = |name| {
        headers.get(name).map(|value| value.as_str()).ok_or_else(|| error(format!("a direct get without {name}")))
    };
    let seq = text("Nats-Sequence")?.parse().map_err(error)?;
    let time = text("Nats-Time-Stamp")?;
    let time = parse_rfc3339(time).ok_or_else(|| error(format!("sequence {seq}: bad time {time:?}")))?;
    let own = header_list(headers).into_iter().filter(|(name, _)| !ADDED.contains(&name.as_str())).collect();
    Ok(build(seq, text("Nats-Subject")?, own, time, &message.payload))
}

/// A consumer's delivery: the message, how often it was delivered, its consumer sequence, and how many are pending.
pub(crate) fn delivery(message: &Message) -> Result<(Stored, u64, u64, u64), ReadError> {
    let reply = message.reply.as_deref().ok_or_else(|| error("a delivery without reply subject"))?;
    let bad = || error(format!("not an acknowledgement subject: {reply}"));
    let tokens: Vec<&str> = reply.split('.').collect();
    // `$JS.ACK.<stream>.<consumer>.<5 numbers>`, or with domain and account before the stream (and maybe a token behind).
    let numbers = match tokens.len() {
        9 => &tokens[4..9],
        11.. => &tokens[6..11],
        _ => return Err(bad()),
    };
    let mut parsed = [0_u64; 5];
    for (slot, token) in parsed.iter_mut().zip(numbers) {
        *slot = token.parse().map_err(|_| bad())?;
    }
    let [delivered, seq, cseq, time, pending] = parsed;
    let headers = message.headers.as_ref().map(header_list).unwrap_or_default();
    Ok((build(seq, &message.subject, headers, time, &message.payload), delivered, cseq, pending))
}

pub(crate) fn number_header(message: &Message, name: &str) -> Option<u64> {
    message.headers.as_ref()?.get(name)?.as_str().parse().ok()
}

fn header_list(headers: &HeaderMap) -> Vec<(String, String)> {
    let pairs = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(move |value| (name.to_owned(), value.as_str().to_owned()))
    });
    pairs.collect()
}

/// A header block, `NATS/1.0` line first.
pub(crate) fn parse_headers(block: &[u8]) -> Result<Vec<(String, String)>, ReadError> {
    if block.is_empty() {
        return Ok(Vec::new());
    }
    let text = std::str::from_utf8(block).map_err(error)?;
    let body = text
        .strip_prefix("NATS/1.0")
        .and_then(|rest| rest.split_once("\r\n"))
        .ok_or_else(|| error("a header block without version line"))?
        .1;
    let lines = body.split("\r\n").filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_once(':').ok_or_else(|| error(format!("not a header: {line:?}")))?;
            Ok((name.to_owned(), value.trim().to_owned()))
        })
        .collect()
}

pub(crate) fn build(seq: u64, subject: &str, mut headers: Vec<(String, String)>, time: u64, payload: &[u8]) -> Stored {
    headers.sort_unstable();
    let msg_id = headers.iter().find(|(name, _)| name == "Nats-Msg-Id").map(|(_, value)| value.clone());
    let flat = headers.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    let time = time.to_le_bytes();
    let payload_digest = Digest::of(payload);
    let whole = Digest::of_parts([subject.as_bytes(), time.as_slice(), payload].into_iter().chain(flat));
    Stored { seq, subject: subject.to_owned(), msg_id, payload: payload_digest, whole, len: payload.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_blocks() {
        assert_eq!(parse_headers(b""), Ok(vec![]));
        let block = b"NATS/1.0\r\nNats-Msg-Id: a:b\r\nX:1\r\n\r\n";
        assert_eq!(parse_headers(block), Ok(vec![("Nats-Msg-Id".into(), "a:b".into()), ("X".into(), "1".into())]));
        assert!(parse_headers(b"X: 1\r\n\r\n").is_err());
        assert!(parse_headers(b"NATS/1.0\r\nnonsense\r\n\r\n").is_err());
    }

    #[test]
    fn the_whole_covers_every_part_and_no_order_of_headers() {
        let headers = |a: &str, b: &str| vec![(a.to_owned(), "1".to_owned()), (b.to_owned(), "1".to_owned())];
        let base = build(1, "s", headers("A", "B"), 5, b"x").whole;
        assert_eq!(base, build(1, "s", headers("B", "A"), 5, b"x").whole);
        for other in [
            build(1, "t", headers("A", "B"), 5, b"x"),
            build(1, "s", headers("A", "C"), 5, b"x"),
            build(1, "s", headers("A", "B"), 6, b"x"),
            build(1, "s", headers("A", "B"), 5, b"y"),
        ] {
            assert_ne!(base, other.whole);
        }
    }
}
