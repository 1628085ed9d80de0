//! Consumers through failover.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use futures::StreamExt;
use headwater_audit::{Ledger, Publisher, Until, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions};

use crate::{RECOVERED, run, sleep};

/// Takes everything the consumer gives, with confirmed acks, until it has had `until` distinct
/// sequences or `patience` passes without one. Counts deliveries, and notes those that came after
/// their own ack was confirmed.
struct Drain {
    deliveries: HashMap<u64, u64>,
    acked: HashSet<u64>,
    after_ack: Vec<u64>,
    /// In the order in which sequences first came.
    order: Vec<u64>,
}

impl Drain {
    fn new() -> Drain {
        Drain { deliveries: HashMap::new(), acked: HashSet::new(), after_ack: Vec::new(), order: Vec::new() }
    }

    async fn run(
        &mut self,
        consumer: &PullConsumer,
        goal: impl Fn() -> Option<u64>,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let mut deadline = Instant::now() + patience;
        loop {
            if let Some(goal) = goal() {
                if self.acked.len() as u64 >= goal {
                    return Ok(());
                }
                // An ack whose answer was lost may have taken effect: then the server says that nothing is left.
                if self.deliveries.len() as u64 >= goal {
                    let mut again = consumer.clone();
                    if again.info().await.is_ok_and(|info| info.num_ack_pending == 0 && info.num_pending == 0) {
                        return Ok(());
                    }
                }
            }
            ensure!(
                Instant::now() < deadline,
                "nothing new for {patience:?} after {} messages of {:?}",
                self.acked.len(),
                goal()
            );
            let Ok(mut batch) =
                consumer.fetch().max_messages(100).expires(Duration::from_millis(1000)).messages().await
            else {
                sleep(100).await;
                continue;
            };
            // The whole batch is read before its first ack: a copy that was sent before an ack was confirmed proves nothing.
            let mut received = Vec::new();
            while let Ok(Some(Ok(message))) = tokio::time::timeout(Duration::from_secs(2), batch.next()).await {
                let seq = message.info().map_err(|error| anyhow::anyhow!("{error}"))?.stream_sequence;
                *self.deliveries.entry(seq).or_default() += 1;
                if self.acked.contains(&seq) {
                    self.after_ack.push(seq);
                }
                if self.deliveries[&seq] == 1 {
                    self.order.push(seq);
                }
                received.push((seq, message));
            }
            for (seq, message) in received {
                // The library's own double ack takes the 503 of a time without leader for a confirmation; a request does not.
                let Some(reply) = message.reply.clone() else { continue };
                let client = message.context.client();
                let ack = client.request(reply, "+ACK".into());
                // Only a confirmed ack says that the message must not come again.
                if tokio::time::timeout(Duration::from_secs(1), ack).await.is_ok_and(|acked| acked.is_ok())
                    && self.acked.insert(seq)
                {
                    deadline = Instant::now() + patience;
                }
            }
        }
    }
}

/// B60, scenario 42: a durable consumer with explicit acks drains a stream while publishers write
/// and the leader is killed. Every message comes; none comes after its ack was confirmed.
#[test]
fn b60_durable_consumer_through_failover() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("WORK", 3)).await?;
        let context = cluster.jetstream().await?;
        let stream = context.get_stream("WORK").await?;
        let config = pull::Config {
            durable_name: Some("D".into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(3),
            max_ack_pending: 500,
            ..Default::default()
        };
        let consumer: PullConsumer = stream.create_consumer(config).await?;

        let ledger = Ledger::new();
        let load = Load::start(cluster, "WORK", &ledger, LoadOptions::on("WORK").rate(150.0)).await?;
        let finished = std::cell::Cell::new(None);
        let goal = || finished.get();
        let (mut drain, kill) = (Drain::new(), async {
            sleep(1000).await;
            let leader = cluster.leader_of("WORK").await?;
            cluster.kill9(leader)?;
            sleep(2000).await;
            cluster.restart(leader)?;
            cluster.wait_recovered(leader, RECOVERED).await?;
            load.finish().await?;
            let last = cluster.stream_info("WORK").await?.state.messages;
            finished.set(Some(last));
            anyhow::Ok(())
        });
        let (drained, killed) = futures::join!(drain.run(&consumer, goal, Duration::from_secs(20)), kill);
        killed?;
        drained?;
        ensure!(drain.after_ack.is_empty(), "delivered after a confirmed ack: {:?}", drain.after_ack);

        cluster.wait_replicas("WORK").await?;
        let last = cluster.stream_info("WORK").await?.state.last_sequence;
        let mut fresh: PullConsumer = cluster.jetstream().await?.get_consumer_from_stream("D", "WORK").await?;
        let info = fresh.info().await?;
        ensure!(
            info.ack_floor.stream_sequence == last && info.num_ack_pending == 0 && info.num_pending == 0,
            "all {last} are acked, but the consumer says {info:?}"
        );
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "WORK", &ledger).await?;
        Ok(())
    });
}

/// I8, B55: acks confirmed before everything is killed stay confirmed; what was not acked comes
/// again, and new messages come as well.
#[test]
fn b55_consumer_state_survives_kill_all() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("STATE", 3)).await?;
        let (ledger, client) = (Ledger::new(), cluster.any_client().await?);
        Publisher::new(1).run(&client, "STATE", &ledger, |_| "STATE.x".into(), &Until::count(100)).await?;
        let stream = cluster.jetstream().await?.get_stream("STATE").await?;
        let config =
            pull::Config { durable_name: Some("D".into()), ack_wait: Duration::from_secs(2), ..Default::default() };
        let consumer: PullConsumer = stream.create_consumer(config).await?;
        let mut batch = consumer.fetch().max_messages(60).expires(Duration::from_secs(5)).messages().await?;
        let mut acked = HashSet::new();
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| anyhow::anyhow!("{error}"))?;
            let seq = message.info().map_err(|error| anyhow::anyhow!("{error}"))?.stream_sequence;
            if seq % 2 == 0 {
                message.double_ack().await.map_err(|error| anyhow::anyhow!("{error}"))?;
                acked.insert(seq);
            }
        }
        ensure!(acked.len() == 30, "{} of 60 deliveries acked", acked.len());
        cluster.kill_all()?;
        cluster.start_all().await?;
        cluster.wait_all_recovered(RECOVERED).await?;
        Publisher::new(2)
            .run(&cluster.any_client().await?, "STATE", &ledger, |_| "STATE.x".into(), &Until::count(10))
            .await?;
        let consumer = cluster
            .until(Duration::from_secs(10), "the consumer is there", async |cluster: &mut Cluster| {
                let consumer: PullConsumer = cluster.jetstream().await?.get_consumer_from_stream("D", "STATE").await?;
                Ok(consumer)
            })
            .await?;
        let mut drain = Drain::new();
        drain.run(&consumer, || Some(80), Duration::from_secs(15)).await?;
        let again: Vec<_> = acked.iter().filter(|seq| drain.deliveries.contains_key(seq)).collect();
        ensure!(again.is_empty(), "acked before the kill, delivered after it: {again:?}");
        Ok(())
    });
}

/// B63: reading on from the first accepted connection after a kill, while new messages are
/// written: no gap where the disk's messages end and memory's begin.
#[test]
fn b63_no_gap_between_disk_and_memory() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("TAIL", 1)).await?;
        let ledger = Ledger::new();
        let client = cluster.any_client().await?;
        Publisher::new(9).run(&client, "TAIL", &ledger, |_| "TAIL.x".into(), &Until::count(2000)).await?;
        let owner = cluster.leader_of("TAIL").await?;
        cluster.kill9(owner)?;
        cluster.restart(owner)?;
        let load = Load::start(cluster, "TAIL", &ledger, LoadOptions::on("TAIL")).await?;
        let consumer = cluster
            .until(Duration::from_secs(10), "a consumer can be made", async |cluster: &mut Cluster| {
                let stream = cluster.jetstream().await?.get_stream("TAIL").await?;
                let config = pull::Config { ack_policy: AckPolicy::Explicit, ..Default::default() };
                let consumer: PullConsumer = stream.create_consumer(config).await?;
                Ok(consumer)
            })
            .await?;
        let mut drain = Drain::new();
        drain.run(&consumer, || Some(2500), Duration::from_secs(15)).await?;
        load.finish().await?;
        let gap = drain.order.iter().zip(1..).find(|&(&seq, expected)| seq != expected);
        ensure!(gap.is_none(), "came as (sequence, expected) {:?}", gap.context("a gap")?);
        Ok(())
    });
}
