//! Keys: the contents of their files, and one for each tensor, since each may have a derivation of
//! its own.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::path::Path;

use tload_boxed::DERIVED_MAX;
use tload_tensorizer::{DecryptError, Derivation, Encryption, Key, Secret};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Location;
use crate::storage::cannot_open;
use crate::sync::lock::Mutex;

/// Longest file with a key or passphrase, bytes.
const SECRET_BYTES_MAX: usize = 1 << 16;

/// Keys of one file.
pub(crate) struct Keys<'a> {
    secret: Option<&'a Secret>,
    /// Deriving a key takes long, so it is kept while the file is read.
    derived: Mutex<HashMap<Option<Derivation>, Key>>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(secret: Option<&'a Secret>) -> Self {
        Self {
            secret,
            derived: Mutex::default(),
        }
    }

    /// Returns the key for a tensor.
    pub(crate) fn of(&self, encryption: &Encryption) -> Result<Key> {
        let secret = self.secret.ok_or_else(missing)?;
        let mut derived = self.derived.lock();
        if let Some(key) = derived.get(&encryption.derivation) {
            return Ok(key.clone());
        }
        if derived.len() == DERIVED_MAX {
            let message = format!("wants more than {DERIVED_MAX} keys derived from the passphrase");
            return Err(Error::unsupported(message)
                .with_hint("Tensorizer derives one: do not trust the file"));
        }
        let key = secret.key(encryption).map_err(|error| refused(&error))?;
        derived.insert(encryption.derivation.clone(), key.clone());
        Ok(key)
    }
}

/// Returns the error for an encrypted file without a key.
pub(crate) fn missing() -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        "is encrypted, and no key was given",
    )
    .with_hint("pass --key-file or --passphrase-file")
}

fn refused(error: &DecryptError) -> Error {
    let (kind, hint) = if matches!(error, DecryptError::NotDerived) {
        (ErrorKind::PermissionDenied, "pass the key: --key-file")
    } else {
        (ErrorKind::Unsupported, "the file may be damaged")
    };
    Error::new(kind, error.to_string()).with_hint(hint)
}

/// Returns the contents of a file with a key or passphrase.
///
/// # Errors
///
/// The file cannot be read, or is too long for either.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let failed = |error| cannot_open(error, &Location::from_path(path));
    let file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    // As large as it can get, since a buffer that grows leaves copies.
    let mut contents = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX));
    let mut limited = file.take(SECRET_BYTES_MAX as u64);
    limited.read_to_end(&mut contents).map_err(failed)?;
    if contents.len() == SECRET_BYTES_MAX {
        let message = format!("has {SECRET_BYTES_MAX} bytes or more, wanted a key or passphrase");
        return Err(Error::invalid_request(message).with_location(path.display()));
    }
    Ok(contents)
}
