//! Counters of the broker, and the list of its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::Broker;
use super::conn::Conn;

/// Counts since the start of the node, as of now.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct BrokerStats {
    pub(crate) connections: usize,
    pub(crate) total_connections: u64,
    pub(crate) subscriptions: usize,
    pub(crate) in_msgs: u64,
    pub(crate) in_bytes: u64,
    pub(crate) out_msgs: u64,
    pub(crate) out_bytes: u64,
    pub(crate) slow_consumers: u64,
}

/// What connections that are gone had counted.
#[derive(Debug, Default)]
pub(super) struct Retired {
    in_messages: AtomicU64,
    in_bytes: AtomicU64,
    out_messages: AtomicU64,
    out_bytes: AtomicU64,
}

impl Retired {
    pub(super) fn add(&self, conn: &Conn) {
        let out = conn.out.lock();
        for (total, count) in [
            (&self.out_messages, out.messages),
            (&self.out_bytes, out.message_bytes),
            (&self.in_messages, conn.in_messages.load(Ordering::Relaxed)),
            (&self.in_bytes, conn.in_bytes.load(Ordering::Relaxed)),
        ] {
            total.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl Broker {
    pub(crate) fn stats(&self) -> BrokerStats {
        let inner = &self.inner;
        let retired = &inner.retired;
        let mut stats = BrokerStats {
            total_connections: inner.last_conn.load(Ordering::Relaxed),
            subscriptions: inner.interest.lock().client_count(),
            in_msgs: retired.in_messages.load(Ordering::Relaxed),
            in_bytes: retired.in_bytes.load(Ordering::Relaxed),
            out_msgs: retired.out_messages.load(Ordering::Relaxed),
            out_bytes: retired.out_bytes.load(Ordering::Relaxed),
            slow_consumers: inner.slow_consumers.load(Ordering::Relaxed),
            ..BrokerStats::default()
        };
        let conns = inner.conns.lock();
        stats.connections = conns.len();
        for conn in conns.values() {
            let out = conn.out.lock();
            stats.out_msgs += out.messages;
            stats.out_bytes += out.message_bytes;
            stats.in_msgs += conn.in_messages.load(Ordering::Relaxed);
            stats.in_bytes += conn.in_bytes.load(Ordering::Relaxed);
        }
        stats
    }

    /// The connections as nats-server's `/connz` lists them, without the times of day.
    pub(crate) fn connz(&self) -> Value {
        let mut conns: Vec<Arc<Conn>> = self.inner.conns.lock().values().cloned().collect();
        conns.sort_unstable_by_key(|conn| conn.id);
        let connections: Vec<Value> = conns.iter().map(|conn| describe(conn)).collect();
        json!({
            "server_id": self.inner.info.lock().server_id,
            "num_connections": connections.len(),
            "total": connections.len(),
            "offset": 0,
            "limit": 1024,
            "connections": connections,
        })
    }
}

fn describe(conn: &Conn) -> Value {
    let client = conn.client.lock().clone();
    let subscriptions = conn.subscriptions.lock().len();
    let (out_msgs, out_bytes) = {
        let out = conn.out.lock();
        (out.messages, out.message_bytes)
    };
    json!({
        "cid": conn.id,
        "kind": "Client",
        "type": "nats",
        "ip": conn.remote.map(|remote| remote.ip().to_string()).unwrap_or_default(),
        "port": conn.remote.map_or(0, |remote| remote.port()),
        "uptime": uptime(conn.started.elapsed()),
        "pending_bytes": conn.out.pending_bytes(),
        "in_msgs": conn.in_messages.load(Ordering::Relaxed),
        "in_bytes": conn.in_bytes.load(Ordering::Relaxed),
        "out_msgs": out_msgs,
        "out_bytes": out_bytes,
        "subscriptions": subscriptions,
        "name": client.name,
        "lang": client.lang,
        "version": client.version,
    })
}

/// As nats-server writes it: `1d2h3m4s`, from the largest unit that is not zero.
fn uptime(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes}m{}s", seconds % 60),
        _ => format!("{days}d{hours}h{minutes}m{}s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_starts_with_the_largest_unit() {
        for (seconds, expected) in [(5, "5s"), (65, "1m5s"), (3_600, "1h0m0s"), (90_061, "1d1h1m1s")] {
            assert_eq!(uptime(Duration::from_secs(seconds)), expected);
        }
    }
}
