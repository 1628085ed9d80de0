//! Real publishers with a ledger, on connections of their own that know every node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use async_nats::Client;
use headwater_audit::{Ledger, Published, Publisher, PublisherError, Until};
use tokio::task::JoinHandle;

/// Publishers.
const PUBLISHERS: u32 = 4;
/// Messages a second and publisher: fast enough to be a load, slow enough that two nodes die and return in mid-load.
const RATE: f64 = 3_000.0;
/// Payload bytes.
const PAYLOAD: usize = 128;
/// A publisher may go this far beyond its share while it waits for the last act.
const ENOUGH: u64 = 4;
/// About what is published while both crashes go by.
const CRASHES_TAKE: u64 = 100_000;
/// Different subjects.
const SUBJECTS: u64 = 64;
/// An application's patience before it sends a message again, under the same id.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Publishers at work.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Result<Published, PublisherError>>>,
}

/// How it went, over all publishers.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) refused: u64,
    pub(super) unknown: u64,
    pub(super) retries: u64,
    pub(super) longest_gap: Duration,
}

impl Load {
    /// Starts publishing to `<prefix>.<n>` until told to stop.
    pub(super) async fn start(
        urls: &[String],
        stream: &str,
        prefix: &str,
        wanted: u64,
        ledger: &Ledger,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        // The crashes take their time, however few messages are wanted.
        let most = wanted.max(CRASHES_TAKE).div_ceil(u64::from(PUBLISHERS)).saturating_mul(ENOUGH);
        let mut tasks = Vec::new();
        for id in 1..=PUBLISHERS {
            let client = connect(urls).await?;
            let (stream, prefix, ledger) = (stream.to_owned(), prefix.to_owned(), ledger.clone());
            let until = Until::count_or_stopped(most, Arc::clone(&stop));
            tasks.push(tokio::spawn(async move {
                let publisher = Publisher::new(id).payload(PAYLOAD).rate(RATE).ack_timeout(ACK_TIMEOUT);
                let subject = |n: u64| format!("{prefix}.{}", n % SUBJECTS);
                publisher.run(&client, &stream, &ledger, subject, &until).await
            }));
        }
        Ok(Self { stop, tasks })
    }

    /// Whether a publisher has ended before it was told to.
    pub(super) fn has_ended(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// Stops, and waits until every message that was sent has its outcome.
    pub(super) async fn finish(mut self) -> anyhow::Result<Sum> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Sum::default();
        for task in std::mem::take(&mut self.tasks) {
            let run = task.await.context("a publisher broke")??;
            sum.refused += run.refused;
            sum.unknown += run.unknown;
            sum.retries += run.retries;
            sum.longest_gap = sum.longest_gap.max(run.longest_gap);
        }
        Ok(sum)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn connect(urls: &[String]) -> anyhow::Result<Client> {
    let options = async_nats::ConnectOptions::new()
        .connection_timeout(CONNECT_PATIENCE)
        .ping_interval(Duration::from_secs(2))
        // Lost connections are the point of the demo.
        .event_callback(|_| async {});
    options.connect(urls).await.with_context(|| format!("cannot connect to {}", urls.join(", ")))
}

/// A connection to this one node, that stays with it.
pub(super) async fn connect_only(url: &str) -> anyhow::Result<Client> {
    let options = async_nats::ConnectOptions::new().connection_timeout(CONNECT_PATIENCE).ignore_discovered_servers();
    options.connect(url).await.with_context(|| format!("cannot connect to {url}"))
}
