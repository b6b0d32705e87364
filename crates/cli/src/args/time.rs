//! `--timeout` of commands other than `load`: a limit for the whole command.

use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct TimeArgs {
    /// Time limit for the whole command: 10 (seconds), 500ms, 30s, 2m [default: none]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = tload::internal::parse_duration,
        env = "TLOAD_TIMEOUT",
        default_value = super::configured::option("timeout"),
        hide_default_value = true,
        hide_env_values = true
    )]
    pub(crate) timeout: Option<Duration>,
}
