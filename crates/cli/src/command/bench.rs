//! `tload bench`: opens or writes a checkpoint, runs the plan and prints the table.

use std::ffi::OsString;
use std::io::{self, Write};

use serde::Serialize;
use tload::{Location, OpenOptions, Result};
use tload_trace::Recorder;

use super::harness::{self, Bench, Subject, cache_states};
use super::local_path::require_local;
use super::ranks::RankLoads;
use super::startup::{self, Starts};
use crate::args::BenchArgs;
use crate::bench::disk_runner::DiskRunner;
use crate::bench::peers::{self, Peers};
use crate::bench::results::{Results, RunRecord};
use crate::bench::target::{Recipe, Target};
use crate::bench::warnings::{self, Warning};
use crate::bench::{Fio, Gpu, Plan, schedule, table, verdict};
use crate::export::{self, Exports};
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{is_closed_pipe, standard_output, warn};
use crate::output::progress::Progress;
use crate::output::style;
use crate::output::table::render;
use tload_doctor::host::System;
use tload_doctor::host::record::HostRecord;
use tload_quantity::format_count;

pub(crate) fn run(
    args: &BenchArgs,
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    if let Some(began) = args.startup_began {
        return startup::one(args, began, interrupt, out);
    }
    if let Some(size) = args.ranks.ranks {
        return processes(args, arguments, interrupt, out, |bench| {
            RankLoads::new(bench, size.into())
        });
    }
    if args.startup {
        return processes(args, arguments, interrupt, out, |bench| {
            Starts::new(bench.args)
        });
    }
    exported(args, arguments, interrupt, |exports, results| {
        bench(args, arguments, interrupt, out, exports, results)
    })
}

/// Runs a benchmark whose runs are new processes.
fn processes<S: Subject>(
    args: &BenchArgs,
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
    subject: impl FnOnce(Bench<'_>) -> Result<S>,
) -> Result<()> {
    exported(args, arguments, interrupt, |_, results| {
        let target = &target(args, &opening(args)?, interrupt)?;
        let bench = Bench {
            args,
            target,
            arguments,
            interrupt,
        };
        harness::run(bench, subject(bench)?, out, results)
    })
}

/// Creates the exports and runs `measure`. If it fails, the JSON holds the samples measured so far,
/// which are in the results, and the error.
fn exported<R: Serialize>(
    args: &BenchArgs,
    arguments: &[OsString],
    interrupt: &Interrupt,
    measure: impl FnOnce(&Exports, &mut Option<R>) -> Result<()>,
) -> Result<()> {
    // First, since a failure is written to the exports, too.
    export::check(&args.exports.paths())?;
    let mut results = None;
    let exports = Exports::create(&args.exports);
    let outcome = exports.and_then(|exports| measure(&exports, &mut results));
    match (&args.exports.json, &outcome) {
        (Some(path), Err(error)) if !is_closed_pipe(error) => {
            export::write_failure(path, results.as_ref(), interrupt.failure(error));
        }
        _ => {}
    }
    match (&args.exports.html, &outcome) {
        (Some(path), Err(error)) if results.is_none() && !is_closed_pipe(error) => {
            let record = RunRecord::new(tload_config::redact::arguments(arguments));
            export::html::write_failure(path, error, &record);
        }
        _ => {}
    }
    outcome
}

fn opening(args: &BenchArgs) -> Result<OpenOptions> {
    let location = args.location.as_deref();
    let location = location.map(options::location).transpose()?;
    let store = options::store(&args.opening.store, location.as_ref())?;
    options::opening(store, &args.opening)
}

/// Runs the benchmark. On failure too, `results` holds the samples measured so far.
fn bench(
    args: &BenchArgs,
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
    exports: &Exports,
    results: &mut Option<Results>,
) -> Result<()> {
    let opening = opening(args)?;
    // Before a checkpoint is written.
    let python = peers::find(args, interrupt)?;
    let device = options::device(&args.device)?;
    let gpu = Gpu::open(device)?;
    let target = target(args, &opening, interrupt)?;
    // fio reads files only.
    let wants_fio = !args.no_fio && target.remote().is_none();
    let fio = if wants_fio { Fio::find() } else { None };
    let peers = python.map(|python| Peers::new(python, &target, interrupt));
    let peers = peers.transpose()?;
    let installed = peers.iter().flat_map(|it| it.python.installed());
    let plan = Plan::new(
        &options::configurations(args, device)?,
        &options::modes(args),
        &cache_states(args, &target),
        args.rounds,
        fio.as_ref(),
        installed,
    );
    let system = System::real();
    target.fits(&plan, gpu.as_ref(), &system)?;

    let mut known = machine_warnings(wants_fio && fio.is_none());
    known.extend(target.warnings.clone());
    known.extend(peers.iter().flat_map(Peers::warnings));
    let host = HostRecord::collect(
        &system,
        target.path(),
        store_name(args, &target),
        gpu.as_ref().map(Gpu::describe),
    );
    let results = results.insert(Results::new(
        RunRecord::new(tload_config::redact::arguments(arguments)),
        fio.as_ref().map(|fio| fio.version.clone()),
        host,
        target.record(),
        &plan,
    ));
    let rounds = format_count(plan.rounds.into(), "round");
    let mut rounds = format!("{rounds}, contenders in rotating order");
    if let Some(peers) = &peers {
        rounds = format!("{rounds}\nagainst {}", peers.python);
        results.against = Some(peers.python.clone());
    }
    harness::write_head(out, &results.checkpoint, &results.host, &rounds)
        .map_err(standard_output)?;
    let recorder = args.exports.trace.as_ref().map(|_| Recorder::start());
    let mut runner = DiskRunner::new(&target.checkpoint, &opening, fio, interrupt)
        .recorded_by(recorder.clone())
        .against(peers);
    let measured = measure(&plan, &mut runner, results, &known, exports);
    // Also if a run failed: the trace may show why.
    let traced = (args.exports.trace.as_ref().zip(recorder.as_ref()))
        .map_or(Ok(()), |(path, recorder)| {
            export::write_trace(path, recorder)
        });
    measured.and(traced)?;
    known.extend(runner.into_warnings());
    results.warnings = texts(&known, results);
    exports.write(results)?;
    show_table(out, results).map_err(standard_output)
}

fn target<'a>(
    args: &BenchArgs,
    opening: &OpenOptions,
    interrupt: &'a Interrupt,
) -> Result<Target<'a>> {
    if let Some(location) = &args.location {
        return Target::open(&options::location(location)?, opening);
    }
    args.dir.as_deref().map_or(Ok(()), require_local)?;
    let preset = options::preset(args.model.preset);
    let recipe = Recipe {
        preset,
        size: args.model.size.unwrap_or(preset.default_bytes()),
        shards: args.model.shards,
        seed: args.model.seed,
        directory: args.dir.as_deref(),
    };
    Target::make(&recipe, interrupt)
}

/// Returns protocol and host of the object store, if the checkpoint is in one: `s3 at
/// 127.0.0.1:9000`.
fn store_name(args: &BenchArgs, target: &Target<'_>) -> Option<String> {
    let shown = target.remote()?.to_string();
    let (scheme, rest) = shown.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.split_once('@') {
        Some((_, account)) => Some(account.to_owned()),
        None if scheme.starts_with("http") => Some(authority.to_owned()),
        None => host_of(opening(args).ok()?.store.get("endpoint")?),
    };
    Some(host.map_or_else(|| scheme.to_owned(), |host| format!("{scheme} at {host}")))
}

/// Returns the host of a URL that may contain a password.
fn host_of(url: &str) -> Option<String> {
    let shown = Location::parse(url).ok()?.to_string();
    let (_, rest) = shown.split_once("://")?;
    rest.split('/').next().map(str::to_owned)
}

fn machine_warnings(fio_missing: bool) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if cfg!(debug_assertions) {
        warnings.push(Warning::DebugBuild);
    }
    if fio_missing {
        warnings.push(Warning::FioMissing);
    }
    warnings
}

/// Runs the plan and keeps exports and progress up to date.
fn measure(
    plan: &Plan,
    runner: &mut DiskRunner<'_>,
    results: &mut Results,
    known: &[Warning],
    exports: &Exports,
) -> Result<()> {
    let progress = Progress::for_steps(plan.run_count(), "measuring");
    let mut runs = 0;
    schedule::run(plan, runner, results, |results| {
        progress.set(runs.min(plan.run_count()));
        runs += 1;
        let mut results = results.clone();
        results.warnings = texts(known, &results);
        exports.write(&results)
    })
}

/// Returns the warnings known before the runs, then those about the samples.
fn texts(known: &[Warning], results: &Results) -> Vec<String> {
    known
        .iter()
        .chain(&warnings::find(results))
        .map(ToString::to_string)
        .collect()
}

fn show_table(out: &mut dyn Write, results: &Results) -> io::Result<()> {
    let text = render(&table::HEADER, table::rows(results));
    write!(out, "{}", style::header(&text))?;
    for sentence in verdict::sentences(results) {
        writeln!(out, "{sentence}")?;
    }
    out.flush()?;
    for warning in &results.warnings {
        warn(&format!("warning: {warning}"));
    }
    Ok(())
}
