//! The part of a stream's configuration that `apply` and admission act on.

use serde::{Deserialize, Serialize};

/// Where messages live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    /// Block files.
    #[default]
    File,
    /// Memory only; any restart is a rejoin.
    Memory,
}

/// What makes room when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discard {
    /// The oldest messages go.
    #[default]
    Old,
    /// The new message is refused.
    New,
}

/// What else removes messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    /// Only limits.
    #[default]
    Limits,
    /// A message goes when every interested consumer is done with it.
    Interest,
    /// A message goes when a consumer is done with it.
    WorkQueue,
}

/// Bounds of a stream; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Messages.
    pub max_msgs: Option<u64>,
    /// Bytes, as [`stored_len`] counts them.
    pub max_bytes: Option<u64>,
    /// Age in ns.
    pub max_age_ns: Option<u64>,
    /// Bytes of headers and payload of one message.
    pub max_msg_size: Option<u64>,
    /// Messages of one subject.
    pub max_msgs_per_subject: Option<u64>,
}

/// Everything that decides about messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The stream's name, for `Nats-Expected-Stream`.
    pub name: String,
    /// Subjects it listens to.
    pub subjects: Vec<String>,
    /// Bounds.
    pub limits: Limits,
    /// What makes room.
    pub discard: Discard,
    /// With [`Discard::New`]: whether a full subject refuses, too.
    pub discard_new_per_subject: bool,
    /// What else removes messages.
    pub retention: Retention,
    /// Where messages live.
    pub storage: StorageKind,
    /// How long a message id is remembered, in ns; zero turns duplicates off.
    pub duplicate_window_ns: u64,
    /// Whether `Nats-Rollup` is allowed.
    pub allow_rollup: bool,
    /// Whether `Nats-TTL` is allowed.
    pub allow_msg_ttl: bool,
    /// No single deletes.
    pub deny_delete: bool,
    /// No purges.
    pub deny_purge: bool,
    /// No publish acknowledgements.
    pub no_ack: bool,
    /// Nothing changes any more.
    pub sealed: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: String::new(),
            subjects: Vec::new(),
            limits: Limits::default(),
            discard: Discard::Old,
            discard_new_per_subject: false,
            retention: Retention::Limits,
            storage: StorageKind::File,
            duplicate_window_ns: 120_000_000_000,
            allow_rollup: false,
            allow_msg_ttl: false,
            deny_delete: false,
            deny_purge: false,
            no_ack: false,
            sealed: false,
        }
    }
}

/// Bytes a message counts for, the one definition that admission and enforcement share. It follows
/// nats-server's stores, so that `bytes` compares equal: for files a 22-byte head, the subject, a
/// 4-byte length and the block if there are headers, the payload and an 8-byte hash; for memory
/// subject, headers, payload and 16.
pub fn stored_len(storage: StorageKind, subject_len: usize, hdr_len: usize, payload_len: usize) -> u64 {
    let content = subject_len + hdr_len + payload_len;
    let overhead = match storage {
        StorageKind::Memory => 16,
        StorageKind::File if hdr_len == 0 => 22 + 8,
        StorageKind::File => 22 + 4 + 8,
    };
    (content + overhead) as u64
}

#[cfg(test)]
mod tests {
    use super::{StorageKind, stored_len};

    #[test]
    fn sizes_equal_nats_servers() {
        assert_eq!(stored_len(StorageKind::File, 3, 0, 5), 38);
        assert_eq!(stored_len(StorageKind::File, 3, 12, 5), 54);
        assert_eq!(stored_len(StorageKind::Memory, 3, 12, 5), 36);
    }
}
