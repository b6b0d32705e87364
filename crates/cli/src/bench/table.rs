//! Summary as rows of text, for the terminal and the Markdown export.

use std::fmt::Write;

use tload::Report;
use tload::internal::format_bytes;

use super::results::{CellResults, CheckpointRecord, Results, Summary};
use super::{CacheState, Contender, Mode, disk_runner};
use crate::output::table::Align;
use tload_doctor::host::record::HostRecord;
use tload_quantity::{format_count, format_seconds};

pub(crate) const HEADER: [(&str, Align); 11] = [
    ("mode", Align::Left),
    ("cache", Align::Left),
    ("engine", Align::Left),
    ("reads", Align::Left),
    ("contender", Align::Left),
    ("GB/s", Align::Right),
    ("min–max", Align::Left),
    ("tload ratio", Align::Right),
    ("CPU per GiB", Align::Right),
    ("peak RSS", Align::Right),
    ("first tensor", Align::Right),
];

/// Returns one row per cell and contender, and one per failure, which ends with its reason. Only
/// the first row of a cell has the columns that its rows share.
pub(crate) fn rows(results: &Results) -> Vec<Vec<String>> {
    results.cells.iter().flat_map(cell_rows).collect()
}

fn cell_rows(cell: &CellResults) -> Vec<Vec<String>> {
    let mut shared = [mode(cell), cache(cell), engine(cell), tuned_or_set(cell)].to_vec();
    let mut rows = Vec::new();
    for summary in &cell.summaries {
        let mut row = shared.clone();
        row.extend(summary_row(cell, summary));
        rows.push(row);
        shared = vec![String::new(); shared.len()];
    }
    for failure in &cell.failures {
        let mut row = shared.clone();
        row.push(contender(cell, failure.contender).to_owned());
        row.push(format!("failed: {}", failure.reason));
        rows.push(row);
    }
    rows
}

pub(crate) fn mode(cell: &CellResults) -> String {
    match cell.cell.mode {
        Mode::Stream => "stream",
        Mode::Reload => "reload",
        Mode::Keep => "keep",
    }
    .to_owned()
}

/// Returns the label of the cache state: `cold` or `warm` only if it was verified.
pub(crate) fn cache(cell: &CellResults) -> String {
    match (cell.cell.cache_state, cell.cache_state_verified) {
        (CacheState::Cold, true) => "cold",
        (CacheState::Cold, false) => "not cold",
        (CacheState::Warm, true) => "warm",
        (CacheState::Warm, false) => "not warm",
        (CacheState::Remote, _) => "remote",
    }
    .to_owned()
}

/// Returns the engine actually used.
pub(crate) fn engine(cell: &CellResults) -> String {
    cell.samples(Contender::Tload).next_back().map_or_else(
        || cell.cell.configuration.options.engine.to_string(),
        |sample| sample.measurement.engine.clone(),
    )
}

/// Returns [`reads`], marked if the load tuned them by itself.
fn tuned_or_set(cell: &CellResults) -> String {
    let reads = reads(cell);
    let options = &cell.cell.configuration.options;
    let is_tuned =
        options.depth.is_none() && options.in_flight_bytes.is_none() && !reads.is_empty();
    if is_tuned {
        format!("tuned: {reads}")
    } else {
        reads
    }
}

/// Describes the reads: `8 × 1.0 MiB`, the requested size if it was not reached, the lanes if there
/// are several, the requests to object stores, and the copies to GPUs.
pub(crate) fn reads(cell: &CellResults) -> String {
    let last = cell.samples(Contender::Tload).next_back();
    let Some(report) = last.and_then(|sample| sample.measurement.report.as_ref()) else {
        return String::new();
    };
    let (extent_bytes, depth) = effective_reads(report);
    let mut reads = format!("{depth} × {}", format_bytes(extent_bytes));
    if let Some((asked, _)) = unreached_extent(cell) {
        let _ = write!(reads, " (asked: {})", short_bytes(asked));
    }
    if report.lanes > 1 {
        let _ = write!(reads, ", {} lanes", report.lanes);
    }
    if report.requests > 0 {
        let requests = format_count(report.requests, "request");
        let bytes = format_bytes(report.remote_bytes);
        let _ = write!(reads, "; {requests}, {} retried, {bytes}", report.retries);
    }
    for device in &report.devices {
        let seconds = format_seconds(device.copy_seconds);
        let _ = write!(reads, "; {}, copies {seconds}", device.device);
    }
    if let Some(staging) = &report.staging {
        let (bytes, pinned) = (staging.bytes, staging.pinned_bytes);
        let share = if pinned == bytes {
            "pinned".to_owned()
        } else {
            format!("staging, {} pinned", format_bytes(pinned))
        };
        let _ = write!(reads, ", {} {share}", format_bytes(bytes));
    }
    reads
}

/// Formats a requested size: `4 MiB` instead of `4.0 MiB`, because most requested sizes are round.
pub(crate) fn short_bytes(bytes: u64) -> String {
    format_bytes(bytes).replace(".0 ", " ")
}

/// Returns the requested size of reads and the largest read, if that was much smaller. A tensor, or
/// a run of small ones, is read in equal parts, none of which may need the requested size.
pub(crate) fn unreached_extent(cell: &CellResults) -> Option<(u64, u64)> {
    let asked = cell.cell.configuration.options.extent_bytes?;
    let report = cell
        .samples(Contender::Tload)
        .next_back()?
        .measurement
        .report
        .as_ref()?;
    // The option sets the length of requests, not that of extents.
    let is_remote = report.requests > 0;
    let used = report.extent_bytes;
    (!is_remote && 0 < used && used <= asked / 4 * 3).then_some((asked, effective_reads(report).0))
}

/// Returns the size and number of the reads or requests that were in flight.
pub(crate) fn effective_reads(report: &Report) -> (u64, usize) {
    if report.requests > 0 {
        (report.extent_bytes, report.depth)
    } else {
        disk_runner::reads(report)
    }
}

fn summary_row(cell: &CellResults, summary: &Summary) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let speed = summary.bytes_per_second;
    [
        contender(cell, summary.contender).to_owned(),
        format!("{:.2}", speed.median / 1e9),
        format!("{:.2}–{:.2}", speed.min / 1e9, speed.max / 1e9),
        summary
            .tload_ratio
            .map_or_else(String::new, |ratio| format!("{:.2} ×", ratio.median)),
        or_dash(
            summary
                .cpu_seconds_per_gib
                .map(|spread| format_seconds(spread.median)),
        ),
        or_dash(summary.peak_rss_bytes.map(format_bytes)),
        or_dash(
            summary
                .first_tensor_seconds
                .map(|spread| format_seconds(spread.median)),
        ),
    ]
}

/// Returns the name of a contender.
pub(crate) fn contender(cell: &CellResults, contender: Contender) -> &'static str {
    match contender {
        Contender::Tload => "tload",
        Contender::Ceiling if disk_runner::keeps_in_host_memory(&cell.cell) => {
            "ceiling: raw reads, fresh memory"
        }
        Contender::Ceiling => "ceiling: raw reads",
        Contender::Fio => "fio",
        Contender::Peer(peer) => peer.name,
    }
}

/// Describes a checkpoint: `synthetic llama: 291 tensors, 4.0 GiB in 4 shards`.
pub(crate) fn describe_checkpoint(checkpoint: &CheckpointRecord) -> String {
    let origin = checkpoint.synthetic.as_ref().map_or_else(
        || checkpoint.location.clone(),
        |made| format!("synthetic {}", made.preset),
    );
    format!(
        "{origin}: {}, {} in {}",
        format_count(checkpoint.tensors, "tensor"),
        format_bytes(checkpoint.tensor_bytes),
        format_count(checkpoint.shards, "shard"),
    )
}

/// Describes a host: `ext4 on vda, Linux 6.18, 2 × Some CPU, 23.5 GiB of memory`.
pub(crate) fn describe_host(host: &HostRecord) -> String {
    let mut facts = Vec::new();
    facts.extend(host.store.clone());
    match (&host.file_system, &host.disk) {
        (Some(file_system), Some(disk)) => facts.push(format!("{file_system} on {disk}")),
        (Some(file_system), None) => facts.push(file_system.clone()),
        (None, _) => {}
    }
    facts.extend(host.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    let cpu = host.cpu.as_deref().unwrap_or(host.architecture);
    facts.push(
        host.cores
            .map_or_else(|| cpu.to_owned(), |cores| format!("{cores} × {cpu}")),
    );
    facts.extend(
        host.memory_bytes
            .map(|bytes| format!("{} of memory", format_bytes(bytes))),
    );
    facts.extend(host.gpu.clone());
    facts.join(", ")
}
