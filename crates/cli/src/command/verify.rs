//! `tload verify`: compares a checkpoint with its known checksums, shows progress and prints a
//! result for each file.

use std::io::{self, Write};
use std::time::Duration;

use tload::verify::{FileReport, Mismatch, Verification, VerifyControl, VerifyReport};
use tload::{Error, ErrorKind, Location, Result, format_bytes, printable};

use crate::args::VerifyArgs;
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{chain, note as print_note, standard_output};
use crate::output::failure::Outcome;
use crate::output::progress::Progress;
use crate::output::quantity::{format_count, format_rate, format_seconds, rate};
use crate::output::style;
use crate::output::table::{Align, render};

pub(crate) fn run(args: &VerifyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let location = options::location(&args.location)?;
    let store = options::store_within(&args.store, args.time.timeout)?;
    let verification = Verification::new(&location)
        .options(options::verify(args)?)
        .opening(options::opening(store, &args.links));
    let report = watch(verification, &location, args.time.timeout, interrupt)?;
    let error = report.error();
    if args.json {
        let failure = error.as_ref().map(|error| interrupt.failure(error));
        let outcome = Outcome::new(&report, failure);
        interrupt.answer().give(out, &outcome)?;
    } else {
        write_text(out, &report).map_err(standard_output)?;
        // Before the error, which goes to standard error.
        out.flush().map_err(standard_output)?;
    }
    error.map_or(Ok(()), Err)
}

/// Runs the verification until it ends, a signal arrives or the timeout expires, even if the
/// storage does not answer.
fn watch(
    verification: Verification,
    location: &Location,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<VerifyReport> {
    let control = verification.control();
    let progress = Progress::for_bytes(0, "verifying");
    let watch = Watch {
        interrupt,
        timeout,
        cancel: Some(&|| control.cancel()),
        redraw: &|| {
            let now = control.progress();
            progress.set_total(now.bytes_total);
            progress.set(now.bytes_done);
        },
        late: &|timeout| late(location, timeout, &control),
    };
    watch.run(move || verification.run())
}

fn late(location: &Location, timeout: Duration, control: &VerifyControl) -> Error {
    let now = control.progress();
    let far = match now.bytes_total {
        0 => "its files were still being opened".to_owned(),
        total => format!(
            "{} of {} had been read",
            format_bytes(now.bytes_done),
            format_bytes(total)
        ),
    };
    let message = format!("verifying took longer than its timeout of {timeout:?}; {far}");
    Error::new(ErrorKind::TimedOut, message)
        .with_location(location)
        .with_hint("raise ‹timeout›, or check the storage: tload doctor LOCATION")
}

fn write_text(out: &mut dyn Write, report: &VerifyReport) -> io::Result<()> {
    let header = [
        ("file", Align::Left),
        ("size", Align::Right),
        ("verified by", Align::Left),
        ("result", Align::Left),
    ];
    let rows = report.files.iter().map(row);
    write!(out, "{}", style::outcomes(&render(&header, rows)))?;
    for file in &report.files {
        let name = printable(&file.name);
        for mismatch in &file.mismatches {
            writeln!(out, "{name}: {}", shown(mismatch))?;
        }
        if let Some(error) = &file.error {
            writeln!(out, "{name}: {}", chain(&error.error()))?;
        }
        if file.verified_by.is_empty() && file.bytes.is_some() {
            print_note(&format!("{name}: {}", file.silent.join("; ")));
        }
    }
    for note in &report.notes {
        print_note(note);
    }
    let done = if report.bytes == 0 && report.files.iter().all(|file| file.verified_by.is_empty()) {
        "nothing compared".to_owned()
    } else {
        format!(
            "{} in {} ({})",
            format_bytes(report.bytes),
            format_seconds(report.seconds),
            format_rate(rate(report.bytes, report.seconds)),
        )
    };
    let files = format_count(report.files.len() as u64, "file");
    writeln!(out, "{}: {files}, {done}", report.location)?;
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
