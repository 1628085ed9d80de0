//! Per-message time to live.

use headwater_protocol::duration;

use crate::ids::Timestamp;

/// Shortest TTL accepted.
const TTL_NS_MIN: u64 = 1_000_000_000;

/// Value of `Nats-TTL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Kept whatever the stream's age limit says.
    Never,
    /// Removed this many ns after its time.
    After(u64),
}

impl Ttl {
    /// Seconds as an integer, a Go duration of at least a second, or `never`.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        if text.eq_ignore_ascii_case("never") {
            return Some(Self::Never);
        }
        let ns = match text.parse::<u64>() {
            Ok(seconds) => seconds.checked_mul(1_000_000_000)?,
            Err(_) => duration::parse_unsigned(text)?,
        };
        (ns >= TTL_NS_MIN).then_some(Self::After(ns))
    }

    /// When a message of this time is due, if ever.
    pub fn deadline(self, ts: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::After(ns) => Some(ts.plus_ns(ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ttl;

    #[test]
    fn ttl_values() {
        for (text, expected) in [
            ("never", Some(Ttl::Never)),
            ("NEVER", Some(Ttl::Never)),
            ("5", Some(Ttl::After(5_000_000_000))),
            ("5s", Some(Ttl::After(5_000_000_000))),
            ("1500ms", Some(Ttl::After(1_500_000_000))),
            ("1m", Some(Ttl::After(60_000_000_000))),
            ("999ms", None),
            ("0", None),
            ("-1", None),
            ("1.5", None),
            ("18446744073709551616", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(Ttl::parse(text.as_bytes()), expected, "{text}");
        }
    }
}
