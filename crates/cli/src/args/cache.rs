//! `tload cache`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::open::OpenArgs;
use super::tuning::{SelectArgs, TuningArgs};
use super::{configured, location, store};

/// List, fill and shrink the cache of objects.
///
/// Loads fill the cache as they read (--cache-dir). They may run at the same time as these
/// commands.
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    Ls(CacheLsArgs),
    Stat(CacheStatArgs),
    Rm(CacheRmArgs),
    Prune(CachePruneArgs),
    Warm(Box<CacheWarmArgs>),
}

impl CacheCommand {
    /// Returns whether the command answers in JSON on standard output.
    pub(crate) fn answers_in_json(&self) -> bool {
        match self {
            Self::Ls(args) => args.cache.json,
            Self::Stat(args) => args.cache.json,
            Self::Rm(args) => args.removal.cache.json,
            Self::Prune(args) => args.removal.cache.json,
            Self::Warm(args) => args.json,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct CacheDirArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory of the cache
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "TLOAD_CACHE_DIR",
        default_value = configured::store("cache_dir"),
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(crate) cache_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemovalArgs {
    /// Remove nothing, and print what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) cache: CacheDirArgs,
}

/// List the objects in the cache, the most recently used ones last.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
JSON: an array of {location, object_bytes, cached_bytes, disk_bytes, last_used, e_tag, version,
  path}; `last_used` is in seconds since 1970; `path` is the object itself if `cached_bytes` is
  `object_bytes`; `location` is null if the description is lost.")]
pub(crate) struct CacheLsArgs {
    #[arg(value_name = "LOCATION", help = location::help("at or below which to list; without it, all"))]
    pub(crate) location: Option<OsString>,
    #[command(flatten)]
    pub(crate) cache: CacheDirArgs,
}

/// Print how much is in the cache.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
JSON: {objects, complete_objects, object_bytes, cached_bytes, disk_bytes, free_bytes, first_used,
  last_used}; `free_bytes` is of the cache's file system; the times are in seconds since 1970, and
  null for an empty cache.")]
pub(crate) struct CacheStatArgs {
    #[arg(value_name = "LOCATION", help = location::help("at or below which to count; without it, all"))]
    pub(crate) location: Option<OsString>,
    #[command(flatten)]
    pub(crate) cache: CacheDirArgs,
}

/// Remove objects from the cache.
///
/// Answers of the store about them are removed too, so the next load asks the store. Objects that a
/// process has open stay.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
JSON: {removed: [], in_use: []} of objects like those of tload cache ls.")]
pub(crate) struct CacheRmArgs {
    #[arg(
        value_name = "LOCATION",
        required_unless_present = "all",
        conflicts_with = "all",
        help = location::help("at or below which to remove")
    )]
    pub(crate) location: Option<OsString>,
    /// Remove everything
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) removal: RemovalArgs,
}

/// Remove the least recently used objects.
///
/// Objects that a process has open stay.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
JSON: {removed: [], in_use: []} of objects like those of tload cache ls.")]
pub(crate) struct CachePruneArgs {
    /// Remove until the others take at most this much of the disk, for example 500GiB
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = tload::internal::parse_bytes,
        required_unless_present_any = configured::unless_store("cache_limit", "unused_for"),
        env = "TLOAD_CACHE_LIMIT",
        default_value = configured::store("cache_limit"),
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(crate) max_size: Option<u64>,
    /// Remove objects that were not opened for this long: 30m, 12h
    #[arg(long, value_name = "TIME", value_parser = tload::internal::parse_duration)]
    pub(crate) unused_for: Option<Duration>,
    #[command(flatten)]
    pub(crate) removal: RemovalArgs,
}

/// Read a checkpoint into the cache.
///
/// Fetches what the cache lacks and verifies the rest. Unlike loads, it waits for the cache's disk.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
JSON: {location, tensor_bytes, fetched_bytes, cached_bytes, seconds}; `cached_bytes` were
  already cached.")]
#[command(mut_arg("hf_cache", store::without_hub_cache))]
pub(crate) struct CacheWarmArgs {
    #[arg(value_name = "LOCATION", help = location::help("of a file, directory or index"))]
    pub(crate) location: OsString,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    #[command(flatten)]
    pub(crate) tuning: TuningArgs<true>,
}
