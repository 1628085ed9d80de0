//! Durations as Go writes them (`1h30m`, `250ms`): the text used in manifests and stream metadata.

use std::fmt;
use std::str::FromStr;

/// A non-negative duration in nanoseconds; at most `i64::MAX` ns (about 292 years), as in Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// No text.
    Empty,
    /// A part does not start with digits.
    NumberExpected,
    /// A number is followed by none of `ns us µs ms s m h` (there is no unit for days).
    UnitExpected,
    /// More than 292 years.
    TooLong,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty; write a duration such as 90s or 72h",
            Self::NumberExpected => "is not a duration; write a number and a unit, such as 90s or 72h",
            Self::UnitExpected => "has an unknown unit; the units are ns, us, ms, s, m and h (a day is 24h)",
            Self::TooLong => "is longer than 292 years",
        })
    }
}

impl std::error::Error for DurationError {}

const UNITS: [(&str, i64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds; a negative count becomes zero.
    pub fn from_nanos(ns: i64) -> Self {
        Self(ns.max(0))
    }

    /// From milliseconds; more than 292 years becomes that.
    pub fn from_millis(ms: u64) -> Self {
        Self(i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000))
    }

    /// In nanoseconds.
    pub fn as_nanos(self) -> i64 {
        self.0
    }

    /// In whole milliseconds, rounded down.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0 / 1_000_000).unwrap_or(0)
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text.is_empty() {
            return Err(DurationError::Empty);
        }
        if text == "0" {
            return Ok(Self::ZERO);
        }
        let mut rest = text;
        let mut total: i64 = 0;
        while !rest.is_empty() {
            let (whole, after) = split_digits(rest);
            let (fraction, after) = match after.strip_prefix('.') {
                Some(tail) => split_digits(tail),
                None => ("", after),
            };
            if whole.is_empty() {
                return Err(DurationError::NumberExpected);
            }
            // The longest unit wins, so that `ms` is not read as minutes.
            let (unit, scale) = UNITS
                .into_iter()
                .filter(|(unit, _)| after.starts_with(unit))
                .max_by_key(|(unit, _)| unit.len())
                .ok_or(DurationError::UnitExpected)?;
            let whole: i64 = whole.parse().map_err(|_| DurationError::TooLong)?;
            let part = whole
                .checked_mul(scale)
                .and_then(|ns| ns.checked_add(fraction_nanos(fraction, scale)))
                .ok_or(DurationError::TooLong)?;
            total = total.checked_add(part).ok_or(DurationError::TooLong)?;
            rest = after.strip_prefix(unit).unwrap_or("");
        }
        Ok(Self(total))
    }
}

/// `0.fraction × scale`, exact to the nanosecond; digits beyond that are dropped.
fn fraction_nanos(fraction: &str, scale: i64) -> i64 {
    let mut ns = 0i64;
    let mut unit = scale;
    let mut carry = 0i64;
    for digit in fraction.bytes().take(18) {
        let digit = i64::from(digit - b'0');
        // unit / 10 may leave a remainder only below a nanosecond, which is dropped.
        carry += (unit % 10) * digit / 10;
        unit /= 10;
        ns += unit * digit;
    }
    ns + carry
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for GoDuration {
    /// Go's own form (`1h30m0s`, `250ms`, `0s`), with zero parts at the end left out: `1h30m`, `72h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, scale) in [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000)] {
            if rest >= scale {
                write!(f, "{}{unit}", rest / scale)?;
                rest %= scale;
            }
        }
        for (unit, scale) in [("ms", 1_000_000), ("us", 1_000), ("ns", 1)] {
            if rest >= scale {
                write!(f, "{}{unit}", rest / scale)?;
                rest %= scale;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_parse() {
        for (text, ns) in [
            ("0", 0),
            ("0s", 0),
            ("100ms", 100_000_000),
            ("1.5h", 5_400_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("2us3ns", 2_003),
            ("2µs", 2_000),
            ("0.25s", 250_000_000),
            ("1.000000001s", 1_000_000_001),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(ns)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for (text, why) in [
            ("", DurationError::Empty),
            ("1d", DurationError::UnitExpected),
            ("5", DurationError::UnitExpected),
            ("-5s", DurationError::NumberExpected),
            ("h", DurationError::NumberExpected),
            (".5s", DurationError::NumberExpected),
            ("99999999999h", DurationError::TooLong),
            ("9223372036854775807ns1ns", DurationError::TooLong),
            ("99999999999999999999s", DurationError::TooLong),
        ] {
            assert_eq!(text.parse::<GoDuration>(), Err(why), "{text}");
        }
    }

    #[test]
    fn printed_durations_parse_to_themselves() {
        for ns in [0, 1, 999, 1_500, 10_000_000, 61_000_000_000, 5_400_000_000_000, i64::MAX] {
            let shown = GoDuration(ns).to_string();
            assert_eq!(shown.parse(), Ok(GoDuration(ns)), "{shown}");
        }
        assert_eq!(GoDuration::from_millis(5_400_000).to_string(), "1h30m");
    }
}
