//! Page of a benchmark, which the crate `tload-html` makes.

use std::path::Path;

use tload::Error;
use tload_html::Bench;

use super::plain::{plain, run};
use super::{Format, write_text};
use crate::bench::results::{Results, RunRecord};
use crate::output::error::chain;

pub(super) struct Html;

impl Format for Html {
    fn render(&self, results: &Results) -> String {
        tload_html::bench_page(&plain(results))
    }
}

/// Writes the page of a benchmark that has no results.
pub(crate) fn write_failure(path: &Path, error: &Error, record: &RunRecord) {
    let bench = Bench {
        checkpoint: error.location().unwrap_or("a checkpoint").to_owned(),
        failure: Some(chain(error)),
        run: run(record, None),
        ..Bench::default()
    };
    // If this fails too, standard error and the exit status still report the failure.
    drop(write_text(path, &tload_html::bench_page(&bench)));
}
