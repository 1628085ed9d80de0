//! What the API can ask for and Headwater does not do yet: one table per object. A request that uses such a field is
//! refused by the field's name instead of being half obeyed. When a feature arrives, its line here goes.

use crate::api::consumer_config::{AckPolicy, ConsumerConfig, PriorityPolicy, ReplayPolicy};
use crate::api::error::{self, ApiError};
use crate::api::stream_config::{Compression, Retention, StreamConfig};

/// A field and whether a configuration uses it beyond what is supported.
pub struct Unsupported<C> {
    /// The field as the API spells it, with the value where only some values are missing.
    pub field: &'static str,
    uses: fn(&C) -> bool,
}

/// Fields of streams.
pub const STREAM: &[Unsupported<StreamConfig>] = &[
    Unsupported { field: "mirror", uses: |c| c.mirror.is_some() },
    Unsupported { field: "sources", uses: |c| !c.sources.is_empty() },
    Unsupported { field: "mirror_direct", uses: |c| c.mirror_direct },
    Unsupported { field: "republish", uses: |c| c.republish.is_some() },
    Unsupported { field: "subject_transform", uses: |c| c.subject_transform.is_some() },
    Unsupported { field: "retention: interest", uses: |c| c.retention == Retention::Interest },
    Unsupported { field: "retention: workqueue", uses: |c| c.retention == Retention::WorkQueue },
    Unsupported { field: "compression: s2", uses: |c| c.compression == Compression::S2 },
    Unsupported { field: "first_seq", uses: |c| c.first_seq > 1 },
    Unsupported { field: "placement", uses: |c| c.placement.as_ref().is_some_and(|p| *p != Default::default()) },
    Unsupported { field: "allow_msg_ttl", uses: |c| c.allow_msg_ttl },
    Unsupported { field: "subject_delete_marker_ttl", uses: |c| c.subject_delete_marker_ttl != 0 },
    Unsupported { field: "allow_msg_counter", uses: |c| c.allow_msg_counter },
    Unsupported { field: "allow_msg_schedules", uses: |c| c.allow_msg_schedules },
];

/// Fields of consumers.
pub const CONSUMER: &[Unsupported<ConsumerConfig>] = &[
    Unsupported { field: "deliver_subject", uses: |c| !c.deliver_subject.is_empty() },
    Unsupported { field: "deliver_group", uses: |c| !c.deliver_group.is_empty() },
    Unsupported { field: "ack_policy: flow_control", uses: |c| c.ack_policy == AckPolicy::FlowControl },
    Unsupported { field: "replay_policy: original", uses: |c| c.replay_policy == ReplayPolicy::Original },
    Unsupported { field: "sample_freq", uses: |c| !matches!(c.sample_freq.trim_end_matches('%'), "" | "0") },
    Unsupported { field: "pause_until", uses: |c| c.pause_until.is_some_and(|time| !time.is_zero()) },
    Unsupported { field: "priority_groups", uses: |c| !c.priority_groups.is_empty() },
    Unsupported { field: "priority_policy", uses: |c| c.priority_policy != PriorityPolicy::None },
    Unsupported { field: "direct", uses: |c| c.direct },
    Unsupported { field: "sourcing", uses: |c| c.sourcing },
];

fn first_used<C>(table: &[Unsupported<C>], config: &C) -> Option<String> {
    let entry = table.iter().find(|entry| (entry.uses)(config))?;
    Some(format!("{} is not supported by this server", entry.field))
}

/// Refuses a stream that needs what is missing.
///
/// # Errors
/// `10052`, naming the field.
pub fn check_stream(config: &StreamConfig) -> Result<(), ApiError> {
    first_used(STREAM, config).map_or(Ok(()), |why| Err(error::stream_invalid_config(why)))
}

/// Refuses a consumer that needs what is missing.
///
/// # Errors
/// `10012`, naming the field.
pub fn check_consumer(config: &ConsumerConfig) -> Result<(), ApiError> {
    first_used(CONSUMER, config).map_or(Ok(()), |why| Err(error::consumer_create(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_field() {
        let error = check_stream(&StreamConfig { allow_msg_counter: true, ..Default::default() }).unwrap_err();
        assert_eq!(
            (error.err_code, error.description.as_ref()),
            (10052, "allow_msg_counter is not supported by this server")
        );
        let error = check_consumer(&ConsumerConfig { deliver_subject: "q".into(), ..Default::default() }).unwrap_err();
        assert_eq!(
            (error.err_code, error.description.as_ref()),
            (10012, "deliver_subject is not supported by this server")
        );
    }

    #[test]
    fn what_nats_bench_asks_for_is_accepted() {
        let config = StreamConfig { allow_atomic: true, allow_batched: true, allow_direct: true, ..Default::default() };
        assert_eq!(check_stream(&config), Ok(()));
        assert_eq!(check_consumer(&ConsumerConfig { mem_storage: true, ..Default::default() }), Ok(()));
    }
}
