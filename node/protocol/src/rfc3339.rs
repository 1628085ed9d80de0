//! RFC 3339 times as Go writes them (`RFC3339Nano`), to and from nanoseconds since the Unix epoch.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

const SECOND_NS: u64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;
/// Go's zero time, which JSON bodies show for "none yet".
const ZERO_TEXT: &str = "0001-01-01T00:00:00Z";

/// A point in time in a JSON body: nanoseconds since the epoch, or Go's zero time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiTime(Option<u64>);

impl ApiTime {
    /// Go's zero time: "none yet".
    pub const ZERO: Self = Self(None);

    /// A time `ns` nanoseconds after the epoch.
    pub const fn from_ns(ns: u64) -> Self {
        Self(Some(ns))
    }

    /// Nanoseconds since the epoch; `None` for the zero time.
    pub const fn ns(self) -> Option<u64> {
        self.0
    }

    /// Whether this is the zero time.
    pub const fn is_zero(self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for ApiTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ns) => write_ns(f, ns),
            None => f.write_str(ZERO_TEXT),
        }
    }
}

impl Serialize for ApiTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApiTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The text is no RFC 3339 time, or lies beyond what 64 bits of nanoseconds can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parsing time {0:?} as \"2006-01-02T15:04:05Z07:00\"")]
pub struct TimeError(String);

impl std::str::FromStr for ApiTime {
    type Err = TimeError;

    /// Parses a time with any offset. Times before the epoch count as the epoch, year 1 as "none".
    fn from_str(text: &str) -> Result<Self, TimeError> {
        if text == ZERO_TEXT {
            return Ok(Self::ZERO);
        }
        parse(text).map(Self::from_ns).ok_or_else(|| TimeError(text.to_owned()))
    }
}

/// Formats nanoseconds since the epoch in UTC, without trailing zeros in the fraction.
pub fn format(ns: u64) -> String {
    ApiTime::from_ns(ns).to_string()
}

fn write_ns(f: &mut fmt::Formatter<'_>, ns: u64) -> fmt::Result {
    let (seconds, fraction) = (ns / SECOND_NS, ns % SECOND_NS);
    // At most 1.8e10 seconds: no overflow.
    let (days, second_of_day) = (seconds as i64 / DAY_SECONDS, seconds as i64 % DAY_SECONDS);
    let Date { year, month, day } = Date::from_days(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
    if fraction != 0 {
        let digits = format!("{fraction:09}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str("Z")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Date {
    year: i64,
    month: i64,
    day: i64,
}

impl Date {
    /// The proleptic Gregorian date `days` after 1970-01-01. Years start in March here, so that the leap day is last.
    fn from_days(days: i64) -> Self {
        let shifted = days + 719_468; // days from 0000-03-01 to 1970-01-01
        let era = shifted.div_euclid(146_097); // days in 400 years
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Self { year, month, day }
    }

    fn to_days(self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let shifted_month = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let day_of_year = (153 * shifted_month + 2) / 5 + self.day - 1;
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
    }

    fn is_real(self) -> bool {
        (1..=12).contains(&self.month) && self.day >= 1 && Self::from_days(self.to_days()) == self
    }
}

/// Reads fixed-width fields off the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self, width: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(width)?;
        self.0 = rest;
        digits.iter().try_fold(0i64, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
    }

    fn literal(&mut self, wanted: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        (first.eq_ignore_ascii_case(&wanted)).then_some(())
    }

    /// `.digits`, truncated to nanoseconds; zero without a dot.
    fn fraction(&mut self) -> Option<u64> {
        let Some(rest) = self.0.strip_prefix(b".") else {
            return Some(0);
        };
        let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        if len == 0 {
            return None;
        }
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        Some(padded.fold(0, |ns, b| ns * 10 + u64::from(b - b'0')))
    }

    /// `Z` or `±hh:mm`, in seconds east of UTC.
    fn offset(&mut self) -> Option<i64> {
        let (sign, rest) = self.0.split_first()?;
        self.0 = rest;
        let sign = match sign {
            b'Z' | b'z' => return Some(0),
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        let hours = self.number(2)?;
        self.literal(b':')?;
        let minutes = self.number(2)?;
        (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

/// Nanoseconds since the epoch; earlier times count as the epoch.
fn parse(text: &str) -> Option<u64> {
    let mut reader = Reader(text.as_bytes());
    let year = reader.number(4)?;
    reader.literal(b'-')?;
    let month = reader.number(2)?;
    reader.literal(b'-')?;
    let day = reader.number(2)?;
    reader.literal(b'T')?;
    let hour = reader.number(2)?;
    reader.literal(b':')?;
    let minute = reader.number(2)?;
    reader.literal(b':')?;
    let second = reader.number(2)?;
    let fraction = reader.fraction()?;
    let offset = reader.offset()?;
    let date = Date { year, month, day };
    if !reader.0.is_empty() || !date.is_real() || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = date.to_days() * DAY_SECONDS + hour * 3600 + minute * 60 + second - offset;
    match u64::try_from(seconds) {
        Ok(seconds) => seconds.checked_mul(SECOND_NS)?.checked_add(fraction),
        Err(_) => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        for (ns, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400 * SECOND_NS, "2000-02-29T00:00:00Z"),
            (1_796_058_757_024_082_469, "2026-11-30T17:12:37.024082469Z"),
            (1_500_000_000, "1970-01-01T00:00:01.5Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(format(ns), text);
            assert_eq!(text.parse(), Ok(ApiTime::from_ns(ns)));
        }
        assert_eq!("2026-01-02T03:04:05+02:00".parse(), "2026-01-02T01:04:05Z".parse::<ApiTime>());
        assert_eq!("1950-01-02T03:04:05Z".parse(), Ok(ApiTime::from_ns(0)));
        assert_eq!(ZERO_TEXT.parse(), Ok(ApiTime::ZERO));
        assert_eq!(ApiTime::ZERO.to_string(), ZERO_TEXT);
    }

    #[test]
    fn malformed_times() {
        for text in [
            "",
            "x",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00Zx",
            "2600-01-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T00:00:00+25:00",
        ] {
            assert!(text.parse::<ApiTime>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn format_and_parse_are_inverse(ns in any::<u64>()) {
            prop_assert_eq!(format(ns).parse(), Ok(ApiTime::from_ns(ns)));
        }

        #[test]
        fn any_text_is_answered(text in "[0-9TZ:.+-]{0,35}|.{0,12}") {
            let _ = text.parse::<ApiTime>();
        }
    }
}
