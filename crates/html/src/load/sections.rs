//! Sections of a page about a report: where the time went, reads, memory, ranks and stores.

use serde_json::Value;
use tload_base::options::format_bytes;

use super::NOTES_MAX;
use super::report::ReportFields;
use crate::page::{Bar, Bars, Item, Page, Table, text};
use crate::quantity::{float, format_count, format_rate, format_seconds};

/// Least share of the time that is shown.
const VISIBLE: f64 = 0.001;

/// Formats bytes, unless there are none.
fn some_bytes(bytes: u64) -> Option<String> {
    (bytes > 0).then(|| format_bytes(bytes))
}

fn some_count(count: u64) -> Option<String> {
    (count > 0).then(|| count.to_string())
}

impl ReportFields {
    pub(super) fn figures(&self, page: &mut Page) {
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

    pub(super) fn warnings(&self, page: &mut Page) {
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
    pub(super) fn time(&self, page: &mut Page) {
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
            // A clock that is read costs some microseconds of every stage.
            if seconds / total >= VISIBLE {
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

    pub(super) fn reads(&self, page: &mut Page) {
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
        let items = std::iter::once(facts_of(facts)).chain(self.depths());
        page.section("Reads", "", items.collect());
    }

    /// Returns the depth of each storage, and why it is not higher.
    fn depths(&self) -> Option<Item> {
        if self.depths.is_empty() {
            return None;
        }
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
        Some(Item::Table(Table::new("Depth", &titles).with_rows(rows)))
    }

    pub(super) fn memory(&self, page: &mut Page) {
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
    pub(super) fn others(&self, page: &mut Page) {
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
