//! Markdown export of the summary, for a README or an issue.

use std::fmt::Write;

use tload::internal::printable;

use super::Format;
use crate::bench::results::Results;
use crate::bench::table::{HEADER, describe_checkpoint, describe_host, rows};
use crate::bench::verdict;
use crate::output::table::Align;
use tload_quantity::format_count;

pub(super) struct Markdown;

impl Format for Markdown {
    fn render(&self, results: &Results) -> String {
        let mut text = format!(
            "{}; {}; tload {}{}; {}\n\n",
            printable(&describe_checkpoint(&results.checkpoint)),
            printable(&describe_host(&results.host)),
            results.run.tload.version,
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
        for sentence in verdict::sentences(results) {
            let _ = write!(text, "\n{sentence}\n");
        }
        if !results.warnings.is_empty() {
            text.push_str("\n* ");
            text.push_str(&results.warnings.join("\n* "));
            text.push('\n');
        }
        text + &format!("\n{}\n", code(&results.run.command.join(" ")))
    }
}

/// Formats a row of a table. Characters that end a field or a line are escaped.
fn line(fields: &[String]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|field| printable(field).replace('|', "\\|"))
        .collect();
    format!("| {} |\n", fields.join(" | "))
}

/// Formats a code span, with more backticks than the text has in a row (`CommonMark`, 6.1).
fn code(text: &str) -> String {
    let text = printable(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_escapes_field_and_line_ends() {
        let fields = ["a|b".to_owned(), "c\nd\u{1b}".to_owned()];
        assert_eq!(line(&fields), "| a\\|b | c\\nd\\u{1b} |\n");
        assert_eq!(code("tload ls"), "`tload ls`");
        assert_eq!(code("a``b\n"), "``` a``b\\n ```");
    }
}
