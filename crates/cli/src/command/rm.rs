//! `tload rm --incomplete`: removes what writes have left, and prints what it was.

use std::io::Write;

use tload::Result;
use tload::write::remove_incomplete;

use crate::args::RmArgs;
use crate::options;
use crate::output::error::standard_output;

pub(crate) fn run(args: &RmArgs, out: &mut dyn Write) -> Result<()> {
    let location = options::location(&args.location)?;
    let store = options::store(&args.store, Some(&location))?;
    for leftover in remove_incomplete(&location, &store)? {
        let state = if leftover.removed {
            "removed"
        } else {
            "in use"
        };
        writeln!(out, "{state:8} {}", leftover.location).map_err(standard_output)?;
    }
    Ok(())
}
