//! Go durations: `1h30m0.5s` and back, in nanoseconds.

/// Nanoseconds in a microsecond.
pub const MICROSECOND: i64 = 1_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: i64 = 1_000_000;
/// Nanoseconds in a second.
pub const SECOND: i64 = 1_000_000_000;
/// Nanoseconds in a minute.
pub const MINUTE: i64 = 60 * SECOND;
/// Nanoseconds in an hour.
pub const HOUR: i64 = 60 * MINUTE;

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No number where one is due, or nothing at all.
    #[error("invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit.
    #[error("missing unit in duration {0:?}")]
    MissingUnit(String),
    /// No such unit.
    #[error("unknown unit in duration {0:?}")]
    UnknownUnit(String),
}

/// Parses a Go duration such as `-1.5h` or `2h45m`; the result is in nanoseconds.
///
/// # Errors
/// [`DurationError`] when the text is malformed or does not fit 63 bits of nanoseconds.
pub fn parse(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (negative, mut rest) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_len = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_len);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let scale = unit_ns(unit).ok_or_else(|| DurationError::UnknownUnit(text.to_owned()))?;
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| invalid())? };
        let part = whole.checked_mul(scale).and_then(|ns| ns.checked_add(fraction_ns(fraction, scale)));
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        rest = next;
    }
    match (negative, i64::try_from(total)) {
        (false, Ok(ns)) => Ok(ns),
        (true, Ok(ns)) => Ok(-ns),
        (true, Err(_)) if total == i64::MIN.unsigned_abs() => Ok(i64::MIN),
        _ => Err(invalid()),
    }
}

/// As [`parse`], for a duration that cannot be negative; `None` if it is none.
pub fn parse_unsigned(text: &str) -> Option<u64> {
    parse(text).ok().and_then(|ns| u64::try_from(ns).ok())
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

fn unit_ns(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => MICROSECOND as u64,
        "ms" => MILLISECOND as u64,
        "s" => SECOND as u64,
        "m" => MINUTE as u64,
        "h" => HOUR as u64,
        _ => return None,
    })
}

/// `0.<digits>` of a unit, truncated to nanoseconds.
fn fraction_ns(digits: &str, scale: u64) -> u64 {
    let (mut ns, mut place) = (0u128, 1u128);
    // 18 digits are far below a nanosecond even of an hour.
    for digit in digits.bytes().take(18) {
        place *= 10;
        ns = ns * 10 + u128::from(digit - b'0');
    }
    // Below `scale`, so it fits.
    (ns * u128::from(scale) / place) as u64
}

/// Formats nanoseconds as Go prints a duration: `0s`, `1.5ms`, `2m0s`, `1h0m0s`.
pub fn format(ns: i64) -> String {
    let magnitude = ns.unsigned_abs();
    let sign = if ns < 0 { "-" } else { "" };
    if magnitude == 0 {
        return "0s".to_owned();
    }
    if magnitude < SECOND as u64 {
        let (unit, scale) = match magnitude {
            0..1_000 => return format!("{sign}{magnitude}ns"),
            1_000..1_000_000 => ("µs", MICROSECOND as u64),
            _ => ("ms", MILLISECOND as u64),
        };
        return format!("{sign}{}{unit}", decimal(magnitude, scale));
    }
    let seconds = decimal(magnitude % MINUTE as u64, SECOND as u64);
    let minutes = magnitude / MINUTE as u64;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

/// `value / scale` without trailing zeros; `scale` is a power of ten.
fn decimal(value: u64, scale: u64) -> String {
    let (whole, fraction) = (value / scale, value % scale);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = scale.ilog10() as usize;
    format!("{whole}.{fraction:0width$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_of_go() {
        for (text, ns) in [
            ("0", 0),
            ("5s", 5 * SECOND),
            ("1h30m", 90 * MINUTE),
            ("-1.5h", -90 * MINUTE),
            ("1.5ms", 1_500 * MICROSECOND),
            (".5s", 500 * MILLISECOND),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("1us2ns", 1_002),
            ("2562047h47m16.854775807s", i64::MAX),
            ("-2562047h47m16.854775808s", i64::MIN),
        ] {
            assert_eq!(parse(text), Ok(ns), "{text}");
        }
        for text in [
            "",
            "-",
            "5",
            "s",
            "1x",
            "1d",
            "1s2",
            ".s",
            "1.2.3s",
            "5 s",
            "9999999999999999999h",
            "2562047h47m16.854775808s",
            "é",
        ] {
            assert!(parse(text).is_err(), "{text}");
            assert_eq!(parse_unsigned(text), None, "{text}");
        }
        assert_eq!((parse_unsigned("1m30s"), parse_unsigned("-1s")), (Some(90 * SECOND as u64), None));
        for (ns, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (10 * MILLISECOND, "10ms"),
            (2 * MINUTE, "2m0s"),
            (HOUR, "1h0m0s"),
            (HOUR + 1_500 * MILLISECOND, "1h0m1.5s"),
            (-5 * SECOND, "-5s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format(ns), text);
        }
    }

    proptest! {
        #[test]
        fn format_and_parse_are_inverse(ns in any::<i64>(), shift in 0u32..63) {
            for ns in [ns, ns >> shift] {
                prop_assert_eq!(parse(&format(ns)), Ok(ns));
            }
        }

        #[test]
        fn any_text_is_answered(text in "[0-9a-zµ.+-]{0,12}|.{0,8}") {
            let _ = parse(&text);
        }
    }
}
