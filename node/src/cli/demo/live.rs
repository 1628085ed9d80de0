//! A few lines at the bottom of the terminal that are drawn over again, under what is said for good.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

/// Cells of the bar.
const BAR: usize = 30;

/// Draws on stderr if that is a terminal; elsewhere every change of importance is one plain line.
pub(super) struct Live {
    is_terminal: bool,
    /// Lines on the screen that the next drawing replaces.
    drawn: usize,
    /// What was last printed where nothing can be drawn over.
    printed: String,
}

impl Live {
    pub(super) fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), drawn: 0, printed: String::new() }
    }

    /// Says something for good.
    pub(super) fn say(&mut self, line: &str) {
        self.clear();
        println!("{line}");
    }

    /// Draws `text`. `key` is what of it matters: without a terminal the text is printed when that changes.
    pub(super) fn draw(&mut self, text: &str, key: &str) {
        if !self.is_terminal {
            if self.printed != key {
                key.clone_into(&mut self.printed);
                println!("{}", text.trim_end());
            }
            return;
        }
        let lines = text.lines().count();
        let text = text.trim_end().replace('\n', "\x1b[K\r\n");
        let mut err = std::io::stderr().lock();
        // A terminal that is gone shows nothing, and the demo goes on.
        let _gone = write!(err, "{}{text}\x1b[K\r\n\x1b[J", up(self.drawn)).and_then(|()| err.flush());
        self.drawn = lines;
    }

    /// Takes away what was drawn.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            let mut err = std::io::stderr().lock();
            // As above.
            let _gone = write!(err, "{}\x1b[J", up(self.drawn)).and_then(|()| err.flush());
            self.drawn = 0;
        }
    }
}

fn up(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r") }
}

/// How far the publishers have come.
pub(super) struct Progress {
    started: Instant,
    wanted: u64,
}

impl Progress {
    pub(super) fn new(wanted: u64) -> Self {
        Self { started: Instant::now(), wanted }
    }

    /// The bar, and the part of it that counts as news: every tenth.
    pub(super) fn render(&self, confirmed: u64) -> (String, String) {
        let share = (confirmed.saturating_mul(BAR as u64) / self.wanted.max(1)).min(BAR as u64);
        let full = usize::try_from(share).unwrap_or(BAR);
        let rate = confirmed as f64 / self.started.elapsed().as_secs_f64().max(0.001);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "[{}{}] {} of {} confirmed, {rate:.0} a second",
            "#".repeat(full),
            ".".repeat(BAR - full),
            grouped(confirmed),
            grouped(self.wanted),
        );
        (text, format!("tenth {}", (confirmed.saturating_mul(10) / self.wanted.max(1)).min(10)))
    }
}

/// Digits in groups of three.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1 000"), (12_345_678, "12 345 678")] {
            assert_eq!(grouped(n), text);
        }
    }

    #[test]
    fn the_bar_fills_up_and_stays_in_its_bounds() {
        let progress = Progress::new(1_000);
        for (confirmed, full) in [(0, 0), (500, 15), (1_000, 30), (5_000, 30)] {
            let (text, _) = progress.render(confirmed);
            assert_eq!(text.matches('#').count(), full, "{text}");
        }
        assert_ne!(progress.render(99).1, progress.render(100).1);
    }
}
