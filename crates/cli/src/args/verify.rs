//! `tload verify`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::location;
use super::open::OpenArgs;
use super::time::TimeArgs;

/// Read a checkpoint once and compare it with all known checksums.
///
/// Sources of checksums, strongest first: a manifest (`tload-manifest.json` beside the checkpoint);
/// those in files of Tensorizer; the store's checksums of whole objects (S3, GCS); the Hugging Face
/// Hub or its cache; an OCI registry; and a `model.sig`, whose signature is not checked here. A
/// corrupt file does not keep the others from being checked.
///
/// The weights, their index and the files listed in the manifest are checked. Other files in the
/// directory, such as config.json or code, are not.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The exit status is 11 if anything is missing or does not match; else that of a file that could not
be read; else 7 if no digest of a shard is known; else 0. With --write, a manifest of
weights and index is made from the bytes read, unless they fail a comparison: status 0 then means
that it was written, even if no digest of the files was known (`unverified`).

JSON: {location, files: [{name, bytes, outcome, verified_by, silent, mismatches: [{tensor, range,
  by, expected, found}], error: {kind, message}, is_shard}], bytes, seconds, written,
  not_written: {kind, message}, notes}; `outcome` is
matches, differs, missing, extra, unverified or failed; `silent` says why authorities state no digest.")]
pub(crate) struct VerifyArgs {
    #[arg(value_name = "LOCATION", help = location::help("of a file, directory or index"))]
    pub(crate) location: OsString,
    /// Compare with the manifest at this path or URL
    #[arg(long, value_name = "MANIFEST")]
    pub(crate) manifest: Option<OsString>,
    /// Write a manifest of weights and index: beside the checkpoint, or to PATH, which may be the
    /// URL of an object
    #[arg(long, value_name = "PATH", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "absent, alone, or with a path")]
    pub(crate) write: Option<Option<PathBuf>>,
    /// Replace an existing manifest
    #[arg(long, requires = "write")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
}
