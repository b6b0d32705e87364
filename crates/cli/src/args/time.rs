//! `--timeout` of commands that are no load: how long the whole command may take.

use std::time::Duration;

use super::sizes;

#[derive(Debug, clap::Args)]
pub(crate) struct TimeArgs {
    /// Give up when all of it takes longer: 10 (seconds), 500ms, 30s, 2m [default: none]
    #[arg(long, value_name = "TIME", value_parser = sizes::duration, env = "TLOAD_TIMEOUT", hide_env_values = true)]
    pub(crate) timeout: Option<Duration>,
}
