//! SECURITY.md promises nothing that no test shows: each row of its table names tests, and they are there.

use std::path::Path;

use crate::files::read;

const TABLE: &str = "| promise | shown by |";

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The tests that a row names, as `file::function`.
fn named(row: &str) -> Vec<(&str, &str)> {
    let shown_by = row.trim_end_matches([' ', '|']).rsplit_once(" | ");
    let spans = shown_by.map_or("", |(_, tests)| tests).split('`').skip(1);
    spans
        .step_by(2)
        .filter_map(|span| span.split_once("::"))
        .collect()
}

/// Whether `text`, which is Rust or Python, has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let line = line.trim_start_matches("async ");
        if line
            .strip_prefix("def ")
            .is_some_and(|it| it.starts_with(&format!("{name}(")))
        {
            return name.starts_with("test_");
        }
        let is_function = line
            .strip_prefix("fn ")
            .is_some_and(|it| it.starts_with(&format!("{name}(")));
        // Between the attribute and the function others may stand.
        let mut before = lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with("#["));
        is_function && before.any(|line| *line == "#[test]")
    })
}

fn complaints(security: &str, text_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut rows = security
        .lines()
        .skip_while(|line| *line != TABLE)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .peekable();
    if rows.peek().is_none() {
        return vec![format!("has no table that begins with {TABLE:?}")];
    }
    let of_row = |row: &str| {
        let tests = named(row);
        if tests.is_empty() {
            return vec![format!("names no test: {row}")];
        }
        let missing = tests.into_iter().filter(|(file, name)| {
            let text = text_of(file);
            text.is_none_or(|text| !has_test(&text, name))
        });
        missing
            .map(|(file, name)| format!("{file} has no test {name}"))
            .collect()
    };
    rows.flat_map(of_row).collect()
}

#[test]
fn each_promise_of_security_md_has_a_test() {
    let text = |path: &Path| {
        let is_there = path.exists();
        is_there.then(|| String::from_utf8(read(path)).expect("UTF-8"))
    };
    let security = text(&root().join("SECURITY.md")).expect("is in the repository");
    let complaints = complaints(&security, |file| text(&root().join(file)));
    assert!(
        complaints.is_empty(),
        "SECURITY.md:\n{}",
        complaints.join("\n")
    );
}

#[test]
fn a_row_without_a_test_and_a_test_that_is_none_are_found() {
    let table = |rows: &str| format!("# Security\n\n{TABLE}\n|:--|:--|\n{rows}\n\nmore `z.rs::z`");
    let file = |name: &str| match name {
        "a.rs" => Some("#[test]\n#[cfg(unix)]\nfn one() {}\nfn two() {}\n// fn three()".to_owned()),
        "a.py" => Some("def test_one(x: int) -> None:\ndef helps() -> None:".to_owned()),
        _ => None,
    };
    let found = |rows: &str| complaints(&table(rows), file);
    assert_eq!(
        found("| a `b` | `a.rs::one`, `a.py::test_one` |"),
        Vec::<String>::new()
    );
    for (cell, complaint) in [
        ("`a.rs::two`", "a.rs has no test two"),
        ("`a.rs::on`", "a.rs has no test on"),
        ("`a.rs::three`", "a.rs has no test three"),
        ("`a.py::helps`", "a.py has no test helps"),
        ("`b.rs::one`", "b.rs has no test one"),
    ] {
        let rows = format!("| a | `a.rs::one` |\n| b | `a.py::test_one`, {cell} |");
        assert_eq!(found(&rows), [complaint]);
    }
    assert_eq!(found("| a `a.rs::one` | |").len(), 1);
    assert_eq!(complaints("# Security\n", file).len(), 1);
}
