//! Arguments that say which tensors, and how to read them. Each of the second kind has a `TLOAD_*` variable.

use std::path::Path;
use std::time::Duration;

use tload::{Cache, EngineChoice, Order, Verify};

use super::sizes;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which tensors (a tensor that any of them selects is in)")]
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

/// For one load.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "How to read")]
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
    /// Reads in flight, over all lanes [default: found while loading]
    #[arg(long, value_name = "N", value_parser = sizes::depth, env = "TLOAD_DEPTH", hide_env_values = true)]
    pub(crate) depth: Option<usize>,
    /// Bytes of one read at most [default: from the storage]
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes, env = "TLOAD_EXTENT", hide_env_values = true)]
    pub(crate) extent: Option<u64>,
    /// Threads that read the files of a file system, each with its own engine [default: as many as cores where cores are the
    /// limit; else 1, and more when that one has no time left]
    #[arg(long, value_name = "N", value_parser = sizes::lanes, env = "TLOAD_LANES", hide_env_values = true)]
    pub(crate) lanes: Option<usize>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Order of delivery: ready (as they complete) or file
    #[arg(
        long,
        value_name = "ORDER",
        default_value_t,
        env = "TLOAD_ORDER",
        hide_env_values = true
    )]
    pub(crate) order: Order,
    /// Whether to send a request to an object store a second time when it takes much longer than others: true or false
    /// [default: true]
    #[arg(long, value_name = "BOOL", env = "TLOAD_HEDGE", hide_env_values = true)]
    pub(crate) hedge: Option<bool>,
    /// Give up when loading takes longer, or opening before it: 10 (seconds), 500ms, 30s, 2m [default: none]
    #[arg(long, value_name = "TIME", value_parser = sizes::duration, env = "TLOAD_TIMEOUT", hide_env_values = true)]
    pub(crate) timeout: Option<Duration>,
}

/// `--sweep` stands below it, too.
pub(super) const SWEEP_HEADING: &str = "How to read (lists make a sweep over every combination)";

/// For a benchmark: lists make a sweep over every combination.
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
    /// Reads in flight, over all lanes [default: found while loading]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = sizes::depth,
        env = "TLOAD_DEPTH",
        hide_env_values = true
    )]
    pub(crate) depth: Vec<usize>,
    /// Bytes of one read at most [default: from the storage]
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        value_parser = sizes::bytes,
        env = "TLOAD_EXTENT",
        hide_env_values = true
    )]
    pub(crate) extent: Vec<u64>,
    /// Threads that read the files of a file system, each with its own engine [default: as many as cores where cores are the
    /// limit; else 1, and more when that one has no time left]
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

/// A choice, or where a manifest is. What looks like neither is a slip.
fn verify(text: &str) -> Result<Verify, String> {
    let verify: Verify = text
        .parse()
        .map_err(|error: tload::Error| error.to_string())?;
    let is_word = !text.contains(['/', '.']);
    if matches!(verify, Verify::Manifest(_)) && is_word && !Path::new(text).exists() {
        return Err("neither off, auto, require, sha256 nor a manifest that is there".to_owned());
    }
    Ok(verify)
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Bytes in flight at most [default: found while loading]
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes, env = "TLOAD_IN_FLIGHT", hide_env_values = true)]
    pub(crate) in_flight: Option<u64>,
    /// Bytes that the load may hold and the caller has not received yet [default: 512 MiB; or the largest tensor, and
    /// beside it a quarter of it or what may be in flight, if that is more; less in a container with little memory]
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes, env = "TLOAD_MEMORY_LIMIT", hide_env_values = true)]
    pub(crate) memory_limit: Option<u64>,
    /// Bytes of each GPU that the load may hold and the caller has not received yet; --memory-limit then counts the memory on
    /// the way there [default: as for --memory-limit, and no more than is free]
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes, env = "TLOAD_DEVICE_MEMORY_LIMIT", hide_env_values = true)]
    pub(crate) device_memory_limit: Option<u64>,
    /// Page cache: auto (what it holds is copied from there, the rest read past it), direct (never through it), buffered
    /// (always through it), drop (as auto, and leave nothing in it) or map (copy nothing: tensors are views of the files)
    #[arg(
        long,
        value_name = "CACHE",
        default_value_t,
        env = "TLOAD_CACHE",
        hide_env_values = true
    )]
    pub(crate) cache: Cache,
    /// Compare what is read with digests of it, while it passes: auto (with what there is), require (fail when there is nothing),
    /// sha256 (the same, without CRCs, which can be forged), sha256:MANIFEST, off, or a manifest of tload's; --verify alone is auto
    /// [default: off]
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
    /// How often a failed request to an object store, or a failed read of a file, is tried again [default: 8; files that are not on
    /// a network file system: 0]
    #[arg(long, value_name = "N", env = "TLOAD_RETRIES", hide_env_values = true)]
    pub(crate) retries: Option<u32>,
}
