//! The summary, for a README or an issue.

use std::fmt::Write;

use super::Format;
use crate::bench::results::Results;
use crate::bench::sweep;
use crate::bench::table::{HEADER, describe_checkpoint, describe_host, rows};
use crate::output::quantity::format_count;
use crate::output::table::Align;

pub(super) struct Markdown;

impl Format for Markdown {
    fn render(&self, results: &Results) -> String {
        let mut text = format!(
            "{}; {}; tload {}{}; {}\n\n",
            describe_checkpoint(&results.checkpoint),
            describe_host(&results.host),
            results.tload.version,
            results
                .fio
                .as_ref()
                .map_or_else(String::new, |version| format!(", {version}")),
            format_count(results.rounds.into(), "round"),
        );
        let rulers = HEADER.map(|(_, align)| match align {
            Align::Left => ":--".to_owned(),
            Align::Right => "--:".to_owned(),
        });
        text.push_str(&line(&HEADER.map(|(title, _)| title.to_owned())));
        text.push_str(&line(&rulers));
        for row in rows(results) {
            text.push_str(&line(&row));
        }
        for verdict in sweep::verdicts(results) {
            let _ = write!(text, "\n{verdict}\n");
        }
        if !results.warnings.is_empty() {
            text.push_str("\n* ");
            text.push_str(&results.warnings.join("\n* "));
            text.push('\n');
        }
        text + &format!("\n`{}`\n", results.command.join(" "))
    }
}

fn line(fields: &[String]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|field| field.replace('|', "\\|"))
        .collect();
    format!("| {} |\n", fields.join(" | "))
}
