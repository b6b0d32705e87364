//! `tload bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

use super::device::DeviceArg;
use super::links::LinkArgs;
use super::store::StoreArgs;
use super::synth::ModelArgs;
use super::tuning::{SWEEP_HEADING, SweepArgs};

/// Measure loads beside the storage's own ceiling.
///
/// Without LOCATION, makes a synthetic checkpoint in a temporary directory and removes it at the end. Every round runs,
/// one after another and in rotating order: the load; the ceiling, which is the same bytes read raw by the same engine
/// with no tensors made; and fio, when it is installed. Ratios are taken within a round. Before a cold run the files'
/// pages are dropped, and the kernel is asked whether they are gone: a run that is not cold is not called cold.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
GB/s are 10^9 bytes of tensors per second, from the start of the stream (headers have been read) to
the last tensor. CPU is user and system time of the whole process per GiB, opening included. First
tensor is the time from before opening the checkpoint. Memory that a run may need is faulted in and
freed before its clock starts, for every contender alike. Export files are created before the first
run and rewritten after each; JSON and CSV hold every sample, and none holds a secret of --store or
of a URL. In an object store nothing is cold or warm, --depth counts requests, and fio stays out.

To a GPU, the GPU's context is made before the first run and outside every clock. stream and keep
begin without staging memory, as the first load of a process does; reload has that of the load
before it. The ceiling still reads into CPU memory: it knows no bus. How long copies took (waiting
for the copy engine included) and how much staging memory was pinned stands beside the reads.

JSON: {schema, command, started_unix_seconds, tload, fio, host, checkpoint, rounds, complete,
  warnings, cells: [{mode, cache_state, configuration, cache_state_verified,
    summaries: [{contender, samples, left_out, bytes_per_second: {median, min, max, mad},
      tload_ratio, cpu_seconds_per_gib, peak_rss_bytes, first_tensor_seconds}],
    samples: [{round, position, contender, residency, bytes, seconds, bytes_per_second, cpu_seconds,
      cpu_seconds_per_gib, peak_rss_bytes, first_tensor_seconds, engine, report}]}]}.
`schema` is raised when a key changes its meaning; null stands for what could not be had.")]
pub(crate) struct BenchArgs {
    /// Path or URL (file, s3, gs, az, abfss, http, https, hf) of a checkpoint [default: a synthetic one]
    #[arg(value_name = "LOCATION", conflicts_with_all = ["size", "preset", "shards", "seed", "dir"])]
    pub(crate) location: Option<OsString>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// What becomes of the tensors: stream (dropped as they come), reload (the same, by a loader that has run before and
    /// still has the memory), keep (all kept to the end)
    #[arg(
        long,
        value_enum,
        value_name = "MODE,…",
        value_delimiter = ',',
        default_value = "stream"
    )]
    pub(crate) mode: Vec<ModeArg>,
    /// State of the page cache before each run
    #[arg(
        long,
        value_enum,
        value_name = "STATE,…",
        value_delimiter = ',',
        default_value = "cold"
    )]
    pub(crate) cache_state: Vec<CacheArg>,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    /// Leave out fio, even when it is installed
    #[arg(long)]
    pub(crate) no_fio: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) links: LinkArgs,
    /// Measure the defaults, and depths 1 to 64 with extents of 1, 4 and 16 MiB beside them (or those of --depth and
    /// --extent), and say how near the defaults come to the best: 22 configurations, so take few --rounds
    #[arg(long = "sweep", help_heading = SWEEP_HEADING)]
    pub(crate) with_defaults: bool,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten, next_help_heading = "Synthetic checkpoint")]
    pub(crate) model: ModelArgs,
    /// Where to put it [default: the first real disk of the temporary directory, the current one and /var/tmp]
    #[arg(long, value_name = "DIR", help_heading = "Synthetic checkpoint")]
    pub(crate) dir: Option<PathBuf>,
    /// Write every sample as JSON; of a benchmark that fails, those before and the error
    #[arg(long, value_name = "FILE", help_heading = "Exports")]
    pub(crate) json: Option<PathBuf>,
    /// Write every sample as CSV
    #[arg(long, value_name = "FILE", help_heading = "Exports")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the summary as Markdown
    #[arg(long, value_name = "FILE", help_heading = "Exports")]
    pub(crate) markdown: Option<PathBuf>,
    /// Draw the speeds as SVG (FILE ends in .svg): against the swept setting with the most values, beside the ceiling
    #[arg(long, value_name = "FILE", help_heading = "Exports")]
    pub(crate) plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Stream,
    Reload,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheArg {
    /// Nothing of the files is in memory
    Cold,
    /// All of the files is in memory
    Warm,
    /// One after the other
    Both,
}
