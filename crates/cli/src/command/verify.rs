//! `tload verify`: compares a checkpoint with its known checksums, shows progress and prints a
//! result for each file.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use tload::copy::SmallObject;
use tload::verify::{FileOutcome, MANIFEST_NAME, ManifestTarget, Verification, VerifyReport};
use tload::{Error, Location, Result};

use super::local_path::require_local;
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
    let object = if let Some(target) = manifest_object(args, &location)? {
        let object = SmallObject::open(&target, &store, args.force)?;
        let path = interrupt.temporary(temporary_path());
        how.write = Some(ManifestTarget::Path(path.path().to_owned()));
        Some((target, object, path))
    } else {
        let paths = args.write.iter().flatten();
        paths.into_iter().try_for_each(|path| require_local(path))?;
        None
    };
    let verification = Verification::new(&location)
        .options(how)
        .opening(options::opening(store, &args.opening)?);
    let mut report = watch(verification, args.time.timeout, interrupt)?;
    if let (Some((target, object, path)), Some(written)) = (object, &mut report.written) {
        let text = fs::read(path.path());
        object.put(&text.map_err(|error| Error::from_io("cannot read the manifest", error))?)?;
        *written = target.to_string();
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

/// Returns the object that a manifest is written to, if that is in a store.
fn manifest_object(args: &VerifyArgs, location: &Location) -> Result<Option<Location>> {
    match &args.write {
        None => Ok(None),
        Some(Some(path)) => options::upload_target(path),
        Some(None) => {
            let is_file = location.has_extension("safetensors") || location.has_extension("json");
            let folder = if is_file {
                location.parent()
            } else {
                location.clone()
            };
            let is_store = options::is_writable_store(location);
            Ok(is_store.then(|| folder.join(MANIFEST_NAME)))
        }
    }
}

/// Returns a path where nothing is yet.
fn temporary_path() -> PathBuf {
    let random = RandomState::new().hash_one(std::process::id());
    std::env::temp_dir().join(format!("tload-manifest-{random:016x}.json"))
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
