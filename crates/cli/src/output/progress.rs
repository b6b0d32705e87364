//! Progress bar with bytes, speed and the time left, on one line however narrow the terminal. Shown
//! only if standard error is a terminal.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tload::internal::format_bytes;

use super::quantity::float;
use super::verbosity;

/// Columns if the terminal does not tell.
const WIDTH: usize = 80;
/// Columns for the numbers behind a bar, so that the bar keeps its length: bytes, speed and time.
const NUMBERS: usize = 44;
const BAR_LONGEST: usize = 32;
const BAR_SHORTEST: usize = 6;
/// Time that must have passed for a speed and the time left to mean something.
const SETTLED: Duration = Duration::from_secs(1);

/// Quantity that a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Steps,
}

/// Progress bar that disappears when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// False until the first position is known.
    has_begun: AtomicBool,
}

impl Progress {
    /// Counts bytes up to `total`.
    pub(crate) fn for_bytes(total: u64, message: &'static str) -> Self {
        Self::new(total, message, Unit::Bytes)
    }

    /// Counts steps up to `total`.
    pub(crate) fn for_steps(total: u64, message: &'static str) -> Self {
        Self::new(total, message, Unit::Steps)
    }

    fn new(total: u64, message: &'static str, unit: Unit) -> Self {
        let draw = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let now = Now {
                message,
                unit,
                position: state.pos(),
                total: state.len().unwrap_or(0),
                per_second: state.per_sec(),
                left: state.eta(),
                elapsed: state.elapsed(),
            };
            // A terminal cannot be told; the line is then missing.
            let _ = out.write_str(&now.line(width()));
        };
        let style = ProgressStyle::with_template("{line}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("line", draw);
        let bar = if verbosity::shows_progress() {
            ProgressBar::new(total)
        } else {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        };
        Self {
            bar: bar.with_style(style),
            has_begun: AtomicBool::new(false),
        }
    }

    /// Sets the total, if it becomes known later.
    pub(crate) fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Sets the position. The first one above zero was not reached at this speed: an earlier copy
    /// may have read most of it.
    pub(crate) fn set(&self, position: u64) {
        self.bar.set_position(position);
        if position > 0 && !self.has_begun.swap(true, Ordering::Relaxed) {
            self.bar.reset_elapsed();
        }
    }

    /// Adds `count` to the position.
    pub(crate) fn advance(&self, count: u64) {
        self.bar.inc(count);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the columns of the terminal that shows the bar.
fn width() -> usize {
    rustix::termios::tcgetwinsize(io::stderr())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|columns| *columns > 0)
        .unwrap_or(WIDTH)
}

/// State of a bar at one moment.
struct Now {
    message: &'static str,
    unit: Unit,
    position: u64,
    total: u64,
    per_second: f64,
    left: Duration,
    elapsed: Duration,
}

impl Now {
    /// Returns one line of fewer than `width` columns. The bar, the time left, the speed and the
    /// total are left out, in this order, where there is no room.
    fn line(&self, width: usize) -> String {
        let most = width.saturating_sub(1);
        let (done, speed, left) = (self.done(), self.speed(), self.left());
        let numbers = format!("{done}{speed}{left}");
        let taken = self.message.len() + " [] ".len() + NUMBERS.max(numbers.len());
        let bar = most.saturating_sub(taken).min(BAR_LONGEST);
        if bar >= BAR_SHORTEST {
            return format!("{} [{}] {numbers}", self.message, self.bar(bar));
        }
        let share = format!("{} {:3.0}%", self.message, self.fraction() * 100.0);
        [
            format!("{share} {numbers}"),
            format!("{share} {done}{speed}"),
            format!("{share} {done}"),
            share,
        ]
        .into_iter()
        .find(|line| line.len() <= most)
        .unwrap_or_default()
    }

    fn fraction(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        (float(self.position) / float(self.total)).min(1.0)
    }

    fn bar(&self, columns: usize) -> String {
        let filled = (0..columns)
            .filter(|column| float(*column as u64 + 1) <= self.fraction() * float(columns as u64))
            .count();
        let head = if filled < columns { ">" } else { "" };
        let bar = format!("{}{head}", "=".repeat(filled));
        format!("{bar:<columns$}")
    }

    fn done(&self) -> String {
        match self.unit {
            Unit::Bytes if self.total == 0 => format_bytes(self.position),
            Unit::Bytes => format!(
                "{}/{}",
                format_bytes(self.position),
                format_bytes(self.total)
            ),
            Unit::Steps => format!("{}/{}", self.position, self.total),
        }
    }

    fn speed(&self) -> String {
        if self.unit == Unit::Steps || self.elapsed < SETTLED || !self.per_second.is_finite() {
            return String::new();
        }
        format!(" {}/s", format_bytes(whole(self.per_second)))
    }

    fn left(&self) -> String {
        let is_known = self.elapsed >= SETTLED && self.position > 0 && self.per_second > 0.0;
        if !is_known || self.position >= self.total {
            return String::new();
        }
        let seconds = self.left.as_secs();
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, 0, 0) => String::new(),
            (0, 0, seconds) => format!(" eta {seconds}s"),
            (0, minutes, seconds) => format!(" eta {minutes}m{seconds:02}s"),
            (hours @ 1..=99, minutes, _) => format!(" eta {hours}h{minutes:02}m"),
            // Nearly stalled: no number is right for long.
            _ => String::new(),
        }
    }
}

/// Rounds a speed down to whole bytes.
fn whole(per_second: f64) -> u64 {
    Duration::try_from_secs_f64(per_second).map_or(0, |it| it.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn now(position: u64, elapsed: u64) -> Now {
        Now {
            message: "loading",
            unit: Unit::Bytes,
            position,
            total: 4 * GIB,
            per_second: 1.5 * 1_073_741_824.0,
            left: Duration::from_secs(95),
            elapsed: Duration::from_secs(elapsed),
        }
    }

    #[test]
    fn numbers_use_one_kind_of_unit() {
        assert_eq!(
            now(GIB, 2).line(80),
            "loading [======>                 ] 1.0 GiB/4.0 GiB 1.5 GiB/s eta 1m35s"
        );
    }

    #[test]
    fn first_second_shows_neither_speed_nor_time_left() {
        let line = now(GIB, 0).line(80);
        assert_eq!(line, "loading [======>                 ] 1.0 GiB/4.0 GiB");
        assert!(!now(0, 9).line(80).contains("eta"));
        assert!(!now(4 * GIB, 9).line(80).contains("eta"));
        let stalled = Now {
            left: Duration::MAX,
            ..now(GIB, 9)
        };
        assert!(!stalled.line(80).contains("eta"));
    }

    #[test]
    fn narrow_terminals_get_less_on_one_line() {
        let lines: Vec<_> = [60, 48, 36, 29, 13, 5]
            .iter()
            .map(|width| now(GIB, 2).line(*width))
            .collect();
        assert_eq!(
            lines,
            [
                "loading  25% 1.0 GiB/4.0 GiB 1.5 GiB/s eta 1m35s",
                "loading  25% 1.0 GiB/4.0 GiB 1.5 GiB/s",
                "loading  25% 1.0 GiB/4.0 GiB",
                "loading  25% 1.0 GiB/4.0 GiB",
                "loading  25%",
                "",
            ]
        );
    }

    #[test]
    fn no_line_reaches_the_last_column() {
        for message in ["loading", "verifying", "writing a checkpoint"] {
            for (position, total) in [(0, 0), (1023 << 20, 1023 << 40), (u64::MAX, u64::MAX)] {
                let now = Now {
                    message,
                    position,
                    total,
                    ..now(0, 9)
                };
                for width in 0..200 {
                    let line = now.line(width);
                    assert!(line.len() < width.max(1), "{width}: {line:?}");
                    assert!(!line.contains('\n'));
                }
            }
        }
    }

    #[test]
    fn bar_fills_from_left_to_right() {
        assert_eq!(now(0, 1).bar(4), ">   ");
        assert_eq!(now(GIB, 1).bar(4), "=>  ");
        assert_eq!(now(4 * GIB, 1).bar(4), "====");
    }

    #[test]
    fn steps_have_no_speed() {
        let steps = Now {
            message: "measuring",
            unit: Unit::Steps,
            total: 30,
            ..now(3, 2)
        };
        assert!(steps.line(80).ends_with("] 3/30 eta 1m35s"));
    }
}
