//! The receiving side of Raft messages: finds the group, feeds openraft, answers in request order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::join_all;
use headwater_storage::blocks::passes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, TransferLeaderRequest};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::codec::{self, Reader};
use super::heartbeats;
use super::machine::Replica;
use super::network::kind;
use super::transfer;
use super::types::*;
use crate::transport::{NodeId, Respond};

/// Requests of one replication stream that wait for openraft; the sender pipelines at most 64.
const STREAM_WINDOW: usize = 256;

/// How long one group may take over a heartbeat that came in a frame with others.
const HEARTBEAT_ANSWER_MAX: Duration = Duration::from_millis(100);

/// A group that is open here.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) raft: Raft,
    pub(super) replica: Arc<dyn Replica>,
    pub(super) told: Arc<Told>,
    pub(super) incoming: Arc<Incoming>,
}

/// What leaders told a member in this boot.
#[derive(Default)]
pub(super) struct Told {
    commit: AtomicU64,
    heard: Mutex<Option<Instant>>,
}

impl Told {
    /// An append of a leader was taken; `commit` as [`told_commit`] has it.
    fn hear(&self, commit: u64) {
        self.commit.fetch_max(commit, Ordering::Release);
        *self.heard.lock() = Some(Instant::now());
    }

    /// The highest commit index; 0 before the first.
    pub(super) fn commit(&self) -> u64 {
        self.commit.load(Ordering::Acquire)
    }

    /// How long ago a leader was last heard.
    pub(super) fn heard_for(&self) -> Option<Duration> {
        self.heard.lock().map(|at| at.elapsed())
    }

    /// Whether a leader was heard within this time.
    pub(super) fn is_recent(&self, time: Duration) -> bool {
        self.heard_for().is_some_and(|ago| ago < time)
    }
}

/// Snapshots on their way in: one at a time, as they share a folder; a newer one ends the one before.
pub(super) struct Incoming {
    /// Folder that they are staged in.
    staging: std::path::PathBuf,
    /// Folder of the replica that they replace, if its blocks may be used again.
    own_files: Option<std::path::PathBuf>,
    newest: Mutex<CancellationToken>,
    turn: tokio::sync::Mutex<transfer::Received>,
}

impl Incoming {
    pub(super) fn new(staging: std::path::PathBuf, own_files: Option<std::path::PathBuf>) -> Arc<Self> {
        Arc::new(Self { staging, own_files, newest: Mutex::default(), turn: tokio::sync::Mutex::default() })
    }
}

/// The commit index that an append proves. A leader knows what its predecessors committed only after it has committed
/// an entry of its own term.
fn told_commit(request: &AppendEntriesRequest<TypeConfig>) -> u64 {
    match &request.leader_commit {
        Some(id) if id.committed_leader_id().term == request.vote.leader_id().term => id.index(),
        _ => 0,
    }
}

/// Whether the member's log goes on from where a snapshot of this leader ends; it then knows that so much is committed.
/// A leader that lost answers does not know how far a follower is, and installing what it is beyond would set openraft's
/// marks of it back.
pub(super) async fn has_up_to(raft: &Raft, vote: Vote, at: LogPos) -> bool {
    let at = Some(to_log_id(at));
    let request = AppendEntriesRequest { vote, prev_log_id: at, entries: Vec::new(), leader_commit: at };
    matches!(raft.append_entries(request).await, Ok(AppendEntriesResponse::Success))
}

/// An append and the way back for its answer; dropped, it is answered with an error, which ends the stream at its sender.
type Request = (AppendEntriesRequest<TypeConfig>, Respond);

/// A replication stream: the member it is for, its sender's number for it, and the way to the member.
struct Feed {
    target: u64,
    stream: u64,
    queue: mpsc::Sender<Request>,
}

/// By sender and group: a leader has one stream to a member, so a newer one takes the place of the older.
type Streams = HashMap<(NodeId, u64), Feed>;

/// Routes Raft messages to this node's groups.
#[derive(Clone)]
pub(crate) struct Receiver {
    members: Arc<Mutex<HashMap<u64, Member>>>,
    streams: Arc<Mutex<Streams>>,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self { members: Arc::default(), streams: Arc::default() }
    }

    pub(super) fn add(&self, group: u64, member: Member) {
        self.members.lock().insert(group, member);
    }

    pub(super) fn remove(&self, group: u64) {
        if let Some(member) = self.members.lock().remove(&group) {
            member.incoming.newest.lock().cancel();
        }
    }

    /// The member a message is for. A message for another incarnation of this node finds nobody: ids are never reused.
    fn member(&self, group: u64, target: u64) -> Option<Member> {
        self.members.lock().get(&group).filter(|m| m.id == target).cloned()
    }

    pub(crate) fn on_down(&self, node: NodeId) {
        self.streams.lock().retain(|(from, _), _| *from != node);
    }

    /// An APPEND_CLOSE frame: the sender has ended a stream.
    pub(crate) fn on_close(&self, from: NodeId, body: Bytes) {
        let mut r = Reader(body);
        let (Ok(group), Ok(stream)) = (r.u64(), r.u64()) else {
            tracing::warn!(from, "the end of a replication stream does not parse");
            return;
        };
        self.end(from, group, stream);
    }

    fn end(&self, from: NodeId, group: u64, stream: u64) {
        let mut streams = self.streams.lock();
        if streams.get(&(from, group)).is_some_and(|feed| feed.stream == stream) {
            streams.remove(&(from, group));
        }
    }

    /// An append of a replication stream. Must not block: it runs on the data thread between socket reads.
    fn append(&self, from: NodeId, body: Bytes, respond: Respond) -> Result<(), (Respond, String)> {
        let mut r = Reader(body);
        let parsed = (|| Ok::<_, codec::BadMessage>((r.u64()?, r.u64()?, r.u64()?, r.u8()? != 0)))();
        let parsed = parsed.and_then(|head| Ok((head, codec::read_append_request(&mut r)?)));
        let ((group, target, stream, is_first), request) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => return Err((respond, error.to_string())),
        };
        let mut streams = self.streams.lock();
        if is_first {
            let Some(member) = self.member(group, target) else {
                return Err((respond, format!("member {target} of group {group} is not here")));
            };
            let (queue, requests) = mpsc::channel(STREAM_WINDOW);
            streams.insert((from, group), Feed { target, stream, queue });
            let this = self.clone();
            spawn(async move {
                serve_stream(member, requests).await;
                this.end(from, group, stream);
            });
        }
        let feed = streams.get(&(from, group)).filter(|feed| (feed.target, feed.stream) == (target, stream));
        let Some(feed) = feed else { return Err((respond, "the stream has ended here".to_owned())) };
        feed.queue.try_send((request, respond)).map_err(|refused| {
            // What follows must not be taken without this one.
            streams.remove(&(from, group));
            let (_, respond) = refused.into_inner();
            (respond, "the stream has ended here, or too much of it waits".to_owned())
        })
    }

    /// A Raft request.
    pub(crate) fn on_request(&self, from: NodeId, kind: u8, body: Bytes, respond: Respond) {
        if kind == kind::APPEND {
            if let Err((respond, why)) = self.append(from, body, respond) {
                respond.send(Err(why));
            }
            return;
        }
        let this = self.clone();
        spawn(async move {
            let answer = match kind {
                kind::HEARTBEATS => this.answer_heartbeats(body).await,
                _ => this.answer(kind, Reader(body)).await,
            };
            respond.send(answer.map(|b| vec![b]));
        });
    }

    /// Answers each heartbeat of a frame; a group that is slow to answer holds the others up for no longer than this.
    async fn answer_heartbeats(&self, body: Bytes) -> Result<Bytes, String> {
        let requests = heartbeats::read_requests(body).map_err(|e| e.to_string())?;
        let answers = join_all(requests.into_iter().map(|request| async {
            let answer = self.answer(kind::APPEND_UNARY, Reader(request));
            let answer = tokio::time::timeout(HEARTBEAT_ANSWER_MAX, answer).await;
            answer.unwrap_or_else(|_| Err("the group is slow to answer".to_owned()))
        }));
        Ok(heartbeats::encode_answers(&answers.await))
    }

    async fn answer(&self, kind: u8, mut r: Reader) -> Result<Bytes, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let (group, target) = (r.u64().map_err(|e| text(&e))?, r.u64().map_err(|e| text(&e))?);
        let Some(Member { raft, told, .. }) = self.member(group, target) else {
            return Err(format!("member {target} of group {group} is not here"));
        };
        let mut out = BytesMut::with_capacity(64);
        match kind {
            kind::APPEND_UNARY => {
                let request = codec::read_append_request(&mut r).map_err(|e| text(&e))?;
                let prev = request.prev_log_id;
                let commit = told_commit(&request);
                let last = request.entries.last().map(|e| e.log_id).or(prev);
                let result = match raft.append_entries(request).await.map_err(|e| text(&e))? {
                    AppendEntriesResponse::Success => Ok(last),
                    AppendEntriesResponse::PartialSuccess(matched) => Ok(matched),
                    AppendEntriesResponse::Conflict => match prev {
                        Some(prev) => Err(StreamAppendError::Conflict(prev)),
                        None => return Err("conflict at the start of the log".to_owned()),
                    },
                    AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
                };
                if result.is_ok() {
                    told.hear(commit);
                }
                codec::put_append_result(&mut out, &result);
            }
            kind::VOTE => {
                let request = codec::read_vote_request(&mut r).map_err(|e| text(&e))?;
                codec::put_vote_response(&mut out, &raft.vote(request).await.map_err(|e| text(&e))?);
            }
            kind::PRE_VOTE => {
                let request = codec::read_vote_request(&mut r).map_err(|e| text(&e))?;
                codec::put_vote_response(&mut out, &raft.pre_vote(request).await.map_err(|e| text(&e))?);
            }
            kind::TRANSFER_LEADER => {
                let from = r.vote().map_err(|e| text(&e))?;
                let to = r.u64().map_err(|e| text(&e))?;
                let last = r.log_id().map_err(|e| text(&e))?;
                let taken = raft.handle_transfer_leader(TransferLeaderRequest::new(from, to, last)).await;
                taken.map_err(|e| text(&e))?.map_err(|e| text(&e))?;
            }
            other => return Err(format!("unknown raft request {other}")),
        }
        Ok(out.freeze())
    }

    /// A bulk connection that brings a snapshot.
    pub(crate) async fn on_bulk(&self, header: Bytes, mut socket: TcpStream) -> std::io::Result<()> {
        let header = transfer::read_header(&header)?;
        let member = self.member(header.group, header.target).ok_or_else(|| {
            std::io::Error::other(format!("member {} of group {} is not here", header.target, header.group))
        })?;
        let newest = CancellationToken::new();
        std::mem::replace(&mut *member.incoming.newest.lock(), newest.clone()).cancel();
        let (term, node, committed) = header.vote;
        let vote = if committed { Vote::new_committed(term, node) } else { Vote::new(term, node) };
        let head = transfer::head_of(&header);
        let answer = |vote: &Vote| {
            let mut out = BytesMut::new();
            codec::put_vote(&mut out, vote);
            out
        };
        let Incoming { staging, own_files, turn, .. } = &*member.incoming;
        let mut received = turn.lock().await;
        if has_up_to(&member.raft, vote, head.at).await {
            transfer::want_nothing(&mut socket).await?;
            return socket.write_all(&answer(&vote)).await;
        }
        let received = transfer::receive(&mut socket, &header.files, staging.clone(), own_files.clone(), &mut received);
        let (staged, moved) = tokio::select! {
            biased;
            () = newest.cancelled() => return Err(std::io::Error::other("a newer snapshot is on its way")),
            staged = received => {
                staged.inspect_err(|error| {
                    if passes(error) {
                        member.replica.cannot_stage(error);
                    }
                })?
            }
        };
        let transfer::Moved { received, reused } = moved;
        tracing::info!(group = header.group, received, reused, "snapshot came, in bytes");
        // Appends that were on their way longer may have come meanwhile.
        if has_up_to(&member.raft, vote, head.at).await {
            return socket.write_all(&answer(&vote)).await;
        }
        let snapshot = openraft::storage::Snapshot {
            meta: SnapshotMeta { last_log_id: Some(to_log_id(head.at)), last_membership: to_stored(&head.members) },
            snapshot: super::machine::SnapshotBody::Staged(staged),
        };
        let installed = member.raft.install_full_snapshot(vote, snapshot).await.map_err(std::io::Error::other)?;
        socket.write_all(&answer(&installed.vote)).await
    }
}

/// Feeds one replication stream to openraft and answers its requests in order.
async fn serve_stream(member: Member, requests: mpsc::Receiver<Request>) {
    let Member { raft, told, .. } = member;
    let (unanswered, mut next) = mpsc::channel(STREAM_WINDOW);
    let input = futures::stream::unfold((requests, unanswered), |(mut requests, unanswered)| async move {
        let (request, respond) = requests.recv().await?;
        // Fails only when the results are read no more.
        let _ended = unanswered.send((told_commit(&request), respond)).await;
        Some((request, (requests, unanswered)))
    });
    let mut results = Box::pin(raft.stream_append(Box::pin(input)));
    while let Some(Ok(result)) = results.next().await {
        let Some((commit, respond)) = next.recv().await else { break };
        if result.is_ok() {
            told.hear(commit);
        }
        let mut out = BytesMut::with_capacity(48);
        codec::put_append_result(&mut out, &result);
        respond.send(Ok(vec![out.freeze()]));
        if result.is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_proves_only_commits_of_its_own_term() {
        let told = |leader_commit: Option<LogPos>| {
            told_commit(&AppendEntriesRequest {
                vote: Vote::new_committed(7, 2),
                prev_log_id: None,
                entries: Vec::new(),
                leader_commit: leader_commit.map(to_log_id),
            })
        };
        assert_eq!(told(None), 0);
        assert_eq!(told(Some(log_pos(6, 40))), 0, "its predecessors may have committed more");
        assert_eq!(told(Some(log_pos(7, 41))), 41);
    }
}
