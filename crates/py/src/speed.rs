//! Speed of the last few seconds, for the progress bars of Python.

use std::time::Instant;

use pyo3::prelude::*;
use tload::internal::{format_left, format_rate};

/// Speed of a transfer over the last few seconds.
#[pyclass(module = "tload._tload")]
#[derive(Debug)]
pub(crate) struct RecentSpeed {
    speed: tload::internal::RecentSpeed,
    started: Instant,
}

#[pymethods]
impl RecentSpeed {
    #[new]
    fn new() -> Self {
        Self {
            speed: tload::internal::RecentSpeed::default(),
            started: Instant::now(),
        }
    }

    /// Records that `done` of `total` bytes are there, and returns the speed and the time left as
    /// text: nothing until they mean something.
    fn observe(&mut self, done: u64, total: u64) -> Vec<String> {
        self.speed.observe(self.started.elapsed(), done);
        let left = self.speed.left(total).map(format_left);
        self.speed.text().into_iter().chain(left).collect()
    }
}

/// Formats a speed in GB/s, or in MB/s if it is low.
#[pyfunction(name = "format_rate")]
pub(crate) fn rate_as_text(bytes_per_second: f64) -> String {
    format_rate(bytes_per_second)
}
