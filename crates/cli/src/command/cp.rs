//! `tload cp`: copies a checkpoint into a directory or a store, shows progress, prints a summary.

use std::cell::Cell;
use std::io::{self, Write};
use std::time::Duration;

use tload::Result;
use tload::copy::{CopyAction, CopyControl, CopyJob, CopyPlan, CopyReport, UploadJob};
use tload::internal::{format_bytes, format_rate, printable};

use crate::args::CopyArgs;
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};
use crate::output::progress::Progress;
use crate::output::table::{Align, render};
use crate::output::verbosity;
use tload_quantity::{format_count, format_seconds, rate};

pub(crate) fn run(args: &CopyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let source = options::location(&args.source)?;
    let store = options::store(&args.store, Some(&source))?;
    let timeout = args.time.timeout;
    let report = if let Some(target) = options::upload_target(&args.target)? {
        let copy = UploadJob::new(source.clone(), target.clone()).options(options::copy(args));
        let target_store = options::target_store(args, &source, &target)?;
        let copy = copy.store(store).target_store(target_store);
        let control = copy.control();
        watch(move || copy.run(), &control, timeout, interrupt)?
    } else {
        let copy = CopyJob::new(&source, &args.target).options(options::copy(args));
        let copy = copy.store(store);
        let control = copy.control();
        watch(move || copy.run(), &control, timeout, interrupt)?
    };
    note_unusable(&report, args.skip_unusable);
    if args.json {
        return interrupt.answer().give(out, &report);
    }
    match &report.plan {
        Some(plan) => write_plan(out, &report, plan).map_err(standard_output),
        None if verbosity::shows_notes() => write_text(out, &report).map_err(standard_output),
        None => Ok(()),
    }
}

/// Names what was left out because it cannot be the name of a file.
fn note_unusable(report: &CopyReport, is_accepted: bool) {
    let would = if report.plan.is_some() && !is_accepted {
        ": this copy would fail at its end (--skip-unusable)"
    } else {
        ""
    };
    for name in &report.unusable {
        note(&format!(
            "{name:?} cannot be the name of a file, and is left out{would}"
        ));
    }
}

/// Runs the copy until it ends, a signal arrives or the timeout expires, even if the storage does
/// not answer.
fn watch(
    copy: impl FnOnce() -> Result<CopyReport> + Send + 'static,
    control: &CopyControl,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<CopyReport> {
    let progress = Progress::for_bytes(0, "copying");
    let is_late = Cell::new(false);
    let cancel = || control.cancel();
    let watch = Watch {
        interrupt,
        timeout,
        cancel: Some(&cancel),
        redraw: &|| {
            let now = control.progress();
            progress.set_total(now.bytes_total);
            progress.set(now.bytes_done);
        },
        late: &|timeout| {
            is_late.set(true);
            control.timed_out(timeout)
        },
    };
    let outcome = watch.run(copy);
    let kept = control.progress().bytes_kept;
    // The error for an expired timeout tells it.
    if outcome.is_err() && kept > 0 && !is_late.get() {
        let kept = format_bytes(kept);
        note(&format!(
            "{kept} are kept: run the same command again to resume"
        ));
    }
    outcome
}

fn write_plan(out: &mut dyn Write, report: &CopyReport, plan: &CopyPlan) -> io::Result<()> {
    let header = [
        ("action", Align::Left),
        ("size", Align::Right),
        ("to read", Align::Right),
        ("file", Align::Left),
    ];
    let rows = plan.files.iter().map(|file| {
        let missing = if file.action == CopyAction::Skip {
            0
        } else {
            file.bytes - file.resumed_bytes
        };
        vec![
            file.action.name().to_owned(),
            format_bytes(file.bytes),
            format_bytes(missing),
            file.name.clone(),
        ]
    });
    write!(out, "{}", render(&header, rows))?;
    let space = if plan.free_bytes.is_some() {
        "disk space"
    } else {
        "space"
    };
    let free = plan.free_bytes.map_or_else(String::new, |free| {
        format!(" ({} are free)", format_bytes(free))
    });
    writeln!(
        out,
        "{}: {} would be copied, {} read, {} skipped; needs {} of {space}{free}",
        printable(&report.target),
        format_count(report.copied_files, "file"),
        format_bytes(report.copied_bytes),
        format_count(report.skipped_files, "file"),
        format_bytes(plan.needed_bytes),
    )?;
    if plan.lacks_space() {
        note("the target has too little free space: this copy would fail");
    }
    Ok(())
}

fn write_text(out: &mut dyn Write, report: &CopyReport) -> io::Result<()> {
    write!(out, "{}: ", printable(&report.target))?;
    if report.copied_files == 0 && report.skipped_files > 0 {
        write!(out, "nothing to copy")?;
    } else {
        write!(
            out,
            "{} copied, {} in {} ({})",
            format_count(report.copied_files, "file"),
            format_bytes(report.copied_bytes),
            format_seconds(report.seconds),
            format_rate(rate(report.copied_bytes, report.seconds)),
        )?;
    }
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
