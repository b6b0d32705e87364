//! Progress bar with bytes, GB/s and the time left, shown only if standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

const BYTES: &str =
    "{msg} [{bar:32}] {binary_bytes}/{binary_total_bytes} {decimal_bytes_per_sec} eta {eta}";
const STEPS: &str = "{msg} [{bar:32}] {pos}/{len} eta {eta}";

/// Progress bar that disappears when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Counts bytes up to `total`.
    pub(crate) fn for_bytes(total: u64, message: &'static str) -> Self {
        Self::new(total, message, BYTES)
    }

    /// Counts steps up to `total`.
    pub(crate) fn for_steps(total: u64, message: &'static str) -> Self {
        Self::new(total, message, STEPS)
    }

    fn new(total: u64, message: &'static str, template: &str) -> Self {
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let bar = ProgressBar::new(total)
            .with_style(style)
            .with_message(message);
        Self { bar }
    }

    /// Sets the total, if it becomes known later.
    pub(crate) fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Sets the position.
    pub(crate) fn set(&self, position: u64) {
        self.bar.set_position(position);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [BYTES, STEPS] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
