//! Between the API's configurations and what the state machines act on.

use headwater_core::consumer as core_consumer;
use headwater_core::durability::{Durability, MetadataError};
use headwater_core::ids::{StreamSeq, Timestamp};
use headwater_core::stream as core_stream;
use headwater_protocol::api::consumer_config::{AckPolicy, ConsumerConfig, DeliverPolicy};
use headwater_protocol::api::stream_config::{Discard, PersistMode, Retention, Storage, StreamConfig};

/// `-1` and `0` mean "no limit" in the API.
fn limit(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|v| *v > 0)
}

fn small(value: i64) -> Option<u32> {
    limit(value).map(|v| u32::try_from(v).unwrap_or(u32::MAX))
}

pub(crate) fn settings(config: &StreamConfig) -> core_stream::Settings {
    core_stream::Settings {
        name: config.name.clone(),
        subjects: config.subjects.clone(),
        limits: core_stream::Limits {
            max_msgs: limit(config.max_msgs),
            max_bytes: limit(config.max_bytes),
            max_age_ns: limit(config.max_age),
            max_msg_size: limit(i64::from(config.max_msg_size)),
            max_msgs_per_subject: limit(config.max_msgs_per_subject),
        },
        discard: match config.discard {
            Discard::Old => core_stream::Discard::Old,
            Discard::New => core_stream::Discard::New,
        },
        discard_new_per_subject: config.discard_new_per_subject,
        retention: match config.retention {
            Retention::Limits => core_stream::Retention::Limits,
            Retention::Interest => core_stream::Retention::Interest,
            Retention::WorkQueue => core_stream::Retention::WorkQueue,
        },
        storage: match config.storage {
            Storage::File => core_stream::StorageKind::File,
            Storage::Memory => core_stream::StorageKind::Memory,
        },
        duplicate_window_ns: limit(config.duplicate_window).unwrap_or(0),
        allow_rollup: config.allow_rollup_hdrs,
        allow_msg_ttl: config.allow_msg_ttl,
        deny_delete: config.deny_delete,
        deny_purge: config.deny_purge,
        no_ack: config.no_ack,
        sealed: config.sealed,
    }
}

/// The durability that a configuration asks for: `headwater.*` metadata over the defaults, or R1 `persist_mode: async`.
pub(crate) fn durability(config: &StreamConfig) -> Result<Durability, MetadataError> {
    let mut base = Durability::default();
    if config.persist_mode == PersistMode::Async {
        base.sync = headwater_core::durability::SyncMode::NoWait;
    }
    base.with_metadata(|key| config.metadata.get(key).map(String::as_str))
}

pub(crate) fn consumer(config: &ConsumerConfig) -> core_consumer::ConsumerConfig {
    core_consumer::ConsumerConfig {
        name: if config.name.is_empty() { config.durable_name.clone() } else { config.name.clone() },
        durable: config.is_durable(),
        ack_policy: match config.ack_policy {
            AckPolicy::None | AckPolicy::FlowControl => core_consumer::AckPolicy::None,
            AckPolicy::All => core_consumer::AckPolicy::All,
            AckPolicy::Explicit => core_consumer::AckPolicy::Explicit,
        },
        ack_wait_ns: limit(config.ack_wait).unwrap_or(30_000_000_000),
        max_deliver: small(config.max_deliver),
        backoff_ns: config.backoff.iter().filter_map(|ns| u64::try_from(*ns).ok()).collect(),
        filters: core_consumer::Filters::new(config.filters()),
        deliver_policy: match config.deliver_policy {
            DeliverPolicy::All => core_consumer::DeliverPolicy::All,
            DeliverPolicy::Last => core_consumer::DeliverPolicy::Last,
            DeliverPolicy::New => core_consumer::DeliverPolicy::New,
            DeliverPolicy::ByStartSequence => {
                core_consumer::DeliverPolicy::ByStartSequence(StreamSeq::new(config.opt_start_seq))
            }
            DeliverPolicy::ByStartTime => core_consumer::DeliverPolicy::ByStartTime(Timestamp::new(
                config.opt_start_time.and_then(headwater_protocol::rfc3339::ApiTime::ns).unwrap_or(0),
            )),
            DeliverPolicy::LastPerSubject => core_consumer::DeliverPolicy::LastPerSubject,
        },
        max_ack_pending: small(config.max_ack_pending),
        max_waiting: small(config.max_waiting),
        max_batch: small(config.max_batch),
        max_expires_ns: limit(config.max_expires),
        max_bytes: limit(config.max_bytes),
        headers_only: config.headers_only,
        inactive_threshold_ns: limit(config.inactive_threshold),
        pause_until: config.pause_until.and_then(headwater_protocol::rfc3339::ApiTime::ns).map(Timestamp::new),
        replicas: u8::try_from(config.num_replicas).unwrap_or(0),
        mem_storage: config.mem_storage,
    }
}

#[cfg(test)]
mod tests {
    use headwater_core::durability::{ALLOW_ASYNC_FLUSH_KEY, SYNC_INTERVAL_KEY, SYNC_MODE_KEY};
    use headwater_protocol::api::stream_config::HEADWATER_KEYS;

    #[test]
    fn the_keys_that_are_let_in_are_those_that_are_read() {
        assert_eq!(HEADWATER_KEYS, [ALLOW_ASYNC_FLUSH_KEY, SYNC_INTERVAL_KEY, SYNC_MODE_KEY]);
    }
}
