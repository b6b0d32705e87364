//! Results of a benchmark as the plain values that plots and pages are made of. Pure.

use serde_json::to_value;
use tload_html::{Bench, Cell, Run, Sample, Settings, Summary};

use crate::bench::results::{self, CellResults, Results, RunRecord};
use crate::bench::table::{self, describe_checkpoint, describe_host};
use crate::bench::{Contender, verdict};
use crate::output::table::Align;
use tload_doctor::host::record::HostRecord;

/// Returns the values of `results`.
pub(super) fn plain(results: &Results) -> Bench {
    let title = |(title, align): &(&str, Align)| match align {
        Align::Left => (*title).to_owned(),
        Align::Right => format!("#{title}"),
    };
    Bench {
        checkpoint: describe_checkpoint(&results.checkpoint),
        host: describe_host(&results.host),
        rounds: results.rounds.into(),
        is_complete: results.complete,
        verdicts: verdict::sentences(results),
        failure: None,
        warnings: results.warnings.clone(),
        cells: results.cells.iter().map(cell).collect(),
        starts: Vec::new(),
        head: table::HEADER.iter().map(title).collect(),
        // The bars have the reasons of failures.
        rows: (table::rows(results).into_iter())
            .map(|mut row| {
                if row.len() < table::HEADER.len() {
                    row.splice(row.len() - 1.., ["failed".to_owned()]);
                }
                row
            })
            .collect(),
        run: Run {
            options: shared_options(results),
            ..run(&results.run, Some(&results.host))
        },
    }
}

/// Returns the options that all cells share.
fn shared_options(results: &Results) -> Vec<(String, String)> {
    let options = |cell: &CellResults| {
        tload_html::options(&to_value(&cell.cell.configuration).unwrap_or_default())
    };
    let mut all = results.cells.iter().map(options);
    let mut shared = all.next().unwrap_or_default();
    for others in all {
        shared.retain(|option| others.contains(option));
    }
    shared
}

/// Returns the circumstances of a run, on a host if it is known.
pub(crate) fn run(run: &RunRecord, host: Option<&HostRecord>) -> Run {
    Run {
        version: run.tload.version.to_owned(),
        is_debug: run.tload.debug,
        unix_seconds: run.started_unix_seconds,
        command: run.command.clone(),
        host: to_value(host).unwrap_or_default(),
        options: Vec::new(),
    }
}

fn cell(cell: &CellResults) -> Cell {
    let options = &cell.cell.configuration.options;
    let last = cell.samples(Contender::Tload).next_back();
    let report = last.and_then(|sample| sample.measurement.report.as_ref());
    let used = report.map(|report| {
        let (extent_bytes, depth) = table::effective_reads(report);
        Settings {
            depth: Some(depth as u64),
            extent_bytes: Some(extent_bytes),
            lanes: Some(report.lanes as u64),
        }
    });
    Cell {
        mode: table::mode(cell),
        cache: table::cache(cell),
        engine_asked: options.engine.to_string(),
        engine: table::engine(cell),
        asked: Settings {
            depth: options.depth.map(|depth| depth as u64),
            extent_bytes: options.extent_bytes,
            lanes: options.lanes.map(|lanes| lanes as u64),
        },
        used: used.unwrap_or_default(),
        unreached_extent: table::unreached_extent(cell).map(|(_, used)| used),
        reads: table::reads(cell),
        summaries: cell.summaries.iter().map(|it| summary(cell, it)).collect(),
        failures: (cell.failures.iter())
            .map(|it| {
                (
                    table::contender(cell, it.contender).to_owned(),
                    it.reason.clone(),
                )
            })
            .collect(),
        samples: cell.samples.iter().map(|it| sample(cell, it)).collect(),
    }
}

fn summary(cell: &CellResults, summary: &results::Summary) -> Summary {
    Summary {
        contender: match summary.contender {
            Contender::Tload => tload_html::Contender::Tload,
            Contender::Ceiling => tload_html::Contender::Ceiling,
            Contender::Fio => tload_html::Contender::Fio,
            Contender::Peer(_) => tload_html::Contender::Peer,
        },
        name: table::contender(cell, summary.contender).to_owned(),
        samples: summary.samples as u64,
        bytes_per_second: summary.bytes_per_second,
        tload_ratio: summary.tload_ratio.map(|ratio| ratio.median),
    }
}

fn sample(cell: &CellResults, sample: &results::Sample) -> Sample {
    let run = &sample.measurement;
    Sample {
        round: sample.round.into(),
        contender: table::contender(cell, sample.contender).to_owned(),
        found: super::csv::name(&run.residency.found),
        seconds: run.seconds,
        bytes_per_second: run.bytes_per_second,
        cpu_seconds: run.cpu_seconds,
        peak_rss_bytes: run.peak_rss_bytes,
        first_tensor_seconds: run.first_tensor_seconds,
    }
}
