//! `tload cp`: copies a checkpoint into a directory, shows progress and prints a summary.

use std::io::{self, Write};
use std::time::Duration;

use tload::copy::{Copy, CopyControl, CopyReport};
use tload::{Error, ErrorKind, Location, Result, format_bytes, printable};

use crate::args::CopyArgs;
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};
use crate::output::progress::Progress;
use crate::output::quantity::{format_count, format_rate, format_seconds, rate};
use crate::output::verbosity;

pub(crate) fn run(args: &CopyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let source = options::location(&args.source)?;
    let copy = Copy::new(&source, &args.target)
        .options(options::copy(args))
        .store(options::store(&args.store)?);
    let control = copy.control();
    let outcome = watch(copy, &source, &control, (args.time.timeout, interrupt));
    let kept = control.progress().bytes_kept;
    if outcome.is_err() && kept > 0 {
        note(&format!(
            "{} are kept in {}: run the same command again to resume",
            format_bytes(kept),
            args.target.display()
        ));
    }
    let report = outcome?;
    if args.json {
        return interrupt.answer().give(out, &report);
    }
    if verbosity::shows_notes() {
        write_text(out, &report).map_err(standard_output)?;
    }
    Ok(())
}

/// Runs the copy until it ends, a signal arrives or the timeout expires, even if the storage does
/// not answer.
fn watch(
    copy: Copy,
    source: &Location,
    control: &CopyControl,
    (timeout, interrupt): (Option<Duration>, &Interrupt),
) -> Result<CopyReport> {
    let progress = Progress::for_bytes(0, "copying");
    let watch = Watch {
        interrupt,
        timeout,
        cancel: Some(&|| control.cancel()),
        redraw: &|| {
            let now = control.progress();
            progress.set_total(now.bytes_total);
            progress.set(now.bytes_done);
        },
        late: &|timeout| late(source, timeout, control),
    };
    watch.run(move || copy.run())
}

fn late(source: &Location, timeout: Duration, control: &CopyControl) -> Error {
    let now = control.progress();
    let far = match now.bytes_total {
        0 => "the source was still being listed".to_owned(),
        total => format!(
            "{} of {} had been copied",
            format_bytes(now.bytes_done),
            format_bytes(total)
        ),
    };
    let message = format!("the copy took longer than its timeout of {timeout:?}; {far}");
    Error::new(ErrorKind::TimedOut, message)
        .with_location(source)
        .with_hint("raise ‹timeout›, or check the storage: tload doctor LOCATION")
}

fn write_text(out: &mut dyn Write, report: &CopyReport) -> io::Result<()> {
    write!(
        out,
        "{}: {} copied, {} in {} ({})",
        printable(&report.target),
        format_count(report.copied_files, "file"),
        format_bytes(report.copied_bytes),
        format_seconds(report.seconds),
        format_rate(rate(report.copied_bytes, report.seconds)),
    )?;
    if report.resumed_bytes > 0 {
        write!(out, "; {} resumed", format_bytes(report.resumed_bytes))?;
    }
    if report.skipped_files > 0 {
        let files = format_count(report.skipped_files, "file");
        write!(
            out,
            "; {files} skipped, {}",
            format_bytes(report.skipped_bytes)
        )?;
    }
    if report.requests > 0 {
        let requests = format_count(report.requests, "request");
        write!(out, "; {requests}, {} retried", report.retries)?;
    }
    if report.unversioned_files > 0 {
        let files = format_count(report.unversioned_files, "file");
        write!(out, "; {files} with neither ETag nor Last-Modified")?;
    }
    writeln!(out)
}
