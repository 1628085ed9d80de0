//! RFC 3339 times in UTC, as servers write them, to nanoseconds since the epoch.

/// Nanoseconds since 1970 of an RFC 3339 time in UTC (`2026-01-02T03:04:05.000000006Z`), or `None`
/// if `text` is not one. Offsets other than `Z` are not accepted: no server sends them.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let (date, clock) = text.split_once('T')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || fraction.len() > 9
        || !fraction.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    // Days from the civil calendar, counted from a March-based year so that leap days come last.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    let seconds = u64::try_from(days * 86_400 + hour * 3_600 + minute * 60 + second).ok()?;
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::parse_rfc3339;

    #[test]
    fn known_times() {
        assert_eq!(parse_rfc3339("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_rfc3339("2000-03-01T00:00:00.5Z"), Some(951_868_800_500_000_000));
        assert_eq!(parse_rfc3339("2024-02-29T23:59:59.000000001Z"), Some(1_709_251_199_000_000_001));
        assert_eq!(parse_rfc3339("2026-11-30T17:09:09.123456789Z"), Some(1_796_058_549_123_456_789));
    }

    #[test]
    fn not_times() {
        for text in
            ["", "2024-02-29", "2024-13-01T00:00:00Z", "2024-01-01T00:00:00+01:00", "2024-01-01T00:00:00.x1Z", "T.Z"]
        {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
