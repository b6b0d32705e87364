//! `tload exec`.

use std::ffi::OsString;

use super::{OpenArgs, location};

/// Run a command, and read what it will load while it starts.
///
/// Reads objects of stores into the cache, which the command has to use too (--cache-dir sets it
/// for both), and files into the page cache. Stops when a load with tload begins, when memory is
/// short, and when the command ends.
///
/// The command takes the place of this process: signals, terminal and exit status are its own. A
/// failure to read ahead is one line on standard error, and the command runs all the same. The exit
/// status is 127 if the command is not found, and 126 if it cannot be started.
///
/// Files take at most half of the memory that is available, and nothing is read if less than an
/// eighth of all memory is.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    #[arg(long, value_name = "LOCATION", help = location::help("of what the command will load"))]
    pub(crate) prefetch: OsString,
    #[command(flatten)]
    pub(crate) opening: OpenArgs,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
