//! `tload ls`.

use std::ffi::OsString;

use clap::ValueEnum;

use super::location;
use super::open::OpenArgs;
use super::time::TimeArgs;
use super::tuning::SelectArgs;

/// List the tensors, dtypes, shapes, sizes and shards of checkpoints.
///
/// Reads headers only.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
JSON: {location, total: {tensors, bytes, shards}, dtypes: [{dtype, tensors, bytes}], metadata,
  shards: [{location, file_bytes, header_bytes, tensors}],
  tensors: [{name, dtype, shape, bytes, shard, offset}]}; an array of these for several locations.
`shard` is an index into `shards`; `offset` is in bytes from the start of its file. With --summary,
`largest` replaces `tensors`.")]
pub(crate) struct LsArgs {
    #[arg(
        value_name = "LOCATION",
        required = true,
        help = location::help("of a file, directory or index; repeatable")
    )]
    pub(crate) locations: Vec<OsString>,
    /// Order of the tensors
    #[arg(long, value_enum, value_name = "KEY", default_value = "offset")]
    pub(crate) sort: SortArg,
    /// Reverse the order
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Print the totals of dtypes and shards, and only the ten largest tensors
    #[arg(long, conflicts_with_all = ["sort", "reverse"])]
    pub(crate) summary: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
    #[command(flatten)]
    pub(crate) select: SelectArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// Shard, then position in its file
    Offset,
    /// Name, byte by byte
    Name,
    /// Size, largest first
    Size,
    /// Dtype, then as offset
    Dtype,
}
