//! Everything, for programs. Keys are stable; `schema` is raised when one changes its meaning.

use super::Format;
use crate::bench::results::Results;
use crate::output::json;

pub(super) struct Json;

impl Format for Json {
    fn render(&self, results: &Results) -> String {
        json::text(results).expect("records of strings and numbers are JSON")
    }
}
