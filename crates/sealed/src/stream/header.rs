//! Header of a file: salt and nonce prefix, drawn at random for each file.

use std::fmt;

use super::Algorithm;

/// Length of the part of the nonce that all segments share, bytes.
pub(super) const PREFIX_BYTES: usize = 7;

/// Length of the longest header, bytes.
const HEADER_BYTES_MAX: usize = 40;

/// Header of a file. Not secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header {
    algorithm: Algorithm,
    /// Bytes of the file; the rest is 0.
    bytes: [u8; HEADER_BYTES_MAX],
}

/// Reason why bytes are no header of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// There are fewer bytes than a header has.
    Short {
        /// Number of bytes.
        found: usize,
        /// Length of a header.
        wanted: usize,
    },
    /// The first byte is not the header's length.
    Length {
        /// First byte.
        found: u8,
        /// Length of a header.
        wanted: u8,
    },
}

impl Header {
    /// Creates a header with a random salt and nonce prefix.
    #[must_use]
    pub fn random(algorithm: Algorithm) -> Self {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let own = &mut bytes[..algorithm.header_bytes()];
        aws_lc_rs::rand::fill(&mut own[1..]).expect("the system's random numbers do not fail");
        own[0] = length(algorithm);
        Self { algorithm, bytes }
    }

    /// Reads the header at the beginning of `bytes`.
    ///
    /// # Errors
    ///
    /// [`HeaderError`], if the file was not written with the algorithm.
    pub fn parse(algorithm: Algorithm, bytes: &[u8]) -> Result<Self, HeaderError> {
        let wanted = algorithm.header_bytes();
        let Some(own) = bytes.get(..wanted) else {
            return Err(HeaderError::Short {
                found: bytes.len(),
                wanted,
            });
        };
        if own[0] != length(algorithm) {
            return Err(HeaderError::Length {
                found: own[0],
                wanted: length(algorithm),
            });
        }
        let mut kept = [0; HEADER_BYTES_MAX];
        kept[..wanted].copy_from_slice(own);
        Ok(Self {
            algorithm,
            bytes: kept,
        })
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the header as it is in the file.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.header_bytes()]
    }

    /// Returns the salt of the key of the file.
    pub(super) fn salt(&self) -> &[u8] {
        &self.bytes[1..=self.algorithm.key_bytes()]
    }

    /// Returns the beginning of each nonce.
    pub(super) fn prefix(&self) -> [u8; PREFIX_BYTES] {
        let start = 1 + self.algorithm.key_bytes();
        let mut prefix = [0; PREFIX_BYTES];
        prefix.copy_from_slice(&self.bytes[start..start + PREFIX_BYTES]);
        prefix
    }
}

fn length(algorithm: Algorithm) -> u8 {
    u8::try_from(algorithm.header_bytes()).expect("at most 40")
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Header").field(&self.algorithm).finish()
    }
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { found, wanted } => {
                write!(f, "is cut off in its header: {found} of {wanted} bytes")
            }
            Self::Length { found, wanted } => write!(
                f,
                "is not sealed: its first byte is {found}, that of a sealed file is {wanted}"
            ),
        }
    }
}

impl std::error::Error for HeaderError {}
