//! `tload bench --ranks`: rounds of loads that share and loads that do not, by turns, and their
//! summary.

use std::io::{self, Write};

use serde::Serialize;
use tload::internal::format_bytes;
use tload::internal::probe::prefault;
use tload::{Error, ErrorKind, LoadOptions, Result, Share};

use super::super::harness::{Bench, Sample, Subject, counting};
use super::messages::Job;
use super::results::{NodeLoad, Usage};
use super::{start, texts};
use crate::args::{BenchArgs, SelectArgs, ShardArg};
use crate::bench::Spread;
use crate::bench::page_cache::PageCache;
use crate::bench::{CacheState, Mode, Residency, as_text};
use crate::options;
use crate::output::style;
use crate::output::table::{Align, render};
use tload_doctor::host::{System, memory};
use tload_quantity::{float, format_count, format_seconds};

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

/// Loads of several ranks.
#[derive(Debug, Serialize)]
pub(in crate::command) struct RankLoads {
    ranks: usize,
    shard: ShardArg,
    mode: Mode,
    options: LoadOptions,
    #[serde(skip)]
    job: Job,
    /// Copies of the tensors that the ranks keep together.
    #[serde(skip)]
    copies: u64,
}

/// Requested scope of the sharing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::command) struct Scope {
    #[serde(serialize_with = "as_text")]
    share: Share,
}

/// Summary of the loads with one scope of sharing and one state of the page cache.
#[derive(Debug, Serialize)]
pub(in crate::command) struct Summary {
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

impl RankLoads {
    /// Returns loads with `size` ranks.
    pub(in crate::command) fn new(bench: Bench<'_>, size: usize) -> Result<Self> {
        let Bench { args, target, .. } = bench;
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
        let location = target.checkpoint.location();
        let job = Job {
            location: options::written(location, args.location.as_deref()),
            opening: args.opening.clone(),
            select: SelectArgs::default(),
            device: args.device.clone(),
            device_map: Vec::new(),
            options: texts(&options),
            shard: args.ranks.shard,
            keep: mode == Mode::Keep,
        };
        Ok(Self {
            ranks: size,
            shard: args.ranks.shard,
            mode,
            options,
            job,
            copies,
        })
    }
}

/// Returns the mode and the options to measure: one of each.
fn request(args: &BenchArgs) -> Result<(Mode, LoadOptions)> {
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

impl Subject for RankLoads {
    type Variant = Scope;
    type Run = NodeLoad;
    type Summary = Summary;

    fn variants(&self) -> Vec<Scope> {
        let share = self.options.share;
        let mut scopes = vec![Scope { share }];
        if share != Share::None {
            scopes.push(Scope { share: Share::None });
        }
        scopes
    }

    fn describe(&self, rounds: u32) -> String {
        let ranks = format_count(self.ranks as u64, "rank");
        format!("{ranks}, {}", format_count(rounds.into(), "round"))
    }

    /// Prepares memory and the page cache, and runs one load.
    fn run(
        &self,
        bench: Bench<'_>,
        page_cache: &PageCache,
        cache_state: CacheState,
        scope: &Scope,
    ) -> Result<(Residency, NodeLoad)> {
        let Bench { interrupt, .. } = bench;
        let mut options = self.options.clone();
        options.share = scope.share;
        let job = Job {
            options: texts(&options),
            ..self.job.clone()
        };
        page_cache.prepare(cache_state, interrupt)?;
        // As in other benchmarks: a virtual machine has to get memory back from its host.
        let tensor_bytes = bench.target.checkpoint.total_bytes();
        let wanted = wanted_bytes(tensor_bytes, self.ranks, self.copies);
        let room = memory::available(&System::real());
        let touched = wanted.min(room.map_or(wanted, |room| room.saturating_sub(SPARE_BYTES) / 2));
        prefault(usize::try_from(touched).unwrap_or(usize::MAX));
        page_cache.prepare(cache_state, interrupt)?;
        interrupt.check()?;
        let residency = page_cache.residency();
        let loads = start::run(&job, self.ranks, bench.arguments, interrupt)?;
        Ok((residency, NodeLoad::new(loads)))
    }

    fn summary(
        &self,
        samples: &[Sample<Self>],
        state: CacheState,
        scope: &Scope,
    ) -> Option<Summary> {
        let usage = |value: fn(&Usage) -> Option<f64>| {
            let samples = counting(samples, state, scope);
            Spread::new(samples.filter_map(|sample| value(&sample.run.node.usage)))
        };
        let none = Scope { share: Share::None };
        let speed_up = |sample: &Sample<Self>| {
            let mut others = counting(samples, state, &none);
            let other = others.find(|other| other.round == sample.round)?;
            let seconds = sample.run.node.usage.seconds;
            (seconds > 0.0).then(|| other.run.node.usage.seconds / seconds)
        };
        let shares = *scope != none;
        let counted = || counting(samples, state, scope);
        let amplification = counted().filter_map(|sample| sample.run.node.amplification);
        Some(Summary {
            cache_state: state,
            share: scope.share.to_string(),
            samples: counted().count(),
            seconds: usage(|usage| Some(usage.seconds))?,
            speed_up: Spread::new(counted().filter(|_| shares).filter_map(speed_up)),
            read_bytes: usage(|usage| Some(float(usage.read_bytes)))?,
            amplification: Spread::new(amplification),
            cpu_seconds: usage(|usage| Some(usage.cpu_seconds))?,
            pss_bytes: usage(|usage| usage.pss_bytes.map(float)),
        })
    }

    fn write_tables(
        &self,
        summaries: &[Summary],
        samples: &[Sample<Self>],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let rows = summaries.iter().map(Summary::row);
        write!(out, "{}", style::header(&render(&HEADER, rows)))?;
        let counted: usize = summaries.iter().map(|summary| summary.samples).sum();
        let left_out = samples.len() - counted;
        if left_out > 0 {
            let loads = format_count(left_out as u64, "load");
            writeln!(
                out,
                "{loads} left out: the page cache was not in the requested state"
            )?;
        }
        Ok(())
    }
}

/// Returns the memory that `ranks` ranks may take, which keep `copies` of the tensors together.
fn wanted_bytes(tensor_bytes: u64, ranks: usize, copies: u64) -> u64 {
    copies * tensor_bytes + ranks as u64 * BUDGET_BYTES.min(tensor_bytes)
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
