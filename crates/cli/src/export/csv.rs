//! CSV export: one line per sample. An empty field is an unavailable value.

use std::fmt::Display;

use serde_json::Value;
use tload::internal::printable;

use super::Format;
use crate::bench::results::{CellResults, Results, Sample};

const HEADER: [&str; 39] = [
    "round",
    "position",
    "contender",
    "mode",
    "cache_wanted",
    "cache_found",
    "resident_bytes",
    "engine_wanted",
    "engine_used",
    "depth",
    "extent_bytes",
    "lanes",
    "in_flight_bytes",
    "memory_limit",
    "bytes",
    "seconds",
    "bytes_per_second",
    "cpu_seconds",
    "cpu_seconds_per_gib",
    "peak_rss_bytes",
    "first_tensor_seconds",
    "direct_bytes",
    "buffered_bytes",
    "mapped_bytes",
    "remote_bytes",
    "requests",
    "retries",
    "device",
    "copies",
    "copy_seconds",
    "staging_bytes",
    "pinned_bytes",
    "tload_version",
    "kernel",
    "cpu",
    "file_system",
    "disk",
    "store",
    "command",
];

pub(super) struct Csv;

impl Format for Csv {
    fn render(&self, results: &Results) -> String {
        let mut text = HEADER.join(",") + "\n";
        for cell in &results.cells {
            for sample in &cell.samples {
                text.push_str(&line(results, cell, sample));
                text.push('\n');
            }
        }
        text
    }
}

fn line(results: &Results, cell: &CellResults, sample: &Sample) -> String {
    let (run, host) = (&sample.measurement, &results.host);
    let report = run.report.as_ref();
    let gpu = report.and_then(|report| report.devices.first());
    let staging = report.and_then(|report| report.staging.as_ref());
    let fields: [String; HEADER.len()] = [
        sample.round.to_string(),
        sample.position.to_string(),
        name(&sample.contender),
        name(&cell.cell.mode),
        name(&cell.cell.cache_state),
        name(&run.residency.found),
        run.residency.resident_bytes.to_string(),
        cell.cell.configuration.options.engine.to_string(),
        run.engine.clone(),
        field(report.map(|report| report.depth)),
        field(report.map(|report| report.extent_bytes)),
        field(report.map(|report| report.lanes)),
        field(report.map(|report| report.in_flight_bytes)),
        field(report.map(|report| report.memory_limit)),
        run.bytes.to_string(),
        run.seconds.to_string(),
        run.bytes_per_second.to_string(),
        field(run.cpu_seconds),
        field(run.cpu_seconds_per_gib),
        field(run.peak_rss_bytes),
        field(run.first_tensor_seconds),
        field(report.map(|report| report.direct_bytes)),
        field(report.map(|report| report.buffered_bytes)),
        field(report.map(|report| report.mapped_bytes)),
        field(report.map(|report| report.remote_bytes)),
        field(report.map(|report| report.requests)),
        field(report.map(|report| report.retries)),
        cell.cell.configuration.device.to_string(),
        field(gpu.map(|gpu| gpu.copies)),
        field(gpu.map(|gpu| gpu.copy_seconds)),
        field(staging.map(|staging| staging.bytes)),
        field(staging.map(|staging| staging.pinned_bytes)),
        results.run.tload.version.to_owned(),
        field(host.kernel.as_ref()),
        field(host.cpu.as_ref()),
        field(host.file_system.as_ref()),
        field(host.disk.as_ref()),
        field(host.store.as_ref()),
        results.run.command.join(" "),
    ];
    fields.map(|field| quote(&field)).join(",")
}

fn field(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns the name of `value` in the JSON export.
fn name(value: &impl serde::Serialize) -> String {
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
