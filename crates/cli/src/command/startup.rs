//! `tload bench --startup`: starts new processes that load the checkpoint, and shows the phases
//! from the start of the process to the last tensor as a waterfall.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tload::{Error, ErrorKind, Result};

use super::open::open;
use super::ranks::again;
use crate::args::BenchArgs;
use crate::bench::page_cache::PageCache;
use crate::bench::results::{Build, CheckpointRecord};
use crate::bench::target::Target;
use crate::bench::warnings::Warning;
use crate::bench::waterfall::{HEADER, PhaseSummary, Step, rows, summaries};
use crate::bench::{CacheState, Configuration, Mode, Residency, table};
use crate::export;
use crate::host::System;
use crate::host::record::HostRecord;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::output::quantity::format_count;
use crate::output::style;
use crate::output::table::render;
use crate::redact;

/// Schema of the JSON export. Increases when a key changes its meaning.
const SCHEMA: u32 = 1;

/// Flag of the processes that are measured: when they were started.
const BEGAN: &str = "--startup-began";

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: u32,
    command: Vec<String>,
    started_unix_seconds: u64,
    tload: Build,
    host: HostRecord,
    checkpoint: CheckpointRecord,
    #[serde(flatten)]
    configuration: Configuration,
    rounds: u32,
    complete: bool,
    summaries: Vec<Summary>,
    samples: Vec<Sample>,
}

/// Summary of the starts with one state of the page cache.
#[derive(Debug, Serialize)]
struct Summary {
    cache_state: CacheState,
    /// Samples in the summary. Those found in another state of the page cache are left out.
    samples: usize,
    phases: Vec<PhaseSummary>,
}

/// One start.
#[derive(Debug, Serialize)]
struct Sample {
    /// Number of the round, from 1.
    round: u32,
    cache_state: CacheState,
    /// State of the page cache right before the start.
    residency: Residency,
    #[serde(flatten)]
    start: Start,
}

/// Output of a started process.
#[derive(Debug, Serialize, Deserialize)]
struct Start {
    engine: String,
    tensor_bytes: u64,
    phases: Vec<Step>,
}

/// Measures this process, which was started `began` nanoseconds after 1970, and prints the result.
pub(super) fn one(
    args: &BenchArgs,
    began: u64,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<()> {
    let began = UNIX_EPOCH + Duration::from_nanos(began);
    // A clock that was set back meanwhile only spoils this sample.
    let elapsed = || began.elapsed().unwrap_or_default().as_secs_f64();
    let started = elapsed();
    let configuration = request(args)?;
    let location = args.location.clone().unwrap_or_default();
    let opening = elapsed();
    let timeout = configuration.options.timeout;
    let checkpoint = open(&location, &args.opening, timeout, interrupt)?;
    let mut stream = configuration.loader(checkpoint).stream()?;
    interrupt.watch(stream.canceller());
    for tensor in &mut stream {
        drop(tensor?);
    }
    interrupt.check()?;
    let report = stream.report();
    let phase = |phase: &str, start_seconds, end: f64| Step {
        phase: phase.to_owned(),
        start_seconds,
        seconds: end - start_seconds,
    };
    let mut phases = vec![
        phase("process", 0.0, started),
        phase("options", started, opening),
    ];
    phases.extend(report.phases.into_iter().map(|it| Step {
        phase: it.phase,
        start_seconds: opening + it.start_seconds,
        seconds: it.seconds,
    }));
    let start = Start {
        engine: report.engine.name,
        tensor_bytes: report.tensor_bytes,
        phases,
    };
    interrupt.answer().give(out, &start)
}

/// Runs the rounds on `target`, and prints the waterfall. On failure too, `results` holds the
/// samples so far.
pub(super) fn run(
    args: &BenchArgs,
    target: &Target<'_>,
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
    results: &mut Option<Results>,
) -> Result<()> {
    let configuration = request(args)?;
    let states = match target.path() {
        Some(_) => options::cache_states(args),
        None => vec![CacheState::Remote],
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let results = results.insert(Results {
        schema: SCHEMA,
        command: redact::arguments(arguments),
        started_unix_seconds: now.unwrap_or_default().as_secs(),
        tload: Build::this(),
        host: HostRecord::collect(&System::real(), target.path(), None, None),
        checkpoint: target.record(),
        configuration,
        rounds: args.rounds,
        complete: false,
        summaries: Vec::new(),
        samples: Vec::new(),
    });
    results.write_head(out).map_err(standard_output)?;
    measure(args, target, arguments, &states, interrupt, results)?;
    results.write_tables(out).map_err(standard_output)?;
    let build = cfg!(debug_assertions).then_some(Warning::DebugBuild);
    for warning in build.iter().chain(&target.warnings) {
        warn(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Returns the one configuration to measure.
fn request(args: &BenchArgs) -> Result<Configuration> {
    if options::modes(args) != [Mode::Stream] {
        let message = "--startup measures loads whose tensors are dropped on arrival";
        return Err(Error::new(ErrorKind::InvalidRequest, message).with_hint("use --mode stream"));
    }
    let mut configurations = options::configurations(args, options::device(&args.device)?)?;
    match (configurations.pop(), configurations.is_empty()) {
        (Some(configuration), true) => Ok(configuration),
        _ => Err(Error::new(
            ErrorKind::InvalidRequest,
            "--startup measures one configuration, not a sweep",
        )),
    }
}

fn measure(
    args: &BenchArgs,
    target: &Target<'_>,
    arguments: &[OsString],
    states: &[CacheState],
    interrupt: &Interrupt,
    results: &mut Results,
) -> Result<()> {
    let shards = target.checkpoint.shards().iter();
    let paths = shards.filter_map(|shard| shard.location().as_path());
    let page_cache = PageCache::new(paths.map(Into::into).collect());
    for round in 1..=args.rounds {
        for cache_state in states {
            page_cache.prepare(*cache_state, interrupt)?;
            let residency = page_cache.residency();
            let start = start(arguments, interrupt)?;
            results.samples.push(Sample {
                round,
                cache_state: *cache_state,
                residency,
                start,
            });
            results.sum_up(states);
            results.complete = results.samples.len() == args.rounds as usize * states.len();
            if let Some(path) = &args.json {
                export::write_json(path, results)?;
            }
        }
    }
    Ok(())
}

/// Starts a process with the arguments of this one, and returns what it tells.
fn start(arguments: &[OsString], interrupt: &Interrupt) -> Result<Start> {
    let mut command = again(arguments);
    command.args(arguments.iter().skip(1));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    command.arg(format!("{BEGAN}={}", now.unwrap_or_default().as_nanos()));
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn();
    let mut child = started.map_err(|error| failed("cannot start a process").with_source(error))?;
    // The result is much shorter than a pipe: the process does not wait for it to be read.
    let status = interrupt.wait_for_end(&mut child)?;
    if !status.success() {
        return Err(failed(&format!("a start ended with {status}")));
    }
    let result = child.stdout.take().map(serde_json::from_reader);
    result
        .expect("is piped")
        .map_err(|error| failed("a start printed no result").with_source(error))
}

fn failed(message: &str) -> Error {
    Error::new(ErrorKind::Io, message)
}

impl Results {
    fn sum_up(&mut self, states: &[CacheState]) {
        let summary = |state: &CacheState| {
            let counted = self
                .samples
                .iter()
                .filter(|sample| sample.cache_state == *state && sample.residency.found.is(*state));
            let starts: Vec<_> = counted.map(|sample| &sample.start.phases[..]).collect();
            Summary {
                cache_state: *state,
                samples: starts.len(),
                phases: summaries(&starts),
            }
        };
        self.summaries = states.iter().map(summary).collect();
    }

    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", table::describe_checkpoint(&self.checkpoint))?;
        writeln!(out, "{}", table::describe_host(&self.host))?;
        writeln!(
            out,
            "{}, each in a new process\n",
            format_count(self.rounds.into(), "start")
        )?;
        out.flush()
    }

    fn write_tables(&self, out: &mut dyn Write) -> io::Result<()> {
        for summary in &self.summaries {
            let samples = format_count(summary.samples as u64, "sample");
            writeln!(out, "{}: {samples}, medians", summary.cache_state.name())?;
            let text = render(&HEADER, rows(&summary.phases));
            write!(out, "{}", style::header(&text))?;
        }
        out.flush()
    }
}
