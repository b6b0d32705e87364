//! Google Tink's streaming AEAD: one file of ciphertext, which can be read at any place. Pure.
//!
//! `AES256_GCM_HKDF_1MB` and `AES128_GCM_HKDF_1MB`, as <https://developers.google.com/tink/streaming-aead>
//! and Tink's source describe them. A file is a header, then segments of exactly 1 MiB; the last
//! one may be shorter, and the header counts as the beginning of the first one.
//!
//! ```text
//! header   length of the header: 1 byte │ salt: as long as the key │ nonce prefix: 7 bytes
//! segment  ciphertext │ tag: 16 bytes
//! key      HKDF-SHA256(main key, salt, info: associated data)
//! nonce    nonce prefix │ number of the segment: 4 bytes, big-endian │ 1 for the last, else 0
//! ```
//!
//! Number and last flag are in the nonce: a segment in another place, a missing one and a cut file
//! fail to open. The associated data is in the key: a file in another's place fails too.

mod cipher;
mod header;
mod layout;
mod sealer;

pub use cipher::{FileKey, Unauthentic};
pub use header::{Header, HeaderError};
pub use layout::{Layout, LengthError, SEGMENT_BYTES, Segment, TAG_BYTES};
pub use sealer::Sealer;

/// Algorithm: the length of its keys is the only difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `AES256_GCM_HKDF_1MB`.
    Aes256,
    /// `AES128_GCM_HKDF_1MB`.
    Aes128,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 2] = [Self::Aes256, Self::Aes128];

    /// Returns Tink's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256 => "AES256_GCM_HKDF_1MB",
            Self::Aes128 => "AES128_GCM_HKDF_1MB",
        }
    }

    /// Returns the algorithm of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Returns the length of main keys, of keys of files and of salts, bytes.
    #[must_use]
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Aes256 => 32,
            Self::Aes128 => 16,
        }
    }

    /// Returns the length of a file's header, bytes.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        1 + self.key_bytes() + header::PREFIX_BYTES
    }
}

#[cfg(test)]
mod tests;
