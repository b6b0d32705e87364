//! Page of a load: its verdict, its start, its speed over time, and where the time went.

use serde::Deserialize;
use serde_json::Value;
use tload_base::options::format_bytes;

use crate::facts::Run;
use crate::page::{Badge, Bar, Bars, Finding, Item, Page, Table, text};
use crate::quantity::{float, format_count, format_rate, format_seconds};
use crate::timeline::Samples;
use crate::waterfall::{Phase, waterfall};

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
    /// Locations, tensors and bytes of the shards.
    pub shards: Vec<(String, u64, u64)>,
    /// Tensors, the largest first. A page has the first few hundred.
    pub tensors: Vec<TensorRow>,
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

/// Fields of a report that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Report {
    location: String,
    outcome: String,
    verdict: Option<String>,
    tensors: u64,
    tensor_bytes: u64,
    read_bytes: u64,
    extents: u64,
    seconds: f64,
    import_seconds: f64,
    first_tensor_seconds: Option<f64>,
    engine: Engine,
    direct_bytes: u64,
    buffered_bytes: u64,
    mapped_bytes: u64,
    remote_bytes: u64,
    cached_bytes: u64,
    received_bytes: u64,
    copied_bytes: u64,
    requests: u64,
    short_reads: u64,
    retries: u64,
    opening_retries: u64,
    last_retry: Option<String>,
    stalls: u64,
    hedges: u64,
    hedges_won: u64,
    parked_bytes: u64,
    memory_limit: u64,
    memory_peak: u64,
    staging: Option<Staging>,
    devices: Vec<Device>,
    stages: Stages,
    phases: Vec<Phase>,
    lanes: u64,
    depth: u64,
    in_flight_bytes: u64,
    depths: Vec<Depth>,
    extent_bytes: u64,
    group: Option<Value>,
    verification: Option<Verification>,
    cache: Option<Value>,
    mirrors: Vec<Mirror>,
    notes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Engine {
    name: String,
    reason: String,
    features: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Staging {
    bytes: u64,
    slots: u64,
    pinned_bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Device {
    device: String,
    memory_limit: u64,
    memory_peak: u64,
    copies: u64,
    copied_bytes: u64,
    copy_seconds: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Stages {
    submit: f64,
    storage_wait: f64,
    memory_wait: f64,
    copy_wait: f64,
    deliver: f64,
    verify: f64,
    consumer_wait: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Depth {
    sources: String,
    in_flight_bytes: u64,
    changes: u64,
    best_bytes_per_second: u64,
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verification {
    choice: String,
    bytes: u64,
    by: Vec<VerifiedBy>,
    unverified_files: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VerifiedBy {
    by: String,
    algorithm: String,
    files: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mirror {
    location: String,
    read_bytes: u64,
    failure: Option<String>,
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
    let report: Report = serde_json::from_value(load.report.clone()).unwrap_or_default();
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
        let lines: Vec<_> = failure.lines().map(text).collect();
        let finding = Finding {
            level: "fail",
            title: "The load failed".to_owned(),
            value: lines.join("; "),
            advice: None,
            command: None,
        };
        page.section("Error", "", vec![Item::Findings(vec![finding])]);
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

fn badge(report: &Report) -> Badge {
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

/// Formats bytes, unless there are none.
fn some_bytes(bytes: u64) -> Option<String> {
    (bytes > 0).then(|| format_bytes(bytes))
}

fn some_count(count: u64) -> Option<String> {
    (count > 0).then(|| count.to_string())
}

impl Report {
    fn figures(&self, page: &mut Page) {
        let rate = (self.seconds > 0.0).then(|| float(self.tensor_bytes) / self.seconds);
        page.figure("Throughput", rate.map(format_rate));
        page.figure("Tensors", Some(self.tensors.to_string()));
        page.figure("Size", Some(format_bytes(self.tensor_bytes)));
        page.figure("Time", Some(format_seconds(self.seconds)));
        page.figure(
            "First tensor",
            self.first_tensor_seconds.map(format_seconds),
        );
        let import = (self.import_seconds > 0.0).then(|| format_seconds(self.import_seconds));
        page.figure("Import beside it", import);
        page.figure("Peak memory", some_bytes(self.memory_peak));
        page.figure("Engine", Some(text(&self.engine.name)));
    }

    fn warnings(&self, page: &mut Page) {
        let notes: Vec<_> = self
            .notes
            .iter()
            .take(NOTES_MAX)
            .map(|note| text(note))
            .collect();
        if !notes.is_empty() {
            page.section("Notes", "", vec![Item::Notes(notes)]);
        }
    }

    /// Adds the stages: those of the lanes together, and the caller's wait.
    fn time(&self, page: &mut Page) {
        let stages = &self.stages;
        let lanes = [
            ("waiting for storage", stages.storage_wait, "a"),
            ("waiting for copies to a GPU", stages.copy_wait, "b"),
            (
                "waiting for memory that the caller holds",
                stages.memory_wait,
                "d",
            ),
            (
                "choosing and queueing reads, fresh memory",
                stages.submit,
                "c",
            ),
            ("completing and delivering tensors", stages.deliver, "c"),
            ("comparing with digests", stages.verify, "c"),
        ];
        let total: f64 = lanes.iter().map(|(_, seconds, _)| seconds).sum();
        if total <= 0.0 {
            return;
        }
        let mut begin = 0.0;
        let mut rows = Vec::new();
        for (stage, seconds, colour) in lanes {
            if seconds > 0.0 {
                let length = seconds / total * 100.0;
                rows.push(Bar {
                    label: stage.to_owned(),
                    values: vec![format_seconds(seconds), format!("{length:.0} %")],
                    start: begin,
                    length,
                    colour,
                    ..Bar::default()
                });
                begin += length;
            }
        }
        let lanes = format_count(self.lanes, "lane");
        let bars = Bars {
            caption: format!("Time of {lanes} together: {}", format_seconds(total)),
            head: ["stage", "time", "share", "of all"]
                .map(str::to_owned)
                .into(),
            rows,
        };
        let caller = format!(
            "The caller waited {} of {} for the next tensor.",
            format_seconds(stages.consumer_wait),
            format_seconds(self.seconds)
        );
        page.section("Where the time went", &caller, vec![Item::Bars(bars)]);
    }

    fn reads(&self, page: &mut Page) {
        let retried = (self.retries + self.opening_retries > 0).then(|| {
            let last = self.last_retry.as_deref().unwrap_or("unknown");
            format!(
                "{}, {} while opening; the last: {last}",
                self.retries, self.opening_retries
            )
        });
        let hedged = format!("{}, {} of them won", self.hedges, self.hedges_won);
        let facts = [
            (
                "engine",
                Some(format!("{}: {}", self.engine.name, self.engine.reason)),
            ),
            (
                "its features",
                Some(self.engine.features.join(", ")).filter(|it| !it.is_empty()),
            ),
            (
                "reads",
                Some(format!(
                    "{} of up to {}",
                    self.extents,
                    format_bytes(self.extent_bytes)
                )),
            ),
            ("requests", some_count(self.requests)),
            ("lanes", some_count(self.lanes)),
            (
                "limit at the end",
                Some(format!(
                    "{} in flight ({})",
                    format_count(self.depth, "read"),
                    format_bytes(self.in_flight_bytes)
                )),
            ),
            ("read", some_bytes(self.read_bytes)),
            ("with direct I/O", some_bytes(self.direct_bytes)),
            ("by way of the page cache", some_bytes(self.buffered_bytes)),
            ("mapped", some_bytes(self.mapped_bytes)),
            ("from object stores", some_bytes(self.remote_bytes)),
            ("from the cache of objects", some_bytes(self.cached_bytes)),
            ("from another rank", some_bytes(self.received_bytes)),
            ("copied in memory", some_bytes(self.copied_bytes)),
            ("short reads", some_count(self.short_reads)),
            ("retries", retried),
            ("stalled", some_count(self.stalls)),
            ("hedged requests", Some(hedged).filter(|_| self.hedges > 0)),
            (
                "memory that storage still holds",
                some_bytes(self.parked_bytes),
            ),
        ];
        let mut items = vec![facts_of(facts)];
        if !self.depths.is_empty() {
            let titles = [
                "storage",
                "#limit in flight",
                "#changes",
                "#best rate",
                "why not higher",
            ];
            let rows = self.depths.iter().map(|depth| {
                let best = depth.best_bytes_per_second;
                let best = (best > 0).then(|| format_rate(float(best)));
                vec![
                    depth.sources.clone(),
                    format_bytes(depth.in_flight_bytes),
                    depth.changes.to_string(),
                    best.unwrap_or_else(|| "–".to_owned()),
                    depth.reason.clone(),
                ]
            });
            items.push(Item::Table(Table::new("Depth", &titles).with_rows(rows)));
        }
        page.section("Reads", "", items);
    }

    fn memory(&self, page: &mut Page) {
        let staging = self.staging.as_ref().map(|staging| {
            format!(
                "{} in {}, {} pinned",
                format_bytes(staging.bytes),
                format_count(staging.slots, "slot"),
                format_bytes(staging.pinned_bytes)
            )
        });
        let peak = format!(
            "{} of {}",
            format_bytes(self.memory_peak),
            format_bytes(self.memory_limit)
        );
        let facts = [
            ("peak", Some(peak).filter(|_| self.memory_limit > 0)),
            ("staging", staging),
        ];
        let mut items = vec![facts_of(facts)];
        if !self.devices.is_empty() {
            let titles = [
                "GPU",
                "#copied",
                "#copies",
                "#copying",
                "#memory peak",
                "#memory limit",
            ];
            let rows = self.devices.iter().map(|device| {
                vec![
                    device.device.clone(),
                    format_bytes(device.copied_bytes),
                    device.copies.to_string(),
                    format_seconds(device.copy_seconds),
                    format_bytes(device.memory_peak),
                    format_bytes(device.memory_limit),
                ]
            });
            items.push(Item::Table(Table::new("GPUs", &titles).with_rows(rows)));
        }
        page.section("Memory", "", items);
    }

    /// Adds ranks, verification, cache and mirrors, if the load had any.
    fn others(&self, page: &mut Page) {
        let object = |value: &Value| {
            let facts = crate::facts::options(value).into_iter();
            let facts = facts.map(|(name, value)| (crate::facts::label(&name), text(&value)));
            vec![Item::Facts(facts.collect())]
        };
        if let Some(group) = &self.group {
            page.section("Ranks", "", object(group));
        }
        if let Some(verification) = &self.verification {
            let titles = ["compared with", "algorithm", "#files"];
            let rows = verification.by.iter();
            let rows =
                rows.map(|it| vec![it.by.clone(), it.algorithm.clone(), it.files.to_string()]);
            let facts = facts_of([
                ("requested", Some(verification.choice.clone())),
                ("compared", Some(format_bytes(verification.bytes))),
                (
                    "files not compared",
                    some_count(verification.unverified_files),
                ),
            ]);
            let table = Table::new("Digests", &titles).with_rows(rows);
            page.section("Verification", "", vec![facts, Item::Table(table)]);
        }
        if let Some(cache) = &self.cache {
            page.section("Cache of objects", "", object(cache));
        }
        if !self.mirrors.is_empty() {
            let rows = self.mirrors.iter().map(|mirror| {
                let failure = mirror.failure.clone().unwrap_or_default();
                vec![
                    mirror.location.clone(),
                    format_bytes(mirror.read_bytes),
                    failure,
                ]
            });
            let table = Table::new("Mirrors and peers", &["location", "#read", "last failure"]);
            page.section("Mirrors", "", vec![Item::Table(table.with_rows(rows))]);
        }
    }
}

/// Returns the facts that are known.
fn facts_of<const N: usize>(facts: [(&str, Option<String>); N]) -> Item {
    let known = facts.into_iter();
    let known = known.filter_map(|(name, value)| Some((name.to_owned(), text(&value?))));
    Item::Facts(known.collect())
}

impl Load {
    /// Adds shards and tensors.
    fn content(&self, page: &mut Page) {
        let mut items = Vec::new();
        if !self.shards.is_empty() {
            let rows = self.shards.iter().map(|(location, tensors, bytes)| {
                vec![location.clone(), tensors.to_string(), format_bytes(*bytes)]
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
