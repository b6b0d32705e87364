//! Arguments of every command that opens checkpoints: options of stores, and symbolic links.

use clap::Arg;
use clap::builder::{BoolishValueParser, Resettable, TypedValueParser};
use serde::{Deserialize, Serialize};

use super::store::StoreArgs;

#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct OpenArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
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

/// Makes a command that opens one file refuse `--follow-symlinks`.
pub(super) fn without_links(flag: Arg) -> Arg {
    let refuse = BoolishValueParser::new().try_map(|is_set| {
        let refused = "this command opens one file, also if it is a link to another directory";
        if is_set { Err(refused) } else { Ok(is_set) }
    });
    flag.hide(true).env(Resettable::Reset).value_parser(refuse)
}
