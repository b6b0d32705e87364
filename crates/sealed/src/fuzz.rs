//! Checks of what a sealed checkpoint may hold, for the fuzz target `sealed`: whatever is in a key
//! file, a keyset, a header or a length, it is read or refused, and a length that is possible is
//! that of one file.

use tload_base::error::Error;

use crate::stream::{Algorithm, Header, Layout};
use crate::{KeyFile, MainKey};

/// Checks `input` as a key file, a keyset, a header, and its first bytes as a length. Returns the
/// errors.
///
/// # Panics
///
/// Panics if what is read is not what was there.
pub fn assert_formats_are_bounded(input: &[u8]) -> Vec<Error> {
    let mut errors = Vec::new();
    match KeyFile::parse(input) {
        Ok(file) => drop(KeyFile::parse(file.to_text().as_bytes()).expect("was written")),
        Err(error) => errors.push(error.with_location("sealed.json")),
    }
    errors.extend(MainKey::from_keyset(&String::from_utf8_lossy(input)).err());
    for algorithm in Algorithm::ALL {
        if let Ok(header) = Header::parse(algorithm, input) {
            assert_eq!(header.as_bytes(), &input[..algorithm.header_bytes()]);
        }
        let (length, _) = input.split_at(input.len().min(8));
        let mut bytes = [0; 8];
        bytes[..length.len()].copy_from_slice(length);
        if let Ok(layout) = Layout::of_sealed(algorithm, u64::from_le_bytes(bytes)) {
            assert_eq!(layout.sealed_len(), u64::from_le_bytes(bytes));
            assert_eq!(
                layout.segment(layout.last()).sealed.end,
                layout.sealed_len()
            );
        }
    }
    errors
}
