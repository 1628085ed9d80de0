//! Durability as stream metadata, which is how plain NATS clients see and set it.

use headwater_protocol::duration;

use super::{Durability, FlushMode, SYNC_INTERVAL_MS_MAX, SYNC_INTERVAL_MS_MIN, SyncMode};

/// Metadata key of [`Durability::flush`]: `true` or `false`.
pub const ALLOW_ASYNC_FLUSH_KEY: &str = "headwater.allow_async_flush";
/// Metadata key of [`Durability::sync`]: `always`, `interval` or `noWait`.
pub const SYNC_MODE_KEY: &str = "headwater.sync_mode";
/// Metadata key of [`Durability::interval_ms`]: a Go duration.
pub const SYNC_INTERVAL_KEY: &str = "headwater.sync_interval";

/// Settings that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A value that is not one of those the key takes.
    #[error("{key} must be {expected}, not {found:?}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// `interval` without an interval.
    #[error("sync mode interval needs {SYNC_INTERVAL_KEY}")]
    IntervalMissing,
    /// An interval with a mode that has none.
    #[error("{SYNC_INTERVAL_KEY} has no meaning with sync mode {0}")]
    IntervalUnused(SyncMode),
    /// An interval out of range.
    #[error("{SYNC_INTERVAL_KEY} must be between {SYNC_INTERVAL_MS_MIN}ms and {SYNC_INTERVAL_MS_MAX}ms, not {0}ms")]
    IntervalRange(u32),
}

impl Durability {
    /// Applies the keys that are present to these settings; an absent key changes nothing. Leaving
    /// `interval` drops the interval with it.
    pub fn with_metadata<'a>(self, get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, MetadataError> {
        let mut wish = self;
        if let Some(text) = get(ALLOW_ASYNC_FLUSH_KEY) {
            wish.flush = match text {
                "true" => FlushMode::Async,
                "false" => FlushMode::Sync,
                _ => return Err(value(ALLOW_ASYNC_FLUSH_KEY, "true or false", text)),
            };
        }
        if let Some(text) = get(SYNC_MODE_KEY) {
            wish.sync = match text {
                "always" => SyncMode::Always,
                "interval" => SyncMode::Interval,
                "noWait" => SyncMode::NoWait,
                _ => return Err(value(SYNC_MODE_KEY, "always, interval or noWait", text)),
            };
            if wish.sync != SyncMode::Interval {
                wish.interval_ms = 0;
            }
        }
        if let Some(text) = get(SYNC_INTERVAL_KEY) {
            let ns = duration::parse_unsigned(text)
                .ok_or_else(|| value(SYNC_INTERVAL_KEY, "a duration such as 250ms", text))?;
            wish.interval_ms = u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX);
            if wish.interval_ms == 0 {
                return Err(MetadataError::IntervalRange(0));
            }
        }
        wish.validate()?;
        Ok(wish)
    }

    /// The settings as metadata entries.
    pub fn to_metadata(self) -> Vec<(&'static str, String)> {
        let mut entries = vec![
            (ALLOW_ASYNC_FLUSH_KEY, (self.flush == FlushMode::Async).to_string()),
            (SYNC_MODE_KEY, self.sync.as_str().to_owned()),
        ];
        if self.sync == SyncMode::Interval {
            let ns = i64::from(self.interval_ms) * duration::MILLISECOND;
            entries.push((SYNC_INTERVAL_KEY, duration::format(ns)));
        }
        entries
    }
}

fn value(key: &'static str, expected: &'static str, found: &str) -> MetadataError {
    MetadataError::Value { key, expected, found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_keys_change_nothing() {
        let start = Durability { sync: SyncMode::Interval, interval_ms: 250, flush: FlushMode::Sync };
        assert_eq!(start.with_metadata(|_| None), Ok(start));
        let entries = start.to_metadata();
        let back =
            Durability::default().with_metadata(|key| entries.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_str()));
        assert_eq!(back, Ok(start));
        let always = start.with_metadata(|key| (key == SYNC_MODE_KEY).then_some("always")).unwrap();
        assert_eq!((always.sync, always.interval_ms), (SyncMode::Always, 0));
    }

    #[test]
    fn nonsense_is_refused() {
        let start = Durability::default();
        let set = |key: &'static str, text: &'static str| start.with_metadata(move |k| (k == key).then_some(text));
        assert!(set(ALLOW_ASYNC_FLUSH_KEY, "yes").is_err());
        assert!(set(SYNC_MODE_KEY, "nowait").is_err());
        assert_eq!(set(SYNC_MODE_KEY, "interval"), Err(MetadataError::IntervalMissing));
        assert_eq!(set(SYNC_INTERVAL_KEY, "1s"), Err(MetadataError::IntervalUnused(SyncMode::Always)));
        assert_eq!(set(SYNC_INTERVAL_KEY, "1us"), Err(MetadataError::IntervalRange(0)));
        let both = start.with_metadata(|k| match k {
            SYNC_MODE_KEY => Some("interval"),
            SYNC_INTERVAL_KEY => Some("6m"),
            _ => None,
        });
        assert_eq!(both, Err(MetadataError::IntervalRange(360_000)));
    }
}
