//! `tload bench --startup`: starts new processes that load the checkpoint, and shows the phases
//! from the start of the process to the last tensor as a waterfall.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tload::{Error, ErrorKind, Result};

use super::harness::{Bench, Sample, Subject, counting};
use super::open::open;
use crate::args::BenchArgs;
use crate::bench::page_cache::PageCache;
use crate::bench::waterfall::{HEADER, PhaseSummary, Step, rows, summaries};
use crate::bench::{CacheState, Configuration, Mode, Residency};
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::style;
use crate::output::table::render;
use tload_quantity::format_count;

/// Flag of the processes that are measured: when they were started.
const BEGAN: &str = "--startup-began";

/// Starts with one configuration.
#[derive(Debug, Serialize)]
pub(super) struct Starts {
    #[serde(flatten)]
    configuration: Configuration,
}

/// The only variant: all starts are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Alike {}

/// Summary of the starts with one state of the page cache.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    cache_state: CacheState,
    /// Samples in the summary. Those found in another state of the page cache are left out.
    samples: usize,
    phases: Vec<PhaseSummary>,
}

/// Output of a started process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
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

impl Starts {
    pub(super) fn new(args: &BenchArgs) -> Result<Self> {
        Ok(Self {
            configuration: request(args)?,
        })
    }
}

impl Subject for Starts {
    type Variant = Alike;
    type Run = Start;
    type Summary = Summary;

    fn variants(&self) -> Vec<Alike> {
        vec![Alike {}]
    }

    fn describe(&self, rounds: u32) -> String {
        let starts = format_count(rounds.into(), "start");
        format!("{starts}, each in a new process")
    }

    fn run(
        &self,
        bench: Bench<'_>,
        page_cache: &PageCache,
        cache_state: CacheState,
        _: &Alike,
    ) -> Result<(Residency, Start)> {
        page_cache.prepare(cache_state, bench.interrupt)?;
        let residency = page_cache.residency();
        Ok((residency, start(bench.arguments, bench.interrupt)?))
    }

    fn summary(
        &self,
        samples: &[Sample<Self>],
        cache_state: CacheState,
        variant: &Alike,
    ) -> Option<Summary> {
        let counted = counting(samples, cache_state, variant);
        let starts: Vec<_> = counted.map(|sample| &sample.run.phases[..]).collect();
        Some(Summary {
            cache_state,
            samples: starts.len(),
            phases: summaries(&starts),
        })
    }

    fn starts(&self, summaries: &[Summary]) -> Vec<(String, Vec<tload_html::Phase>)> {
        let phase = |it: &PhaseSummary| tload_html::Phase {
            phase: it.phase.clone(),
            start_seconds: it.start_seconds.median,
            seconds: it.seconds.median,
        };
        let start = |it: &Summary| {
            let samples = format_count(it.samples as u64, "sample");
            let name = format!("{}: {samples}, medians", it.cache_state.name());
            (name, it.phases.iter().map(phase).collect())
        };
        summaries.iter().map(start).collect()
    }

    fn write_tables(
        &self,
        summaries: &[Summary],
        _: &[Sample<Self>],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for summary in summaries {
            let samples = format_count(summary.samples as u64, "sample");
            writeln!(out, "{}: {samples}, medians", summary.cache_state.name())?;
            let text = render(&HEADER, rows(&summary.phases));
            write!(out, "{}", style::header(&text))?;
        }
        Ok(())
    }
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

/// Starts a process with the arguments of this one, and returns what it tells.
fn start(arguments: &[OsString], interrupt: &Interrupt) -> Result<Start> {
    let mut command = tload_prefetch::again(arguments);
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
