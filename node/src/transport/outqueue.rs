//! Frames waiting to be written to one connection.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::frame::{self, Role};

/// Parts of at least this size are queued by reference; smaller ones are cheaper to copy than to count.
const SHARE_BYTES_MIN: usize = 4 << 10;
/// Slices one vectored write carries at most.
const SLICES_MAX: usize = 64;
/// A peer that takes nothing for this long loses the link.
const WRITE_STALL: Duration = Duration::from_secs(10);

/// Why a frame was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotQueued {
    Closed,
    Full,
    TooLong,
}

/// Byte-bounded queue between any thread and the task that writes the connection.
#[derive(Debug)]
pub(super) struct OutQueue {
    state: Mutex<State>,
    /// Queued or in the writer's hands, not yet taken by the kernel.
    bytes: AtomicUsize,
    bytes_max: usize,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: Vec<Bytes>,
    tail: BytesMut,
    closed: bool,
}

impl OutQueue {
    pub(super) fn new(bytes_max: usize) -> OutQueue {
        OutQueue { state: Mutex::default(), bytes: AtomicUsize::new(0), bytes_max, wake: Notify::new() }
    }

    /// Queues one frame. A frame larger than the bound passes when nothing else is queued.
    pub(super) fn push(&self, role: Role, kind: u8, id: u64, parts: &[Bytes]) -> Result<(), NotQueued> {
        let body_bytes = parts.iter().map(Bytes::len).sum();
        let header = frame::header(role, kind, id, body_bytes).ok_or(NotQueued::TooLong)?;
        let frame_bytes = body_bytes + header.len();
        let mut state = self.state.lock();
        if state.closed {
            return Err(NotQueued::Closed);
        }
        let queued = self.bytes.load(Ordering::Relaxed);
        if queued != 0 && queued + frame_bytes > self.bytes_max {
            return Err(NotQueued::Full);
        }
        self.bytes.fetch_add(frame_bytes, Ordering::Relaxed);
        state.tail.extend_from_slice(&header);
        for part in parts {
            if part.len() < SHARE_BYTES_MIN {
                state.tail.extend_from_slice(part);
            } else {
                let before = state.tail.split().freeze();
                state.chunks.push(before);
                state.chunks.push(part.clone());
            }
        }
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Refuses further frames and lets the writer end once it has written what is queued.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_one();
    }

    /// Moves everything queued into `chunks`; false when the queue is closed and empty.
    fn take(&self, chunks: &mut Vec<Bytes>) -> bool {
        let mut state = self.state.lock();
        chunks.append(&mut state.chunks);
        if !state.tail.is_empty() {
            chunks.push(state.tail.split().freeze());
        }
        !(state.closed && chunks.is_empty())
    }

    /// Writes what is queued, all that has gathered in one vectored write, until the queue is closed and drained.
    pub(super) async fn write_to(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut chunks = Vec::new();
        while self.take(&mut chunks) {
            if chunks.is_empty() {
                self.wake.notified().await;
                continue;
            }
            self.write_chunks(to, &chunks).await?;
            chunks.clear();
        }
        to.shutdown().await
    }

    async fn write_chunks(&self, to: &mut (impl AsyncWrite + Unpin), mut chunks: &[Bytes]) -> io::Result<()> {
        let mut skip = 0;
        while let Some(first) = chunks.first() {
            if skip == first.len() {
                chunks = &chunks[1..];
                skip = 0;
                continue;
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, chunk) in slices.iter_mut().zip(chunks) {
                *slice = IoSlice::new(chunk);
                count += 1;
            }
            slices[0] = IoSlice::new(&first[skip..]);
            let mut written = tokio::time::timeout(WRITE_STALL, to.write_vectored(&slices[..count]))
                .await
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "peer takes no bytes"))??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.bytes.fetch_sub(written, Ordering::Relaxed);
            while let Some(first) = chunks.first() {
                let left = first.len() - skip;
                if written < left {
                    skip += written;
                    break;
                }
                written -= left;
                chunks = &chunks[1..];
                skip = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::FrameBuffer;
    use super::*;

    #[tokio::test]
    async fn frames_come_out_in_order_whatever_their_parts() {
        let queue = OutQueue::new(1 << 30);
        let parts = [Bytes::from(vec![1; 100]), Bytes::from(vec![2; 5000]), Bytes::from(vec![3; 10])];
        for id in 0..200 {
            queue.push(Role::OneWay, 9, id, &parts).unwrap();
        }
        let queued = queue.bytes();
        queue.close();
        assert_eq!(queue.push(Role::OneWay, 9, 0, &[]), Err(NotQueued::Closed));
        // A pipe smaller than one frame makes every write partial.
        let (mut near, mut far) = tokio::io::duplex(1000);
        let write = async { queue.write_to(&mut near).await.unwrap() };
        let read = async {
            let (mut buffer, mut bytes, mut next_id) = (FrameBuffer::default(), 0, 0);
            loop {
                let filled = buffer.fill(&mut far).await.unwrap();
                if filled.bytes == 0 {
                    return (bytes, next_id);
                }
                bytes += filled.bytes;
                while let Some(frame) = buffer.next().unwrap() {
                    assert_eq!((frame.id, frame.body.len()), (next_id, 5110));
                    assert_eq!((frame.body[99], frame.body[100], frame.body[5100]), (1, 2, 3));
                    next_id += 1;
                }
            }
        };
        let ((), (bytes, frames)) = tokio::join!(write, read);
        assert_eq!((bytes, frames), (queued, 200));
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn the_bound_counts_bytes_and_lets_one_large_frame_pass() {
        let queue = OutQueue::new(100);
        let large = [Bytes::from(vec![0; 500])];
        queue.push(Role::OneWay, 0, 0, &large).unwrap();
        assert_eq!(queue.push(Role::OneWay, 0, 0, &[]), Err(NotQueued::Full));
        let too_long = [Bytes::from(vec![0; frame::FRAME_BYTES_MAX])];
        assert_eq!(queue.push(Role::OneWay, 0, 0, &too_long), Err(NotQueued::TooLong));
    }
}
