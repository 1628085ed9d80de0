//! Pauses between reconciles: spread out, and growing after failures.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

/// First pause after a failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const LONGEST: Duration = Duration::from_secs(300);

/// `pause` ± 10 %, always the same for one object: a thousand objects that were read together part ways.
pub(crate) fn spread(pause: Duration, uid: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    // 90 to 110 %.
    let percent = 90 + u32::try_from(hasher.finish() % 21).unwrap_or(10);
    pause * percent / 100
}

/// Doubles from a second to five minutes.
pub(crate) fn after(failures: u32, uid: &str) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    spread(FIRST.saturating_mul(1 << doublings).min(LONGEST), uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_spread_by_a_tenth() {
        for (failures, seconds) in [(0, 1), (1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let pause = after(failures, "uid").as_millis();
            assert!((seconds * 900..=seconds * 1100).contains(&pause), "{failures}: {pause} ms");
        }
        let pauses: std::collections::HashSet<_> = (0..100).map(|n| spread(FIRST, &n.to_string())).collect();
        assert!(pauses.len() > 10);
    }
}
