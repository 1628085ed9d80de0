//! What nodes send each other. The checks are beside the decoders, in the `headwater` crate; here are the seeds.

use headwater::decoders;
use headwater_plan::wire;
use headwater_protocol::json;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sample;

pub(crate) fn transport(data: &[u8]) {
    decoders::transport(data);
}

pub(crate) fn raft(data: &[u8]) {
    decoders::raft(data);
}

pub(crate) fn broker(data: &[u8]) {
    decoders::broker(data);
}

/// What one node, or the operator, asks of another: the first byte says which.
pub(crate) fn calls(data: &[u8]) {
    match data.split_first() {
        Some((0..=2, _)) => decoders::stream(data),
        Some((3..=4, _)) => decoders::jetstream(&[&[data[0] - 3], &data[1..]].concat()),
        Some((kind, body)) => admin(*kind, body),
        None => {}
    }
}

/// Bodies of the admin API, which are read strictly, and answers, which are not.
fn admin(kind: u8, body: &[u8]) {
    fn read_twice<T: DeserializeOwned + Serialize>(body: &[u8], are_alike: fn(&T, &T) -> bool) {
        for read in [json::from_slice_strict::<T>, json::from_slice] {
            if let Ok(found) = read(body) {
                let written = serde_json::to_vec(&found).expect("plain data");
                assert!(read(&written).is_ok_and(|again| are_alike(&again, &found)));
            }
        }
    }
    fn body_of<T: DeserializeOwned + Serialize + PartialEq>(body: &[u8]) {
        read_twice::<T>(body, T::eq);
    }
    // A configuration may hold any number, and the last digit of a fraction may be rounded.
    match kind % 9 {
        0 => body_of::<wire::FenceRequest>(body),
        1 => body_of::<wire::Maintenance>(body),
        2 => body_of::<wire::LeadershipTransfer>(body),
        3 => body_of::<wire::DurabilityStep>(body),
        4 => read_twice::<wire::StreamPut>(body, |a, b| a.generation == b.generation && a.owner == b.owner),
        5 => body_of::<wire::StreamDelete>(body),
        6 => body_of::<wire::RecoveryReport>(body),
        7 => read_twice::<wire::StreamReport>(body, |a, b| a.name == b.name && a.owner == b.owner),
        _ => body_of::<wire::RestartCheck>(body),
    }
}

/// Little endian numbers and bytes, one after the other.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// A frame of a link: flags, kind, id, body.
fn link_frame(flags: u8, kind: u8, id: u64, body: &[u8]) -> Vec<u8> {
    let len = (16 + body.len() as u32).to_le_bytes();
    joined(&[&len, &[kind, flags, 0, 0], &id.to_le_bytes(), body])
}

pub(crate) fn transport_seeds() -> Vec<Vec<u8>> {
    let hello = br#"{"cluster_id":"c-1","node_name":"n1","node_id":77,"boot_epoch":3,"last_boot_epoch":2,"log_end":[4,4096],"client_addr":"10.0.0.1:4222","cluster_addr":"10.0.0.1:6222","http_addr":"10.0.0.1:8222","empty":false,"version":"0.1.0"}"#;
    let part = |code: u8, body: &[u8]| joined(&[b"HWP1", &[code, 0, 0, 0], &(body.len() as u32).to_le_bytes(), body]);
    let mut seeds = vec![part(0, hello), part(1, hello), part(1, b"another cluster"), part(3, b"kept out for good")];
    let mut frames = Vec::new();
    for (flags, id) in [(0, 0), (1, 5), (2, 5), (3, 6), (4, 0), (5, 0)] {
        frames.extend(link_frame(flags, 0x20 + flags, id, b"body"));
        seeds.push(frames.clone());
    }
    seeds.iter().map(|seed| joined(&[&[9], seed])).collect()
}

const LOG_ID: [u8; 17] = [1, 7, 0, 0, 0, 0, 0, 0, 0, 41, 0, 0, 0, 0, 0, 0, 0];
const VOTE: [u8; 17] = [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1];

pub(crate) fn raft_seeds() -> Vec<Vec<u8>> {
    let mut append = joined(&[&VOTE, &LOG_ID, &LOG_ID]);
    let frame = &sample::frames()[0];
    let entries: [(u8, &[u8]); 3] = [(0, b""), (1, frame), (2, sample::MEMBERS)];
    append.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for (index, (kind, payload)) in (42u64..).zip(entries) {
        append.extend(joined(&[&index.to_le_bytes(), &7u64.to_le_bytes(), &[kind]]));
        append.extend(joined(&[&(payload.len() as u32).to_le_bytes(), payload]));
    }
    let beat = joined(&[&9u64.to_le_bytes(), &77u64.to_le_bytes(), &append]);
    let beats = joined(&[&1u32.to_le_bytes(), &(beat.len() as u32).to_le_bytes(), &beat]);
    let answer = joined(&[&[0], &LOG_ID]);
    let answers =
        joined(&[&2u32.to_le_bytes(), &[0], &(answer.len() as u32).to_le_bytes(), &answer, &[1, 4, 0, 0, 0], b"slow"]);
    let header = br#"{"group":9,"target":77,"vote":[7,2,true],"head":[{"term":7,"index":41},{"at":{"term":3,"index":42},"configs":[[77,78],[77,79]],"nodes":[77,78,79]}],"files":[{"name":"checkpoint","bytes":1291},{"name":"blocks/0000000001.blk","bytes":4808},{"name":"../x","bytes":1}]}"#;
    vec![
        joined(&[&[0], &append]),
        joined(&[&[1, 0], &LOG_ID]),
        joined(&[&[1, 1], &LOG_ID]),
        joined(&[&[1, 2], &VOTE]),
        joined(&[&[2], &VOTE, &LOG_ID, &[1]]),
        joined(&[&[3], &VOTE, &[0], &[1]]),
        joined(&[&[4], &beats]),
        joined(&[&[5], &answers]),
        joined(&[&[6], header]),
        joined(&[&[7], br#"{"at":null,"configs":[[77,78],[77,79]],"nodes":[77,78,79]}"#]),
        joined(&[&[7, 2], sample::MEMBERS]),
        joined(&[&[7, 1], frame]),
    ]
}

pub(crate) fn broker_seeds() -> Vec<Vec<u8>> {
    let interest = joined(&[&[1, 0xff, 0xff, 3, 0], b"a.>", &[0, 1, 0, 1, 0], b"qb"]);
    let routed = joined(&[
        &[1, 2, 3, 0, 5, 0, 4, 0, 12, 0, 0, 0],
        &[2, 0],
        b"q1",
        &[0, 0],
        b"a.b",
        b"other",
        b"_R.1",
        b"NATS/1.0\r\n\r\n",
        b"body",
    ]);
    let plain = joined(&[&[1, 0, 3, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], b"a.b", b"body"]);
    vec![joined(&[&[0], &interest]), joined(&[&[1], &routed]), joined(&[&[1], &plain])]
}

pub(crate) fn call_seeds() -> Vec<Vec<u8>> {
    let batch = joined(&[
        &7u64.to_le_bytes(),
        &9u64.to_le_bytes(),
        &2u32.to_le_bytes(),
        &[1, 8, 0, 12, 0, 0, 0, 2, 0, 0, 0],
        b"orders.1",
        b"NATS/1.0\r\n\r\n",
        b"hi",
        &[0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        b"orders.2",
    ]);
    let mut acks = joined(&[&9u64.to_le_bytes(), &4u32.to_le_bytes()]);
    for kind in 0..4u8 {
        acks.extend(joined(&[&u32::from(kind).to_le_bytes(), &[kind], &3u64.to_le_bytes()]));
        if kind == 2 {
            acks.extend_from_slice(b"\x02\0{}");
        }
    }
    let mark = joined(&[b"HWSM", &1u32.to_le_bytes(), &[3; 32]]);
    let api = joined(&[&[3, 1, 6, 0, 12, 0, 0, 0], b"$JS.AP", b"NATS/1.0\r\n\r\n", b"{}"]);
    let service = joined(&[&[4, 6, 0, 4, 0, 12, 0, 0, 0], b"$JS.AC", b"_R.1", b"NATS/1.0\r\n\r\n", b"+ACK"]);
    let mut seeds = vec![joined(&[&[0], &batch]), joined(&[&[1], &acks]), joined(&[&[2], &mark]), api, service];
    let bodies: [(u8, &[u8]); 9] = [
        (9, br#"{"holder":"operator","ttl_ms":5000}"#),
        (10, br#"{"ttl_ms":5000,"fence":3}"#),
        (11, br#"{"account":"$G","stream":"S","from":"n1","to":"n2","fence":3}"#),
        (12, br#"{"generation":2,"node":"n1","kind":"grant","desired":null,"fence":3}"#),
        (13, br#"{"config":{"name":"S","any":[1,2.5,null]},"owner":{"namespace":"a","name":"b","uid":"c"},"generation":0,"fence":1}"#),
        (14, br#"{"owner":null,"generation":1,"fence":1}"#),
        (15, br#"{"cluster_id":"c","node":"n1","node_id":"77","boot_id":"b","groups":[]}"#),
        (16, br#"{"account":"$G","name":"S","config":{},"owner":null,"generation":1,"created":"2026-01-02T03:04:05Z"}"#),
        (17, br#"{"safe":false,"blocked":[{"group":9,"stream":"S","account":"$G","why":"no"}]}"#),
    ];
    seeds.extend(bodies.iter().map(|(kind, body)| joined(&[&[*kind], body])));
    seeds
}
