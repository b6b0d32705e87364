//! Table of a verification, for a cell of a notebook.

use serde::Deserialize;
use serde_json::Value;
use tload_base::options::format_bytes;

use crate::page::{Badge, Item, Page, Table, text};
use crate::quantity::{format_count, format_rate, format_seconds};

/// Fields of the report of a verification that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Report {
    location: String,
    files: Vec<File>,
    bytes: u64,
    seconds: f64,
    written: Option<String>,
    notes: Vec<String>,
    ok: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    name: String,
    bytes: Option<u64>,
    outcome: String,
    verified_by: Vec<String>,
    silent: Vec<String>,
    mismatches: Vec<Mismatch>,
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mismatch {
    tensor: Option<String>,
    range: (u64, u64),
    by: String,
    expected: String,
    found: String,
}

/// Returns the report of a verification as a table. `report` is its JSON, with `ok`.
#[must_use]
pub fn verified_fragment(report: Value) -> String {
    let report: Report = serde_json::from_value(report).unwrap_or_default();
    let mut page = Page {
        kind: "verification",
        heading: text(&report.location),
        badge: Some(Badge {
            text: if report.ok { "ok" } else { "not ok" }.to_owned(),
            level: if report.ok { "ok" } else { "fail" },
        }),
        ..Page::default()
    };
    let files = format_count(report.files.len() as u64, "file");
    let (size, time) = (format_bytes(report.bytes), format_seconds(report.seconds));
    let rate =
        (report.seconds > 0.0).then(|| crate::quantity::float(report.bytes) / report.seconds);
    let rate = rate.map_or_else(String::new, |rate| format!(": {}", format_rate(rate)));
    page.lead.push(format!("{files}, {size} in {time}{rate}"));
    let written = report
        .written
        .as_deref()
        .map(|path| format!("manifest written: {}", text(path)));
    page.lead.extend(written);
    let rows = report.files.iter().map(|file| {
        let size = file.bytes.map_or_else(|| "–".to_owned(), format_bytes);
        let why = if let Some(error) = &file.error {
            error.clone()
        } else if file.verified_by.is_empty() {
            file.silent.join("; ")
        } else {
            file.verified_by.join("; ")
        };
        vec![file.name.clone(), file.outcome.clone(), size, why]
    });
    let table = Table::new(
        "Files",
        &["file", "result", "#size", "compared with, or why not"],
    );
    let mut items = vec![Item::Table(table.with_rows(rows))];
    let differing = report.files.iter().flat_map(|file| {
        let row = |it: &Mismatch| {
            vec![
                file.name.clone(),
                format!("{}–{}", it.range.0, it.range.1),
                it.tensor.clone().unwrap_or_default(),
                it.expected.clone(),
                it.found.clone(),
                it.by.clone(),
            ]
        };
        file.mismatches.iter().map(row)
    });
    let titles = [
        "file",
        "bytes",
        "tensor",
        "expected",
        "found",
        "according to",
    ];
    let differences = Table::new("Differences", &titles).with_rows(differing);
    if !differences.rows.is_empty() {
        items.push(Item::Table(differences));
    }
    let notes: Vec<_> = report.notes.iter().map(|note| text(note)).collect();
    if !notes.is_empty() {
        items.push(Item::Notes(notes));
    }
    page.section("Files", "", items);
    page.fragment()
}
