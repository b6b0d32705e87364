//! Page of a load: its verdict, its start, its speed over time, and where the time went.

mod report;
mod sections;

use serde_json::Value;
use tload_base::options::format_bytes;

use self::report::ReportFields;
use crate::facts::Run;
use crate::page::{Badge, Item, Page, Table, text};
use crate::timeline::Samples;
use crate::waterfall::waterfall;

/// Most notes that are shown.
const NOTES_MAX: usize = 15;

/// Most lines of the report as text.
const LINES_MAX: usize = 40;

/// A load.
#[derive(Debug, Default)]
pub struct Load {
    /// The report as JSON, with the fields of `tload::Report`. What it lacks is not shown.
    pub report: Value,
    /// The report as text. Its first line is the headline.
    pub text: String,
    /// Error that ended the load, with its causes and advice.
    pub failure: Option<String>,
    /// Circumstances.
    pub run: Option<Run>,
    /// Samples over time.
    pub samples: Samples,
    /// Shards.
    pub shards: Vec<ShardRow>,
    /// Tensors, the largest first. A page has the first few hundred.
    pub tensors: Vec<TensorRow>,
}

/// One shard.
#[derive(Clone, Debug, Default)]
pub struct ShardRow {
    /// Location, without secrets.
    pub location: String,
    /// Number of its tensors.
    pub tensors: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// One tensor.
#[derive(Clone, Debug, Default)]
pub struct TensorRow {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Lengths of the dimensions.
    pub shape: Vec<u64>,
    /// Length in bytes.
    pub bytes: u64,
    /// Number of its shard.
    pub shard: usize,
}

/// Returns the page of a load.
#[must_use]
pub fn load_page(load: &Load) -> String {
    page(load).document()
}

/// Returns the page of a report alone: its JSON, and its text.
#[must_use]
pub fn report_page(report: Value, text: &str, run: Option<Run>) -> String {
    page(&Load {
        report,
        text: text.to_owned(),
        run,
        ..Load::default()
    })
    .document()
}

/// Returns a report for a cell of a notebook.
#[must_use]
pub fn report_fragment(report: Value, text: &str) -> String {
    page(&Load {
        report,
        text: text.to_owned(),
        ..Load::default()
    })
    .fragment()
}

fn page(load: &Load) -> Page {
    // A field of another type than expected is none of a report of this version.
    let report: ReportFields = serde_json::from_value(load.report.clone()).unwrap_or_default();
    let mut page = Page {
        title: format!("tload: {}", text(&report.location)),
        kind: "load",
        heading: text(&report.location),
        badge: Some(badge(&report)),
        ..Page::default()
    };
    page.lead.extend(load.text.lines().next().map(text));
    page.lead.extend(report.verdict.as_deref().map(text));
    if let Some(failure) = &load.failure {
        page.failure("The load failed", failure);
    }
    if load.failure.is_none() || report.seconds > 0.0 {
        report.figures(&mut page);
    }
    report.warnings(&mut page);
    if !report.phases.is_empty() {
        let bars = waterfall(
            "Phases from the opening of the checkpoint on",
            &report.phases,
        );
        let intro = "Phases overlap: connections are made while headers are read.";
        page.section("Start", intro, vec![Item::Bars(bars)]);
    }
    page.section("Throughput and depth over time", "", load.samples.items());
    report.time(&mut page);
    if !report.engine.name.is_empty() {
        report.reads(&mut page);
        report.memory(&mut page);
    }
    report.others(&mut page);
    load.content(&mut page);
    if let Some(run) = &load.run {
        run.add_to(&mut page);
    }
    let lines: Vec<_> = load.text.lines().take(LINES_MAX).map(text).collect();
    if !lines.is_empty() {
        let item = Item::Text("The report as text", lines.join("\n"));
        page.section("Report", "", vec![item]);
    }
    page
}

fn badge(report: &ReportFields) -> Badge {
    let level = match report.outcome.as_str() {
        "complete" => "ok",
        "running" => "note",
        _ => "fail",
    };
    Badge {
        text: text(&report.outcome),
        level,
    }
}

impl Load {
    /// Adds shards and tensors.
    fn content(&self, page: &mut Page) {
        let mut items = Vec::new();
        if !self.shards.is_empty() {
            let rows = self.shards.iter().map(|shard| {
                let (tensors, bytes) = (shard.tensors.to_string(), format_bytes(shard.bytes));
                vec![shard.location.clone(), tensors, bytes]
            });
            let table = Table::new("Shards", &["shard", "#tensors", "#bytes"]);
            items.push(Item::Table(table.with_rows(rows)));
        }
        if !self.tensors.is_empty() {
            let rows = self.tensors.iter().map(|tensor| {
                let shape: Vec<_> = tensor.shape.iter().map(ToString::to_string).collect();
                vec![
                    tensor.name.clone(),
                    tensor.dtype.clone(),
                    format!("[{}]", shape.join(", ")),
                    format_bytes(tensor.bytes),
                    tensor.shard.to_string(),
                ]
            });
            let caption = "Tensors, the largest first";
            let titles = ["name", "dtype", "shape", "#size", "#shard"];
            let table = Table::new(caption, &titles).of_size(56_000).with_rows(rows);
            let table = table.folded();
            items.push(Item::Table(table));
        }
        page.section("Checkpoint", "", items);
    }
}
