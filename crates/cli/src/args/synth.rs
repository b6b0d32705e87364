//! `tload synth`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::store::{StoreArgs, without_cache};

/// Write a realistic checkpoint of random numbers.
///
/// Names, dtypes and shapes are those of real models. The same seed gives the same bytes,
/// regardless of the number of shards. The files are flushed and dropped from the page cache, so
/// their first load is cold. A prefix of an object store gets the same tensors, in files as
/// `tload.save` writes them, all or none.
#[derive(Debug, clap::Args)]
#[command(mut_args(without_cache))]
pub(crate) struct SynthArgs {
    /// Directory to write to, created if it does not exist, or prefix of an object store
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Write even if the directory is not empty, and replace the checkpoint in it
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Shape of a synthetic checkpoint; shared with `tload bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Total bytes of the tensors, accurate to 2 % [default: 4GiB, tiny: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = tload::internal::parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Model to imitate
    #[arg(long, value_enum, default_value_t = PresetArg::Llama)]
    pub(crate) preset: PresetArg,
    /// Number of files [default: one per GiB, at most 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9999))]
    pub(crate) shards: Option<u32>,
    /// Seed of the random numbers
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PresetArg {
    /// A dense model in BF16: few tensors, large ones among them
    Llama,
    /// A mixture of experts in F8_E4M3 with scales: thousands of small tensors
    Moe,
    /// Every dtype of whole bytes; scalars, empty and odd-sized tensors
    Tiny,
}
