//! Room on the file system of the store: watched here, told to the peers, and what follows for leadership.
//!
//! What counts as too little is decided in [`headwater_core::space`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headwater_core::space::{Room, SpaceGuard, takes_messages};
use headwater_plan::wire::StoreSpace;
use parking_lot::Mutex;

use crate::node::Context;
use crate::transport::NodeId;

/// How often the file system is asked: a fast disk writes some 100 MB in that time.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The peers are told again after so many looks, for those that came meanwhile.
const TELL_AGAIN: u64 = 4;

/// Frame kinds on the peer link.
pub(crate) mod kind {
    /// `u8`: 1 while the sender's file system has too little room.
    pub(crate) const LOW_SPACE: u8 = 0x3a;
}

/// What is known of it.
#[derive(Default)]
pub(crate) struct Space {
    was_seen: AtomicBool,
    is_low: AtomicBool,
    free: AtomicU64,
    floor: AtomicU64,
    /// Peers that have too little, as they said.
    low_peers: Mutex<BTreeSet<NodeId>>,
}

impl Space {
    /// Whether this node has too little.
    pub(crate) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Acquire)
    }

    /// Free bytes, and the floor, as last seen; 0 and 0 before the first look.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.free.load(Ordering::Relaxed), self.floor.load(Ordering::Relaxed))
    }

    /// Whether a node, this one included, has too little.
    pub(crate) fn lacks(&self, context: &Context, node: NodeId) -> bool {
        if node == context.node_id { self.is_low() } else { self.low_peers.lock().contains(&node) }
    }

    /// What is told of it, after the first look.
    pub(crate) fn report(&self) -> Option<StoreSpace> {
        let (free_bytes, min_free_bytes) = self.seen();
        self.was_seen.load(Ordering::Acquire).then(|| StoreSpace { free_bytes, min_free_bytes, is_low: self.is_low() })
    }

    /// Why nothing new is taken in, for people.
    pub(crate) fn why(&self) -> Option<String> {
        let (free, floor) = self.seen();
        self.is_low().then(|| {
            format!(
                "the store's file system has {free} bytes free, less than --min-free-space {floor}: no new messages"
            )
        })
    }

    /// Takes [`kind::LOW_SPACE`].
    pub(crate) fn heard(&self, from: NodeId, body: &[u8]) {
        let mut low = self.low_peers.lock();
        if body.first() == Some(&1) {
            low.insert(from);
        } else {
            low.remove(&from);
        }
    }

    /// Nothing is known of a peer that is gone.
    pub(crate) fn on_down(&self, node: NodeId) {
        self.low_peers.lock().remove(&node);
    }
}

/// Looks until the node stops.
pub(crate) async fn watch(context: Arc<Context>) {
    let mut guard = SpaceGuard::new(context.config.min_free_space);
    let mut was_low = false;
    let mut count = 0_u64;
    loop {
        let store = context.config.store_dir.clone();
        // A file system on a network may take its time.
        let looked = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&store)).await;
        match looked.map_err(|e| e.to_string()).and_then(|seen| seen.map_err(|e| e.to_string())) {
            Ok(seen) => {
                let bytes = |blocks: u64| blocks.saturating_mul(seen.f_frsize);
                let room = Room { free: bytes(seen.f_bavail), total: bytes(seen.f_blocks) };
                let is_low = guard.observe(room);
                context.space.free.store(room.free, Ordering::Relaxed);
                context.space.floor.store(guard.floor(room.total), Ordering::Relaxed);
                context.space.is_low.store(is_low, Ordering::Release);
                context.space.was_seen.store(true, Ordering::Release);
            }
            Err(error) => tracing::debug!(error, "the file system does not say how much is free"),
        }
        let is_low = context.space.is_low();
        if is_low != was_low {
            let (free, floor) = context.space.seen();
            if is_low {
                tracing::error!(
                    free,
                    floor,
                    "too little room on the store's file system: no new messages are taken in"
                );
            } else {
                tracing::info!(free, floor, "there is room on the store's file system again");
            }
        }
        if is_low != was_low || count.is_multiple_of(TELL_AGAIN) {
            let body = Bytes::copy_from_slice(&[u8::from(is_low)]);
            for peer in context.transport.peers() {
                // A peer that is down hears it when it comes up.
                let _down = context.transport.send(peer.node_id, kind::LOW_SPACE, std::slice::from_ref(&body));
            }
            if is_low {
                hand_over_all(&context).await;
            }
        }
        was_low = is_low;
        count += 1;
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = context.stopping.cancelled() => return,
        }
    }
}

/// Groups are led where there is room, if there is any.
async fn hand_over_all(context: &Arc<Context>) {
    let led = context.streams.all_local().into_iter().filter(|replica| replica.leads()).filter_map(|r| r.raft());
    let meta = context.meta.raft().filter(|_| context.meta.leads());
    for raft in led.chain(meta) {
        // With nobody to take over it is led here, and takes nothing in.
        if let Err(why) =
            crate::handover::hand_over_where(context, &raft, |node| !context.space.lacks(context, node)).await
        {
            tracing::debug!(why, "led where there is too little room");
        }
    }
}

/// Whether a group with these voters takes messages at a leader here.
pub(crate) fn has_room(context: &Context, voters: &BTreeSet<u64>) -> bool {
    let low = voters.iter().filter(|id| context.space.lacks(context, context.node_of(**id))).count();
    takes_messages(voters.len().max(1), low, context.space.is_low())
}
