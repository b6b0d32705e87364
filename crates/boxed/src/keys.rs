//! Keys: what a text may be, and which key opens the tensors of a file.

use std::sync::{Mutex, PoisonError};

use tload_tensorizer::{DecryptError, Derivation, Encryption, KEY_BYTES, Key, Secret, Tensor};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::reading::fetch;
use crate::storage::Source;

/// Most keys that are derived for one file. Tensorizer derives one; each may take a minute, as long
/// as the file asks for.
pub const DERIVED_MAX: usize = 8;

/// Tensors whose first boxes tell whether the key is right: one of them may be damaged.
const TRIED: usize = 3;

/// Held while a key is derived.
static DERIVING: Mutex<()> = Mutex::new(());

/// Encrypted tensor.
pub(crate) type Encrypted<'a> = (&'a Tensor, Encryption);

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

/// Returns the key of each tensor. Text with the length of a key may be a passphrase as well: boxes
/// decide.
///
/// # Errors
///
/// [`ErrorKind::PermissionDenied`] if `text` opens none of the boxes that are tried.
pub(crate) fn keys_of(
    source: &dyn Source,
    tensors: &[Encrypted<'_>],
    text: &[u8],
) -> Result<Vec<Key>> {
    let mut known: Vec<(&Option<Derivation>, Key)> = Vec::new();
    let mut keys = Vec::with_capacity(tensors.len());
    for (_, encryption) in tensors {
        let derivation = &encryption.derivation;
        let found = known.iter().find(|(other, _)| *other == derivation);
        if let Some((_, key)) = found {
            keys.push(key.clone());
            continue;
        }
        if known.len() == DERIVED_MAX {
            let message = format!("wants more than {DERIVED_MAX} keys derived from the passphrase");
            return Err(Error::unsupported(message)
                .with_location(source.location())
                .with_hint("Tensorizer derives one: do not trust the file"));
        }
        let own = tensors
            .iter()
            .filter(|(_, it)| it.derivation == *derivation);
        let key = right_key(source, own.collect(), text)?;
        keys.push(key.clone());
        known.push((derivation, key));
    }
    Ok(keys)
}

/// Returns the key that opens the shortest of these tensors, which have one derivation.
fn right_key(source: &dyn Source, mut own: Vec<&Encrypted<'_>>, text: &[u8]) -> Result<Key> {
    own.sort_by_key(|(_, encryption)| encryption.boxes.range(0).end);
    own.truncate(TRIED);
    let mut boxes = Vec::with_capacity(own.len());
    for (tensor, encryption) in &own {
        let first = encryption.boxes.range(0);
        let start = tensor.range.start;
        boxes.push(fetch(source, start + first.start..start + first.end)?);
    }
    let (shortest, encryption) = own[0];
    let is_derived = encryption.derivation.is_some();
    let passphrase = passphrase_of(text).ok().filter(|_| is_derived);
    let candidates = key_of(text).ok().into_iter().chain(passphrase);
    let mut are_any = false;
    for candidate in candidates {
        are_any = true;
        let key = {
            // One at a time: a derivation takes as much memory as the file asks for.
            let _deriving = DERIVING.lock().unwrap_or_else(PoisonError::into_inner);
            candidate.key(encryption)
        };
        let key = key.map_err(|error| underivable(&error).with_location(source.location()))?;
        let opens = |((_, encryption), first): (&&Encrypted<'_>, &Vec<u8>)| {
            let boxes = &encryption.boxes;
            key.open(boxes, 0, &mut first.clone()).is_ok()
        };
        if own.iter().zip(&boxes).any(opens) {
            return Ok(key);
        }
    }
    let message = if are_any {
        format!(
            "wrong key: it opens none of the {} tensors that were tried",
            own.len()
        )
    } else {
        format!(
            "wrong key: found {} bytes, wanted {KEY_BYTES}, or twice as many hexadecimal digits; the file's key is not derived from a passphrase",
            text.len()
        )
    };
    Err(Error::new(ErrorKind::PermissionDenied, message)
        .with_location(source.location())
        .with_tensor(&shortest.name)
        .with_hint("pass the key that the file was encrypted with, or its passphrase"))
}

fn underivable(error: &DecryptError) -> Error {
    Error::unsupported(error.to_string()).with_hint("the file may be damaged")
}
