//! Arithmetic of segments: which bytes of a file are where in its ciphertext.
//!
//! Bytes of the file are counted from the beginning of the header, tags left out: a segment then
//! holds 1,048,560 of these *places*, and the first byte of the file is at place 40.
//!
//! Worked example (AES-256): byte 1,048,520 of a file is at place 1,048,560, the first one of
//! segment 1, which begins at 1,048,576. Byte 1,048,519 is the last one of segment 0.

use std::fmt;
use std::ops::Range;

use super::Algorithm;

/// Length of a segment with its tag, bytes.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// Length of a tag, bytes.
pub const TAG_BYTES: usize = 16;

/// Places of a segment.
pub(super) const PLACES: u64 = SEGMENT_BYTES - TAG_BYTES as u64;

/// Maximum number of segments of a file: their numbers have 32 bits.
const SEGMENTS_MAX: u64 = 1 << 32;

/// Lengths of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    header_bytes: u64,
    /// Length of the file, bytes.
    len: u64,
}

/// Segment of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number, from 0.
    pub number: u32,
    /// Returns whether it is the last one.
    pub is_last: bool,
    /// Bytes of the file that it holds.
    pub opened: Range<u64>,
    /// Its ciphertext and tag, without the header, as bytes of the sealed file.
    pub sealed: Range<u64>,
}

/// Reason why a length is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthError {
    /// No file is sealed to so many bytes.
    NoSealedFile {
        /// Length of the sealed file.
        found: u64,
    },
    /// The file has more segments than can be numbered.
    TooLong {
        /// Length of the file, sealed or not.
        found: u64,
    },
}

impl Layout {
    /// Returns the layout of a file of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`LengthError::TooLong`].
    pub fn of_opened(algorithm: Algorithm, len: u64) -> Result<Self, LengthError> {
        let header_bytes = algorithm.header_bytes() as u64;
        if len > PLACES * SEGMENTS_MAX - header_bytes {
            return Err(LengthError::TooLong { found: len });
        }
        Ok(Self { header_bytes, len })
    }

    /// Returns the layout of a sealed file of `sealed_len` bytes.
    ///
    /// # Errors
    ///
    /// [`LengthError`], for lengths that no file is sealed to.
    pub fn of_sealed(algorithm: Algorithm, sealed_len: u64) -> Result<Self, LengthError> {
        let none = LengthError::NoSealedFile { found: sealed_len };
        let segments = sealed_len.div_ceil(SEGMENT_BYTES);
        if segments > SEGMENTS_MAX {
            return Err(LengthError::TooLong { found: sealed_len });
        }
        let header_bytes = algorithm.header_bytes() as u64;
        let around = header_bytes + segments * TAG_BYTES as u64;
        let layout = Self {
            header_bytes,
            len: sealed_len.checked_sub(around).ok_or(none)?,
        };
        // The last segment may hold nothing but a tag only if it is the first one.
        if layout.sealed_len() == sealed_len {
            Ok(layout)
        } else {
            Err(none)
        }
    }

    /// Returns the length of the file, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the length of the sealed file, bytes.
    #[must_use]
    pub fn sealed_len(&self) -> u64 {
        self.header_bytes + self.len + u64::from(self.last()) * TAG_BYTES as u64 + TAG_BYTES as u64
    }

    /// Returns the number of the last segment.
    #[must_use]
    pub fn last(&self) -> u32 {
        // The header alone fills no segment.
        number((self.header_bytes + self.len - 1) / PLACES)
    }

    /// Returns the segment of this number, which must exist.
    #[must_use]
    pub fn segment(&self, number: u32) -> Segment {
        debug_assert!(number <= self.last(), "the file has no such segment");
        let start = u64::from(number) * PLACES;
        let end = (start + PLACES).min(self.header_bytes + self.len);
        let opened = start.max(self.header_bytes) - self.header_bytes..end - self.header_bytes;
        let tags = u64::from(number) * TAG_BYTES as u64;
        let sealed = start.max(self.header_bytes) + tags..end + tags + TAG_BYTES as u64;
        Segment {
            number,
            is_last: number == self.last(),
            opened,
            sealed,
        }
    }

    /// Returns the numbers of the segments that hold bytes of `range`, which must be in the file.
    /// An empty range has none.
    #[must_use]
    pub fn segments_of(&self, range: &Range<u64>) -> Range<u32> {
        debug_assert!(range.end <= self.len, "the file ends before the range");
        if range.is_empty() {
            return 0..0;
        }
        let first = (self.header_bytes + range.start) / PLACES;
        let last = (self.header_bytes + range.end - 1) / PLACES;
        number(first)..number(last) + 1
    }

    /// Returns where these segments are in the sealed file, which is one range; that of segment 0
    /// begins behind the header.
    #[must_use]
    pub fn sealed(&self, segments: &Range<u32>) -> Range<u64> {
        if segments.is_empty() {
            return 0..0;
        }
        self.segment(segments.start).sealed.start..self.segment(segments.end - 1).sealed.end
    }
}

fn number(segment: u64) -> u32 {
    u32::try_from(segment).expect("checked when the layout was created")
}

impl fmt::Display for LengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSealedFile { found } => {
                write!(f, "has {found} bytes, a length that no sealed file has")
            }
            Self::TooLong { found } => write!(
                f,
                "has {found} bytes, more than {SEGMENTS_MAX} segments of 1 MiB hold"
            ),
        }
    }
}

impl std::error::Error for LengthError {}
