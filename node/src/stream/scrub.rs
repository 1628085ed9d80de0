//! Reads the blocks of every stream again, now and then and slowly, so that damage is met while there are peers to heal
//! it from, and not when somebody needs the message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headwater_storage::FileError;
use headwater_storage::blocks::{Scrubbed, scrub_block};
use headwater_storage::checkpoint::{BlockExtent, Checkpoint};

use super::damage::Met;
use super::replica::StreamReplica;
use crate::node::Context;

/// A start has other things to read.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// How often it is looked whether the node stops.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What was read so far.
#[derive(Default)]
pub(crate) struct ScrubStats {
    /// Bytes.
    pub(crate) bytes: AtomicU64,
    /// Readings of the whole store that came to their end.
    pub(crate) passes: AtomicU64,
    /// Blocks found damaged.
    pub(crate) damaged: AtomicU64,
}

/// Runs until the node stops.
pub(crate) async fn run(context: Arc<Context>) {
    let every = context.config.scrub_every;
    if context.config.scrub_rate == 0 {
        return;
    }
    let mut wait = every.min(FIRST_AFTER);
    while !sleep(&context, wait).await {
        let began = Instant::now();
        for replica in context.streams.all_local() {
            scrub(&context, &replica).await;
        }
        if context.stopping.is_cancelled() {
            return;
        }
        context.scrub.passes.fetch_add(1, Ordering::Relaxed);
        wait = every.saturating_sub(began.elapsed());
    }
}

/// True if the node stops.
async fn sleep(context: &Context, time: Duration) -> bool {
    tokio::select! {
        () = tokio::time::sleep(time) => false,
        () = context.stopping.cancelled() => true,
    }
}

async fn scrub(context: &Arc<Context>, replica: &Arc<StreamReplica>) {
    let listed = {
        let (disk, dir, stream) = (Arc::clone(&context.disk), replica.dir.clone(), replica.spec.stream);
        let loaded = tokio::task::spawn_blocking(move || Checkpoint::load(&*disk, &dir)).await;
        // A damaged checkpoint is met by whoever opens the stream; there is a new one before long.
        let loaded = loaded.ok().and_then(Result::ok).flatten();
        loaded.filter(|checkpoint| checkpoint.stream == stream).map(|checkpoint| checkpoint.blocks).unwrap_or_default()
    };
    for extent in listed {
        if replica.is_stopped() || context.stopping.is_cancelled() {
            return;
        }
        let Err(error) = read_block(context, replica, extent).await else { continue };
        let met = Met::of(error);
        if !met.passes {
            context.scrub.damaged.fetch_add(1, Ordering::Relaxed);
            replica.is_damaged(&mut replica.lock(), &met.why);
        }
    }
}

async fn read_block(
    context: &Arc<Context>,
    replica: &Arc<StreamReplica>,
    extent: BlockExtent,
) -> Result<Scrubbed, FileError> {
    let (context, replica) = (Arc::clone(context), Arc::clone(replica));
    let read = tokio::task::spawn_blocking(move || {
        let rate = context.config.scrub_rate;
        let mut pace = |bytes: u64| {
            context.scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
            // At most 256 KiB or a frame at a time.
            let mut left = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate);
            let ends = || context.stopping.is_cancelled() || replica.is_stopped();
            while !left.is_zero() && !ends() {
                let part = left.min(LOOK_EVERY);
                std::thread::sleep(part);
                left -= part;
            }
            !ends()
        };
        scrub_block(&*context.disk, &replica.dir, replica.spec.stream, extent, &mut pace)
    });
    // A reading that panicked says nothing about the block.
    read.await.unwrap_or(Ok(Scrubbed::Stopped))
}
