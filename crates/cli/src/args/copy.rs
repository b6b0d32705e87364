//! `tload cp`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::sizes;
use super::store::StoreArgs;
use super::time::TimeArgs;

/// Copy a checkpoint, with everything beside it, into a local directory.
///
/// SRC is a directory (or a prefix of an object store), of which all files are copied at all depths, or one file. Files appear
/// under their names when they are complete. Files that an earlier copy brought are skipped if neither they nor their sources
/// have changed since. A copy that was interrupted goes on where it stopped when the same command is run again.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Files in progress are .NAME.tload-partial in their directory, with a journal beside them, which
counts only for the same source in the same state. A finished file has a record of its source in the
extended attribute user.tload.copied, or else in .NAME.tload-copied beside it; a file without one is
copied again. A web server lists nothing: of a directory there, the index, its shards and the usual
configuration and tokenizer files are copied.

JSON: {location, target, copied_files, copied_bytes, resumed_bytes, skipped_files, skipped_bytes,
  requests, retries, unversioned_files, seconds}; `copied_bytes` were read by this copy, `resumed_bytes` by earlier ones.")]
pub(crate) struct CopyArgs {
    /// Path or URL (file, s3, gs, az, abfss, http, https, hf) of a directory or file
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// Directory to copy into, made if it does not exist
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,
    /// Copy files whose path below SRC, or whose last component, matches this glob
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Leave out files whose path below SRC, or whose last component, matches this glob
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Copy files and directories whose names begin with a dot, too
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Copy again what is there already, from its first byte
    #[arg(long)]
    pub(crate) force: bool,
    /// Requests at a time, over all files [default: 16]
    #[arg(long, value_name = "N", value_parser = sizes::depth, env = "TLOAD_DEPTH", hide_env_values = true)]
    pub(crate) depth: Option<usize>,
    /// Bytes of one request at most [default: 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = sizes::bytes, env = "TLOAD_EXTENT", hide_env_values = true)]
    pub(crate) extent: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
