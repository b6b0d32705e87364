//! `tload diff` and `tload apply`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::time::TimeArgs;
use super::{OpenArgs, location};

/// Write what differs between two checkpoints as a patch, for `tload apply`.
///
/// The patch is one safetensors file. Of a tensor in which few elements differ it has their
/// positions and new values (NAME.indices and NAME.values), of another its new bytes. It names the
/// SHA-256 of every tensor before and after. Other files, such as config.json, are not compared.
///
/// Both checkpoints are read once, a few pieces at a time; of patches above 1 GiB, changed tensors
/// are read again.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_HELP)]
pub(crate) struct DiffArgs {
    #[arg(value_name = "BASE", help = location::help("of the checkpoint that readers have"))]
    pub(crate) base: OsString,
    #[arg(value_name = "NEW", help = location::help("of the checkpoint that they should have"))]
    pub(crate) new: OsString,
    #[command(flatten)]
    pub(crate) shared: DeltaArgs,
}

/// Write the checkpoint that a patch of `tload diff` makes of its base.
///
/// Its files are byte for byte those that the patch was made from. Every tensor of the base, and of
/// the result, must have the SHA-256 that the patch names. OUT appears when all of it is written:
/// an error, Ctrl-C or a full disk leaves nothing behind, and BASE is never changed. Files that are
/// no weights, such as config.json, are not in a patch: `tload cp` copies them.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_HELP)]
pub(crate) struct ApplyArgs {
    #[arg(value_name = "BASE", help = location::help("of the checkpoint that the patch was made for"))]
    pub(crate) base: OsString,
    #[arg(value_name = "PATCH", help = location::help("of the patch"))]
    pub(crate) patch: OsString,
    #[command(flatten)]
    pub(crate) shared: DeltaArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DeltaArgs {
    /// Patch (diff) or directory (apply) to write, which must not exist
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
}

const JSON_HELP: &str = "\
The exit status is 11 if BASE is not what the patch was made for, or if values of the patch are
damaged, and 4 if it is no patch or contradicts itself.

JSON: {tensors, sparse, whole, removed, elements, total_bytes, patch_bytes}; `sparse` tensors differ
in `elements` elements, `whole` ones are in the patch as a whole, `removed` ones are only in BASE.";
