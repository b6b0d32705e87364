//! Progress bar with bytes, speed and the time left, on one line however narrow the terminal. Shown
//! only if standard error is a terminal.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tload::TensorStream;
use tload::internal::{RecentSpeed, format_bytes, format_left};

use super::verbosity;
use tload_quantity::float;

/// Columns if the terminal does not tell.
const WIDTH: usize = 80;
/// Columns for the numbers behind a bar, so that the bar keeps its length: bytes, speed and time.
const NUMBERS: usize = 44;
const BAR_LONGEST: usize = 32;
const BAR_SHORTEST: usize = 6;
/// Least time between two looks at a load.
const LOOK: Duration = Duration::from_millis(50);

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
    seen: Arc<Mutex<Seen>>,
}

/// State of a bar beside its position.
#[derive(Debug)]
struct Seen {
    started: Instant,
    looked: Option<Instant>,
    speed: RecentSpeed,
    /// Received and total tensors of a load, behind a space.
    tensors: String,
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
        let seen = Arc::new(Mutex::new(Seen {
            started: Instant::now(),
            looked: None,
            speed: RecentSpeed::default(),
            tensors: String::new(),
        }));
        let shown = Arc::clone(&seen);
        let draw = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let (position, total) = (state.pos(), state.len().unwrap_or(0));
            let seen = lock(&shown);
            let left = match unit {
                Unit::Bytes => seen.speed.left(total),
                Unit::Steps => left_of_steps(seen.started.elapsed(), position, total),
            };
            let now = Now {
                message,
                unit,
                position,
                total,
                tensors: seen.tensors.clone(),
                speed: behind_space(seen.speed.text().filter(|_| unit == Unit::Bytes)),
                left: behind_space(left.map(format_left)),
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
            seen,
        }
    }

    /// Sets the total, if it becomes known later.
    pub(crate) fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Sets the position.
    pub(crate) fn set(&self, position: u64) {
        self.observe(position);
        self.bar.set_position(position);
    }

    /// Adds `count` to the position.
    pub(crate) fn advance(&self, count: u64) {
        self.bar.inc(count);
        self.observe(self.bar.position());
    }

    /// Shows a load, however often this is called.
    pub(crate) fn show(&self, stream: &TensorStream) {
        let mut seen = lock(&self.seen);
        if seen.looked.is_none_or(|at| at.elapsed() >= LOOK) {
            let now = stream.progress();
            seen.looked = Some(Instant::now());
            seen.tensors = format!(" {}/{} tensors", now.tensors_received, now.tensors_total);
            drop(seen);
            self.set(now.bytes_done());
        }
    }

    fn observe(&self, position: u64) {
        let mut seen = lock(&self.seen);
        let now = seen.started.elapsed();
        seen.speed.observe(now, position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn behind_space(text: Option<String>) -> String {
    text.map_or_else(String::new, |text| format!(" {text}"))
}

/// Returns the time that steps take which are as long as those before.
fn left_of_steps(elapsed: Duration, position: u64, total: u64) -> Option<Duration> {
    let missing = total.checked_sub(position).filter(|_| position > 0)?;
    let ratio = float(missing) / float(position);
    (missing > 0).then(|| elapsed.mul_f64(ratio))
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
    tensors: String,
    speed: String,
    left: String,
}

impl Now {
    /// Returns one line of fewer than `width` columns. The tensors, the bar, the time left, the
    /// speed and the total are left out, in this order, where there is no room.
    fn line(&self, width: usize) -> String {
        let most = width.saturating_sub(1);
        let done = self.done();
        let (speed, left) = (&self.speed, &self.left);
        let numbers = format!("{done}{speed}{left}");
        for tensors in [self.tensors.as_str(), ""] {
            let taken = self.message.len() + " [] ".len() + NUMBERS.max(numbers.len());
            let bar = most.saturating_sub(taken + tensors.len()).min(BAR_LONGEST);
            if bar >= BAR_SHORTEST {
                let bar = self.bar(bar);
                return format!("{} [{bar}] {done}{tensors}{speed}{left}", self.message);
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn now(position: u64) -> Now {
        Now {
            message: "loading",
            unit: Unit::Bytes,
            position,
            total: 4 * GIB,
            tensors: String::new(),
            speed: " 1.61 GB/s".to_owned(),
            left: " eta 1m35s".to_owned(),
        }
    }

    #[test]
    fn tensors_are_a_count_beside_the_bytes() {
        let copy = now(GIB);
        let bar = "loading [======>                 ] 1.0 GiB/4.0 GiB 1.61 GB/s eta 1m35s";
        assert_eq!(copy.line(80), bar);
        let load = Now {
            tensors: " 12/291 tensors".to_owned(),
            ..copy
        };
        assert_eq!(
            load.line(80),
            "loading [==>      ] 1.0 GiB/4.0 GiB 12/291 tensors 1.61 GB/s eta 1m35s"
        );
        // The bar is worth more than they are.
        assert!(!load.line(70).contains("tensors") && load.line(70).contains("=>"));
    }

    #[test]
    fn beginning_shows_neither_speed_nor_time_left() {
        let early = Now {
            speed: String::new(),
            left: String::new(),
            ..now(GIB)
        };
        let line = "loading [======>                 ] 1.0 GiB/4.0 GiB";
        assert_eq!(early.line(80), line);
    }

    #[test]
    fn narrow_terminals_get_less_on_one_line() {
        let lines: Vec<_> = [60, 48, 36, 29, 13, 5]
            .iter()
            .map(|width| now(GIB).line(*width))
            .collect();
        assert_eq!(
            lines,
            [
                "loading  25% 1.0 GiB/4.0 GiB 1.61 GB/s eta 1m35s",
                "loading  25% 1.0 GiB/4.0 GiB 1.61 GB/s",
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
                    tensors: format!(" {total}/{total} tensors"),
                    ..now(0)
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
        assert_eq!(now(0).bar(4), ">   ");
        assert_eq!(now(GIB).bar(4), "=>  ");
        assert_eq!(now(4 * GIB).bar(4), "====");
    }

    #[test]
    fn steps_have_a_time_left_and_no_speed() {
        let left = left_of_steps(Duration::from_secs(10), 3, 30);
        assert_eq!(left, Some(Duration::from_secs(90)));
        assert_eq!(left_of_steps(Duration::from_secs(10), 0, 30), None);
        assert_eq!(left_of_steps(Duration::from_secs(10), 30, 30), None);
        let steps = Now {
            unit: Unit::Steps,
            total: 30,
            ..now(3)
        };
        assert_eq!(steps.done(), "3/30");
    }
}
