//! Acknowledgements of delivered messages: the reply subject that carries the delivery's facts, and the payload that
//! says what the client did with it.

use bytes::BufMut;
use serde::Deserialize;

use crate::encode::number;
use crate::{duration, json};

/// Start of every ack subject.
pub const PREFIX: &str = "$JS.ACK.";

/// The facts of one delivery, as its reply subject carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckSubject<'a> {
    /// JetStream domain; only in the second form.
    pub domain: Option<&'a str>,
    /// Stream name.
    pub stream: &'a str,
    /// Consumer name.
    pub consumer: &'a str,
    /// How often this message has been delivered, from 1.
    pub delivered: u64,
    /// Sequence in the stream.
    pub stream_seq: u64,
    /// Sequence of the delivery.
    pub consumer_seq: u64,
    /// Store time, ns since the epoch.
    pub timestamp_ns: u64,
    /// Messages still to be delivered.
    pub pending: u64,
}

impl<'a> AckSubject<'a> {
    /// Appends the first form: `$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts>.<pending>`.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_slice(PREFIX.as_bytes());
        out.put_slice(self.stream.as_bytes());
        out.put_u8(b'.');
        out.put_slice(self.consumer.as_bytes());
        for value in [self.delivered, self.stream_seq, self.consumer_seq, self.timestamp_ns, self.pending] {
            out.put_u8(b'.');
            number(out, value);
        }
    }

    /// Reads either form; the second is `$JS.ACK.<domain or _>.<account hash>.<as the first>[.<token>…]`.
    pub fn parse(subject: &'a [u8]) -> Option<Self> {
        let rest = std::str::from_utf8(subject.strip_prefix(PREFIX.as_bytes())?).ok()?;
        let mut tokens = [""; 10];
        let mut count = 0;
        for token in rest.split('.') {
            if let Some(slot) = tokens.get_mut(count) {
                *slot = token;
            }
            count += 1;
        }
        let (domain, first) = match count {
            7 => (None, 0),
            9.. => (Some(tokens[0]).filter(|domain| *domain != "_"), 2),
            _ => return None,
        };
        let field = |index: usize| tokens.get(first + index).copied().filter(|token| !token.is_empty());
        let value = |index: usize| field(index).and_then(|text| text.parse::<u64>().ok());
        Some(Self {
            domain,
            stream: field(0)?,
            consumer: field(1)?,
            delivered: value(2)?,
            stream_seq: value(3)?,
            consumer_seq: value(4)?,
            timestamp_ns: value(5)?,
            pending: value(6)?,
        })
    }
}

/// What an ack payload says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind<'a> {
    /// Done.
    Ack,
    /// Deliver again, at once or after a delay in nanoseconds.
    Nak {
        /// Delay, if a readable and positive one was given.
        delay_ns: Option<u64>,
    },
    /// Still working: restart the ack timer.
    InProgress,
    /// Never deliver again.
    Terminate {
        /// The client's reason.
        reason: Option<&'a str>,
    },
    /// Done, and deliver the next to the reply subject; the rest is a pull request body.
    Next(&'a [u8]),
    /// Nothing known. A reply is still answered, nothing else happens.
    Unknown,
}

#[derive(Deserialize)]
struct NakOptions {
    #[serde(default, deserialize_with = "json::nullable")]
    delay: i64,
}

/// Reads an ack payload.
pub fn parse_kind(payload: &[u8]) -> AckKind<'_> {
    match payload {
        b"" | b"+ACK" | b"+OK" => AckKind::Ack,
        b"+WPI" => AckKind::InProgress,
        [b'-', b'N', b'A', b'K', rest @ ..] => AckKind::Nak { delay_ns: nak_delay(rest.trim_ascii()) },
        [b'+', b'T', b'E', b'R', b'M', rest @ ..] => {
            let reason = std::str::from_utf8(rest).ok().map(str::trim).filter(|reason| !reason.is_empty());
            AckKind::Terminate { reason }
        }
        [b'+', b'N', b'X', b'T', rest @ ..] => AckKind::Next(rest.trim_ascii()),
        _ => AckKind::Unknown,
    }
}

/// An unreadable delay means "at once", as in nats-server.
fn nak_delay(options: &[u8]) -> Option<u64> {
    let ns = if options.starts_with(b"{") {
        json::from_slice::<NakOptions>(options).ok()?.delay
    } else {
        duration::parse(std::str::from_utf8(options).ok()?).ok()?
    };
    u64::try_from(ns).ok().filter(|ns| *ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_read() {
        let text = b"$JS.ACK.pl.c1.1.2.3.1796058757024082469.4";
        let ack = AckSubject::parse(text).unwrap();
        assert_eq!((ack.stream, ack.consumer, ack.delivered, ack.domain), ("pl", "c1", 1, None));
        assert_eq!((ack.stream_seq, ack.consumer_seq, ack.pending), (2, 3, 4));
        let mut written = Vec::new();
        ack.write(&mut written);
        assert_eq!(written, text);
        let second = AckSubject::parse(b"$JS.ACK._.hash.pl.c1.1.2.3.1796058757024082469.4").unwrap();
        assert_eq!(second, ack);
        let with_token = AckSubject::parse(b"$JS.ACK.hub.hash.pl.c1.1.2.3.1796058757024082469.4.rnd.x").unwrap();
        assert_eq!(with_token, AckSubject { domain: Some("hub"), ..ack });
        for bad in [
            "$JS.ACK.",
            "$JS.ACK.a.b.1.2.3.4",
            "$JS.ACK.a.b.1.2.3.4.x",
            "$JS.ACK.a.b.1.2.3.4.5.6",
            "x",
            "$JS.ACK..b.1.2.3.4.5",
        ] {
            assert_eq!(AckSubject::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn payloads() {
        for (payload, want) in [
            ("", AckKind::Ack),
            ("+ACK", AckKind::Ack),
            ("+OK", AckKind::Ack),
            ("+WPI", AckKind::InProgress),
            ("-NAK", AckKind::Nak { delay_ns: None }),
            ("-NAK 5s", AckKind::Nak { delay_ns: Some(5_000_000_000) }),
            ("-NAK {\"delay\": 7}", AckKind::Nak { delay_ns: Some(7) }),
            ("-NAK {\"delay\": -7}", AckKind::Nak { delay_ns: None }),
            ("-NAK bogus", AckKind::Nak { delay_ns: None }),
            ("+TERM", AckKind::Terminate { reason: None }),
            ("+TERM no use", AckKind::Terminate { reason: Some("no use") }),
            ("+NXT", AckKind::Next(b"")),
            ("+NXT {\"batch\":5}", AckKind::Next(b"{\"batch\":5}")),
            ("+NXT 5", AckKind::Next(b"5")),
            ("bogus", AckKind::Unknown),
        ] {
            assert_eq!(parse_kind(payload.as_bytes()), want, "{payload}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..80), tail in "[0-9a-z.]{0,60}") {
            let _ = (AckSubject::parse(&bytes), parse_kind(&bytes), AckSubject::parse(format!("{PREFIX}{tail}").as_bytes()));
        }

        #[test]
        fn what_is_written_is_read(values in any::<[u64; 5]>()) {
            let [delivered, stream_seq, consumer_seq, timestamp_ns, pending] = values;
            let ack = AckSubject { domain: None, stream: "S", consumer: "C", delivered, stream_seq, consumer_seq, timestamp_ns, pending };
            let mut written = Vec::new();
            ack.write(&mut written);
            prop_assert_eq!(AckSubject::parse(&written), Some(ack));
        }
    }
}
