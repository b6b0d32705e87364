//! `tload bench --ranks`: rounds of loads that share and loads that do not, by turns, and their
//! summary.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tload::probe::prefault;
use tload::{Error, ErrorKind, Options, Result, Share, format_bytes};

use super::messages::Job;
use super::results::{NodeLoad, Usage};
use super::{start, texts};
use crate::args::{BenchArgs, SelectArgs, ShardArg};
use crate::bench::page_cache::PageCache;
use crate::bench::results::{Build, CheckpointRecord};
use crate::bench::stats::Spread;
use crate::bench::target::Target;
use crate::bench::warnings::Warning;
use crate::bench::{CacheState, Mode, Residency, table};
use crate::export;
use crate::host::record::HostRecord;
use crate::host::{System, memory};
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::output::quantity::{float, format_count, format_seconds};
use crate::output::style;
use crate::output::table::{Align, render};
use crate::redact;

/// Schema of the JSON export. Increases when a key changes its meaning.
const SCHEMA: u32 = 1;

/// Memory that a rank may use beside the tensors that it keeps.
const BUDGET_BYTES: u64 = 1 << 30;
/// Memory that stays free if faulting in takes as much as possible.
const SPARE_BYTES: u64 = 64 << 20;

const HEADER: [(&str, Align); 9] = [
    ("cache", Align::Left),
    ("share", Align::Left),
    ("time", Align::Right),
    ("range", Align::Right),
    ("speed-up", Align::Right),
    ("read", Align::Right),
    ("amplification", Align::Right),
    ("CPU", Align::Right),
    ("PSS", Align::Right),
];

/// Everything that a benchmark of several ranks measured.
#[derive(Debug, Serialize)]
pub(in crate::command) struct Results {
    schema: u32,
    command: Vec<String>,
    started_unix_seconds: u64,
    tload: Build,
    host: HostRecord,
    checkpoint: CheckpointRecord,
    ranks: usize,
    shard: ShardArg,
    mode: Mode,
    options: Options,
    rounds: u32,
    complete: bool,
    summaries: Vec<Summary>,
    samples: Vec<Sample>,
}

/// One load of all ranks.
#[derive(Debug, Serialize)]
struct Sample {
    /// Number of the round, from 1.
    round: u32,
    cache_state: CacheState,
    /// Requested scope of the sharing.
    share: String,
    /// State of the page cache right before the load.
    residency: Residency,
    #[serde(flatten)]
    load: NodeLoad,
}

/// Summary of the loads with one scope of sharing and one state of the page cache.
#[derive(Debug, Serialize)]
struct Summary {
    cache_state: CacheState,
    share: String,
    /// Samples in the summary. Those found in another state of the page cache are left out.
    samples: usize,
    /// Seconds from the first start to the last end.
    seconds: Spread,
    /// Time without sharing divided by the time with it, within each round.
    speed_up: Option<Spread>,
    read_bytes: Spread,
    amplification: Option<Spread>,
    cpu_seconds: Spread,
    pss_bytes: Option<Spread>,
}

/// Load that is measured.
struct Measured<'a> {
    job: Job,
    size: usize,
    /// Copies of the tensors that the ranks keep together.
    copies: u64,
    target: &'a Target<'a>,
    arguments: &'a [OsString],
    interrupt: &'a Interrupt,
}

/// Runs the rounds with `size` ranks on `target`, and prints the table. On failure too, `results`
/// holds the samples so far.
pub(in crate::command) fn run(
    args: &BenchArgs,
    (size, target): (usize, &Target<'_>),
    arguments: &[OsString],
    interrupt: &Interrupt,
    out: &mut dyn Write,
    results: &mut Option<Results>,
) -> Result<()> {
    let (mode, options) = request(args)?;
    let copies = match (mode, args.ranks.shard) {
        (Mode::Stream | Mode::Reload, _) => 0,
        (Mode::Keep, ShardArg::None) => size as u64,
        // About one, together.
        (Mode::Keep, ShardArg::Tp | ShardArg::Ep) => 1,
    };
    if copies > 0 {
        target.fits_in_memory(copies, &System::real())?;
    }
    let mut scopes = vec![options.share];
    if options.share != Share::None {
        scopes.push(Share::None);
    }
    let states = match target.path() {
        Some(_) => options::cache_states(args),
        None => vec![CacheState::Remote],
    };
    let location = target.checkpoint.location();
    let measured = Measured {
        job: Job {
            location: options::written(location, args.location.as_deref()),
            opening: args.opening.clone(),
            select: SelectArgs::default(),
            device: args.device.clone(),
            device_map: Vec::new(),
            options: texts(&options),
            shard: args.ranks.shard,
            keep: mode == Mode::Keep,
        },
        size,
        copies,
        target,
        arguments,
        interrupt,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let results = results.insert(Results {
        schema: SCHEMA,
        command: redact::arguments(arguments),
        started_unix_seconds: now.unwrap_or_default().as_secs(),
        tload: Build::this(),
        host: HostRecord::collect(&System::real(), target.path(), None, None),
        checkpoint: target.record(),
        ranks: size,
        shard: args.ranks.shard,
        mode,
        options,
        rounds: args.rounds,
        complete: false,
        summaries: Vec::new(),
        samples: Vec::new(),
    });
    results.write_head(out).map_err(standard_output)?;
    measure(&measured, &states, &scopes, results, args)?;
    results.write_table(out).map_err(standard_output)?;
    let build = cfg!(debug_assertions).then_some(Warning::DebugBuild);
    for warning in build.iter().chain(&target.warnings) {
        warn(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Returns the mode and the options to measure: one of each.
fn request(args: &BenchArgs) -> Result<(Mode, Options)> {
    let modes = options::modes(args);
    let configurations = options::configurations(args, options::device(&args.device)?)?;
    match (&modes[..], &configurations[..]) {
        ([mode @ (Mode::Stream | Mode::Keep)], [configuration]) => {
            Ok((*mode, configuration.options.clone()))
        }
        ([Mode::Reload], _) => Err(
            refused("--ranks measures new processes, which cannot reload")
                .with_hint("use --mode stream or keep"),
        ),
        ([_], _) => Err(refused("--ranks measures one configuration, not a sweep")),
        _ => Err(refused("--ranks measures one mode at a time")),
    }
}

fn refused(message: &str) -> Error {
    Error::new(ErrorKind::InvalidRequest, message)
}

/// Runs all rounds. The scopes take turns at being first.
fn measure(
    measured: &Measured<'_>,
    states: &[CacheState],
    scopes: &[Share],
    results: &mut Results,
    args: &BenchArgs,
) -> Result<()> {
    for round in 1..=results.rounds {
        for cache_state in states {
            for index in 0..scopes.len() {
                let scope = scopes[(index + round as usize - 1) % scopes.len()];
                let (residency, load) = measured.load(*cache_state, scope, results)?;
                results.samples.push(Sample {
                    round,
                    cache_state: *cache_state,
                    share: scope.to_string(),
                    residency,
                    load,
                });
                results.sum_up(states, scopes);
                results.complete =
                    results.samples.len() == results.rounds as usize * states.len() * scopes.len();
                if let Some(path) = &args.json {
                    export::write_json(path, results)?;
                }
            }
        }
    }
    Ok(())
}

impl Measured<'_> {
    /// Prepares memory and the page cache, and runs one load.
    fn load(
        &self,
        cache_state: CacheState,
        scope: Share,
        results: &Results,
    ) -> Result<(Residency, NodeLoad)> {
        let mut options = results.options.clone();
        options.share = scope;
        let job = Job {
            options: texts(&options),
            ..self.job.clone()
        };
        let shards = self.target.checkpoint.shards().iter();
        let paths = shards.filter_map(|shard| shard.location().as_path());
        let cache = PageCache::new(paths.map(Into::into).collect());
        cache.prepare(cache_state, self.interrupt)?;
        // As in other benchmarks: a virtual machine has to get memory back from its host.
        let wanted = wanted_bytes(results.checkpoint.tensor_bytes, self.size, self.copies);
        let room = memory::available(&System::real());
        let touched = wanted.min(room.map_or(wanted, |room| room.saturating_sub(SPARE_BYTES) / 2));
        prefault(usize::try_from(touched).unwrap_or(usize::MAX));
        cache.prepare(cache_state, self.interrupt)?;
        self.interrupt.check()?;
        let residency = cache.residency();
        let loads = start::run(&job, self.size, self.arguments, self.interrupt)?;
        Ok((residency, NodeLoad::new(loads)))
    }
}

/// Returns the memory that `ranks` ranks may take, which keep `copies` of the tensors together.
fn wanted_bytes(tensor_bytes: u64, ranks: usize, copies: u64) -> u64 {
    copies * tensor_bytes + ranks as u64 * BUDGET_BYTES.min(tensor_bytes)
}

impl Results {
    fn sum_up(&mut self, states: &[CacheState], scopes: &[Share]) {
        let mut summaries = Vec::new();
        for state in states {
            for scope in scopes {
                summaries.extend(self.summary(*state, &scope.to_string()));
            }
        }
        self.summaries = summaries;
    }

    /// Returns the samples of one row that were in the requested state.
    fn counting<'a>(
        &'a self,
        state: CacheState,
        share: &'a str,
    ) -> impl Iterator<Item = &'a Sample> {
        let samples = self.samples.iter();
        samples.filter(move |sample| {
            sample.cache_state == state && sample.share == share && sample.residency.found.is(state)
        })
    }

    fn summary(&self, state: CacheState, share: &str) -> Option<Summary> {
        let usage = |value: fn(&Usage) -> Option<f64>| {
            let samples = self.counting(state, share);
            Spread::new(samples.filter_map(|sample| value(&sample.load.node.usage)))
        };
        let none = Share::None.to_string();
        let speed_up = |sample: &Sample| {
            let mut others = self.counting(state, &none);
            let other = others.find(|other| other.round == sample.round)?;
            let seconds = sample.load.node.usage.seconds;
            (seconds > 0.0).then(|| other.load.node.usage.seconds / seconds)
        };
        let shares = share != none;
        let samples = self.counting(state, share);
        let amplification = samples.filter_map(|sample| sample.load.node.amplification);
        Some(Summary {
            cache_state: state,
            share: share.to_owned(),
            samples: self.counting(state, share).count(),
            seconds: usage(|usage| Some(usage.seconds))?,
            speed_up: Spread::new(
                self.counting(state, share)
                    .filter(|_| shares)
                    .filter_map(speed_up),
            ),
            read_bytes: usage(|usage| Some(float(usage.read_bytes)))?,
            amplification: Spread::new(amplification),
            cpu_seconds: usage(|usage| Some(usage.cpu_seconds))?,
            pss_bytes: usage(|usage| usage.pss_bytes.map(float)),
        })
    }

    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let checkpoint = table::describe_checkpoint(&self.checkpoint);
        writeln!(out, "{}", tload::printable(&checkpoint))?;
        let host = table::describe_host(&self.host);
        writeln!(out, "{}", tload::printable(&host))?;
        writeln!(
            out,
            "{}, {}\n",
            format_count(self.ranks as u64, "rank"),
            format_count(self.rounds.into(), "round")
        )?;
        out.flush()
    }

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let rows = self.summaries.iter().map(Summary::row);
        write!(out, "{}", style::header(&render(&HEADER, rows)))?;
        let counted: usize = self.summaries.iter().map(|summary| summary.samples).sum();
        let left_out = self.samples.len() - counted;
        if left_out > 0 {
            let loads = format_count(left_out as u64, "load");
            writeln!(
                out,
                "{loads} left out: the page cache was not in the requested state"
            )?;
        }
        out.flush()
    }
}

impl Summary {
    fn row(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        vec![
            self.cache_state.name().to_owned(),
            self.share.clone(),
            format_seconds(self.seconds.median),
            format!(
                "{}–{}",
                format_seconds(self.seconds.min),
                format_seconds(self.seconds.max)
            ),
            or_dash(self.speed_up.map(|spread| {
                format!(
                    "{:.2} × ({:.2}–{:.2})",
                    spread.median, spread.min, spread.max
                )
            })),
            bytes(self.read_bytes.median),
            or_dash(
                self.amplification
                    .map(|spread| format!("{:.2}", spread.median)),
            ),
            format_seconds(self.cpu_seconds.median),
            or_dash(self.pss_bytes.map(|spread| bytes(spread.median))),
        ]
    }
}

/// Formats a median of bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "means of two counts of bytes"
)]
fn bytes(median: f64) -> String {
    format_bytes(median as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharded_ranks_take_memory_for_one_copy_together() {
        let model = 64 << 30;
        assert_eq!(wanted_bytes(model, 8, 8), 8 * (model + BUDGET_BYTES));
        assert_eq!(wanted_bytes(model, 8, 1), model + 8 * BUDGET_BYTES);
        assert_eq!(wanted_bytes(1 << 20, 8, 0), 8 << 20);
    }
}
