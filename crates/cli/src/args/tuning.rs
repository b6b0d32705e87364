//! Arguments that select tensors, and arguments that tune reads. Each of the latter has a `TLOAD_*`
//! variable.

use std::path::Path;
use std::time::Duration;

use tload::{CacheMode, EngineChoice, Order, Verify};

use super::sizes;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Tensor selection (any matching filter selects a tensor)")]
pub(crate) struct SelectArgs {
    /// Select the tensor with this name
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Select tensors whose whole name matches this glob
    #[arg(long = "glob", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Select tensors whose name contains a match of this regular expression
    #[arg(long = "regex", value_name = "REGEX")]
    pub(crate) regexes: Vec<String>,
}

/// Tuning of one load.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Tuning")]
pub(crate) struct TuningArgs {
    /// Engine: auto, uring, pread or tokio-uring
    #[arg(
        long,
        value_name = "ENGINE",
        default_value_t,
        env = "TLOAD_ENGINE",
        hide_env_values = true
    )]
    pub(crate) engine: EngineChoice,
    /// Reads in flight, over all lanes [default: tuned while loading]
    #[arg(
        long,
        value_name = "N",
        value_parser = sizes::depth,
        env = "TLOAD_DEPTH",
        hide_env_values = true
    )]
    pub(crate) depth: Option<usize>,
    /// Maximum bytes per read [default: chosen for the storage]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = sizes::bytes,
        env = "TLOAD_EXTENT",
        hide_env_values = true
    )]
    pub(crate) extent: Option<u64>,
    /// Threads that read the files of one file system, each with its own engine [default: one per
    /// core if CPU-bound, else 1, growing while it is saturated]
    #[arg(
        long,
        value_name = "N",
        value_parser = sizes::lanes,
        env = "TLOAD_LANES",
        hide_env_values = true
    )]
    pub(crate) lanes: Option<usize>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Order of delivery: ready (as tensors complete) or file
    #[arg(
        long,
        value_name = "ORDER",
        default_value_t,
        env = "TLOAD_ORDER",
        hide_env_values = true
    )]
    pub(crate) order: Order,
    /// Send a second request to an object store if one takes much longer than others: true or false
    /// [default: true]
    #[arg(long, value_name = "BOOL", env = "TLOAD_HEDGE", hide_env_values = true)]
    pub(crate) hedge: Option<bool>,
    /// Time limit for opening and, separately, for loading: 10 (seconds), 500ms, 30s, 2m [default:
    /// none]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = sizes::duration,
        env = "TLOAD_TIMEOUT",
        hide_env_values = true
    )]
    pub(crate) timeout: Option<Duration>,
}

/// Heading of [`SweepArgs`] and `--sweep`.
pub(super) const SWEEP_HEADING: &str = "Tuning (lists are swept over every combination)";

/// Tuning of a benchmark: lists are swept over every combination.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SWEEP_HEADING)]
pub(crate) struct SweepArgs {
    /// Engines: auto, uring, pread, tokio-uring
    #[arg(
        long,
        value_name = "ENGINE,…",
        value_delimiter = ',',
        default_value = "auto",
        env = "TLOAD_ENGINE",
        hide_env_values = true
    )]
    pub(crate) engine: Vec<EngineChoice>,
    /// Reads in flight, over all lanes [default: tuned while loading]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = sizes::depth,
        env = "TLOAD_DEPTH",
        hide_env_values = true
    )]
    pub(crate) depth: Vec<usize>,
    /// Maximum bytes per read [default: chosen for the storage]
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        value_parser = sizes::bytes,
        env = "TLOAD_EXTENT",
        hide_env_values = true
    )]
    pub(crate) extent: Vec<u64>,
    /// Threads that read the files of one file system, each with its own engine [default: one per
    /// core if CPU-bound, else 1, growing while it is saturated]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = sizes::lanes,
        env = "TLOAD_LANES",
        hide_env_values = true
    )]
    pub(crate) lanes: Vec<usize>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Parses a mode of verification or the location of a manifest. A plain word that is neither is
/// taken for a typing error.
fn verify(text: &str) -> Result<Verify, String> {
    let verify: Verify = text
        .parse()
        .map_err(|error: tload::Error| error.to_string())?;
    let is_word = !text.contains(['/', '.']);
    if matches!(verify, Verify::Manifest(_)) && is_word && !Path::new(text).exists() {
        return Err("neither off, auto, require, sha256 nor an existing manifest".to_owned());
    }
    Ok(verify)
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Maximum bytes in flight [default: tuned while loading]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = sizes::bytes,
        env = "TLOAD_IN_FLIGHT",
        hide_env_values = true
    )]
    pub(crate) in_flight: Option<u64>,
    /// Maximum bytes that the load holds and the caller has not received [default: max(512 MiB,
    /// largest tensor + max(a quarter of it, bytes in flight)); less in a container with little
    /// memory]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = sizes::bytes,
        env = "TLOAD_MEMORY_LIMIT",
        hide_env_values = true
    )]
    pub(crate) memory_limit: Option<u64>,
    /// Maximum bytes of each GPU that the load holds and the caller has not received;
    /// --memory-limit then applies to staging memory [default: as for --memory-limit, but no more
    /// than is free]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = sizes::bytes,
        env = "TLOAD_DEVICE_MEMORY_LIMIT",
        hide_env_values = true
    )]
    pub(crate) device_memory_limit: Option<u64>,
    /// Page cache: auto (copy cached bytes from it, bypass it for the rest), direct (always bypass
    /// it), buffered (always read through it), drop (like auto, but leave nothing in it) or map
    /// (copy nothing: tensors are views of the files)
    #[arg(
        long,
        value_name = "CACHE",
        default_value_t,
        env = "TLOAD_CACHE",
        hide_env_values = true
    )]
    pub(crate) cache: CacheMode,
    /// Compare the bytes read with known digests during the load: auto (if there are any), require
    /// (fail if there are none), sha256 (like require, but CRCs do not count, because they can be
    /// forged), sha256:MANIFEST, off, or a tload manifest; --verify alone means auto [default: off]
    #[arg(
        long,
        value_name = "auto|require|sha256|off|MANIFEST",
        value_parser = verify,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        env = "TLOAD_VERIFY",
        hide_env_values = true
    )]
    pub(crate) verify: Option<Verify>,
    /// Retries of a failed request to an object store or a failed read of a file [default: 8; 0 for
    /// files that are not on a network file system]
    #[arg(long, value_name = "N", env = "TLOAD_RETRIES", hide_env_values = true)]
    pub(crate) retries: Option<u32>,
}
