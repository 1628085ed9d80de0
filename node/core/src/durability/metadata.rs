//! Durability as stream metadata, which is how plain NATS clients see and set it.

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
            let ns =
                parse_go_duration_ns(text).ok_or_else(|| value(SYNC_INTERVAL_KEY, "a duration such as 250ms", text))?;
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
            let ns = u64::from(self.interval_ms) * 1_000_000;
            entries.push((SYNC_INTERVAL_KEY, format_go_duration(ns)));
        }
        entries
    }
}

fn value(key: &'static str, expected: &'static str, found: &str) -> MetadataError {
    MetadataError::Value { key, expected, found: found.to_owned() }
}

/// Nanoseconds of a non-negative Go duration (`1h2m3.5s`, `250ms`, `0`); `None` if it is none.
pub fn parse_go_duration_ns(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let unit_ns: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit_ns)?)?;
        let mut scale = unit_ns;
        for digit in fraction.bytes() {
            scale /= 10;
            total = total.checked_add(u64::from(digit - b'0') * scale)?;
        }
        rest = after;
    }
    Some(total)
}

/// A duration as Go prints it.
pub fn format_go_duration(ns: u64) -> String {
    fn decimal(ns: u64, unit: u64) -> String {
        let (whole, fraction) = (ns / unit, ns % unit);
        if fraction == 0 {
            return whole.to_string();
        }
        let width = unit.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        format!("{whole}.{}", digits.trim_end_matches('0'))
    }
    match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}µs", decimal(ns, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", decimal(ns, 1_000_000)),
        _ => {
            let (minutes, rest) = (ns / 60_000_000_000, ns % 60_000_000_000);
            let seconds = decimal(rest, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_go_both_ways() {
        for (text, ns) in [
            ("0s", 0),
            ("10ms", 10_000_000),
            ("1.5s", 1_500_000_000),
            ("1m30s", 90_000_000_000),
            ("1h0m0.25s", 3_600_250_000_000),
            ("2m0s", 120_000_000_000),
            ("15µs", 15_000),
        ] {
            assert_eq!(parse_go_duration_ns(text), Some(ns), "{text}");
            assert_eq!(format_go_duration(ns), text);
        }
        for text in ["", "5", "5 s", "-1s", "1.2.3s", ".s", "1d", "s", "99999999999999h", "1s2"] {
            assert_eq!(parse_go_duration_ns(text), None, "{text}");
        }
    }

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
