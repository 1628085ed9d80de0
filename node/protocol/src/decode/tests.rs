use proptest::prelude::*;

use super::*;

fn one(input: &[u8]) -> Result<Step<'_>, WireError> {
    next(input, &Limits::default())
}

fn op(input: &[u8]) -> ClientOp<'_> {
    match one(input) {
        Ok(Step::Op { op, consumed }) => {
            assert_eq!(consumed, input.len(), "whole input is one operation");
            op
        }
        other => panic!("{other:?}"),
    }
}

fn publish<'a>(subject: &'a str, reply: Option<&'a str>, headers: &'a str, payload: &'a str) -> ClientOp<'a> {
    ClientOp::Pub(Publish {
        subject: subject.as_bytes(),
        reply: reply.map(str::as_bytes),
        headers: headers.as_bytes(),
        payload: payload.as_bytes(),
    })
}

#[test]
fn publishes() {
    assert_eq!(op(b"PUB a 1\r\nx\r\n"), publish("a", None, "", "x"));
    assert_eq!(op(b"pub\ta\tr\t2 \r\nxy\r\n"), publish("a", Some("r"), "", "xy"));
    assert_eq!(op(b"PUB a 0\r\n\r\n"), publish("a", None, "", ""));
    assert_eq!(op(b"PUB a 1\nx\r\n"), publish("a", None, "", "x"));
    assert_eq!(op(b"PUB  a   4 \r\n\r\n\r\n\r\n"), publish("a", None, "", "\r\n\r\n"));
    assert_eq!(op(b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nxy\r\n"), publish("a", None, "NATS/1.0\r\n\r\n", "xy"));
    assert_eq!(op(b"HPUB a r 12 12\r\nNATS/1.0\r\n\r\n\r\n"), publish("a", Some("r"), "NATS/1.0\r\n\r\n", ""));
    assert_eq!(op(b"HPUB a 0 3\r\nabc\r\n"), publish("a", None, "", "abc"));
}

#[test]
fn control_operations() {
    assert_eq!(op(b"PiNg\n"), ClientOp::Ping);
    assert_eq!(op(b"PING x\r\n"), ClientOp::Ping);
    assert_eq!(op(b"PONG\r\n"), ClientOp::Pong);
    assert_eq!(op(b"+OK\r\n"), ClientOp::Ignored);
    assert_eq!(op(b"INFO {}\r\n"), ClientOp::Ignored);
    assert_eq!(op(b"CONNECT {\"a\":1}\r\n"), ClientOp::Connect(b"{\"a\":1}"));
    assert_eq!(op(b"SUB a.> 9\r\n"), ClientOp::Sub { subject: b"a.>", queue: None, sid: b"9" });
    assert_eq!(op(b"SUB a q x9\r\n"), ClientOp::Sub { subject: b"a", queue: Some(b"q"), sid: b"x9" });
    assert_eq!(op(b"UNSUB 9\r\n"), ClientOp::Unsub { sid: b"9", max: None });
    assert_eq!(op(b"UNSUB 9 5\r\n"), ClientOp::Unsub { sid: b"9", max: Some(5) });
    assert_eq!(op(b"UNSUB 9 x\r\n"), ClientOp::Unsub { sid: b"9", max: None });
}

#[test]
fn errors_are_those_of_nats_server() {
    let long = format!("PUB {} 1\r\n", "a".repeat(5000));
    let long_unfinished = "PUB ".to_owned() + &"a".repeat(5000);
    for (input, want) in [
        ("FOO\r\n", WireError::UnknownOperation),
        ("GET / HTTP/1.1", WireError::UnknownOperation),
        ("PUBX a 1\r\nx\r\n", WireError::UnknownOperation),
        ("PUB\r\n", WireError::UnknownOperation),
        ("SUB\r\n", WireError::UnknownOperation),
        ("UNSUB\r\n", WireError::UnknownOperation),
        ("\r\n", WireError::UnknownOperation),
        (" PUB a 1\r\nx\r\n", WireError::UnknownOperation),
        ("PUB a 5\r\nhelloXX\r\n", WireError::UnknownOperation),
        ("PUB a 1\nx\nPING\r\n", WireError::UnknownOperation),
        ("MSG a 1 1\r\nx\r\n", WireError::UnknownOperation),
        ("PUB a\r\n", WireError::MalformedArguments),
        ("PUB a b c 1\r\n", WireError::MalformedArguments),
        ("PUB a x\r\n", WireError::MalformedArguments),
        ("PUB a -1\r\n", WireError::MalformedArguments),
        ("PUB a 99999999999999999999\r\n", WireError::MalformedArguments),
        ("PUB a 2000000\r\n", WireError::PayloadTooLarge),
        ("HPUB a 12 10\r\n", WireError::MalformedArguments),
        ("HPUB a 12\r\n", WireError::MalformedArguments),
        ("SUB a\r\n", WireError::MalformedArguments),
        ("SUB a b c d\r\n", WireError::MalformedArguments),
        ("UNSUB 1 2 3\r\n", WireError::MalformedArguments),
        ("INFO\r\n", WireError::MalformedArguments),
        ("CONNECT\r\n", WireError::MalformedArguments),
        ("-ERR x\r\n", WireError::ClientError),
        (long.as_str(), WireError::ControlLineTooLong),
        (long_unfinished.as_str(), WireError::ControlLineTooLong),
    ] {
        assert_eq!(one(input.as_bytes()), Err(want), "{input:.40}");
    }
}

#[test]
fn need_is_exact_for_payloads() {
    assert_eq!(one(b"PUB a 10\r\nabc"), Ok(Step::Need { total: 10 + 10 + 2 }));
    assert_eq!(one(b"PUB a"), Ok(Step::Need { total: 6 }));
    assert_eq!(one(b""), Ok(Step::Need { total: 1 }));
}

/// Feeds `stream` in the given pieces and renders every operation.
fn feed(stream: &[u8], cuts: &[usize]) -> (Vec<String>, Option<WireError>) {
    let limits = Limits { control_line_bytes_max: 64, payload_bytes_max: 64 };
    let (mut buf, mut out, mut start) = (Vec::new(), Vec::new(), 0);
    for end in cuts.iter().copied().chain([stream.len()]) {
        buf.extend_from_slice(&stream[start..end]);
        start = end;
        loop {
            match next(&buf, &limits) {
                Ok(Step::Op { op, consumed }) => {
                    assert!(consumed > 0 && consumed <= buf.len());
                    out.push(format!("{op:?}"));
                    buf.drain(..consumed);
                }
                Ok(Step::Need { total }) => {
                    assert!(total > buf.len(), "asks for more than it has");
                    break;
                }
                Err(error) => return (out, Some(error)),
            }
        }
    }
    (out, None)
}

const CONVERSATION: &[u8] = b"CONNECT {\"verbose\":false}\r\nPING\r\nSUB _INBOX.x.> q 1\r\nPUB a.b r 5\r\nhe\r\nl\r\n\
HPUB a 12 14\r\nNATS/1.0\r\n\r\nxy\r\nPONG\r\nUNSUB 1 7\r\n+OK\r\npub\ta 0\n\r\n";

/// Found by fuzzing: a line without blanks was read when it came in one piece, and refused when it came in two.
#[test]
fn a_line_is_too_long_however_it_arrives() {
    for verb in ["PING", "+OK", "PONG"] {
        let line = format!("{verb}{}", "x".repeat(4096 + 11));
        let wire = format!("{line}\r\n");
        assert_eq!(one(wire.as_bytes()), Err(WireError::ControlLineTooLong), "{verb}");
        assert_eq!(one(line.as_bytes()), Err(WireError::ControlLineTooLong), "{verb}");
    }
}

#[test]
fn splitting_at_every_byte_changes_nothing() {
    let (whole, error) = feed(CONVERSATION, &[]);
    assert_eq!(error, None);
    assert_eq!(whole.len(), 9);
    for cut in 0..CONVERSATION.len() {
        assert_eq!(feed(CONVERSATION, &[cut]), (whole.clone(), None), "cut at {cut}");
    }
    let every: Vec<usize> = (0..CONVERSATION.len()).collect();
    assert_eq!(feed(CONVERSATION, &every), (whole, None));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = feed(&bytes, &[]);
    }

    #[test]
    fn damaged_conversations_split_alike(at in 0..CONVERSATION.len(), byte in any::<u8>(), cut in 0..CONVERSATION.len()) {
        let mut bytes = CONVERSATION.to_vec();
        bytes[at] = byte;
        let (whole, whole_error) = feed(&bytes, &[]);
        let (split, split_error) = feed(&bytes, &[cut]);
        prop_assert_eq!(whole, split);
        prop_assert_eq!(whole_error.is_some(), split_error.is_some());
    }

    #[test]
    fn any_payload_comes_back(payload in proptest::collection::vec(any::<u8>(), 0..60), header_len in 0usize..60) {
        let header_len = header_len.min(payload.len());
        let mut bytes = format!("HPUB s r {header_len} {}\r\n", payload.len()).into_bytes();
        bytes.extend_from_slice(&payload);
        bytes.extend_from_slice(b"\r\n");
        let want = ClientOp::Pub(Publish { subject: b"s", reply: Some(b"r"), headers: &payload[..header_len], payload: &payload[header_len..] });
        prop_assert_eq!(next(&bytes, &Limits::default()), Ok(Step::Op { op: want, consumed: bytes.len() }));
    }
}
