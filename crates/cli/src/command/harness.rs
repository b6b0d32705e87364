//! Harness of `tload bench --startup` and `--ranks`: rounds of runs in new processes, their samples
//! and summaries, and the JSON after each run. A benchmark in this process (`bench::schedule`)
//! shares the head of the output.

use std::ffi::OsString;
use std::io::{self, Write};

use serde::Serialize;
use tload::Result;
use tload::internal::printable;

use crate::args::BenchArgs;
use crate::bench::page_cache::PageCache;
use crate::bench::results::{CheckpointRecord, RunRecord};
use crate::bench::target::Target;
use crate::bench::warnings::Warning;
use crate::bench::{CacheState, Residency, table};
use crate::export;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use tload_doctor::host::System;
use tload_doctor::host::record::HostRecord;

/// Schema of the JSON export. Increases when a key changes its meaning.
const SCHEMA: u32 = 1;

/// Command that measures, and the checkpoint that it reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench<'a> {
    pub(super) args: &'a BenchArgs,
    pub(super) target: &'a Target<'a>,
    pub(super) arguments: &'a [OsString],
    pub(super) interrupt: &'a Interrupt,
}

/// Benchmark whose runs are new processes. Serialised, it is the settings in the results.
pub(super) trait Subject: Serialize + Sized {
    /// Difference between runs besides the state of the page cache.
    type Variant: Clone + PartialEq + Serialize;
    /// Result of a run.
    type Run: Serialize;
    /// Summary of the runs of a variant with one state of the page cache.
    type Summary: Serialize;

    /// Returns the variants. They take turns at being first in a round.
    fn variants(&self) -> Vec<Self::Variant>;

    /// Describes the rounds, for the head of the output.
    fn describe(&self, rounds: u32) -> String;

    /// Prepares the page cache and runs `variant` once. Returns the state of the page cache right
    /// before the run, and the result.
    fn run(
        &self,
        bench: Bench<'_>,
        page_cache: &PageCache,
        cache_state: CacheState,
        variant: &Self::Variant,
    ) -> Result<(Residency, Self::Run)>;

    /// Summarises a variant; `None` if it has no samples to show.
    fn summary(
        &self,
        samples: &[Sample<Self>],
        cache_state: CacheState,
        variant: &Self::Variant,
    ) -> Option<Self::Summary>;

    /// Returns the medians of the phases, each with a name, if the runs have phases.
    fn starts(&self, _summaries: &[Self::Summary]) -> Vec<(String, Vec<tload_html::Phase>)> {
        Vec::new()
    }

    /// Prints the summaries.
    fn write_tables(
        &self,
        summaries: &[Self::Summary],
        samples: &[Sample<Self>],
        out: &mut dyn Write,
    ) -> io::Result<()>;
}

/// Everything that was measured.
#[derive(Serialize)]
#[serde(bound = "")]
pub(super) struct Results<S: Subject> {
    schema: u32,
    #[serde(flatten)]
    run: RunRecord,
    host: HostRecord,
    checkpoint: CheckpointRecord,
    #[serde(flatten)]
    subject: S,
    rounds: u32,
    complete: bool,
    summaries: Vec<S::Summary>,
    /// In chronological order.
    samples: Vec<Sample<S>>,
}

/// One run.
#[derive(Serialize)]
#[serde(bound = "")]
pub(super) struct Sample<S: Subject> {
    /// Number of the round, from 1.
    pub(super) round: u32,
    cache_state: CacheState,
    #[serde(flatten)]
    variant: S::Variant,
    /// State of the page cache right before the run.
    residency: Residency,
    #[serde(flatten)]
    pub(super) run: S::Run,
}

/// Returns the samples of a variant that were in the requested state of the page cache.
pub(super) fn counting<'a, S: Subject>(
    samples: &'a [Sample<S>],
    cache_state: CacheState,
    variant: &'a S::Variant,
) -> impl Iterator<Item = &'a Sample<S>> {
    samples.iter().filter(move |sample| {
        sample.cache_state == cache_state
            && sample.variant == *variant
            && sample.residency.found.is(cache_state)
    })
}

/// Runs the rounds, and prints the tables. On failure too, `results` holds the samples so far.
pub(super) fn run<S: Subject>(
    bench: Bench<'_>,
    subject: S,
    out: &mut dyn Write,
    results: &mut Option<Results<S>>,
) -> Result<()> {
    let Bench { args, target, .. } = bench;
    let rounds = subject.describe(args.rounds);
    let results = results.insert(Results {
        schema: SCHEMA,
        run: RunRecord::new(tload_config::redact::arguments(bench.arguments)),
        host: HostRecord::collect(&System::real(), target.path(), None, None),
        checkpoint: target.record(),
        subject,
        rounds: args.rounds,
        complete: false,
        summaries: Vec::new(),
        samples: Vec::new(),
    });
    write_head(out, &results.checkpoint, &results.host, &rounds).map_err(standard_output)?;
    results.measure(bench)?;
    let (summaries, samples) = (&results.summaries, &results.samples);
    (results.subject)
        .write_tables(summaries, samples, out)
        .and_then(|()| out.flush())
        .map_err(standard_output)?;
    let build = cfg!(debug_assertions).then_some(Warning::DebugBuild);
    for warning in build.iter().chain(&target.warnings) {
        warn(&format!("warning: {warning}"));
    }
    Ok(())
}

impl<S: Subject> Results<S> {
    fn measure(&mut self, bench: Bench<'_>) -> Result<()> {
        let states = cache_states(bench.args, bench.target);
        let variants = self.subject.variants();
        let shards = bench.target.checkpoint.shards().iter();
        let paths = shards.filter_map(|shard| shard.location().as_path());
        let page_cache = PageCache::new(paths.map(Into::into).collect());
        let planned = self.rounds as usize * states.len() * variants.len();
        for round in 1..=self.rounds {
            for &cache_state in &states {
                for index in 0..variants.len() {
                    let variant = &variants[(index + round as usize - 1) % variants.len()];
                    let ran = self.subject.run(bench, &page_cache, cache_state, variant);
                    let (residency, run) = ran?;
                    self.samples.push(Sample {
                        round,
                        cache_state,
                        variant: variant.clone(),
                        residency,
                        run,
                    });
                    self.sum_up(&states, &variants);
                    self.complete = self.samples.len() == planned;
                    if let Some(path) = &bench.args.exports.json {
                        export::write_json(path, self)?;
                    }
                    if let Some(path) = &bench.args.exports.html {
                        export::write_text(path, &self.page(bench))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the page of the starts so far.
    fn page(&self, bench: Bench<'_>) -> String {
        let warnings = bench.target.warnings.iter();
        tload_html::bench_page(&tload_html::Bench {
            checkpoint: table::describe_checkpoint(&self.checkpoint),
            host: table::describe_host(&self.host),
            rounds: self.rounds.into(),
            is_complete: self.complete,
            warnings: warnings.map(ToString::to_string).collect(),
            starts: self.subject.starts(&self.summaries),
            run: export::run(&self.run, Some(&self.host)),
            ..tload_html::Bench::default()
        })
    }

    fn sum_up(&mut self, states: &[CacheState], variants: &[S::Variant]) {
        let rows = states
            .iter()
            .flat_map(|state| variants.iter().map(|variant| (*state, variant)));
        self.summaries = rows
            .filter_map(|(state, variant)| self.subject.summary(&self.samples, state, variant))
            .collect();
    }
}

/// Returns the states of the page cache to measure.
pub(super) fn cache_states(args: &BenchArgs, target: &Target<'_>) -> Vec<CacheState> {
    match target.path() {
        Some(_) => options::cache_states(args),
        None => vec![CacheState::Remote],
    }
}

/// Prints the checkpoint, the host and the rounds before the first run.
pub(super) fn write_head(
    out: &mut dyn Write,
    checkpoint: &CheckpointRecord,
    host: &HostRecord,
    rounds: &str,
) -> io::Result<()> {
    let checkpoint = table::describe_checkpoint(checkpoint);
    writeln!(out, "{}", printable(&checkpoint))?;
    writeln!(out, "{}", printable(&table::describe_host(host)))?;
    writeln!(out, "{rounds}\n")?;
    out.flush()
}
