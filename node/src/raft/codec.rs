//! Bytes of votes, log entries and Raft messages: ours, since openraft promises no stable encoding.
//!
//! All numbers are little endian. An entry on the wire is `index u64 | term u64 | kind u8 | len u32 | payload`;
//! in the WAL the record carries index and term, and the payload is the same.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, VoteRequest, VoteResponse};

use super::types::*;

pub(super) const ENTRY_BLANK: u8 = 0;
pub(super) const ENTRY_COMMAND: u8 = 1;
pub(super) const ENTRY_MEMBERS: u8 = 2;

/// Payloads from this length on stay slices of the buffer they were read into.
const SHARED_BYTES_MIN: usize = 32 << 10;

/// A message that does not parse; the peer speaks another version or the bytes are damaged.
#[derive(Debug, thiserror::Error)]
#[error("bad raft message: {0}")]
pub(crate) struct BadMessage(&'static str);

/// Bounds-checked reading: network input never panics.
pub(super) struct Reader(pub(super) Bytes);

impl Reader {
    fn need(&self, n: usize) -> Result<(), BadMessage> {
        if self.0.remaining() < n { Err(BadMessage("cut short")) } else { Ok(()) }
    }
    pub(super) fn u8(&mut self) -> Result<u8, BadMessage> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }
    pub(super) fn u32(&mut self) -> Result<u32, BadMessage> {
        self.need(4)?;
        Ok(self.0.get_u32_le())
    }
    pub(super) fn u64(&mut self) -> Result<u64, BadMessage> {
        self.need(8)?;
        Ok(self.0.get_u64_le())
    }
    pub(super) fn bytes(&mut self, n: usize) -> Result<Bytes, BadMessage> {
        self.need(n)?;
        Ok(self.0.split_to(n))
    }
    pub(super) fn log_id(&mut self) -> Result<Option<LogId>, BadMessage> {
        if self.u8()? == 0 {
            return Ok(None);
        }
        let (term, index) = (self.u64()?, self.u64()?);
        Ok(Some(to_log_id(countable(term, index)?)))
    }
    pub(super) fn vote(&mut self) -> Result<Vote, BadMessage> {
        let (term, node, committed) = (self.u64()?, self.u64()?, self.u8()?);
        countable(term, 0)?;
        Ok(if committed == 1 { Vote::new_committed(term, node) } else { Vote::new(term, node) })
    }
}

/// A position that counting may have led to: openraft counts on from what it is given.
fn countable(term: u64, index: u64) -> Result<LogPos, BadMessage> {
    let position = log_pos(term, index);
    if position.is_countable() { Ok(position) } else { Err(BadMessage("a term or index that no log reaches")) }
}

pub(super) fn put_log_id(out: &mut BytesMut, id: Option<&LogId>) {
    match id {
        None => out.put_u8(0),
        Some(id) => {
            let pos = from_log_id(id);
            out.put_u8(1);
            out.put_u64_le(pos.term.get());
            out.put_u64_le(pos.index.get());
        }
    }
}

pub(super) fn put_vote(out: &mut BytesMut, vote: &Vote) {
    out.put_u64_le(vote.leader_id().term);
    out.put_u64_le(vote.leader_id().voted_for);
    out.put_u8(u8::from(vote.is_committed()));
}

pub(super) fn vote_bytes(vote: &Vote) -> Bytes {
    let mut out = BytesMut::with_capacity(17);
    put_vote(&mut out, vote);
    out.freeze()
}

/// The kind byte and payload an entry has in the WAL and on the wire.
pub(super) fn entry_payload(entry: &Entry) -> (u8, Bytes) {
    match &entry.payload {
        EntryPayload::Blank => (ENTRY_BLANK, Bytes::new()),
        EntryPayload::Normal(command) => (ENTRY_COMMAND, command.0.clone()),
        EntryPayload::Membership(membership) => {
            let members = Members {
                at: None,
                configs: membership.get_joint_config().clone(),
                nodes: membership.nodes().map(|(id, _)| *id).collect(),
            };
            (ENTRY_MEMBERS, Bytes::from(serde_json::to_vec(&members).expect("a membership is plain data")))
        }
    }
}

pub(super) fn entry_from(term: u64, index: u64, kind: u8, payload: Bytes) -> Result<Entry, BadMessage> {
    let position = countable(term, index)?;
    let payload = match kind {
        ENTRY_BLANK => EntryPayload::Blank,
        ENTRY_COMMAND => EntryPayload::Normal(Command(payload)),
        ENTRY_MEMBERS => {
            let members: Members = serde_json::from_slice(&payload).map_err(|_| BadMessage("membership entry"))?;
            EntryPayload::Membership(to_stored(&members).membership().clone())
        }
        _ => return Err(BadMessage("unknown entry kind")),
    };
    Ok(Entry::new(to_log_id(position), payload))
}

/// Encodes a request as parts; payloads stay shared `Bytes`.
pub(super) fn append_request(head: BytesMut, request: &AppendEntriesRequest<TypeConfig>) -> Vec<Bytes> {
    let mut out = head;
    put_vote(&mut out, &request.vote);
    put_log_id(&mut out, request.prev_log_id.as_ref());
    put_log_id(&mut out, request.leader_commit.as_ref());
    out.put_u32_le(u32::try_from(request.entries.len()).expect("an append holds at most max_payload_entries"));
    let mut parts = Vec::with_capacity(1 + request.entries.len() * 2);
    for entry in &request.entries {
        let (kind, payload) = entry_payload(entry);
        let pos = from_log_id(&entry.log_id());
        out.put_u64_le(pos.index.get());
        out.put_u64_le(pos.term.get());
        out.put_u8(kind);
        out.put_u32_le(u32::try_from(payload.len()).expect("a frame is below 4 GiB"));
        if payload.len() >= 1024 {
            parts.push(out.split().freeze());
            parts.push(payload);
        } else {
            out.extend_from_slice(&payload);
        }
    }
    if !out.is_empty() {
        parts.push(out.freeze());
    }
    parts
}

pub(super) fn read_append_request(r: &mut Reader) -> Result<AppendEntriesRequest<TypeConfig>, BadMessage> {
    let vote = r.vote()?;
    let prev_log_id = r.log_id()?;
    let leader_commit = r.log_id()?;
    let count = r.u32()? as usize;
    let mut entries = Vec::with_capacity(count.min(4096));
    for _ in 0..count {
        let (index, term, kind, len) = (r.u64()?, r.u64()?, r.u8()?, r.u32()? as usize);
        let payload = r.bytes(len)?;
        // Entries live long, in the log's cache and the store: a small one must not keep the whole read buffer alive.
        let payload = if len < SHARED_BYTES_MIN { Bytes::copy_from_slice(&payload) } else { payload };
        entries.push(entry_from(term, index, kind, payload)?);
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub(super) type AppendResult = Result<Option<LogId>, StreamAppendError<TypeConfig>>;

pub(super) fn put_append_result(out: &mut BytesMut, result: &AppendResult) {
    match result {
        Ok(matched) => {
            out.put_u8(0);
            put_log_id(out, matched.as_ref());
        }
        Err(StreamAppendError::Conflict(at)) => {
            out.put_u8(1);
            put_log_id(out, Some(at));
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            out.put_u8(2);
            put_vote(out, vote);
        }
    }
}

pub(super) fn read_append_result(r: &mut Reader) -> Result<AppendResult, BadMessage> {
    Ok(match r.u8()? {
        0 => Ok(r.log_id()?),
        1 => Err(StreamAppendError::Conflict(r.log_id()?.ok_or(BadMessage("conflict without a position"))?)),
        2 => Err(StreamAppendError::HigherVote(r.vote()?)),
        _ => return Err(BadMessage("unknown append result")),
    })
}

pub(super) fn put_vote_request(out: &mut BytesMut, request: &VoteRequest<TypeConfig>) {
    put_vote(out, &request.vote);
    put_log_id(out, request.last_log_id.as_ref());
    out.put_u8(u8::from(request.leadership_transfer));
}

pub(super) fn read_vote_request(r: &mut Reader) -> Result<VoteRequest<TypeConfig>, BadMessage> {
    let mut request = VoteRequest::new(r.vote()?, r.log_id()?);
    request.leadership_transfer = r.u8()? == 1;
    Ok(request)
}

pub(super) fn put_vote_response(out: &mut BytesMut, response: &VoteResponse<TypeConfig>) {
    put_vote(out, &response.vote);
    put_log_id(out, response.last_log_id.as_ref());
    out.put_u8(u8::from(response.vote_granted));
}

pub(super) fn read_vote_response(r: &mut Reader) -> Result<VoteResponse<TypeConfig>, BadMessage> {
    let vote = r.vote()?;
    let last = r.log_id()?;
    let granted = r.u8()? == 1;
    Ok(VoteResponse::new(vote, last, granted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> LogId {
        to_log_id(log_pos(term, index))
    }

    #[test]
    fn append_request_survives_the_wire() {
        let members = Members { at: None, configs: vec![[1, 2, 3].into()], nodes: [1, 2, 3, 4].into() };
        let request = AppendEntriesRequest::<TypeConfig> {
            vote: Vote::new_committed(7, 2),
            prev_log_id: Some(id(6, 41)),
            entries: vec![
                entry_from(7, 42, ENTRY_BLANK, Bytes::new()).unwrap(),
                entry_from(7, 43, ENTRY_COMMAND, Bytes::from(vec![9; 5000])).unwrap(),
                entry_from(7, 44, ENTRY_MEMBERS, Bytes::from(serde_json::to_vec(&members).unwrap())).unwrap(),
                entry_from(7, 45, ENTRY_COMMAND, Bytes::from_static(b"small")).unwrap(),
            ],
            leader_commit: None,
        };
        let wire: Vec<u8> = append_request(BytesMut::new(), &request).concat();
        let back = read_append_request(&mut Reader(Bytes::from(wire.clone()))).unwrap();
        assert_eq!(format!("{back:?}"), format!("{request:?}"));
        for cut in 0..wire.len() {
            assert!(read_append_request(&mut Reader(Bytes::copy_from_slice(&wire[..cut]))).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn results_and_votes_survive_the_wire() {
        for result in [
            Ok(None),
            Ok(Some(id(3, 9))),
            Err(StreamAppendError::Conflict(id(2, 1))),
            Err(StreamAppendError::HigherVote(Vote::new(9, 4))),
        ] {
            let mut out = BytesMut::new();
            put_append_result(&mut out, &result);
            assert_eq!(read_append_result(&mut Reader(out.freeze())).unwrap(), result);
        }
        let mut request = VoteRequest::new(Vote::new(5, 1), Some(id(4, 4)));
        request.leadership_transfer = true;
        let mut out = BytesMut::new();
        put_vote_request(&mut out, &request);
        assert_eq!(read_vote_request(&mut Reader(out.freeze())).unwrap(), request);
    }

    /// Found by fuzzing: the next term or index was past the largest number.
    #[test]
    fn what_no_counting_leads_to_is_refused() {
        let most = u64::MAX / 2;
        for (term, index, is_read) in [(most, most, true), (most + 1, 1, false), (1, most + 1, false)] {
            let mut out = BytesMut::new();
            put_log_id(&mut out, Some(&id(term, index)));
            assert_eq!(Reader(out.freeze()).log_id().is_ok(), is_read, "{term} {index}");
            assert_eq!(entry_from(term, index, ENTRY_BLANK, Bytes::new()).is_ok(), is_read, "{term} {index}");
            assert_eq!(Reader(vote_bytes(&Vote::new(term, 7))).vote().is_ok(), term <= most, "{term}");
        }
    }

    #[test]
    fn votes_and_members_are_as_documented() {
        let page = include_str!("../../../docs/formats/raft.md");
        let shown = |text: &str| assert!(page.lines().any(|line| line == text), "{text}");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        let vote = vote_bytes(&Vote::new_committed(3, 77));
        assert_eq!(vote.len(), 17);
        shown(&hex(&vote));
        assert_eq!(Reader(vote).vote().unwrap(), Vote::new_committed(3, 77));
        assert_eq!(vote_bytes(&Vote::new(3, 77)).last(), Some(&0));

        let json = |members: &Members| serde_json::to_string(members).unwrap();
        let voters = Members { at: None, configs: vec![[77, 78, 79].into()], nodes: [77, 78, 79, 80].into() };
        let entry = entry_from(3, 41, ENTRY_MEMBERS, Bytes::from(json(&voters))).unwrap();
        let (kind, payload) = entry_payload(&entry);
        assert_eq!((kind, payload), (2, Bytes::from(json(&voters))));
        shown(&json(&voters));
        let configs = vec![[77, 78, 79].into(), [77, 78, 80].into()];
        let joint = Members { at: Some(log_pos(3, 42)), configs, ..voters };
        shown(&json(&joint));
        assert_eq!(from_stored(&to_stored(&joint)), joint);
        assert_eq!((ENTRY_BLANK, ENTRY_COMMAND), (0, 1));
        assert!(page.contains(&json(&Members::default())));
    }
}
