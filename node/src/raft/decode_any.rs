//! Any bytes as what a peer's Raft sends: see [`crate::decoders`].

use bytes::{Bytes, BytesMut};

use super::codec::{self, Reader};
use super::types::Members;
use super::{heartbeats, transfer};

/// The first byte says what the rest is read as: an append request or its result, a vote request or its answer, the
/// heartbeats of a frame or their answers, the header of a snapshot, an entry of the log.
///
/// # Panics
/// If a decoder contradicts itself.
pub fn decode_any(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let body = Bytes::copy_from_slice(bytes);
    let mut out = BytesMut::new();
    match kind % 8 {
        0 => append_request(body),
        1 => {
            if let Ok(result) = codec::read_append_result(&mut Reader(body)) {
                codec::put_append_result(&mut out, &result);
                assert_eq!(codec::read_append_result(&mut Reader(out.freeze())).ok(), Some(result));
            }
        }
        2 => {
            if let Ok(request) = codec::read_vote_request(&mut Reader(body)) {
                codec::put_vote_request(&mut out, &request);
                assert_eq!(codec::read_vote_request(&mut Reader(out.freeze())).ok(), Some(request));
            }
        }
        3 => {
            if let Ok(response) = codec::read_vote_response(&mut Reader(body)) {
                codec::put_vote_response(&mut out, &response);
                assert_eq!(codec::read_vote_response(&mut Reader(out.freeze())).ok(), Some(response));
            }
        }
        4 => {
            for request in heartbeats::read_requests(body).unwrap_or_default() {
                let mut r = Reader(request);
                if r.u64().is_ok() && r.u64().is_ok() {
                    append_request(r.0);
                }
            }
        }
        5 => {
            if let Ok(answers) = heartbeats::read_answers(body) {
                let again = heartbeats::read_answers(heartbeats::encode_answers(&answers));
                assert_eq!(again.ok(), Some(answers));
            }
        }
        6 => transfer::decode_any(&body),
        _ => {
            if let Some((kind, payload)) = bytes.split_first()
                && let Ok(entry) = codec::entry_from(3, 41, *kind, Bytes::copy_from_slice(payload))
            {
                let (kind, payload) = codec::entry_payload(&entry);
                assert_eq!(
                    codec::entry_from(3, 41, kind, payload).map(|entry| entry.payload).ok(),
                    Some(entry.payload)
                );
            }
            if let Ok(members) = serde_json::from_slice::<Members>(bytes) {
                let stored = super::types::to_stored(&members);
                let again = super::types::from_stored(&stored);
                assert_eq!(super::types::from_stored(&super::types::to_stored(&again)), again);
                let _ = (members.voters(), members.is_joint());
            }
        }
    }
}

fn append_request(body: Bytes) {
    let Ok(request) = codec::read_append_request(&mut Reader(body)) else { return };
    let wire = Bytes::from(codec::append_request(BytesMut::new(), &request).concat());
    let again = codec::read_append_request(&mut Reader(wire)).expect("what was written can be read");
    assert_eq!(format!("{again:?}"), format!("{request:?}"));
}
