//! Everything, for programs. Keys are stable; `schema` is raised when one changes its meaning.

use super::Format;
use crate::bench::results::Results;

pub(super) struct Json;

impl Format for Json {
    fn render(&self, results: &Results) -> String {
        let mut text =
            serde_json::to_string_pretty(results).expect("records of strings and numbers are JSON");
        text.push('\n');
        text
    }
}
