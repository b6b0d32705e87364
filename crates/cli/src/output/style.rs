//! Colours. Text is always coloured here; the streams of `anstream` remove the colours where they
//! are not wanted.

use anstyle::{AnsiColor, Style};

use tload_doctor::Level;

const GOOD: Style = AnsiColor::Green.on_default();
const NOTE: Style = AnsiColor::Cyan.on_default();
const WARNING: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const HEADER: Style = Style::new().bold();

/// First words of lines, with their colours.
const LABELS: [(&str, Style); 4] = [
    ("error:", BAD),
    ("warning:", WARNING),
    ("note:", NOTE),
    ("hint:", NOTE),
];

/// Outcomes of files in a verification.
const OUTCOMES: [(&str, Style); 6] = [
    ("matches", GOOD),
    ("differs", BAD),
    ("missing", BAD),
    ("failed", BAD),
    ("extra", WARNING),
    ("unverified", WARNING),
];

fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Colours the label at the beginning of a line, if it has one.
pub(crate) fn label(line: &str) -> String {
    let text = line.trim_start();
    let indentation = &line[..line.len() - text.len()];
    let mut labels = LABELS.iter();
    match labels.find(|(label, _)| text.starts_with(label)) {
        Some((label, style)) => {
            format!(
                "{indentation}{}{}",
                paint(*style, label),
                &text[label.len()..]
            )
        }
        None => line.to_owned(),
    }
}

/// Returns the level of a finding, coloured and four columns wide.
pub(crate) fn level(level: Level) -> String {
    let style = match level {
        Level::Ok => GOOD,
        Level::Note => NOTE,
        Level::Warn => WARNING,
        Level::Fail => BAD,
    };
    paint(style, &format!("{level:<4}"))
}

/// Colours the outcomes in the last column of a table.
pub(crate) fn outcomes(table: &str) -> String {
    let line = |line: &str| {
        let start = line.rfind(' ').map_or(0, |space| space + 1);
        let (rest, last) = line.split_at(start);
        let known = OUTCOMES.iter().find(|(outcome, _)| *outcome == last);
        let last = known.map_or_else(|| last.to_owned(), |(_, style)| paint(*style, last));
        format!("{rest}{last}\n")
    };
    table.lines().map(line).collect()
}

/// Makes the first line of a table bold.
pub(crate) fn header(table: &str) -> String {
    match table.split_once('\n') {
        Some((header, rows)) => format!("{}\n{rows}", paint(HEADER, header)),
        None => table.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    #[test]
    fn colours_leave_texts_as_they_are() {
        for line in [
            "error: x",
            "  hint: y",
            "  caused by: z",
            "",
            "note: é",
            "warning",
        ] {
            assert_eq!(strip_str(&label(line)).to_string(), line);
        }
        assert_eq!(label("  hint: y"), "  \u{1b}[36mhint:\u{1b}[0m y");
        assert_eq!(label("caused by: note: z"), "caused by: note: z");
        let table = "file  result\na     matches\nb     differs\n";
        assert_eq!(strip_str(&outcomes(table)).to_string(), table);
        assert!(outcomes(table).contains("\u{1b}[32mmatches\u{1b}[0m\n"));
        assert_eq!(strip_str(&header(table)).to_string(), table);
        assert_eq!(strip_str(&level(Level::Ok)).to_string(), "ok  ");
    }
}
