//! Arguments of every command that opens checkpoints: options of stores, keys, and
//! symbolic links.

use clap::builder::BoolishValueParser;
use serde::{Deserialize, Serialize};

use super::key::KeyArgs;
use super::store::StoreArgs;

#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct OpenArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// Allow symbolic links to lead out of the checkpoint's directory. Not needed for files listed
    /// explicitly, links inside a Hub cache, or a linked root directory
    #[arg(
        long,
        env = "TLOAD_FOLLOW_SYMLINKS",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub(crate) follow_symlinks: bool,
}
