//! `tload rm`.

use std::ffi::OsString;

use super::location;
use super::store::{StoreArgs, without_cache};

/// Remove what writes of a checkpoint have left: files of killed writers, and replaced checkpoints.
///
/// Writers replace a checkpoint at once, and keep the old one, because programs may still read it.
/// Files of a writer that runs are not removed. Those of a killed `synth` are in the directory
/// itself: `synth --force` removes them.
#[derive(Debug, clap::Args)]
#[command(mut_args(without_cache))]
pub(crate) struct RmArgs {
    #[arg(value_name = "LOCATION", help = location::help("that was written"))]
    pub(crate) location: OsString,
    /// Remove leftovers; the only thing that this command removes
    #[arg(long, required = true)]
    pub(crate) incomplete: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
