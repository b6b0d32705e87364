//! `tload verify`: compares a checkpoint with its known checksums, shows progress and prints a
//! result for each file.

use std::io::{self, Write};
use std::time::Duration;

use tload::verify::{FileOutcome, ManifestObject, Verification, VerifyReport};
use tload::{Error, Result};

use crate::args::VerifyArgs;
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};
use crate::output::failure::Outcome;
use crate::output::progress::Progress;
use crate::output::style;
use tload_config::flag;

pub(crate) fn run(args: &VerifyArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let location = options::location(&args.location)?;
    let store = options::store(&args.opening.store, Some(&location))?;
    let store = options::within(args.time.timeout, store)?;
    let mut how = options::verify(args)?;
    let object = ManifestObject::open(&location, &mut how, &store)?;
    let verification = Verification::new(&location)
        .options(how)
        .opening(options::opening(store, &args.opening)?);
    let mut report = watch(verification, args.time.timeout, interrupt)?;
    if let Some(object) = object {
        object.finish(&mut report);
    }
    let error = report.error();
    let written = if args.json {
        let failure = error.as_ref().map(|error| interrupt.failure(error));
        let outcome = Outcome::new(&report, failure);
        interrupt.answer().give(out, &outcome)
    } else {
        // Flushed before the error, which goes to standard error.
        write_text(out, &report)
            .and_then(|()| out.flush())
            .map_err(standard_output)
    };
    // Even if the report cannot be written, the status must tell that a file differs.
    match error {
        None => written,
        // The text that was written shows the difference.
        Some(error) if !args.json && written.is_ok() => Err(without_difference(error, &report)),
        Some(error) => Err(error),
    }
}

/// Runs the verification until it ends, a signal arrives or the timeout expires, even if the
/// storage does not answer.
fn watch(
    verification: Verification,
    timeout: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<VerifyReport> {
    let control = verification.control();
    let progress = Progress::for_bytes(0, "verifying");
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
        late: &|timeout| control.timed_out(timeout),
    };
    watch.run(move || verification.run())
}

fn write_text(out: &mut dyn Write, report: &VerifyReport) -> io::Result<()> {
    write!(out, "{}", style::outcomes(&report.text_with(flag)))?;
    for remark in report.remarks() {
        note(&remark);
    }
    Ok(())
}

/// Shortens an error whose difference is printed already.
fn without_difference(error: Error, report: &VerifyReport) -> Error {
    if error.comparison().is_none() {
        return error;
    }
    let wrong = [
        FileOutcome::Differs,
        FileOutcome::Missing,
        FileOutcome::Extra,
    ];
    let files: usize = wrong.iter().map(|&outcome| report.count(outcome)).sum();
    let message = match files {
        1 => "does not match".to_owned(),
        files => format!("does not match, nor do {} more of its files", files - 1),
    };
    let short =
        Error::new(error.kind(), message).with_location(error.location().unwrap_or_default());
    match error.hint_with(flag) {
        Some(hint) => short.with_hint(hint),
        None => short,
    }
}
