//! `tload seal`, `tload unseal`, `tload rekey`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tload::extend::CancelFlag;
use tload::internal::format_bytes;
use tload::sealed::{self, Algorithm, Recipients, SealOptions, WrittenCheckpoint};
use tload::{Error, Key, Result};

use super::local_path::{require_local, require_outside};
use crate::args::{CipherArg, KeyArgs, RecipientArgs, RekeyArgs, SealArgs, UnsealArgs};
use crate::deadline::Watch;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::standard_output;
use crate::output::verbosity;
use tload_quantity::format_count;

pub(crate) fn seal(args: &SealArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    require_local(&args.to)?;
    let was_there = exists(&args.to);
    let algorithm = match args.cipher {
        CipherArg::Aes256 => Algorithm::Aes256,
        CipherArg::Aes128 => Algorithm::Aes128,
    };
    let from = options::location(&args.from)?;
    require_outside(&from, &args.to)?;
    let store = options::store(&args.store, Some(&from))?;
    let recipients = recipients(&args.recipients)?;
    let key = match &args.new_key_file {
        Some(path) => {
            sealed::write_new_key(algorithm, path)?;
            Some(Key::from_file(path))
        }
        None if !recipients.is_empty() && options::is_key_set(&args.key) => {
            // With that of other checkpoints, the recipients could read those too.
            let message = "there are recipients, and a key for reading is set in the environment";
            return Err(Error::invalid_request(message)
                .with_hint("unset TLOAD_KEY, TLOAD_KEY_FILE and TLOAD_KEY_COMMAND: the checkpoint gets a data key of its own"));
        }
        None => options::key(&args.key)?,
    };
    let how = SealOptions {
        algorithm,
        recipients,
        key,
        plain: args.plain.clone(),
    };
    let written = watch(&args.to, interrupt, move |to, cancel| {
        sealed::seal(&from, &store, to, &how, cancel)
    });
    if let (Err(_), Some(path)) = (&written, &args.new_key_file)
        && (was_there || !exists(&args.to))
    {
        // Nothing is sealed with it, and the next try creates it again.
        let _ = fs::remove_file(path);
    }
    tell("sealed", &args.to, &written?, out)
}

pub(crate) fn unseal(args: &UnsealArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    require_local(&args.to)?;
    let from = options::location(&args.from)?;
    require_outside(&from, &args.to)?;
    let store = options::store(&args.store, Some(&from))?;
    let key = given(&args.key)?;
    let written = watch(&args.to, interrupt, move |to, cancel| {
        sealed::unseal(&from, &store, &key, to, cancel)
    })?;
    tell("unsealed", &args.to, &written, out)
}

pub(crate) fn rekey(args: &RekeyArgs, out: &mut dyn Write) -> Result<()> {
    require_local(&args.directory)?;
    let key = given(&args.key)?;
    sealed::rekey(&args.directory, &key, &recipients(&args.recipients)?)?;
    if !verbosity::shows_notes() {
        return Ok(());
    }
    writeln!(out, "{}: rekeyed", args.directory.display()).map_err(standard_output)
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Runs a task that writes the directory `to`, until it ends or a signal arrives.
fn watch(
    to: &Path,
    interrupt: &Interrupt,
    task: impl FnOnce(&Path, &CancelFlag) -> Result<WrittenCheckpoint> + Send + 'static,
) -> Result<WrittenCheckpoint> {
    // A task that waits for storage does not remove it.
    let _temporary = interrupt.temporary(tload_partial::beside(to));
    let cancel = Arc::<CancelFlag>::default();
    let watch = Watch {
        interrupt,
        timeout: None,
        cancel: Some(&|| cancel.cancel()),
        redraw: &|| {},
        late: &|_| unreachable!("it has no timeout"),
    };
    let (to, flag): (PathBuf, _) = (to.to_owned(), Arc::clone(&cancel));
    watch.run(move || task(&to, &flag))
}

fn given(args: &KeyArgs) -> Result<Key> {
    options::key(args)?.ok_or_else(|| {
        Error::invalid_request("no key was given")
            .with_hint("pass --key-file or --key-command, or set TLOAD_KEY")
    })
}

fn recipients(args: &RecipientArgs) -> Result<Recipients> {
    let mut recipients = Recipients::new();
    for recipient in &args.recipient {
        recipients.add(recipient)?;
    }
    for path in &args.recipients_file {
        recipients.add_file(path)?;
    }
    Ok(recipients)
}

fn tell(what: &str, to: &Path, written: &WrittenCheckpoint, out: &mut dyn Write) -> Result<()> {
    if !verbosity::shows_notes() {
        return Ok(());
    }
    writeln!(
        out,
        "{}: {what} {}, {}",
        to.display(),
        format_count(written.files as u64, "file"),
        format_bytes(written.bytes),
    )
    .map_err(standard_output)
}
