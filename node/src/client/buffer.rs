//! Read buffers, shared by all connections that are idle between two operations.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};

/// What a buffer starts with, and what the pool keeps.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// A buffer that reads fill again and again grows up to this.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// Free space below which a read would bring too little.
const FREE_BYTES_MIN: usize = 4 << 10;
/// Buffers kept for later.
const POOLED_MAX: usize = 64;

/// Buffers without content.
#[derive(Debug, Default, Clone)]
pub(super) struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

impl BufferPool {
    fn get(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES_MIN])
    }

    fn put(&self, storage: Vec<u8>) {
        let mut pool = self.0.lock();
        if storage.len() == BUFFER_BYTES_MIN && pool.len() < POOLED_MAX {
            pool.push(storage);
        }
    }
}

/// What one connection has received and not yet parsed. It holds storage only while there is something in it.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    pool: BufferPool,
    storage: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes the next operation needs from its start, as far as known.
    wanted: usize,
    /// The last read used all the space there was.
    filled: bool,
}

impl ReadBuffer {
    pub(super) fn new(pool: BufferPool) -> ReadBuffer {
        ReadBuffer { pool, storage: Vec::new(), start: 0, end: 0, wanted: 0, filled: false }
    }

    pub(super) fn unparsed(&self) -> &[u8] {
        &self.storage[self.start..self.end]
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Whether what is here may hold a whole operation.
    pub(super) fn is_worth_parsing(&self) -> bool {
        self.end - self.start >= self.wanted.max(1)
    }

    /// The operation at the front needs `total` bytes.
    pub(super) fn want(&mut self, total: usize) {
        self.wanted = total;
    }

    /// The socket probably holds more than was read.
    pub(super) fn is_filled(&self) -> bool {
        self.filled
    }

    /// Reads once; zero at the end of the stream. Cancel safe.
    pub(super) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        poll_fn(|cx| self.poll_fill(cx, from)).await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, from: &mut (impl AsyncRead + Unpin)) -> Poll<io::Result<usize>> {
        self.make_room();
        let mut space = ReadBuf::new(&mut self.storage[self.end..]);
        let polled = Pin::new(from).poll_read(cx, &mut space);
        let read = space.filled().len();
        self.filled = read > 0 && space.remaining() == 0;
        match polled {
            Poll::Ready(Ok(())) => {
                self.end += read;
                Poll::Ready(Ok(read))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.rest();
                Poll::Pending
            }
        }
    }

    /// Gives the storage back when there is nothing in it.
    fn rest(&mut self) {
        if self.start == self.end {
            self.pool.put(std::mem::take(&mut self.storage));
            (self.start, self.end) = (0, 0);
        }
    }

    fn make_room(&mut self) {
        if self.storage.is_empty() {
            self.storage = self.pool.get();
        }
        let unparsed = self.end - self.start;
        if unparsed == 0 {
            (self.start, self.end) = (0, 0);
        }
        let grown = if self.filled { (self.storage.len() * 2).min(BUFFER_BYTES_MAX) } else { 0 };
        let size = self.storage.len().max(grown).max(self.wanted);
        let free = self.storage.len() - self.end;
        let missing = self.wanted.saturating_sub(unparsed);
        if size == self.storage.len() && free >= FREE_BYTES_MIN.max(missing) {
            return;
        }
        if self.start > 0 {
            self.storage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unparsed);
        }
        if size > self.storage.len() || self.storage.len() == self.end {
            self.storage.resize(size.max(self.end + FREE_BYTES_MIN), 0);
        }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.storage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_arrive_whole_whatever_is_consumed_between_reads() {
        let source: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut from = &source[..];
        let mut buffer = ReadBuffer::new(BufferPool::default());
        let (mut seen, mut step) = (0, 1);
        loop {
            let read = buffer.fill(&mut from).await.unwrap();
            if read == 0 {
                break;
            }
            // Leaves a rest of varying size, and asks for more than that now and then.
            step = (step * 7 + 3) % 90_000;
            let take = buffer.unparsed().len().saturating_sub(step % 5_000);
            assert_eq!(buffer.unparsed()[..take], source[seen..seen + take]);
            buffer.consume(take);
            seen += take;
            buffer.want(buffer.unparsed().len() + step);
        }
        assert_eq!(*buffer.unparsed(), source[seen..]);
        assert!(buffer.storage.len() <= 2 * BUFFER_BYTES_MAX);
    }

    #[tokio::test]
    async fn idle_connections_hold_no_storage() {
        let pool = BufferPool::default();
        let (mut near, mut far) = tokio::io::duplex(100);
        let mut buffer = ReadBuffer::new(pool.clone());
        tokio::io::AsyncWriteExt::write_all(&mut far, b"hello").await.unwrap();
        assert_eq!(buffer.fill(&mut near).await.unwrap(), 5);
        buffer.consume(5);
        let idle = tokio::time::timeout(std::time::Duration::from_millis(1), buffer.fill(&mut near));
        assert!(idle.await.is_err());
        assert!(buffer.storage.is_empty());
        assert_eq!(pool.0.lock().len(), 1);
        // The same storage serves the next read.
        tokio::io::AsyncWriteExt::write_all(&mut far, b"again").await.unwrap();
        assert_eq!(buffer.fill(&mut near).await.unwrap(), 5);
        assert_eq!(buffer.unparsed(), b"again");
        assert!(pool.0.lock().is_empty());
    }
}
