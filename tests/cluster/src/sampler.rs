//! Samples every node's watermarks from outside, under load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::admin::{Group, Recovery, Snapshot, Watermarks};

/// What the samples showed.
#[derive(Debug, Default)]
pub struct Samples {
    /// Replica samples taken, over all nodes and groups.
    pub taken: u64,
    /// How many of them had an asynchronous snapshot: one ahead of the synced store.
    pub with_async_snapshot: u64,
    /// How many showed `persisted < applied`: the store really lagged behind the log.
    pub lagging: u64,
    /// Samples in which the order of the watermarks was broken.
    pub violations: Vec<String>,
}

/// A task that asks every node every 50 ms.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Samples>,
}

const EVERY: Duration = Duration::from_millis(50);

impl Sampler {
    /// Starts sampling the nodes with these monitoring URLs. A node that is down is passed over.
    pub fn start(nodes: Vec<(String, String)>) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (client, mut samples, mut before) = (reqwest::Client::new(), Samples::default(), HashMap::new());
            while !seen.load(Ordering::Relaxed) {
                for (name, http) in &nodes {
                    if let Ok(recovery) = Recovery::get(&client, http).await {
                        for group in &recovery.groups {
                            samples.take(name, &recovery.boot_id, group, &mut before);
                        }
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
            samples
        });
        Sampler { stop, task }
    }

    /// Ends the sampling.
    ///
    /// # Errors
    /// If the task panicked.
    pub async fn finish(self) -> anyhow::Result<Samples> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.task.await?)
    }
}

impl Samples {
    fn take(&mut self, node: &str, boot: &str, group: &Group, before: &mut HashMap<(String, String), (String, u64)>) {
        self.taken += 1;
        let stream = if group.stream.is_empty() { "meta" } else { &group.stream };
        let Watermarks { purged, persisted, stored, applied, committed, accepted, synced, written } = group.watermarks;
        let order = [
            ("purged", purged, "persisted", persisted),
            ("persisted", persisted, "stored", stored),
            ("stored", stored, "applied", applied),
            ("applied", applied, "committed", committed),
            ("committed", committed, "accepted", accepted),
            ("synced", synced, "written", written),
            ("written", written, "accepted", accepted),
            ("persisted", persisted, "synced", synced),
        ];
        for (left, low, right, high) in order {
            if low > high {
                self.violations.push(format!("{node} {stream}: {left} {low} > {right} {high}"));
            }
        }
        self.lagging += u64::from(persisted < applied);
        if let Some(Snapshot { index, r#async: true }) = group.snapshot {
            self.with_async_snapshot += 1;
            if purged >= index {
                self.violations.push(format!(
                    "{node} {stream}: the asynchronous snapshot at {index} has its log purged up to {purged}"
                ));
            }
        }
        // Within one boot, nothing that was synced is forgotten.
        let key = (node.to_owned(), stream.to_owned());
        if let Some((last_boot, last)) = before.insert(key, (boot.to_owned(), persisted))
            && last_boot == boot
            && persisted < last
        {
            self.violations.push(format!("{node} {stream}: persisted went from {last} back to {persisted}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(marks: [u64; 8], snapshot: u64) -> Group {
        let names = ["purged", "persisted", "stored", "applied", "committed", "accepted", "synced", "written"];
        let marks: serde_json::Map<_, _> =
            names.iter().zip(marks).map(|(name, mark)| ((*name).to_owned(), mark.into())).collect();
        let durability = serde_json::json!({"sync_mode": "always", "allow_async_flush": true});
        serde_json::from_value(serde_json::json!({
            "stream": "S", "role": "Leader", "term": 1, "phase": "Recovered", "watermarks": marks,
            "snapshot": {"index": snapshot, "async": true, "missing": 1},
            "effective": durability, "desired": durability, "promise": durability,
        }))
        .unwrap()
    }

    fn sample(groups: &[Group]) -> Samples {
        let (mut samples, mut before) = (Samples::default(), HashMap::new());
        for group in groups {
            samples.take("n1", "1", group, &mut before);
        }
        samples
    }

    #[test]
    fn sees_each_violation() {
        let good = [10, 20, 30, 40, 50, 60, 45, 55];
        let samples = sample(&[group(good, 30)]);
        assert_eq!((samples.violations.len(), samples.with_async_snapshot, samples.lagging), (0, 1, 1));
        // Each mark moved just above the next one of its order.
        for (i, value) in [(0, 21), (1, 31), (2, 41), (3, 51), (4, 61), (6, 56), (7, 61), (6, 19)] {
            let mut bad = good;
            bad[i] = value;
            assert_eq!(sample(&[group(bad, 30)]).violations.len(), 1, "mark {i} at {value}");
        }
        assert_eq!(sample(&[group(good, 10)]).violations.len(), 1, "the snapshot's log is purged");
        let mut back = good;
        back[1] = 19;
        assert_eq!(sample(&[group(good, 30), group(back, 30)]).violations.len(), 1, "persisted went back");
    }
}
