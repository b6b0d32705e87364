//! `--follow-symlinks`: where links of a checkpoint may lead.

use clap::builder::BoolishValueParser;

#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Let symbolic links lead out of the checkpoint's folder. Files that are named one by one, links in a hub's cache and
    /// links to the folder itself need no leave
    #[arg(
        long,
        env = "TLOAD_FOLLOW_SYMLINKS",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub(crate) follow_symlinks: bool,
}
