//! `tload verify`: compares a checkpoint with what is known of it, shows how far it is, and says file by file what came of it.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use tload::verify::{FileReport, Mismatch, Verification, VerifyControl, VerifyReport};
use tload::{Result, format_bytes, printable};

use crate::args::VerifyArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::output::json;
use crate::output::progress::Progress;
use crate::output::quantity::{format_count, format_rate, format_seconds, rate};
use crate::output::table::{Align, render};

/// How often the bar moves.
const REDRAW: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &VerifyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let verification = Verification::new(&options::location(&args.location)?)
        .options(options::verify(args)?)
        .opening(options::opening(options::store(&args.store)?, &args.links));
    let control = verification.control();
    let report = watch(verification, &control, interrupt)?;
    if args.json {
        json::write(out, &report)
    } else {
        write_text(out, &report)
    }
    .map_err(standard_output)?;
    // Before the error, which goes another way.
    out.flush().map_err(standard_output)?;
    report.error().map_or(Ok(()), Err)
}

/// Runs it on a thread of its own, as a signal must end it whatever it waits for.
fn watch(
    verification: Verification,
    control: &VerifyControl,
    interrupt: &Interrupt,
) -> Result<VerifyReport> {
    let progress = Progress::of_bytes(0, "verifying");
    thread::scope(|scope| {
        let verifying = scope.spawn(|| verification.run());
        while !verifying.is_finished() {
            if interrupt.wait(REDRAW).is_err() {
                control.cancel();
                break;
            }
            let now = control.progress();
            progress.set_total(now.bytes_total);
            progress.set(now.bytes_done);
        }
        verifying
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn write_text(out: &mut dyn Write, report: &VerifyReport) -> io::Result<()> {
    let header = [
        ("file", Align::Left),
        ("size", Align::Right),
        ("verified by", Align::Left),
        ("result", Align::Left),
    ];
    let rows = report.files.iter().map(row);
    write!(out, "{}", render(&header, rows))?;
    for file in &report.files {
        let name = printable(&file.name);
        for mismatch in &file.mismatches {
            writeln!(out, "{name}: {}", shown(mismatch))?;
        }
        if let Some(error) = &file.error {
            writeln!(out, "{name}: {}", error.message)?;
        }
        if file.verified_by.is_empty() && file.bytes.is_some() {
            warn(&format!("note: {name}: {}", file.silent.join("; ")));
        }
    }
    writeln!(
        out,
        "{}: {}, {} in {} ({})",
        report.location,
        format_count(report.files.len() as u64, "file"),
        format_bytes(report.bytes),
        format_seconds(report.seconds),
        format_rate(rate(report.bytes, report.seconds)),
    )?;
    match &report.written {
        Some(path) => writeln!(out, "wrote {path}"),
        None => Ok(()),
    }
}

fn row(file: &FileReport) -> Vec<String> {
    let by: Vec<_> = file.verified_by.iter().map(|by| printable(by)).collect();
    vec![
        printable(&file.name),
        file.bytes.map_or_else(|| "-".to_owned(), format_bytes),
        if by.is_empty() {
            "-".to_owned()
        } else {
            by.join(", ")
        },
        file.outcome.to_string(),
    ]
}

fn shown(mismatch: &Mismatch) -> String {
    let tensor = mismatch.tensor.as_deref().map(printable);
    let tensor = tensor.map_or_else(String::new, |tensor| format!("tensor {tensor}, "));
    format!(
        "{tensor}bytes {}..{}: expected {} ({}), found {}",
        mismatch.range.start,
        mismatch.range.end,
        mismatch.expected,
        printable(&mismatch.by),
        mismatch.found
    )
}
