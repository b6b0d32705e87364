//! `tload bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tload_against::{PEERS, Peer};

use super::device::DeviceArg;
use super::export::ExportArgs;
use super::location;
use super::open::OpenArgs;
use super::ranks::RankArgs;
use super::synth::ModelArgs;
use super::tuning::{SWEEP_HEADING, SweepArgs};

/// Benchmark loads against the raw read speed of the storage.
///
/// Without LOCATION, writes a synthetic checkpoint to a temporary directory and removes it at the
/// end. Each round runs, one after another and in rotating order: the load; the ceiling, which
/// reads the same bytes with the same engine but builds no tensors; fio, if it is installed; and
/// the loaders of --against. Ratios are computed within a round. Before a cold run, the pages of
/// the files are dropped from the page cache, and the kernel is asked whether they are gone: a run
/// that is not cold is never labelled cold.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
GB/s are 10^9 bytes of tensors per second, from the start of the stream (after the headers have been
read) to the last tensor. CPU is the user and system time of the whole process per GiB, including
the opening of the checkpoint. First tensor is the time from before the opening to the first tensor.
tload ratio is the speed of the load divided by that of its row. Reads are shown as number in flight
× size, with the lanes (threads that read) if there are several.
For every contender, the memory that a run may need is faulted in and freed before the clock starts.
Export files are created before the first run and rewritten after each run. JSON and CSV hold every
sample, and no export holds secrets of --store or of a URL. In an object store, runs are neither
cold nor warm, --depth counts requests, and fio does not run.

With a GPU, its context is created before the first run and is never timed. stream and keep start
without staging memory, like the first load of a process; reload reuses the staging memory of the
previous load. The ceiling still reads into CPU memory and does not cross the bus. The time spent in
copies (waits for the copy engine included) and the pinned staging memory are shown with the reads.

With --against, each run of another loader is a new process of --python, with the loader's defaults
and the caller's environment. It takes part in every round, with the page cache prepared as for the
load. Its time is from its call, after all imports, to its last tensor, and the load's opening
counts too in the ratio to it. Tensors are in memory of their own: views of mapped files are copied.
stream drops each, keep holds all, reload measures the second load of a process. tensorizer reads
a copy in its own format, which is written beside the files before and removed at the end. A loader
that is not installed is a warning. One that fails, returns fewer bytes, or takes longer than ten
minutes and a second for each 10 MB is a row with the reason, and runs no more in its cell.
tload-python is tload's own package in that Python.

JSON: {schema, command, started_unix_seconds, tload, fio, host, checkpoint, rounds, complete,
  against: {program, version, loaders: [{name, package, version}]},
  warnings, cells: [{mode, cache_state, configuration, cache_state_verified,
    summaries: [{contender, samples, left_out, bytes_per_second: {median, min, max, mad},
      tload_ratio, ceiling_ratio, cpu_seconds_per_gib, peak_rss_bytes, first_tensor_seconds}],
    samples: [{round, position, contender, residency, bytes, seconds, bytes_per_second, cpu_seconds,
      cpu_seconds_per_gib, peak_rss_bytes, first_tensor_seconds, opening_seconds, engine, report}],
    failures: [{round, contender, reason}]}]}.
`schema` increases when a key changes its meaning; null marks an unavailable value.

With --startup, phases overlap: connections are made while headers are read. A phase that occurs
several times lasts from the first beginning to the last end; occurrences after the first tensor are
left out. process is the time until the arguments have been read; connect includes name, TCP and
TLS. Tensors are dropped as they arrive, in CPU memory that is not faulted in before. JSON:
  {schema, command, started_unix_seconds, tload, host, checkpoint, device, …options, rounds,
  complete, summaries: [{cache_state, samples, phases: [{phase, times, start_seconds, seconds}]}],
  samples: [{round, cache_state, residency, engine, tensor_bytes,
    phases: [{phase, start_seconds, seconds}]}]}, with spreads {median, min, max, mad}.

With --ranks, loads that share and loads with --share none run by turns, in new processes, without
ceiling and fio. Times are from the first start of a rank to the last end, and speed-up is the time
without sharing divided by the time with it, within a round. JSON: {schema, command,
  started_unix_seconds, tload, host, checkpoint, ranks, shard, mode, options, rounds, complete,
  summaries: [{cache_state, share, samples, seconds, speed_up, read_bytes, amplification,
    cpu_seconds, pss_bytes}],
  samples: [{round, cache_state, share, residency, node, ranks}]}, with node and ranks of load.")]
pub(crate) struct BenchArgs {
    #[arg(
        value_name = "LOCATION",
        help = location::help("of a checkpoint [default: a synthetic one]"),
        conflicts_with_all = ["size", "preset", "shards", "seed", "dir"]
    )]
    pub(crate) location: Option<OsString>,
    /// Number of rounds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub(crate) rounds: u32,
    /// Treatment of the tensors: stream (drop each on arrival), reload (like stream, by a loader
    /// that has run before and kept its memory), keep (hold all until the end)
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
    /// Measure the start: each round starts a new process, which loads once, and the phases from
    /// the start of the process to the last tensor are shown as a waterfall
    #[arg(
        long,
        requires = "location",
        conflicts_with_all = ["with_defaults", "ranks", "csv", "markdown", "plot", "trace"]
    )]
    pub(crate) startup: bool,
    /// When this process was started, for the process that measures it: nanoseconds since 1970
    #[arg(long, value_name = "NANOSECONDS", hide = true, requires = "startup")]
    pub(crate) startup_began: Option<u64>,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    /// Other loaders to run beside the load, into CPU memory: those that are installed in --python
    #[arg(
        long,
        value_name = "LOADER,…",
        value_delimiter = ',',
        value_parser = peers(),
        conflicts_with_all = ["startup", "ranks"]
    )]
    pub(crate) against: Vec<&'static Peer>,
    /// Python that has the other loaders [default: the one that tload is installed in, else
    /// python3]
    #[arg(long, value_name = "PROGRAM", requires = "against")]
    pub(crate) python: Option<OsString>,
    /// Do not run fio, even if it is installed
    #[arg(long)]
    pub(crate) no_fio: bool,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
    /// Measure the defaults and a grid of depths 1 to 64 with extents of 1, 4 and 16 MiB (or the
    /// values of --depth and --extent), and report how close the defaults come to the best: 22
    /// configurations, so use few --rounds
    #[arg(long = "sweep", help_heading = SWEEP_HEADING, conflicts_with = "ranks")]
    pub(crate) with_defaults: bool,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten, next_help_heading = "Ranks")]
    pub(crate) ranks: RankArgs,
    #[command(flatten, next_help_heading = "Synthetic checkpoint")]
    pub(crate) model: ModelArgs,
    /// Directory to write it to [default: the first of the temporary directory, the current
    /// directory and /var/tmp that is on a disk with enough space]
    #[arg(long, value_name = "DIR", help_heading = "Synthetic checkpoint")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Exports")]
    pub(crate) exports: ExportArgs,
}

/// Returns the parser of a loader's name, or that of its package.
fn peers() -> impl TypedValueParser<Value = &'static Peer> {
    let names = PEERS.each_ref().map(|peer| match peer.name {
        "tload-python" => PossibleValue::new(peer.name),
        name if name == peer.package => PossibleValue::new(name),
        name => PossibleValue::new(name).alias(peer.package),
    });
    PossibleValuesParser::new(names).map(|name| {
        let mut peers = PEERS.iter();
        let found = peers.find(|peer| [peer.name, peer.package].contains(&&*name));
        found.expect("the parser takes no other name")
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Stream,
    Reload,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheArg {
    /// No page of the files is in the page cache
    Cold,
    /// All pages of the files are in the page cache
    Warm,
    /// Cold and warm
    Both,
}
