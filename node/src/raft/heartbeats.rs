//! Heartbeats of all groups to one peer, gathered: those that fall due within a moment travel in one frame, and so do
//! their answers. A node with a thousand quiet groups sends its peers a few dozen frames a second, not thousands.
//!
//! ```text
//! request:  count u32 | count × ( len u32 | group u64 | target u64 | append request )
//! answer:   count u32 | count × ( status u8 | len u32 | append result, or why there is none )
//! ```

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::codec::{BadMessage, Reader};
use crate::transport::NodeId;

/// How long a heartbeat waits for others to the same peer: far below any election timeout, and below the meta group's
/// heartbeat interval, which bounds the answer's time too.
const GATHER: Duration = Duration::from_millis(30);

const ANSWERED: u8 = 0;
const NOT_ANSWERED: u8 = 1;

/// What became of one heartbeat: an append result's bytes, or why there are none.
pub(super) type Answer = Result<Bytes, String>;

struct Beat {
    request: Bytes,
    answer: oneshot::Sender<Answer>,
}

/// Heartbeats that wait for their frame, by peer.
#[derive(Clone, Default)]
pub(super) struct Heartbeats(Arc<Mutex<HashMap<NodeId, Vec<Beat>>>>);

impl Heartbeats {
    /// Sends one heartbeat to `node` and returns its answer. `carry` takes a frame there, if this heartbeat is the
    /// first of it.
    pub(super) async fn beat<C, F>(&self, node: NodeId, request: Bytes, carry: C) -> Answer
    where
        C: FnOnce(Bytes) -> F + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let is_first = {
            let mut waiting = self.0.lock();
            let beats = waiting.entry(node).or_default();
            beats.push(Beat { request, answer });
            beats.len() == 1
        };
        if is_first {
            let this = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(GATHER).await;
                let beats = this.0.lock().remove(&node).unwrap_or_default();
                let answers = carry(encode_requests(&beats)).await;
                let mut answers = answers.and_then(|body| read_answers(body).map_err(|e| e.to_string()));
                for beat in beats.into_iter().rev() {
                    let answer = match &mut answers {
                        Ok(answers) => answers.pop().unwrap_or_else(|| Err("the peer left it out".to_owned())),
                        Err(why) => Err(why.clone()),
                    };
                    // The group may have stopped meanwhile.
                    let _gone = beat.answer.send(answer);
                }
            });
        }
        answered.await.unwrap_or_else(|_| Err("the frame was not sent".to_owned()))
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 4 G groups, each request below 4 GiB")
}

fn encode_requests(beats: &[Beat]) -> Bytes {
    let mut out = BytesMut::with_capacity(4 + beats.len() * 96);
    out.put_u32_le(count(beats.len()));
    for beat in beats {
        out.put_u32_le(count(beat.request.len()));
        out.extend_from_slice(&beat.request);
    }
    out.freeze()
}

/// The requests of a frame, each `group | target | append request`.
pub(super) fn read_requests(body: Bytes) -> Result<Vec<Bytes>, BadMessage> {
    let mut r = Reader(body);
    let mut requests = Vec::new();
    for _ in 0..r.u32()? {
        let len = r.u32()? as usize;
        requests.push(r.bytes(len)?);
    }
    Ok(requests)
}

/// The frame that answers [`read_requests`], in the same order.
pub(super) fn encode_answers(answers: &[Answer]) -> Bytes {
    let mut out = BytesMut::with_capacity(4 + answers.len() * 32);
    out.put_u32_le(count(answers.len()));
    for answer in answers {
        let (status, bytes) = match answer {
            Ok(result) => (ANSWERED, &result[..]),
            Err(why) => (NOT_ANSWERED, why.as_bytes()),
        };
        out.put_u8(status);
        out.put_u32_le(count(bytes.len()));
        out.extend_from_slice(bytes);
    }
    out.freeze()
}

pub(super) fn read_answers(body: Bytes) -> Result<Vec<Answer>, BadMessage> {
    let mut r = Reader(body);
    let mut answers = Vec::new();
    for _ in 0..r.u32()? {
        let (status, len) = (r.u8()?, r.u32()? as usize);
        let bytes = r.bytes(len)?;
        answers.push(match status {
            ANSWERED => Ok(bytes),
            _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
        });
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    /// A peer that answers each request with its own bytes, except `odd`.
    fn echo(body: Bytes) -> Answer {
        let requests = read_requests(body).map_err(|e| e.to_string())?;
        let answer = |request: Bytes| if request == "odd" { Err("no such group".to_owned()) } else { Ok(request) };
        Ok(encode_answers(&requests.into_iter().map(answer).collect::<Vec<_>>()))
    }

    #[tokio::test(start_paused = true)]
    async fn those_of_one_moment_share_a_frame_per_peer() {
        let (heartbeats, frames) = (Heartbeats::default(), Arc::new(AtomicUsize::new(0)));
        let beat = |node: NodeId, request: String| {
            let frames = Arc::clone(&frames);
            heartbeats.beat(node, Bytes::from(request), move |body| async move {
                frames.fetch_add(1, Ordering::Relaxed);
                echo(body)
            })
        };
        let answers = join_all((0..200).map(|i| beat(i % 2, format!("group {i}")))).await;
        for (i, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, Ok(Bytes::from(format!("group {i}"))));
        }
        assert_eq!(frames.load(Ordering::Relaxed), 2, "one frame to each of two peers");
        let (good, odd) = tokio::join!(beat(1, "even".into()), beat(1, "odd".into()));
        assert_eq!((good, odd), (Ok(Bytes::from("even")), Err("no such group".to_owned())));
        assert_eq!(frames.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_frame_and_a_short_answer_are_errors_of_each() {
        let heartbeats = Heartbeats::default();
        let lost = |_| async { Err("the link is down".to_owned()) };
        let (one, two) =
            tokio::join!(heartbeats.beat(7, Bytes::from("a"), lost), heartbeats.beat(7, Bytes::from("b"), lost));
        assert_eq!((one, two), (Err("the link is down".to_owned()), Err("the link is down".to_owned())));
        let short = |_| async { Ok(Bytes::from_static(&[1, 0, 0, 0, 0, 9])) };
        assert!(heartbeats.beat(7, Bytes::from("a"), short).await.is_err());
        let none = |_| async { Ok(encode_answers(&[])) };
        assert!(heartbeats.beat(7, Bytes::from("a"), none).await.is_err());
        assert!(read_requests(Bytes::from_static(&[255, 255, 255, 255, 1])).is_err());
    }
}
