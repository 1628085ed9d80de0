//! `$JS.API.INFO`.

use serde::{Deserialize, Serialize};

use crate::info::API_LEVEL;
use crate::json;

/// Account information. -1 means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountInfo {
    /// Bytes in memory streams.
    pub memory: u64,
    /// Bytes in file streams.
    pub storage: u64,
    /// Bytes promised to memory streams.
    #[serde(default)]
    pub reserved_memory: u64,
    /// Bytes promised to file streams.
    #[serde(default)]
    pub reserved_storage: u64,
    /// Streams.
    pub streams: u64,
    /// Consumers.
    pub consumers: u64,
    /// What the account may use.
    pub limits: AccountLimits,
    /// JetStream domain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// API use.
    pub api: ApiStats,
}

/// Limits of an account; -1 means unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountLimits {
    /// Bytes in memory streams.
    pub max_memory: i64,
    /// Bytes in file streams.
    pub max_storage: i64,
    /// Streams.
    pub max_streams: i64,
    /// Consumers.
    pub max_consumers: i64,
    /// Unacknowledged messages per consumer.
    pub max_ack_pending: i64,
    /// Bytes of one memory stream.
    pub memory_max_stream_bytes: i64,
    /// Bytes of one file stream.
    pub storage_max_stream_bytes: i64,
    /// Whether streams must set `max_bytes`.
    pub max_bytes_required: bool,
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self {
            max_memory: -1,
            max_storage: -1,
            max_streams: -1,
            max_consumers: -1,
            max_ack_pending: -1,
            memory_max_stream_bytes: -1,
            storage_max_stream_bytes: -1,
            max_bytes_required: false,
        }
    }
}

/// API use of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiStats {
    /// Level spoken.
    pub level: u32,
    /// Requests so far.
    pub total: u64,
    /// Requests refused.
    pub errors: u64,
    /// Requests under way.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub inflight: u64,
}

impl Default for ApiStats {
    fn default() -> Self {
        Self { level: API_LEVEL, total: 0, errors: 0, inflight: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_nats_server() {
        assert_eq!(
            json::to_string(&AccountInfo::default()),
            concat!(
                r#"{"memory":0,"storage":0,"reserved_memory":0,"reserved_storage":0,"streams":0,"consumers":0,"#,
                r#""limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,"max_consumers":-1,"max_ack_pending":-1,"#,
                r#""memory_max_stream_bytes":-1,"storage_max_stream_bytes":-1,"max_bytes_required":false},"#,
                r#""api":{"level":4,"total":0,"errors":0}}"#
            )
        );
    }
}
