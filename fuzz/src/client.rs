//! The client protocol: what a connection's reads make of a byte stream must not depend on where they cut it.

use headwater_protocol::connect::ConnectOptions;
use headwater_protocol::decode::{ClientOp, Limits, Step, next};
use headwater_protocol::wire_error::WireError;

use crate::input::Input;

const LIMITS: Limits = Limits { control_line_bytes_max: 64, payload_bytes_max: 256 };

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let wires: [&[u8]; 8] = [
        b"CONNECT {\"verbose\":false,\"protocol\":1,\"headers\":true}\r\nPING\r\n",
        b"PUB a.b 5\r\nhello\r\nPUB a.b _INBOX.1 0\r\n\r\nPONG\r\n",
        b"HPUB a.b _R 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\nINFO {}\r\n",
        b"SUB orders.> workers 7\r\nSUB a 8\nUNSUB 7 5\r\nUNSUB 8\r\n+OK\r\n",
        b"pub\ta\t1\r\nx\r\nping  \r\n-ERR 'gone'\r\n",
        b"PUB a 257\r\n",
        b"SUB aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1\r\n",
    ];
    wires.iter().map(|wire| [&[3, 7, 1, 40, 0, 0, 0, 0][..], wire].concat()).collect()
}

/// Operations as text, and how they ended.
#[derive(Debug, PartialEq)]
struct Heard {
    ops: Vec<String>,
    end: Option<WireError>,
}

/// Feeds `wire` in pieces, as a connection does: it looks again only when it has as many bytes as it was told to.
fn hear(wire: &[u8], pieces: impl IntoIterator<Item = usize>) -> Heard {
    let mut heard = Heard { ops: Vec::new(), end: None };
    let (mut buffer, mut wire) = (Vec::new(), wire);
    let mut wanted = 1;
    for piece in pieces.into_iter().chain([usize::MAX]) {
        let (now, later) = wire.split_at(piece.min(wire.len()));
        buffer.extend_from_slice(now);
        wire = later;
        let mut at = 0;
        while buffer.len() - at >= wanted {
            match next(&buffer[at..], &LIMITS) {
                Ok(Step::Need { total }) => {
                    assert!(total > buffer.len() - at, "it asked for what it has");
                    assert!(total <= 128 + LIMITS.payload_bytes_max, "it asked for {total} bytes");
                    wanted = total;
                }
                Ok(Step::Op { op, consumed }) => {
                    assert!((1..=buffer.len() - at).contains(&consumed));
                    if let ClientOp::Connect(json) = op
                        && let Ok(options) = ConnectOptions::parse(json)
                    {
                        assert!((0..=1).contains(&options.protocol));
                    }
                    heard.ops.push(format!("{op:?}"));
                    (at, wanted) = (at + consumed, 1);
                }
                Err(error) => {
                    heard.end = Some(error);
                    return heard;
                }
            }
        }
        buffer.drain(..at);
    }
    heard
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let cuts: Vec<usize> = input.bytes(8).iter().map(|cut| usize::from(*cut)).collect();
    let wire = input.rest();
    let whole = hear(wire, []);
    let pieces = hear(wire, cuts);
    let bytes = hear(wire, std::iter::repeat_n(1, wire.len()));
    for cut in [pieces, bytes] {
        assert_eq!(cut.ops, whole.ops);
        assert_eq!(cut.end.is_some(), whole.end.is_some(), "{:?} and {:?}", cut.end, whole.end);
    }
}
