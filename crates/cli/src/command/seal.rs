//! `tload seal`, `tload unseal`, `tload rekey`.

use std::io::Write;
use std::path::Path;

use tload::internal::format_bytes;
use tload::sealed::{self, Algorithm, Recipients, SealOptions, WrittenCheckpoint};
use tload::{Error, Key, Result};

use super::local_path::require_local;
use crate::args::{CipherArg, KeyArgs, RecipientArgs, RekeyArgs, SealArgs, UnsealArgs};
use crate::options;
use crate::output::error::standard_output;
use crate::output::verbosity;
use tload_quantity::format_count;

pub(crate) fn seal(args: &SealArgs, out: &mut dyn Write) -> Result<()> {
    require_local(&args.to)?;
    let algorithm = match args.cipher {
        CipherArg::Aes256 => Algorithm::Aes256,
        CipherArg::Aes128 => Algorithm::Aes128,
    };
    let key = match &args.new_key_file {
        Some(path) => {
            sealed::write_new_key(algorithm, path)?;
            Some(Key::from_file(path))
        }
        None => options::key(&args.key)?,
    };
    let from = options::location(&args.from)?;
    let store = options::store(&args.store, Some(&from))?;
    let how = SealOptions {
        algorithm,
        recipients: recipients(&args.recipients)?,
        key,
        plain: args.plain.clone(),
    };
    let written = sealed::seal(&from, &store, &args.to, &how)?;
    tell("sealed", &args.to, &written, out)
}

pub(crate) fn unseal(args: &UnsealArgs, out: &mut dyn Write) -> Result<()> {
    require_local(&args.to)?;
    let from = options::location(&args.from)?;
    let store = options::store(&args.store, Some(&from))?;
    let written = sealed::unseal(&from, &store, &given(&args.key)?, &args.to)?;
    tell("unsealed", &args.to, &written, out)
}

pub(crate) fn rekey(args: &RekeyArgs) -> Result<()> {
    require_local(&args.directory)?;
    let key = given(&args.key)?;
    sealed::rekey(&args.directory, &key, &recipients(&args.recipients)?)
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
        "{}: {what} {}, {} ({} bytes)",
        to.display(),
        format_count(written.files as u64, "file"),
        format_bytes(written.bytes),
        written.bytes,
    )
    .map_err(standard_output)
}
