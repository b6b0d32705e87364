//! The command line, as definitions for clap. `options` converts them to the types of the core;
//! nothing else sees clap.

mod bench;
mod cache;
mod configured;
mod convert;
mod copy;
mod delta;
mod device;
mod display;
mod exec;
mod export;
mod generate;
mod key;
mod location;
mod ls;
mod open;
mod parse;
mod ranks;
mod rm;
mod seal;
mod serve;
mod store;
mod synth;
mod time;
mod tuning;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

pub(crate) use bench::{BenchArgs, CacheArg, ModeArg};
pub(crate) use cache::{
    CacheArgs, CacheCommand, CacheDirArgs, CacheLsArgs, CachePruneArgs, CacheRmArgs, CacheStatArgs,
    CacheWarmArgs, RemovalArgs,
};
pub(crate) use convert::ConvertArgs;
pub(crate) use copy::CopyArgs;
pub(crate) use delta::{ApplyArgs, DeltaArgs, DiffArgs};
pub(crate) use device::DeviceArg;
pub(crate) use display::DisplayArgs;
pub(crate) use exec::ExecArgs;
pub(crate) use export::ExportArgs;
pub(crate) use generate::{CompletionsArgs, ManArgs, completions, manual, program};
pub(crate) use key::KeyArgs;
pub(crate) use ls::{LsArgs, SortArg};
pub(crate) use open::OpenArgs;
pub(crate) use parse::{Refusal, parse};
pub(crate) use ranks::{RankArgs, ShardArg};
pub(crate) use rm::RmArgs;
pub(crate) use seal::{CipherArg, RecipientArgs, RekeyArgs, SealArgs, UnsealArgs};
pub(crate) use serve::ServeArgs;
pub(crate) use store::StoreArgs;
pub(crate) use synth::{PresetArg, SynthArgs};
pub(crate) use tuning::{SelectArgs, TuningArgs};
pub(crate) use verify::VerifyArgs;

use crate::exit;

/// Loads LLM weights as fast as the hardware allows.
#[derive(Debug, Parser)]
#[command(name = "tload", version, after_help = exit::HELP, max_term_width = 100)]
#[command(long_about = format!("\
Loads LLM weights as fast as the hardware allows.

Reads safetensors checkpoints in place: one file, a directory, or an index. LOCATION is a path or \
URL ({}) of any of the three.

A configuration file has defaults of options: ~/.config/tload/config.toml, or the file that \
`TLOAD_CONFIG` names.", location::schemes()))]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) display: DisplayArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ls(LsArgs),
    Load(LoadArgs),
    Synth(SynthArgs),
    Bench(BenchArgs),
    Cp(CopyArgs),
    Convert(ConvertArgs),
    Verify(VerifyArgs),
    Rm(RmArgs),
    Diff(DiffArgs),
    Apply(ApplyArgs),
    Seal(SealArgs),
    Unseal(UnsealArgs),
    Rekey(RekeyArgs),
    Cache(CacheArgs),
    Serve(ServeArgs),
    Exec(ExecArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

impl Command {
    /// Returns whether the command uses the configuration file, and fails if that is wrong. The
    /// doctor reports it as a finding.
    pub(crate) fn is_configured(&self) -> bool {
        !matches!(
            self,
            Self::Synth(_) | Self::Doctor(_) | Self::Completions(_) | Self::Man(_)
        )
    }

    /// Returns whether the command answers in JSON on standard output.
    pub(crate) fn answers_in_json(&self) -> bool {
        match self {
            Self::Ls(args) => args.json,
            Self::Load(args) => args.json,
            Self::Cp(args) => args.json,
            Self::Convert(args) => args.json,
            Self::Verify(args) => args.json,
            Self::Diff(DiffArgs { shared, .. }) | Self::Apply(ApplyArgs { shared, .. }) => {
                shared.json
            }
            Self::Cache(args) => args.command.answers_in_json(),
            Self::Doctor(args) => args.json,
            // A benchmark writes JSON to a file, which `command::bench` does itself.
            Self::Synth(_)
            | Self::Bench(_)
            | Self::Rm(_)
            | Self::Seal(_)
            | Self::Unseal(_)
            | Self::Rekey(_)
            | Self::Serve(_)
            | Self::Exec(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

const WORDS_HELP: &str = "\
Words of the report: an extent is a contiguous range that one read fills; the depth is the number of
reads in flight; a lane is a thread that reads, with an engine of its own; a ring is the queue of
the engine uring; staging is memory between storage and GPU; a stalled request is much slower than
the others, a hedged one was sent again because it stalled; orphaned memory belongs to reads that
cannot be cancelled, and is freed when the storage responds.";

const DIGEST_HELP: &str = r#"Digest: SHA-256 over one line per tensor, sorted by name (as UTF-8 bytes):
    name NUL dtype NUL shape NUL sha256 LF
with the shape as decimal sizes joined by commas (empty for a scalar), and the SHA-256 of the
tensor's bytes in lower-case hexadecimal. It does not depend on the order of delivery, on shards or
on offsets. In Python, of a dict of name to (dtype, shape, bytes):
    lines = [f"{name}\0{dtype}\0{','.join(map(str, shape))}\0{sha256(raw).hexdigest()}\n"
             for name, (dtype, shape, raw) in sorted(tensors.items())]
    sha256("".join(lines).encode()).hexdigest()

JSON: {gigabytes_per_second, digest, report}; `digest` is null without --digest; `report` has the
fields of tload::Report in the crate's documentation. A load that fails after its start also prints
its report (on standard error without --json), beside `error`: `outcome` names the failure, and
`digest` is null.

JSON with --ranks: {node: {share, reason, unique_bytes, amplification, gigabytes_per_second, …},
ranks: [{rank, report, …}]}, each with {read_bytes, received_bytes, tensor_bytes, seconds,
cpu_seconds, pss_bytes}. The seconds of the node are from the first start to the last end, and its
amplification is read_bytes divided by unique_bytes. PSS is the proportional set size while all
ranks hold what they keep; kept tensors are read once before."#;

/// Stream a checkpoint's tensors into CPU or GPU memory and print a report.
///
/// Each tensor is dropped on arrival, so memory stays within the limit regardless of the
/// checkpoint's size.
///
/// Options that are not given come from their variables, then from the configuration file (see
/// `tload --help`).
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("{}\n\n{WORDS_HELP}\n\n{DIGEST_HELP}", store::keys()))]
pub(crate) struct LoadArgs {
    #[arg(value_name = "LOCATION", help = location::help("of a file, directory or index"))]
    pub(crate) location: OsString,
    /// Keep every tensor until the end, as a model would
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print one digest of all tensors; they must go to CPU memory
    #[arg(long, conflicts_with = "ranks")]
    pub(crate) digest: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page of HTML: the phases of the start, throughput and depth over time, where the
    /// time went, the machine, the tensors
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) html: Option<PathBuf>,
    /// Write a trace for Perfetto (ui.perfetto.dev): reads, copies to GPUs, tensors, waits of each
    /// lane
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    #[command(flatten)]
    pub(crate) tuning: TuningArgs,
    #[command(flatten, next_help_heading = "Destination")]
    pub(crate) device: DeviceArg,
    /// Device for the tensor or module of this name and all tensors below it, for example
    /// 'model.layers.0=cuda:1', or for tensors whose whole name matches a glob; repeatable. The
    /// first match applies, and of several matching names the longest; other tensors go to --device
    #[arg(long, value_name = "NAME|GLOB=DEVICE", help_heading = "Destination")]
    pub(crate) device_map: Vec<String>,
    #[command(flatten, next_help_heading = "Ranks")]
    pub(crate) ranks: RankArgs,
}

/// Check this machine for problems that slow down or break loads, and suggest fixes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Each finding is ok, note (worth knowing), warn (costs speed; the advice says what to do) or fail
(LOCATION cannot be opened or does not answer, or the configuration file is wrong; the findings
about the machine are still printed).

In an object store, LOCATION is also measured, within --timeout and a few seconds: round trips, and
the throughput of one connection and of sixteen, which read up to 256 MiB of it.

The last line names the most urgent change, if any change is advised.

JSON: {worst, change_first: {id, urgency, command},
  findings: [{id, level, title, value, advice, change: {urgency, command}}],
  store: {location, endpoint, redirected_to, region, addressing, credentials, proxy, tls,
    is_loopback, addresses, validator, clock_skew_seconds, first_response_seconds,
    round_trip_seconds: [], rates: [{connections, bytes, seconds}]}}; `change_first`, `advice`,
`change`, `store` and fields of `store` may be null; `urgency` is failure, hang, speed or little.")]
pub(crate) struct DoctorArgs {
    #[arg(value_name = "LOCATION", help = location::help("of a checkpoint, to check its storage as well"))]
    pub(crate) location: Option<OsString>,
    /// Time limit for checking LOCATION: 10 (seconds), 500ms, 30s, 2m
    #[arg(
        long,
        value_name = "TIME",
        value_parser = tload::internal::parse_duration,
        default_value = configured::option_or("timeout", "10s"),
        env = "TLOAD_TIMEOUT",
        hide_env_values = true
    )]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page of HTML with the findings and their advice, the worst first
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
