//! The node's only wall clock.

use headwater_core::ids::Timestamp;

/// Now, in nanoseconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
