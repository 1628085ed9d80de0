//! One subscription of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::conn::Conn;

/// A client's subscription. The connection's table and the interest index share it.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) conn: Arc<Conn>,
    /// The client's name for it.
    pub(super) sid: Box<[u8]>,
    pub(super) filter: Box<[u8]>,
    pub(super) queue: Option<Box<[u8]>>,
    /// Where the interest index keeps it.
    pub(super) slot: AtomicU32,
    delivered: AtomicU64,
    /// Deliveries after which it ends; zero for none.
    max: AtomicU64,
}

impl Subscription {
    pub(super) fn new(conn: Arc<Conn>, filter: &[u8], queue: Option<&[u8]>, sid: &[u8]) -> Subscription {
        Subscription {
            conn,
            sid: sid.into(),
            filter: filter.into(),
            queue: queue.map(Into::into),
            slot: AtomicU32::new(0),
            delivered: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    /// Claims one delivery. `None` when its maximum is reached already, `Some(true)` when this is the last one.
    pub(super) fn claim(&self) -> Option<bool> {
        let max = self.max.load(Ordering::Relaxed);
        let delivered = self.delivered.fetch_add(1, Ordering::Relaxed) + 1;
        if max == 0 || delivered < max {
            return Some(false);
        }
        (delivered == max).then_some(true)
    }

    /// Whether it may end by a maximum.
    pub(super) fn is_limited(&self) -> bool {
        self.max.load(Ordering::Relaxed) != 0
    }

    /// Sets the maximum, counted from its start; false when that many were delivered already.
    pub(super) fn limit(&self, max: u64) -> bool {
        self.max.store(max, Ordering::Relaxed);
        self.delivered.load(Ordering::Relaxed) < max
    }
}
