//! `tload cp`.

use std::ffi::OsString;
use std::path::PathBuf;

use tload::LoadOptions;

use super::store::StoreArgs;
use super::time::TimeArgs;
use super::tuning;
use super::{configured, location};

/// Copy a checkpoint and all files beside it into a directory, or to a prefix of an object store.
///
/// SRC is one file, or a directory (or a prefix of an object store), which is copied recursively.
/// Each file appears under its name once it is complete. Files of an earlier copy are skipped if
/// neither they nor their sources have changed since. To resume an interrupted copy, run the same
/// command again; one that was killed has lost a few seconds of its progress at most.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A file in progress is .NAME.tload-partial in its directory, with a journal beside it that is valid
only for the same source in the same state; it is written with the first bytes, every two seconds,
and when the copy is interrupted. A finished file has a record of its source in the
extended attribute user.tload.copied, or else in .NAME.tload-copied beside it; a file without a
record is copied again. Web servers cannot be listed: from a directory on one, the index, its shards
and the usual configuration and tokenizer files are copied. A model of the Hugging Face Hub whose
files are all in the hub's cache is copied from there, without requests.

A prefix of an object store (s3://, gs://, az://) has to be empty, as files keep their names there.
Indexes appear last, or the weights if there is no index: no reader finds a checkpoint before. The
object .tload-write below the prefix keeps other writers off and is the journal; --force discards
that of another source, with what was sent. A complete copy leaves .tload-copied.

JSON: {location, target, copied_files, copied_bytes, resumed_bytes, skipped_files, skipped_bytes,
  requests, retries, unversioned_files, unusable, seconds, plan}; `copied_bytes` were read by this
  copy, `resumed_bytes` by earlier ones. `unusable` are names that cannot be those of files, and are
  left out: keys of stores with empty components, dots or control characters, names that are not
  UTF-8, names that are too long for the file system of DST (files in progress have 24 bytes more),
  and files with the name of a folder. Without --skip-unusable, the command copies everything else
  and then fails.
  `plan` is null, or with --dry-run {files: [{name, action, bytes, resumed_bytes}], needed_bytes,
  free_bytes}; the counters then say what the copy would do. An action is copy, resume or skip.")]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct CopyArgs {
    #[arg(value_name = "SRC", help = location::help("of a directory or file"))]
    pub(crate) source: OsString,
    /// Directory to copy into, created if it does not exist, or empty prefix of an object store
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,
    /// Copy only files whose path below SRC, or whose file name, matches this glob
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Skip files whose path below SRC, or whose file name, matches this glob
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Also copy files and directories whose names begin with a dot
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Copy existing files again, from the first byte
    #[arg(long)]
    pub(crate) force: bool,
    /// Succeed although names that cannot be those of files, such as a//b, were left out
    #[arg(long)]
    pub(crate) skip_unusable: bool,
    /// Print what would be copied, resumed and skipped, and the disk space needed; write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Requests in flight, over all files [default: 16]
    #[arg(
        long,
        value_name = "N",
        value_parser = depth,
        env = "TLOAD_DEPTH",
        default_value = configured::option("depth"),
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(crate) depth: Option<usize>,
    /// Maximum bytes per request [default: 16MiB]; parts of an upload have 8 MiB or more
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = tload::internal::parse_bytes,
        env = "TLOAD_EXTENT",
        default_value = configured::option("extent_bytes"),
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(crate) extent: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Like --store, for the store of DST; without it, --store is for both if they are of one kind
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) target_store: Vec<OsString>,
}

/// Parses a depth like that of loads.
fn depth(text: &str) -> Result<usize, String> {
    let key = LoadOptions::key("depth").expect("an option of loads");
    let text = tuning::parse(key, text)?;
    text.trim().parse().map_err(|_| text)
}
