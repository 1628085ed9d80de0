//! Holds what a fault left of a stream to what was promised.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use async_nats::jetstream::stream::{Config, Info};
use headwater_audit::{Invariant, Ledger, Outcome, Verifier};

use crate::cluster::Cluster;
use crate::promise::{Durable, Loss, Mode, SYNC_INTERVAL};

/// Until a message that was sent is acknowledged, and a sync that is due has ended, on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

/// A moment of the clock that the ledger's times of sending are taken from.
#[derive(Debug, Clone, Copy)]
pub struct Moment(SystemTime);

impl Moment {
    #[expect(clippy::disallowed_methods, reason = "compared with the ledger's times of sending")]
    pub fn now() -> Moment {
        Moment(SystemTime::now())
    }

    /// How long before this moment something was sent, at `nanoseconds` since 1970.
    fn since(self, nanoseconds: u64) -> Duration {
        self.0.duration_since(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)).unwrap_or_default()
    }
}

impl Cluster {
    /// As [`Cluster::stream_config`], with these settings.
    pub fn durable_config(name: &str, durable: Durable) -> Config {
        let Durable { mode, async_flush, replicas } = durable;
        let mut config = Cluster::stream_config(name, replicas);
        config.metadata.insert("headwater.sync_mode".into(), mode.name().into());
        config.metadata.insert("headwater.allow_async_flush".into(), async_flush.to_string());
        if mode == Mode::Interval {
            config.metadata.insert("headwater.sync_interval".into(), format!("{}s", SYNC_INTERVAL.as_secs()));
        }
        config
    }

    /// The nodes that hold a replica, by what the leader says.
    pub fn members(&self, info: &Info) -> Vec<usize> {
        let Some(cluster) = &info.cluster else { return Vec::new() };
        let names: Vec<&str> =
            cluster.leader.iter().map(String::as_str).chain(cluster.replicas.iter().map(|r| r.name.as_str())).collect();
        (0..self.nodes().len()).filter(|i| names.contains(&self.nodes()[*i].name())).collect()
    }

    /// Reads the stream back from every node and compares it with the ledger: at most `allowed` may be missing since
    /// the fault at `cut`, nothing else may be wrong, and nobody may have published since. Returns how many confirmed
    /// messages are lost.
    ///
    /// # Errors
    /// If more is, or anything else is wrong: with the audit's report.
    pub async fn judge(
        &mut self,
        verifier: Verifier,
        stream: &str,
        ledger: &Ledger,
        allowed: Loss,
        cut: Moment,
    ) -> anyhow::Result<u64> {
        self.wait_replicas(stream).await?;
        let last = self.stream_info(stream).await?.state.last_sequence;
        let lost: Vec<_> = ledger
            .entries()
            .into_iter()
            .filter(|entry| matches!(entry.outcome, Outcome::Acked { seq, .. } if seq > last))
            .collect();
        let report = self.report(verifier, stream, ledger).await?;
        let beyond = lost.len() as u64;
        ensure!(report.lost == beyond, "{stream}: {beyond} confirmed beyond {last}: not a suffix\n{report}");
        let findings: &[Invariant] =
            if lost.is_empty() { &[] } else { &[Invariant::Lost, Invariant::WentBack, Invariant::WrongCount] };
        ensure!(report.counts.keys().all(|found| findings.contains(found)), "{stream}:\n{report}");
        let age = lost.iter().map(|entry| cut.since(entry.sent_at)).max().unwrap_or_default();
        let bound = match allowed {
            Loss::Nothing => Duration::ZERO,
            Loss::LastInterval => SYNC_INTERVAL + SLACK,
            Loss::Suffix => Duration::MAX,
        };
        ensure!(
            lost.is_empty() || (allowed != Loss::Nothing && age <= bound),
            "{stream}: {beyond} of {} lost, the oldest {age:.1?} before the fault; allowed is {allowed:?}\n{report}",
            report.confirmed
        );
        Ok(beyond)
    }
}
