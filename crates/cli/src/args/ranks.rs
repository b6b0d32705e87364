//! `--ranks` and `--shard` of `tload load` and `tload bench`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Load with N processes of this machine that share what they read, and print what each of them
    /// read and received. Linux only
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=128)
    )]
    pub(crate) ranks: Option<u8>,
    /// Tensors of each rank
    #[arg(
        long,
        value_enum,
        value_name = "SHARDING",
        default_value = "none",
        requires = "ranks"
    )]
    pub(crate) shard: ShardArg,
}

/// Division of the selected tensors among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum ShardArg {
    /// All tensors
    None,
    /// An equal slice of every tensor of two or more dimensions: of its first dimension if that can
    /// be divided by N, else of its second, else the whole tensor
    Tp,
    /// An equal share of the experts, by the number after "experts." in the name, and all other
    /// tensors
    Ep,
}
