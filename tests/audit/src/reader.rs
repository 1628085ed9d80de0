//! Reads a whole stream from one connection, in one of four ways.

use std::fmt;
use std::time::{Duration, Instant};

use async_nats::{Client, Message, Request, RequestErrorKind};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;

use crate::checks::{ConsumerState, NodeState, Stored};
use crate::message::{build, delivery, direct_message, number_header, parse_headers};
use crate::time::parse_rfc3339;

/// A way of reading every message of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// `$JS.API.STREAM.MSG.GET`, answered by the leader, one sequence at a time.
    StreamGet,
    /// `$JS.API.DIRECT.GET`, answered by a replica, one sequence at a time.
    DirectGet,
    /// `$JS.API.DIRECT.GET` with `batch`.
    DirectBatch,
    /// A new ephemeral consumer without acknowledgements, pulled to the end.
    Consumer,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::StreamGet, Way::DirectGet, Way::DirectBatch, Way::Consumer];

    /// Whether it works only on streams with `allow_direct`.
    pub fn needs_direct(self) -> bool {
        matches!(self, Way::DirectGet | Way::DirectBatch)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::StreamGet => "stream get",
            Way::DirectGet => "direct get",
            Way::DirectBatch => "direct batch",
            Way::Consumer => "consumer",
        })
    }
}

/// Why something couldn't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError(pub(crate) String);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

pub(crate) fn error(text: impl fmt::Display) -> ReadError {
    ReadError(text.to_string())
}

/// What was read, and what was odd about the way it came.
#[derive(Debug, Default)]
pub(crate) struct ReadOut {
    pub(crate) messages: Vec<Stored>,
    pub(crate) oddities: Vec<String>,
}

/// One node's side of a stream.
pub(crate) struct Reader<'a> {
    pub(crate) client: &'a Client,
    pub(crate) stream: &'a str,
    /// How long to keep trying one request: leaders change.
    pub(crate) patience: Duration,
}

#[derive(Debug, Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

const NO_MESSAGE: u64 = 10037;
/// Requests under way at once: enough to hide the round trip, little enough for a small machine.
const UNDER_WAY: usize = 64;
const BATCH: u64 = 1000;

impl Reader<'_> {
    /// The stream's config and state as the API reports them.
    pub(crate) async fn info(&self) -> Result<(StreamConfig, NodeState), ReadError> {
        let info: StreamInfo = self.api(&format!("STREAM.INFO.{}", self.stream), Bytes::new()).await?;
        let state = info.state;
        Ok((
            info.config,
            NodeState {
                messages: state.messages,
                bytes: state.bytes,
                first_seq: state.first_seq,
                last_seq: state.last_seq,
                num_deleted: state.num_deleted,
                num_subjects: state.num_subjects,
            },
        ))
    }

    /// The state of every consumer.
    pub(crate) async fn consumers(&self) -> Result<Vec<ConsumerState>, ReadError> {
        let mut all = Vec::new();
        loop {
            let body = json!({ "offset": all.len() }).to_string();
            let page: ConsumerList = self.api(&format!("CONSUMER.LIST.{}", self.stream), body.into()).await?;
            let empty = page.consumers.is_empty();
            all.extend(page.consumers.into_iter().map(|info| ConsumerState {
                name: info.name,
                delivered_stream_seq: info.delivered.stream_seq,
                delivered_consumer_seq: info.delivered.consumer_seq,
                ack_floor_stream_seq: info.ack_floor.stream_seq,
                ack_floor_consumer_seq: info.ack_floor.consumer_seq,
            }));
            if empty || all.len() as u64 >= page.total {
                return Ok(all);
            }
        }
    }

    /// Every message of a stream in this state, in order.
    pub(crate) async fn read(&self, way: Way, state: &NodeState) -> Result<ReadOut, ReadError> {
        if state.messages == 0 {
            return Ok(ReadOut::default());
        }
        let (first, last) = (state.first_seq, state.last_seq);
        match way {
            Way::StreamGet => {
                let found = stream::iter(first..=last).map(|seq| self.stream_get(seq)).buffered(UNDER_WAY);
                collect(found).await
            }
            Way::DirectGet => {
                let found = stream::iter(first..=last).map(|seq| self.direct_get(seq)).buffered(UNDER_WAY);
                collect(found).await
            }
            Way::DirectBatch => self.direct_batch(first, last).await,
            Way::Consumer => self.consume(last).await,
        }
    }

    async fn stream_get(&self, seq: u64) -> Result<Option<Stored>, ReadError> {
        let subject = format!("STREAM.MSG.GET.{}", self.stream);
        let body = Bytes::from(format!("{{\"seq\":{seq}}}"));
        let answer: MsgGet = match self.api(&subject, body).await {
            Err(ReadError(text)) if text.starts_with(&format!("{NO_MESSAGE} ")) => return Ok(None),
            other => other?,
        };
        let message = answer.message;
        if message.seq != seq {
            return Err(error(format!("asked for sequence {seq}, got {}", message.seq)));
        }
        let decode = |text: &Option<String>| STANDARD.decode(text.as_deref().unwrap_or_default()).map_err(error);
        let (headers, payload) = (decode(&message.hdrs)?, decode(&message.data)?);
        let time = parse_rfc3339(&message.time)
            .ok_or_else(|| error(format!("sequence {seq}: bad time {:?}", message.time)))?;
        Ok(Some(build(seq, &message.subject, parse_headers(&headers)?, time, &payload)))
    }

    async fn direct_get(&self, seq: u64) -> Result<Option<Stored>, ReadError> {
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream);
        let message = self.request(&subject, Bytes::from(format!("{{\"seq\":{seq}}}"))).await?;
        match message.status.map(|status| status.as_u16()) {
            Some(404) => Ok(None),
            Some(status) => {
                Err(error(format!("direct get of {seq}: {status} {}", message.description.unwrap_or_default())))
            }
            None => match direct_message(&message)? {
                stored if stored.seq == seq => Ok(Some(stored)),
                stored => Err(error(format!("asked for sequence {seq}, got {}", stored.seq))),
            },
        }
    }

    async fn direct_batch(&self, first: u64, last: u64) -> Result<ReadOut, ReadError> {
        let mut out = ReadOut::default();
        let (mut next, deadline) = (first, Instant::now() + self.patience);
        let mut progress = deadline;
        while next <= last {
            let before = next;
            let end = self.one_batch(&mut next, last, &mut out.messages).await;
            match end {
                Ok(true) => break,
                Ok(false) if next > before => progress = Instant::now() + self.patience,
                Ok(false) => {}
                Err(why) if Instant::now() >= progress => return Err(why),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        Ok(out)
    }

    /// One batch request. Moves `next` past what was read; true when the stream has no more.
    async fn one_batch(&self, next: &mut u64, last: u64, into: &mut Vec<Stored>) -> Result<bool, ReadError> {
        let inbox = self.client.new_inbox();
        let mut replies = self.client.subscribe(inbox.clone()).await.map_err(error)?;
        let body = json!({ "seq": *next, "batch": BATCH, "next_by_subj": ">" }).to_string();
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream);
        self.client.publish_with_reply(subject, inbox, body.into()).await.map_err(error)?;
        loop {
            let message = tokio::time::timeout(Duration::from_secs(2), replies.next())
                .await
                .map_err(|_| error("direct batch: no answer in 2 s"))?;
            let message = message.ok_or_else(|| error("the client is closed"))?;
            match message.status.map(|status| status.as_u16()) {
                Some(204) => return Ok(number_header(&message, "Nats-Num-Pending") == Some(0)),
                Some(404) => return Ok(true),
                Some(status) => {
                    return Err(error(format!("direct batch: {status} {}", message.description.unwrap_or_default())));
                }
                None => {
                    let stored = direct_message(&message)?;
                    if stored.seq < *next {
                        return Err(error(format!("direct batch: sequence {} after {}", stored.seq, *next - 1)));
                    }
                    *next = stored.seq + 1;
                    if stored.seq <= last {
                        into.push(stored);
                    }
                }
            }
        }
    }

    async fn consume(&self, last: u64) -> Result<ReadOut, ReadError> {
        let name = format!("audit-{}", self.client.new_inbox().rsplit('.').next().unwrap_or("x"));
        let stream = self.stream;
        let config = json!({
            "stream_name": stream,
            "config": {
                "name": name, "ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant",
                "mem_storage": true, "num_replicas": 1, "inactive_threshold": 60_000_000_000_u64,
            },
        });
        let _: serde::de::IgnoredAny =
            self.api(&format!("CONSUMER.CREATE.{stream}.{name}"), config.to_string().into()).await?;
        let out = self.pull(&name, last).await;
        // It would go away by itself; what it is asked here changes nothing of what was read.
        let _: Result<serde::de::IgnoredAny, _> =
            self.api(&format!("CONSUMER.DELETE.{stream}.{name}"), Bytes::new()).await;
        out
    }

    async fn pull(&self, consumer: &str, last: u64) -> Result<ReadOut, ReadError> {
        let inbox = self.client.new_inbox();
        let mut replies = self.client.subscribe(inbox.clone()).await.map_err(error)?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", self.stream);
        let (mut out, mut expected, mut deadline) = (ReadOut::default(), 1, Instant::now() + self.patience);
        loop {
            let body = json!({ "batch": BATCH, "expires": 1_000_000_000_u64 }).to_string();
            self.client.publish_with_reply(next.clone(), inbox.clone(), body.into()).await.map_err(error)?;
            let mut got = 0;
            while got < BATCH {
                let wait = tokio::time::timeout(Duration::from_secs(2), replies.next());
                let Ok(message) = wait.await else { break };
                let message = message.ok_or_else(|| error("the client is closed"))?;
                match message.status.map(|status| status.as_u16()) {
                    Some(100) => continue,
                    Some(404 | 408 | 409 | 503) => break,
                    Some(status) => {
                        return Err(error(format!("pull: {status} {}", message.description.unwrap_or_default())));
                    }
                    None => {}
                }
                let (stored, delivered, cseq, pending) = delivery(&message)?;
                if cseq != expected || delivered != 1 {
                    out.oddities.push(format!(
                        "sequence {} came as delivery {cseq} for the {delivered}. time, expected was {expected} for the first",
                        stored.seq
                    ));
                }
                (got, expected) = (got + 1, cseq + 1);
                deadline = Instant::now() + self.patience;
                let seq = stored.seq;
                if seq <= last {
                    out.messages.push(stored);
                }
                // The stream's last messages may be deleted: what the consumer left out shows in
                // the recount.
                if seq >= last || pending == 0 {
                    return Ok(out);
                }
            }
            if Instant::now() >= deadline {
                return Err(error(format!("the consumer gave nothing after {} messages", out.messages.len())));
            }
        }
    }

    /// One API request, decoded; retried while there's no leader or no answer.
    async fn api<T: for<'de> Deserialize<'de>>(&self, subject: &str, body: Bytes) -> Result<T, ReadError> {
        #[derive(Deserialize)]
        struct Failed {
            error: ApiError,
        }
        let deadline = Instant::now() + self.patience;
        loop {
            let message = self.request(&format!("$JS.API.{subject}"), body.clone()).await?;
            match serde_json::from_slice::<Failed>(&message.payload) {
                Ok(Failed { error: e }) if e.err_code == 10008 && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Ok(Failed { error: e }) => {
                    return Err(error(format!("{} {}", e.err_code, e.description)));
                }
                Err(_) => {
                    return serde_json::from_slice(&message.payload).map_err(|e| error(format!("{subject}: {e}")));
                }
            }
        }
    }

    async fn request(&self, subject: &str, body: Bytes) -> Result<Message, ReadError> {
        let deadline = Instant::now() + self.patience;
        loop {
            let request = Request::new().payload(body.clone()).timeout(Some(Duration::from_secs(2)));
            match self.client.send_request(subject.to_owned(), request).await {
                Ok(message) => return Ok(message),
                Err(e) if Instant::now() >= deadline => {
                    return Err(error(format!("{subject}: {e}")));
                }
                Err(e) => {
                    if e.kind() != RequestErrorKind::TimedOut {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    }
}

async fn collect(found: impl Stream<Item = Result<Option<Stored>, ReadError>>) -> Result<ReadOut, ReadError> {
    let messages = found.try_filter_map(|found| async move { Ok(found) }).try_collect().await?;
    Ok(ReadOut { messages, oddities: Vec::new() })
}

#[derive(Deserialize)]
pub(crate) struct StreamConfig {
    #[serde(default)]
    pub(crate) allow_direct: bool,
}

#[derive(Deserialize)]
struct StreamInfo {
    config: StreamConfig,
    state: State,
}

#[derive(Deserialize)]
struct State {
    messages: u64,
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    num_deleted: u64,
    #[serde(default)]
    num_subjects: u64,
}

#[derive(Deserialize)]
struct ConsumerList {
    total: u64,
    #[serde(default)]
    consumers: Vec<ConsumerInfo>,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    name: String,
    delivered: Position,
    ack_floor: Position,
}

#[derive(Deserialize)]
struct Position {
    consumer_seq: u64,
    stream_seq: u64,
}

#[derive(Deserialize)]
struct MsgGet {
    message: GotMessage,
}

#[derive(Deserialize)]
struct GotMessage {
    subject: String,
    seq: u64,
    hdrs: Option<String>,
    data: Option<String>,
    time: String,
}
