//! `tload exec`: becomes a command, beside a process that reads ahead.

use std::ffi::OsString;

use tload::Result;

use super::cache::waiting;
use crate::args::ExecArgs;
use crate::exit;
use crate::options;
use crate::output::error::{chain, note, warn};

const NOTHING: &str = "warning: tload exec: nothing is read ahead";

/// Becomes the command of `args`, or returns the exit status of the failure. If this process is the
/// one that reads ahead (`is_reader`), does that instead.
pub(crate) fn run(args: &ExecArgs, arguments: &[OsString], is_reader: bool) -> u8 {
    if is_reader {
        match read_ahead(args) {
            Ok(None) => {}
            Ok(Some(text)) => note(&format!("tload exec: {text}")),
            Err(error) => warn(&format!(
                "{NOTHING}: {}",
                chain(&error).replace("\n  ", "; ")
            )),
        }
        return exit::SUCCESS;
    }
    let cache = args.opening.store.of_cache();
    let refused = |error: &_| warn(&format!("{NOTHING}: {error}"));
    let failed = tload_prefetch::launch(arguments, &args.command, cache, refused);
    warn(&format!("error: {failed}"));
    failed.status
}

fn read_ahead(args: &ExecArgs) -> Result<Option<String>> {
    let location = options::location(&args.prefetch)?;
    let opening = match location.as_path() {
        Some(_) => args.opening.clone(),
        None => waiting(&args.opening, &location)?,
    };
    let store = options::store(&opening.store, Some(&location))?;
    tload_prefetch::read_ahead(&location, options::opening(store, &opening)?)
}
