//! `tload rm --incomplete`: removes what writes have left, and prints what it was.

use std::io::Write;

use tload::Result;
use tload::write::remove_incomplete;

use crate::args::RmArgs;
use crate::options;
use crate::output::error::standard_output;
use crate::output::verbosity;

pub(crate) fn run(args: &RmArgs, out: &mut dyn Write) -> Result<()> {
    let location = options::location(&args.location)?;
    let store = options::store(&args.store, Some(&location))?;
    let left = remove_incomplete(&location, &store)?;
    let left = left.into_iter().map(|it| (it.removed, it.location));
    // Files and directories in progress of killed commands, such as `seal`.
    let partial = location.as_path().map(tload_partial::remove_leftovers);
    let partial = partial.into_iter().flatten();
    let partial = partial.map(|path| (true, path.display().to_string()));
    let left: Vec<_> = left.chain(partial).collect();
    if left.is_empty() && verbosity::shows_notes() {
        return writeln!(out, "{location}: nothing to remove").map_err(standard_output);
    }
    for (removed, location) in left {
        let state = if removed { "removed" } else { "in use" };
        writeln!(out, "{state:8} {location}").map_err(standard_output)?;
    }
    Ok(())
}
