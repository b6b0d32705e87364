//! JSON export of everything. Keys are stable; `schema` increases when one changes its meaning.

use super::Format;
use crate::bench::results::Results;
use crate::output::json;

pub(super) struct Json;

impl Format for Json {
    fn render(&self, results: &Results) -> String {
        json::text(results).expect("records of strings and numbers are JSON")
    }
}
