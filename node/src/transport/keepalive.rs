//! Notices a peer that is silent: gone without a word, unreachable, or paused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::frame::Role;
use super::outqueue::OutQueue;

/// How soon silence is probed, and how long it is borne.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// A ping goes out after this much silence in either direction.
    pub(crate) ping_after: Duration,
    /// The link is given up after this many intervals without a byte from the peer.
    pub(crate) silent_intervals_max: u32,
    /// First and longest pause between two dials.
    pub(crate) backoff_min: Duration,
    pub(crate) backoff_max: Duration,
    /// A connection attempt or handshake that takes longer has failed.
    pub(crate) handshake_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            ping_after: Duration::from_secs(1),
            silent_intervals_max: 4,
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(1),
            handshake_max: Duration::from_secs(3),
        }
    }
}

/// What the two directions of a link have seen since the last look.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    reads: AtomicU64,
    sent: AtomicBool,
}

impl Pulse {
    pub(super) fn heard(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn said(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// Returns when the peer has been silent for too long. The dialing side also sends the pings.
    ///
    /// Silence is counted in intervals this process itself lived through, so a node that was paused reads what
    /// has arrived meanwhile before it judges its peers.
    pub(super) async fn until_silent(&self, timing: &Timing, pings: Option<&OutQueue>) {
        let mut ticks = interval_at(Instant::now() + timing.ping_after, timing.ping_after);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut silent_intervals) = (self.reads.load(Ordering::Relaxed), 0);
        loop {
            ticks.tick().await;
            let reads = self.reads.load(Ordering::Relaxed);
            silent_intervals = if reads == seen { silent_intervals + 1 } else { 0 };
            seen = reads;
            if silent_intervals >= timing.silent_intervals_max {
                return;
            }
            let said = self.sent.swap(false, Ordering::Relaxed);
            if let Some(out) = pings
                && (silent_intervals > 0 || !said)
            {
                // A full queue already holds bytes the peer will hear.
                let _ = out.push(Role::Ping, 0, 0, &[]);
            }
        }
    }
}
