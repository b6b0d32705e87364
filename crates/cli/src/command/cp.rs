//! `tload cp`: copies a checkpoint into a directory, shows how far it is, and says what it did.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use tload::copy::{Copy, CopyControl, CopyReport};
use tload::{Result, format_bytes, printable};

use crate::args::CopyArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::output::json;
use crate::output::progress::Progress;
use crate::output::quantity::{format_count, format_rate, format_seconds, rate};

/// How often the bar moves.
const REDRAW: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &CopyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let copy = Copy::new(&options::location(&args.source)?, &args.target)
        .options(options::copy(args))
        .store(options::store(&args.store)?);
    let control = copy.control();
    let outcome = watch(copy, &control, interrupt);
    let kept = control.progress().bytes_kept;
    if outcome.is_err() && kept > 0 {
        warn(&format!(
            "note: {} are kept in {}: the same command goes on from there",
            format_bytes(kept),
            args.target.display()
        ));
    }
    let report = outcome?;
    if args.json {
        json::write(out, &report)
    } else {
        write_text(out, &report)
    }
    .map_err(standard_output)
}

/// Runs the copy on a thread of its own, as a signal must end it whatever it waits for.
fn watch(copy: Copy, control: &CopyControl, interrupt: &Interrupt) -> Result<CopyReport> {
    let progress = Progress::of_bytes(0, "copying");
    thread::scope(|scope| {
        let copying = scope.spawn(|| copy.run());
        while !copying.is_finished() {
            if interrupt.wait(REDRAW).is_err() {
                control.cancel();
                break;
            }
            let now = control.progress();
            progress.set_total(now.bytes_total);
            progress.set(now.bytes_done);
        }
        copying
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
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
        write!(
            out,
            "; {} were there from before",
            format_bytes(report.resumed_bytes)
        )?;
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
        write!(out, "; {requests}, {} repeated", report.retries)?;
    }
    writeln!(out)
}
