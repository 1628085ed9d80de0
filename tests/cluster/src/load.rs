//! Publishers that keep a ledger while nodes die under them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use async_nats::Client;
use headwater_audit::{Ledger, Published, Publisher, PublisherError, Until};
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, connect};

/// What load to make.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Subjects are `<prefix>.<n>`.
    pub prefix: String,
    pub publishers: u32,
    /// Messages per second and publisher.
    pub rate: f64,
    /// Payload bytes.
    pub size: usize,
    pub subjects: u64,
    /// Time to an application's retry.
    pub ack_timeout: Duration,
    /// Time until a message without an answer is given up, its outcome unknown.
    pub give_up: Duration,
}

impl LoadOptions {
    /// Two publishers of 400 messages a second each: a few thousand messages in a test, which is
    /// what can be read back twelve ways in the time a test has.
    pub fn on(prefix: &str) -> LoadOptions {
        LoadOptions {
            prefix: prefix.to_owned(),
            publishers: 2,
            rate: 400.0,
            size: 256,
            subjects: 16,
            ack_timeout: Duration::from_millis(500),
            give_up: Duration::from_secs(60),
        }
    }

    #[must_use]
    pub fn publishers(mut self, publishers: u32) -> LoadOptions {
        self.publishers = publishers;
        self
    }

    #[must_use]
    pub fn rate(mut self, rate: f64) -> LoadOptions {
        self.rate = rate;
        self
    }

    #[must_use]
    pub fn give_up(mut self, after: Duration) -> LoadOptions {
        self.give_up = after;
        self
    }

    #[must_use]
    pub fn size(mut self, bytes: usize) -> LoadOptions {
        self.size = bytes;
        self
    }
}

/// Load under way.
pub struct Load {
    stop: Arc<AtomicBool>,
    connections: Connections,
    tasks: Vec<JoinHandle<Result<Published, PublisherError>>>,
}

impl Load {
    /// Starts publishers, each on its own connection. `first` is the number of the first of them;
    /// numbers may be used again with the same ledger only after the earlier load has finished.
    ///
    /// # Errors
    /// If a publisher can't connect.
    pub async fn start(cluster: &Cluster, stream: &str, ledger: &Ledger, options: LoadOptions) -> anyhow::Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let connections = Connections::new()?;
        let mut tasks = Vec::new();
        for id in 1..=options.publishers {
            let client: Client = connections.runtime.spawn(connect(cluster.urls())).await??;
            let (ledger, stream, stop, options) =
                (ledger.clone(), stream.to_owned(), Arc::clone(&stop), options.clone());
            tasks.push(connections.runtime.spawn(async move {
                let publisher = Publisher::new(id)
                    .payload(options.size)
                    .rate(options.rate)
                    .ack_timeout(options.ack_timeout)
                    .give_up(options.give_up);
                let subject = |n: u64| format!("{}.{}", options.prefix, n % options.subjects);
                publisher.run(&client, &stream, &ledger, subject, &Until::stopped(stop)).await
            }));
        }
        Ok(Load { stop, connections, tasks })
    }

    /// Stops, lets everything under way come to its end, and returns how each publisher fared.
    ///
    /// # Errors
    /// If a publisher failed.
    pub async fn finish(self) -> anyhow::Result<Vec<Published>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await??);
        }
        drop(self.connections);
        Ok(all)
    }
}

/// A thread of their own for the publishers' connections, which end with it: what a client without a server has
/// buffered must not reach one that starts later.
struct Connections {
    runtime: Handle,
    end: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl Connections {
    fn new() -> std::io::Result<Connections> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || drop(runtime.block_on(ended)));
        Ok(Connections { runtime: handle, end: Some((end, thread)) })
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.end.take() {
            drop(end);
            let _ended = thread.join();
        }
    }
}

/// The longest time any publisher went without a confirmation.
pub fn longest_gap(published: &[Published]) -> Duration {
    published.iter().map(|run| run.longest_gap).max().unwrap_or_default()
}
