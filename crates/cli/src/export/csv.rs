//! CSV export: one line per sample. An empty field is an unavailable value.

use std::fmt::Display;

use serde_json::Value;
use tload::Report;
use tload::internal::printable;
use tload::report::{DeviceReport, StagingReport};

use super::Format;
use crate::bench::Measurement;
use crate::bench::results::{CellResults, Results, Sample};

/// Title of a column, and its field in a line.
type Column = (&'static str, fn(&Row<'_>) -> String);

const COLUMNS: &[Column] = &[
    ("round", |it| it.sample.round.to_string()),
    ("position", |it| it.sample.position.to_string()),
    ("contender", |it| name(&it.sample.contender)),
    ("mode", |it| name(&it.cell.cell.mode)),
    ("cache_wanted", |it| name(&it.cell.cell.cache_state)),
    ("cache_found", |it| name(&it.run.residency.found)),
    ("resident_bytes", |it| {
        it.run.residency.resident_bytes.to_string()
    }),
    ("engine_wanted", |it| {
        it.cell.cell.configuration.options.engine.to_string()
    }),
    ("engine_used", |it| it.run.engine.clone()),
    ("depth", |it| it.report(|it| it.depth)),
    ("extent_bytes", |it| it.report(|it| it.extent_bytes)),
    ("lanes", |it| it.report(|it| it.lanes)),
    ("in_flight_bytes", |it| it.report(|it| it.in_flight_bytes)),
    ("memory_limit", |it| it.report(|it| it.memory_limit)),
    ("bytes", |it| it.run.bytes.to_string()),
    ("seconds", |it| it.run.seconds.to_string()),
    ("bytes_per_second", |it| it.run.bytes_per_second.to_string()),
    ("cpu_seconds", |it| field(it.run.cpu_seconds)),
    ("cpu_seconds_per_gib", |it| {
        field(it.run.cpu_seconds_per_gib)
    }),
    ("peak_rss_bytes", |it| field(it.run.peak_rss_bytes)),
    ("first_tensor_seconds", |it| {
        field(it.run.first_tensor_seconds)
    }),
    ("direct_bytes", |it| it.report(|it| it.direct_bytes)),
    ("buffered_bytes", |it| it.report(|it| it.buffered_bytes)),
    ("mapped_bytes", |it| it.report(|it| it.mapped_bytes)),
    ("remote_bytes", |it| it.report(|it| it.remote_bytes)),
    ("requests", |it| it.report(|it| it.requests)),
    ("retries", |it| it.report(|it| it.retries)),
    ("device", |it| it.cell.cell.configuration.device.to_string()),
    ("copies", |it| it.gpu(|it| it.copies)),
    ("copy_seconds", |it| it.gpu(|it| it.copy_seconds)),
    ("staging_bytes", |it| it.staging(|it| it.bytes)),
    ("pinned_bytes", |it| it.staging(|it| it.pinned_bytes)),
    ("tload_version", |it| {
        it.results.run.tload.version.to_owned()
    }),
    ("kernel", |it| field(it.results.host.kernel.as_ref())),
    ("cpu", |it| field(it.results.host.cpu.as_ref())),
    ("file_system", |it| {
        field(it.results.host.file_system.as_ref())
    }),
    ("disk", |it| field(it.results.host.disk.as_ref())),
    ("store", |it| field(it.results.host.store.as_ref())),
    ("command", |it| it.results.run.command.join(" ")),
];

/// Values that the fields of a line come from.
struct Row<'a> {
    results: &'a Results,
    cell: &'a CellResults,
    sample: &'a Sample,
    run: &'a Measurement,
}

impl Row<'_> {
    fn report<T: Display>(&self, value: impl FnOnce(&Report) -> T) -> String {
        field(self.run.report.as_ref().map(value))
    }

    fn gpu<T: Display>(&self, value: impl FnOnce(&DeviceReport) -> T) -> String {
        let report = self.run.report.as_ref();
        field(report.and_then(|report| report.devices.first()).map(value))
    }

    fn staging<T: Display>(&self, value: impl FnOnce(&StagingReport) -> T) -> String {
        let report = self.run.report.as_ref();
        field(report.and_then(|report| report.staging.as_ref()).map(value))
    }
}

pub(super) struct Csv;

impl Format for Csv {
    fn render(&self, results: &Results) -> String {
        let mut text = line(|(title, _)| (*title).to_owned());
        for cell in &results.cells {
            for sample in &cell.samples {
                let run = &sample.measurement;
                let row = Row {
                    results,
                    cell,
                    sample,
                    run,
                };
                text += &line(|(_, value)| value(&row));
            }
        }
        text
    }
}

fn line(text: impl FnMut(&Column) -> String) -> String {
    let fields: Vec<_> = COLUMNS.iter().map(text).map(|text| quote(&text)).collect();
    fields.join(",") + "\n"
}

fn field(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns the name of `value` in the JSON export.
pub(super) fn name(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

/// Quotes fields with commas or quotes and doubles quotes (RFC 4180). Line feeds and other control
/// characters are escaped before that.
fn quote(field: &str) -> String {
    let field = printable(field);
    if field.contains([',', '"']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn fields_with_commas_or_quotes_are_quoted() {
        assert_eq!(quote("plain text"), "plain text");
        assert_eq!(quote("a,b"), "\"a,b\"");
        assert_eq!(quote("a\n\u{1b}b"), "a\\n\\u{1b}b");
        assert_eq!(quote("say \"x\""), "\"say \"\"x\"\"\"");
    }
}
