//! `tload diff` and `tload apply`: make and apply patches, show progress and print a summary.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use tload::{Checkpoint, Result};
use tload_delta::{Control, Patch, Summary};

use super::local_path::require_local;
use super::open::open;
use crate::args::{ApplyArgs, DeltaArgs, DiffArgs};
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::output::error::standard_output;
use crate::output::progress::Progress;
use crate::output::verbosity;

pub(crate) fn diff(args: &DiffArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let [base, new] = both([&args.base, &args.new], &args.shared, interrupt)?;
    watch(&args.shared, interrupt, out, move |path, control| {
        tload_delta::diff(&base, &new, path, control)
    })
}

pub(crate) fn apply(args: &ApplyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let [base, patch] = both([&args.base, &args.patch], &args.shared, interrupt)?;
    watch(&args.shared, interrupt, out, move |path, control| {
        tload_delta::apply(&base, &Patch::open(&patch)?, path, control)
    })
}

/// Opens two checkpoints, once it is known that the result can be written.
fn both(at: [&OsStr; 2], args: &DeltaArgs, interrupt: &Interrupt) -> Result<[Checkpoint; 2]> {
    require_local(&args.out)?;
    let open = |location| open(location, &args.opening, args.time.timeout, interrupt);
    Ok([open(at[0])?, open(at[1])?])
}

/// Runs a task until it ends, a signal arrives or the timeout expires, and prints its summary.
fn watch(
    args: &DeltaArgs,
    interrupt: &Interrupt,
    out: &mut dyn Write,
    task: impl FnOnce(&Path, &Control) -> Result<Summary> + Send + 'static,
) -> Result<()> {
    // A task that waits for storage does not remove it.
    let _temporary = interrupt.temporary(tload_delta::temporary(&args.out));
    let control = Control::default();
    let progress = Progress::for_bytes(0, "comparing");
    let watch = Watch {
        interrupt,
        timeout: args.time.timeout,
        cancel: Some(&|| control.cancel()),
        redraw: &|| {
            progress.set_total(control.bytes_total());
            progress.set(control.bytes_done());
        },
        late: &|timeout| control.timed_out(timeout),
    };
    let (path, shared) = (args.out.clone(), control.clone());
    let summary = watch.run(move || task(&path, &shared))?;
    if args.json {
        return interrupt.answer().give(out, &summary);
    }
    let shown = verbosity::shows_notes().then(|| writeln!(out, "{summary}"));
    shown.unwrap_or(Ok(())).map_err(standard_output)
}
