//! Keys: from the contents of a file, and per tensor, since each may have a derivation of its own.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::path::Path;

use tload_tensorizer::{DecryptError, Derivation, Encryption, KEY_BYTES, Key, Secret};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Location;
use crate::storage::cannot_open;
use crate::sync::lock::Mutex;

/// Longest file with a key or passphrase, bytes.
const SECRET_BYTES_MAX: usize = 1 << 16;

/// Most keys that are derived for one file. Tensorizer derives one; each may take a minute, as long
/// as the file asks for.
const DERIVED_MAX: usize = 8;

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

/// Returns the key in a file with these contents: 32 bytes, or 64 hexadecimal digits.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for other contents, which the error does not show.
pub fn key_of(contents: &[u8]) -> Result<Secret> {
    let key = match Key::new(contents) {
        Ok(key) => Some(key),
        Err(_) => from_hex(contents.trim_ascii()),
    };
    key.map(Secret::Key).ok_or_else(|| {
        let message = format!(
            "found {} bytes, wanted a key: {KEY_BYTES} bytes, or twice as many hexadecimal digits",
            contents.len()
        );
        Error::invalid_request(message)
    })
}

fn from_hex(digits: &[u8]) -> Option<Key> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Key::new(&*bytes).ok()
}

/// Returns the passphrase in a file with these contents: all but a line feed at the end.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] if it is empty.
pub fn passphrase_of(contents: &[u8]) -> Result<Secret> {
    let text = contents.strip_suffix(b"\n").unwrap_or(contents);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.is_empty() {
        return Err(Error::invalid_request("the passphrase is empty"));
    }
    Ok(Secret::Passphrase(Zeroizing::new(text.to_vec())))
}
