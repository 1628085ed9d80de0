//! What brokers tell each other: interest, and routed messages.
//!
//! ```text
//! interest:  entries of  | op u8 (1 begin, 0 end) | queue len u16 (0xffff: none) | filter len u16 | queue | filter |
//! routed:    | flags u8 (1: plain subscribers) | queue count u8 | to len u16 | subject len u16 (0xffff: same as to) |
//!            | reply len u16 (0xffff: none) | headers len u32 | queues: len u16 + name … |
//!            | to | subject | reply | headers | payload |
//! ```
//!
//! Numbers are little endian. A routed message reaches every plain subscriber of `to` on the receiving node if the
//! flag is set, and one member there of each queue group named.

use bytes::Bytes;

use super::Inbound;

/// Begins the full interest of the sender: what was known of it is forgotten. Entries follow, here and in deltas.
pub(super) const KIND_SYNC: u8 = 0x10;
/// Changes of the sender's interest.
pub(super) const KIND_DELTA: u8 = 0x11;
/// A message for subscribers of the receiving node.
pub(super) const KIND_ROUTED: u8 = 0x12;
/// The sender does not know the receiver's interest and asks for a sync.
pub(super) const KIND_ASK_SYNC: u8 = 0x13;

const NONE: u16 = u16::MAX;
const PLAIN: u8 = 1;

/// A filter, and the queue group it is subscribed in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct InterestKey {
    pub(super) filter: Box<[u8]>,
    pub(super) queue: Option<Box<[u8]>>,
}

impl InterestKey {
    pub(super) fn new(filter: &[u8], queue: Option<&[u8]>) -> InterestKey {
        InterestKey { filter: filter.into(), queue: queue.map(Into::into) }
    }
}

/// A routed message as received.
#[derive(Debug)]
pub(super) struct Routed<'a> {
    pub(super) to: &'a [u8],
    pub(super) plain: bool,
    queues: &'a [u8],
    pub(super) msg: Inbound<'a>,
}

impl Routed<'_> {
    pub(super) fn names_queue(&self, name: &[u8]) -> bool {
        let mut rest = self.queues;
        while let Some(len) = take_u16(&mut rest) {
            match take(&mut rest, usize::from(len)) {
                Some(queue) if queue == name => return true,
                Some(_) => {}
                None => return false,
            }
        }
        false
    }
}

impl<'a> Routed<'a> {
    /// The names of the queue groups.
    pub(super) fn queues(&self) -> Vec<&'a [u8]> {
        let mut rest = self.queues;
        std::iter::from_fn(|| take_u16(&mut rest).and_then(|len| take(&mut rest, usize::from(len)))).collect()
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    let (taken, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u16::from_le_bytes(*taken))
}

fn put_len(out: &mut Vec<u8>, len: Option<usize>) {
    let len = len.map_or(NONE, |len| u16::try_from(len).unwrap_or(NONE));
    out.extend_from_slice(&len.to_le_bytes());
}

/// Appends one change. Filters and queue names come from control lines, so their lengths fit.
pub(super) fn put_interest(out: &mut Vec<u8>, begins: bool, filter: &[u8], queue: Option<&[u8]>) {
    out.push(u8::from(begins));
    put_len(out, queue.map(<[u8]>::len));
    put_len(out, Some(filter.len()));
    out.extend_from_slice(queue.unwrap_or_default());
    out.extend_from_slice(filter);
}

/// Calls `each` for every change; false when the bytes are not a list of changes.
pub(super) fn each_interest(mut body: &[u8], mut each: impl FnMut(bool, &[u8], Option<&[u8]>)) -> bool {
    while let Some((op, mut rest)) = body.split_first() {
        let begins = match op {
            0 => false,
            1 => true,
            _ => return false,
        };
        let (Some(queue_len), Some(filter_len)) = (take_u16(&mut rest), take_u16(&mut rest)) else { return false };
        let queue_bytes = if queue_len == NONE { 0 } else { usize::from(queue_len) };
        let (Some(queue), Some(filter)) = (take(&mut rest, queue_bytes), take(&mut rest, usize::from(filter_len)))
        else {
            return false;
        };
        each(begins, filter, (queue_len != NONE).then_some(queue));
        body = rest;
    }
    true
}

/// The parts of a routed message: what differs by receiver, and what does not.
pub(super) fn routed_head(to: &[u8], plain: bool, queues: &[&[u8]], msg: &Inbound<'_>) -> Bytes {
    let reply = msg.reply.unwrap_or_default();
    let queues_bytes: usize = queues.iter().map(|queue| queue.len() + 2).sum();
    let mut out = Vec::with_capacity(12 + queues_bytes + to.len() + msg.subject.len() + reply.len());
    out.push(if plain { PLAIN } else { 0 });
    out.push(u8::try_from(queues.len()).unwrap_or(u8::MAX));
    let subject = (msg.subject != to).then_some(msg.subject);
    put_len(&mut out, Some(to.len()));
    put_len(&mut out, subject.map(<[u8]>::len));
    put_len(&mut out, msg.reply.map(<[u8]>::len));
    out.extend_from_slice(&u32::try_from(msg.headers.len()).unwrap_or(u32::MAX).to_le_bytes());
    for queue in queues.iter().take(usize::from(u8::MAX)) {
        put_len(&mut out, Some(queue.len()));
        out.extend_from_slice(queue);
    }
    out.extend_from_slice(to);
    out.extend_from_slice(subject.unwrap_or_default());
    out.extend_from_slice(reply);
    Bytes::from(out)
}

/// Headers and payload as one part.
pub(super) fn routed_body(msg: &Inbound<'_>) -> Bytes {
    let mut out = Vec::with_capacity(msg.headers.len() + msg.payload.len());
    out.extend_from_slice(msg.headers);
    out.extend_from_slice(msg.payload);
    Bytes::from(out)
}

/// Reads a routed message; `None` when the bytes are not one.
pub(super) fn read_routed(body: &[u8]) -> Option<Routed<'_>> {
    let (&[flags, queue_count], mut rest) = body.split_first_chunk()?;
    let to_len = take_u16(&mut rest)?;
    let subject_len = take_u16(&mut rest)?;
    let reply_len = take_u16(&mut rest)?;
    let (headers_len, mut rest) = rest.split_first_chunk()?;
    let headers_len = usize::try_from(u32::from_le_bytes(*headers_len)).ok()?;
    let before = rest;
    for _ in 0..queue_count {
        let len = take_u16(&mut rest)?;
        take(&mut rest, usize::from(len))?;
    }
    let queues = &before[..before.len() - rest.len()];
    let to = take(&mut rest, usize::from(to_len))?;
    let mut optional = |len: u16| if len == NONE { Some(None) } else { take(&mut rest, usize::from(len)).map(Some) };
    let subject = optional(subject_len)?.unwrap_or(to);
    let reply = optional(reply_len)?;
    let headers = take(&mut rest, headers_len)?;
    let msg = Inbound { subject, reply, headers, payload: rest };
    Some(Routed { to, plain: flags & PLAIN != 0, queues, msg })
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    #[test]
    fn routed_messages_read_back() {
        for (subject, reply, queues) in [
            (&b"a.b"[..], None, vec![]),
            (b"other", Some(&b"_R.1"[..]), vec![&b"q1"[..], b""]),
            (b"", Some(b""), vec![b"long queue name"]),
        ] {
            let msg = Inbound { subject, reply, headers: b"NATS/1.0\r\n\r\n", payload: b"body" };
            let mut wire = routed_head(b"a.b", true, &queues, &msg).to_vec();
            wire.extend_from_slice(&routed_body(&msg));
            let back = read_routed(&wire).unwrap();
            assert_eq!((back.to, back.plain), (&b"a.b"[..], true));
            assert_eq!((back.msg.subject, back.msg.reply), (subject, reply));
            assert_eq!((back.msg.headers, back.msg.payload), (msg.headers, msg.payload));
            assert!(queues.iter().all(|queue| back.names_queue(queue)));
            assert!(!back.names_queue(b"q9"));
        }
    }

    #[test]
    fn interest_reads_back() {
        let mut wire = Vec::new();
        put_interest(&mut wire, true, b"a.>", None);
        put_interest(&mut wire, false, b"b", Some(b"q"));
        let mut seen = Vec::new();
        let whole = each_interest(&wire, |begins, filter, queue| {
            seen.push((begins, filter.to_vec(), queue.map(<[u8]>::to_vec)));
        });
        assert!(whole);
        assert_eq!(seen, [(true, b"a.>".to_vec(), None), (false, b"b".to_vec(), Some(b"q".to_vec()))]);
        assert!(!each_interest(&wire[..wire.len() - 1], |_, _, _| {}));
        assert!(!each_interest(&[7, 0, 0, 0, 0], |_, _, _| {}));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        for _ in 0..5_000 {
            let mut bytes = vec![0u8; random.random_range(0..60)];
            random.fill(&mut bytes[..]);
            for byte in bytes.iter_mut().take(12).skip(1) {
                if random.random() {
                    *byte = random.random_range(0..4);
                }
            }
            if let Some(routed) = read_routed(&bytes) {
                assert!(routed.msg.payload.len() <= bytes.len());
                routed.names_queue(b"q");
            }
            each_interest(&bytes, |_, filter, _| assert!(filter.len() <= bytes.len()));
        }
    }
}
