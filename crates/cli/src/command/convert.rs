//! `tload convert`: writes a file of Tensorizer as safetensors, shows progress and prints a
//! summary.

use std::io::Write;
use std::path::Path;

use tload::internal::{format_bytes, format_rate, printable};
use tload::{Error, Result};
use tload_migrate::{Convert, Secret, key_of, passphrase_of};

use super::local_path::require_local;
use crate::args::ConvertArgs;
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{note, standard_output};
use crate::output::progress::Progress;
use crate::output::verbosity;
use tload_quantity::{format_count, format_seconds, rate};

pub(crate) fn run(args: &ConvertArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    require_local(&args.target)?;
    let location = options::location(&args.source)?;
    let store = options::store(&args.store, Some(&location))?;
    let store = options::within(args.time.timeout, store)?;
    let convert = Convert::new(location, args.target.clone())
        .opening(store)
        .secret(secret(args)?)
        .force(args.force);
    // A task that waits for storage does not remove it.
    let _temporary = interrupt.temporary(tload_migrate::temporary(&args.target));
    let control = convert.control();
    let progress = Progress::for_bytes(0, "converting");
    let cancel = || control.cancel();
    let watch = Watch {
        interrupt,
        timeout: args.time.timeout,
        cancel: Some(&cancel),
        redraw: &|| {
            let now = control.progress();
            progress.set_total(now.bytes_total);
            progress.set(now.bytes_done);
        },
        late: &|timeout| control.timed_out(timeout),
    };
    let converted = watch.run(move || convert.run())?;
    drop(progress);
    for name in &converted.zeros {
        note(&format!("{name:?} has no bytes in the file: wrote zeros"));
    }
    if args.json {
        return interrupt.answer().give(out, &converted);
    }
    if !verbosity::shows_notes() {
        return Ok(());
    }
    writeln!(
        out,
        "{}: {}{}, {} in {} ({})",
        printable(&converted.path),
        format_count(converted.tensors as u64, "tensor"),
        if converted.decrypted {
            " decrypted"
        } else {
            ""
        },
        format_bytes(converted.bytes),
        format_seconds(converted.seconds),
        format_rate(rate(converted.bytes, converted.seconds)),
    )
    .map_err(standard_output)
}

/// Reads the key or passphrase.
fn secret(args: &ConvertArgs) -> Result<Option<Secret>> {
    let of = |path: &Path, parse: fn(&[u8]) -> Result<Secret>| {
        let contents = tload_migrate::read_secret(path)?;
        parse(&contents).map_err(|error: Error| error.with_location(path.display()))
    };
    match (&args.key_file, &args.passphrase_file) {
        (Some(path), _) => of(path, key_of).map(Some),
        (None, Some(path)) => of(path, passphrase_of).map(Some),
        (None, None) => Ok(None),
    }
}
