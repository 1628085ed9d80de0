//! From the JetStream API's consumer configuration to the state machine's.

use headwater_protocol::api::consumer_config as api;
use headwater_protocol::rfc3339::ApiTime;
use thiserror::Error;

use super::config::{AckPolicy, ConsumerConfig, DeliverPolicy, Filters};
use crate::ids::{StreamSeq, Timestamp};

/// The configuration asks for something that no consumer here does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Error)]
#[error("{feature} is not supported")]
pub struct Unsupported {
    /// The feature, in words.
    pub feature: &'static str,
}

impl ConsumerConfig {
    /// Translates a configuration whose defaults are filled in and whose rules are checked
    /// (`headwater_protocol::api::consumer_rules`).
    pub fn from_api(config: &api::ConsumerConfig) -> Result<Self, Unsupported> {
        let ack_policy = match config.ack_policy {
            api::AckPolicy::None => AckPolicy::None,
            api::AckPolicy::All => AckPolicy::All,
            api::AckPolicy::Explicit => AckPolicy::Explicit,
            api::AckPolicy::FlowControl => {
                return Err(Unsupported { feature: "ack policy flow_control" });
            }
        };
        let durable = config.is_durable();
        Ok(Self {
            name: if config.name.is_empty() { config.durable_name.clone() } else { config.name.clone() },
            durable,
            ack_policy,
            ack_wait_ns: positive(config.ack_wait).unwrap_or(0),
            max_deliver: small(config.max_deliver),
            backoff_ns: config.backoff.iter().map(|wait| positive(*wait).unwrap_or(0)).collect(),
            filters: Filters::new(config.filters()),
            deliver_policy: deliver_policy(config),
            max_ack_pending: small(config.max_ack_pending),
            max_waiting: small(config.max_waiting),
            max_batch: small(config.max_batch),
            max_expires_ns: positive(config.max_expires),
            max_bytes: positive(config.max_bytes),
            headers_only: config.headers_only,
            inactive_threshold_ns: positive(config.inactive_threshold),
            pause_until: config.pause_until.and_then(ApiTime::ns).map(Timestamp::new),
            replicas: u8::try_from(config.num_replicas).unwrap_or(0),
            mem_storage: config.mem_storage,
        })
    }
}

fn deliver_policy(config: &api::ConsumerConfig) -> DeliverPolicy {
    match config.deliver_policy {
        api::DeliverPolicy::All => DeliverPolicy::All,
        api::DeliverPolicy::Last => DeliverPolicy::Last,
        api::DeliverPolicy::New => DeliverPolicy::New,
        api::DeliverPolicy::ByStartSequence => DeliverPolicy::ByStartSequence(StreamSeq::new(config.opt_start_seq)),
        api::DeliverPolicy::ByStartTime => {
            let at = config.opt_start_time.and_then(ApiTime::ns);
            DeliverPolicy::ByStartTime(Timestamp::new(at.unwrap_or(0)))
        }
        api::DeliverPolicy::LastPerSubject => DeliverPolicy::LastPerSubject,
    }
}

/// The API's "no limit" is zero or less.
fn positive(value: i64) -> Option<u64> {
    u64::try_from(value).ok().filter(|value| *value > 0)
}

fn small(value: i64) -> Option<u32> {
    positive(value).map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_zero_or_less_are_none() {
        let config = api::ConsumerConfig {
            durable_name: "D".to_owned(),
            ack_policy: api::AckPolicy::Explicit,
            ack_wait: 5,
            max_deliver: -1,
            max_ack_pending: 7,
            filter_subject: "a.>".to_owned(),
            deliver_policy: api::DeliverPolicy::ByStartSequence,
            opt_start_seq: 9,
            num_replicas: 3,
            ..api::ConsumerConfig::default()
        };
        let expected = ConsumerConfig {
            name: "D".to_owned(),
            durable: true,
            ack_policy: AckPolicy::Explicit,
            ack_wait_ns: 5,
            max_ack_pending: Some(7),
            filters: Filters::new(["a.>"]),
            deliver_policy: DeliverPolicy::ByStartSequence(StreamSeq::new(9)),
            replicas: 3,
            ..ConsumerConfig::default()
        };
        assert_eq!(ConsumerConfig::from_api(&config), Ok(expected));
        let flow = api::ConsumerConfig { ack_policy: api::AckPolicy::FlowControl, ..config };
        assert!(ConsumerConfig::from_api(&flow).is_err());
    }
}
