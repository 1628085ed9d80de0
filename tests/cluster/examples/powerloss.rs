//! `make powerloss`: power of all three nodes cut twelve seconds after a stream was created, of nats-server and of
//! Headwater, one after the other, under the same load. A table, and no assertion but of our own promise.

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_nats::jetstream::stream::Config;
use headwater_audit::{Ledger, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, PowerDisk, Server, SmallDisk};

const DISK_BYTES: u64 = 2 << 30;
const STREAM: &str = "LOSS";
const UNDER_LOAD: Duration = Duration::from_secs(12);
/// Until all nodes are back, and read from.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
struct Row {
    name: &'static str,
    is_reference: bool,
    always: bool,
    interval: Option<&'static str>,
}

const ROWS: [Row; 5] = [
    Row { name: "nats-server, as it comes", is_reference: true, always: false, interval: None },
    Row { name: "nats-server, sync_interval: always", is_reference: true, always: true, interval: None },
    Row { name: "Headwater, interval 2m", is_reference: false, always: false, interval: Some("2m") },
    Row { name: "Headwater, interval 1s", is_reference: false, always: false, interval: Some("1s") },
    Row { name: "Headwater, as it comes (always)", is_reference: false, always: false, interval: None },
];

/// What became of what was confirmed.
struct Outcome {
    confirmed: u64,
    /// `None` if the stream is gone, or nobody answers for it.
    lost: Option<u64>,
    said: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.lost.map_or_else(|| format!("all {}", self.confirmed), |lost| lost.to_string());
        write!(f, "{:>9} {lost:>12}  {}", self.confirmed, self.said)
    }
}

impl Row {
    fn server(self) -> anyhow::Result<Server> {
        if !self.is_reference {
            return Server::find();
        }
        let path = std::env::var_os("NATS_SERVER_BIN").context("NATS_SERVER_BIN names no nats-server")?;
        Ok(Server::NatsServer(PathBuf::from(path)))
    }

    fn config(self) -> Config {
        let mut config = Cluster::stream_config(STREAM, 3);
        if let Some(interval) = self.interval {
            config.metadata.insert("headwater.sync_mode".into(), "interval".into());
            config.metadata.insert("headwater.sync_interval".into(), interval.into());
        }
        config
    }

    async fn strike(self) -> anyhow::Result<Outcome> {
        let mut cluster = Cluster::beside(self.server()?, self.always, DISK_BYTES).await?;
        cluster.create_stream(self.config()).await?;
        let ledger = Ledger::named(self.name);
        let options = LoadOptions::on(STREAM).publishers(4).rate(2000.0).give_up(Duration::from_secs(2));
        let load = Load::start(&cluster, STREAM, &ledger, options).await?;
        tokio::time::sleep(UNDER_LOAD).await;
        cluster.cut_power(&[0, 1, 2])?;
        load.finish().await?;
        let confirmed = ledger.confirmed();
        let read = async {
            cluster.start_all().await?;
            cluster.wait_replicas(STREAM).await?;
            cluster.report(Verifier::new().ways(&DIRECT_VIEWS), STREAM, &ledger).await
        };
        Ok(match tokio::time::timeout(PATIENCE, read).await {
            Ok(Ok(report)) => Outcome {
                confirmed,
                lost: Some(report.lost),
                said: match (report.lost, report.counts.is_empty()) {
                    (0, true) => String::new(),
                    _ => format!("{:?}", report.counts),
                },
            },
            Ok(Err(error)) => {
                let said = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
                Outcome { confirmed, lost: None, said }
            }
            Err(_) => Outcome { confirmed, lost: None, said: format!("no answer within {PATIENCE:?}") },
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    ensure!(SmallDisk::is_possible()? && PowerDisk::is_possible()?, "mounting a file system needs root");
    let mut out = std::io::stdout();
    writeln!(out, "{:<36} {:>9} {:>12}", "power of three nodes cut after 12 s", "CONFIRMED", "LOST")?;
    for row in ROWS {
        let outcome = row.strike().await.context(row.name)?;
        writeln!(out, "{:<36} {outcome}", row.name)?;
        let is_promised = !row.is_reference && row.interval.is_none();
        ensure!(!is_promised || (outcome.lost == Some(0) && outcome.said.is_empty()), "{}: {outcome}", row.name);
    }
    Ok(())
}
