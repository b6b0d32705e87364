//! `tload verify`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::links::LinkArgs;
use super::store::StoreArgs;
use super::time::TimeArgs;

/// Read a checkpoint once and compare it with every checksum that is known of it.
///
/// Known are, the strongest first: those of a manifest (`tload-manifest.json` beside the checkpoint), the store's own of whole
/// objects (S3, GCS), what the Hugging Face Hub or its cache says of files, and the digests of a `model.sig`, whose signature is not
/// checked here. A file that is bad does not keep the others from being looked at.
///
/// The files are those with weights, their index, and what a manifest that is compared with lists. Others in the folder, such as
/// config.json or code, are not looked at.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The status is 11 if anything is not as expected, or missing; else that of a file that could not be
read; else 7 if there was nothing to compare a shard with; else 0. With --write a manifest of
weights and index is made of what was read, unless something of it is not as expected: status 0
means it was written, also where nobody knows what the files should be (`unverified`).

JSON: {location, files: [{name, bytes, outcome, verified_by, silent, mismatches: [{tensor, range,
  by, expected, found}], error: {kind, message}, is_shard}], bytes, seconds, written,
  not_written: {kind, message}, notes}; `outcome` is
matches, differs, missing, extra, unverified or failed; `silent` says who had nothing to say.")]
pub(crate) struct VerifyArgs {
    /// Path or URL (file, s3, gs, az, abfss, http, https, hf) of a file, directory or index
    #[arg(value_name = "LOCATION")]
    pub(crate) location: OsString,
    /// Compare with the manifest at this path or URL
    #[arg(long, value_name = "MANIFEST")]
    pub(crate) manifest: Option<OsString>,
    /// Write a manifest of weights and index: beside the checkpoint, or to PATH
    #[arg(long, value_name = "PATH", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "not there, alone, or with a path")]
    pub(crate) write: Option<Option<PathBuf>>,
    /// Replace a manifest that is there
    #[arg(long, requires = "write")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) links: LinkArgs,
}
