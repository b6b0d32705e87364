//! The error for bytes that do not match their digest.

use super::Digest;
use crate::error::{Comparison, Error, ErrorKind};

/// Hint for bytes that do not match their digest.
pub const HINT: &str =
    "download the file again; if it was changed on purpose, regenerate its digests";

/// Creates the error for bytes with the digest `found`, for which `by` states `expected`.
pub fn corrupt(by: &str, expected: Digest, found: Digest) -> Error {
    let message = format!("expected {expected}, found {found}: the bytes do not match {by}");
    Error::new(ErrorKind::Corrupt, message)
        .with_hint(HINT)
        .with_comparison(Comparison {
            expected: expected.to_string(),
            found: found.to_string(),
            by: by.to_owned(),
        })
}
