//! Page of a benchmark, which the crate `tload-html` makes.

use super::Format;
use super::plain::plain;
use crate::bench::results::Results;

pub(super) struct Html;

impl Format for Html {
    fn render(&self, results: &Results) -> String {
        tload_html::bench_page(&plain(results))
    }
}
