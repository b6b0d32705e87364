//! Errors of invalid safetensors files: one variant per broken rule, with what was found and what
//! was wanted.
//!
//! Owns the messages of these failures and their hints. `format::header` detects them; the code
//! that opens files turns them into the crate's [`Error`] with [`HeaderError::into_error`], which
//! keeps them as its source.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use super::HEADER_BYTES_MAX;
use super::dtype::Dtype;
use crate::error::{Error, ErrorKind};

/// A rule of the safetensors format that a file breaks.
///
/// Displays without the tensor's name, which [`Error`] shows by itself; see
/// [`HeaderError::tensor`].
///
/// `begin` and `end` are offsets as the header writes them: from the first byte after the header.
/// `range` fields and [`HeaderError::range`] count from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file cannot even hold the length of a header.
    #[error("found a file of {file_bytes} bytes, wanted at least 8 for the header length")]
    FileTooSmall {
        /// Length of the file.
        file_bytes: u64,
    },
    /// The first bytes are those of another well-known kind of file.
    #[error("found {format}, wanted a safetensors file")]
    OtherFormat {
        /// Name of the format, with its article: `"a git-lfs pointer"`.
        format: &'static str,
        /// Hint for the user.
        hint: &'static str,
    },
    /// The header length is 0; the shortest header is `{}`.
    #[error("found a header length of 0, wanted at least 2")]
    LengthZero,
    /// The header length is above the format's limit of 100,000,000 bytes.
    #[error("found a header length of {bytes}, wanted at most {HEADER_BYTES_MAX}")]
    LengthTooLarge {
        /// The header length.
        bytes: u64,
    },
    /// The header does not fit into the file.
    #[error(
        "header length {bytes} does not fit the file: found {file_bytes} bytes, wanted at least {}",
        bytes.saturating_add(8)
    )]
    LengthBeyondFile {
        /// The header length.
        bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// The header is not UTF-8.
    #[error("header is not UTF-8 at byte {position} of the file")]
    NotUtf8 {
        /// The first bad byte, from the start of the file.
        position: u64,
    },
    /// The header does not begin with `{` (after white space).
    #[error(
        "found {}, wanted '{{'",
        found.map_or("a blank header".to_owned(), |found| format!("a header that begins with {found:?}"))
    )]
    NotAnObject {
        /// The first character that is not white space, if there is one.
        found: Option<char>,
    },
    /// The header is not JSON.
    #[error("header is not JSON at line {line} column {column}: {what}")]
    NotJson {
        /// Line within the header, from 1.
        line: usize,
        /// Column within the line in bytes, from 1.
        column: usize,
        /// The byte where the parser stopped, from the start of the file.
        position: u64,
        /// Message of the parser.
        what: String,
    },
    /// Two tensors have the same name.
    #[error("found its name twice, wanted distinct names")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// `__metadata__` itself, or a key in it, occurs twice.
    #[error("{}", duplicate_metadata(key.as_deref()))]
    DuplicateMetadata {
        /// The key; `None` if it is `__metadata__` itself.
        key: Option<String>,
    },
    /// `__metadata__` is not an object of strings.
    #[error(
        "__metadata__{}: {what}",
        key.as_ref().map_or(String::new(), |key| format!(" at {:?}", clip(key)))
    )]
    InvalidMetadata {
        /// The key whose value is not a string; `None` if `__metadata__` itself is not an object.
        key: Option<String>,
        /// Value found instead.
        what: String,
    },
    /// A tensor's entry lacks a field, or a field has the wrong type.
    #[error("{what}")]
    InvalidEntry {
        /// The tensor.
        tensor: String,
        /// The field, and what was found instead.
        what: String,
    },
    /// A dtype that the format does not have.
    #[error(
        "found the dtype {:?}, wanted one of the {} of the format",
        clip(dtype),
        Dtype::ALL.len()
    )]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// The dtype as written.
        dtype: String,
    },
    /// A tensor ends before it begins.
    #[error("found offsets [{begin}, {end}], wanted an end that is not below the start")]
    ReversedOffsets {
        /// The tensor.
        tensor: String,
        /// Its first offset.
        begin: u64,
        /// Its second offset.
        end: u64,
    },
    /// Bytes that belong to no tensor lie before this one.
    #[error(
        "found it at offset {found}, wanted {wanted}: the bytes {} belong to no tensor",
        after.as_ref().map_or("before it".to_owned(), |after| format!("between {:?} and it", clip(after)))
    )]
    Hole {
        /// The tensor behind the hole.
        tensor: String,
        /// The tensor before the hole; `None` if the hole follows the header.
        after: Option<String>,
        /// Offset at which the tensor begins.
        found: u64,
        /// Offset at which it had to begin.
        wanted: u64,
        /// The hole.
        range: Range<u64>,
    },
    /// Two tensors share bytes.
    #[error(
        "found it at offset {found}, wanted {wanted}: it overlaps {:?}",
        clip(other)
    )]
    Overlap {
        /// The tensor that begins too early.
        tensor: String,
        /// The tensor that it runs into.
        other: String,
        /// Offset at which the tensor begins.
        found: u64,
        /// Offset at which it had to begin: the end of `other`.
        wanted: u64,
        /// Range between the two.
        range: Range<u64>,
    },
    /// The number of elements, or of their bits, does not fit 64 bits.
    #[error("counting the bits of {} of {dtype} overflows 64 bits", Shape(shape))]
    ShapeOverflow {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Elements smaller than a byte do not fill whole bytes.
    #[error(
        "found {elements} elements of {dtype} ({} bits), wanted whole bytes",
        elements.saturating_mul(dtype.bits())
    )]
    SubByteSize {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// The number of its elements.
        elements: usize,
    },
    /// A tensor's offsets span a different number of bytes than its shape and dtype need.
    #[error(
        "found {found} bytes between its offsets, wanted {wanted} for {} of {dtype}",
        Shape(shape)
    )]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes between its offsets.
        found: u64,
        /// Bytes that shape and dtype need.
        wanted: u64,
        /// Range between its offsets.
        range: Range<u64>,
    },
    /// The file ends before its last tensor does.
    #[error("file ends too early: found {found} bytes, wanted {wanted}")]
    Truncated {
        /// The first tensor that is not whole.
        tensor: String,
        /// Length of the file.
        found: u64,
        /// Length that the header promises.
        wanted: u64,
    },
    /// The file continues after its last tensor.
    #[error("bytes follow the last tensor: found {found} bytes, wanted {wanted}")]
    TrailingBytes {
        /// Length of the file.
        found: u64,
        /// Length that the header promises.
        wanted: u64,
    },
}

const CUT_SHORT: &str =
    "the file is truncated: download or copy it again, and compare its length with the original";
const WRITER_FAULT: &str = "the file is damaged (compare its digest with the original's), or the program that wrote it \
     is at fault (save the model again)";

impl HeaderError {
    /// Returns the tensor whose entry breaks the rule.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::DuplicateTensor { tensor }
            | Self::InvalidEntry { tensor, .. }
            | Self::UnknownDtype { tensor, .. }
            | Self::ReversedOffsets { tensor, .. }
            | Self::Hole { tensor, .. }
            | Self::Overlap { tensor, .. }
            | Self::ShapeOverflow { tensor, .. }
            | Self::SubByteSize { tensor, .. }
            | Self::SizeMismatch { tensor, .. }
            | Self::Truncated { tensor, .. } => Some(tensor),
            Self::FileTooSmall { .. }
            | Self::OtherFormat { .. }
            | Self::LengthZero
            | Self::LengthTooLarge { .. }
            | Self::LengthBeyondFile { .. }
            | Self::NotUtf8 { .. }
            | Self::NotAnObject { .. }
            | Self::NotJson { .. }
            | Self::DuplicateMetadata { .. }
            | Self::InvalidMetadata { .. }
            | Self::TrailingBytes { .. } => None,
        }
    }

    /// Returns the bytes of the file that the failure is about, from its start. Missing bytes count
    /// too: a file of 100 bytes that had to have 120 gives `100..120`.
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            Self::FileTooSmall { file_bytes } => Some(0..*file_bytes),
            Self::OtherFormat { .. }
            | Self::LengthZero
            | Self::LengthTooLarge { .. }
            | Self::LengthBeyondFile { .. } => Some(0..8),
            Self::NotUtf8 { position } | Self::NotJson { position, .. } => {
                Some(*position..position.saturating_add(1))
            }
            Self::Hole { range, .. }
            | Self::Overlap { range, .. }
            | Self::SizeMismatch { range, .. } => Some(range.clone()),
            Self::Truncated { found, wanted, .. } => Some(*found..*wanted),
            Self::TrailingBytes { found, wanted } => Some(*wanted..*found),
            Self::NotAnObject { .. }
            | Self::DuplicateTensor { .. }
            | Self::DuplicateMetadata { .. }
            | Self::InvalidMetadata { .. }
            | Self::InvalidEntry { .. }
            | Self::UnknownDtype { .. }
            | Self::ReversedOffsets { .. }
            | Self::ShapeOverflow { .. }
            | Self::SubByteSize { .. } => None,
        }
    }

    /// Converts into the crate's error about the file at `location`, with `self` as its source.
    ///
    /// The message says everything that `self` says, so that one line is enough; [`Error::chain`]
    /// leaves out a cause that the line before it already ends with. A name beyond
    /// `SHOWN_BYTES_MAX` is truncated in the message, and complete in the source.
    pub fn into_error(self, location: impl fmt::Display) -> Error {
        let mut error =
            Error::new(ErrorKind::InvalidFormat, self.to_string()).with_location(location);
        if let Some(tensor) = self.tensor() {
            error = error.with_tensor(clip(tensor));
        }
        if let Some(range) = self.range() {
            error = error.with_range(range);
        }
        error.with_hint(self.hint()).with_source(self)
    }

    /// Returns the hint for the user.
    fn hint(&self) -> &'static str {
        match self {
            Self::FileTooSmall { .. } | Self::LengthBeyondFile { .. } | Self::Truncated { .. } => {
                CUT_SHORT
            }
            Self::OtherFormat { hint, .. } => hint,
            Self::TrailingBytes { .. } => {
                "the file is longer than its header says: download or copy it again"
            }
            Self::UnknownDtype { .. } => {
                "a newer tload may know this dtype, or else the file is damaged"
            }
            Self::DuplicateTensor { .. }
            | Self::DuplicateMetadata { .. }
            | Self::InvalidMetadata { .. }
            | Self::InvalidEntry { .. }
            | Self::ReversedOffsets { .. }
            | Self::Hole { .. }
            | Self::Overlap { .. }
            | Self::ShapeOverflow { .. }
            | Self::SubByteSize { .. }
            | Self::SizeMismatch { .. } => WRITER_FAULT,
            Self::LengthZero
            | Self::LengthTooLarge { .. }
            | Self::NotUtf8 { .. }
            | Self::NotAnObject { .. }
            | Self::NotJson { .. } => "this is not a safetensors file, or its beginning is damaged",
        }
    }
}

/// Returns what occurs twice: `__metadata__` itself, or a key in it.
fn duplicate_metadata(key: Option<&str>) -> String {
    match key {
        None => "found __metadata__ twice, wanted it at most once".to_owned(),
        Some(key) => format!(
            "found {:?} twice in __metadata__, wanted distinct keys",
            clip(key)
        ),
    }
}

/// Most bytes of a text from a file that go into a message: a hostile name may be 100 MB long.
const SHOWN_BYTES_MAX: usize = 256;

/// Returns `text`, truncated to what a message may carry.
pub(super) fn clip(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let end = (0..=SHOWN_BYTES_MAX)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

/// Displays a shape as `[4096, 128]`, truncated after eight dimensions: a hostile shape may have
/// millions.
struct Shape<'a>(&'a [usize]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dimension) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{dimension}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str(if self.0.len() > 8 { ", …]" } else { "]" })
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn header_error_keeps_details_without_duplicates_in_chain() {
        let cause = HeaderError::Truncated {
            tensor: "a\nb".into(),
            found: 100,
            wanted: 120,
        };
        let error = cause.clone().into_error("x.safetensors");
        let line = "x.safetensors [100..120]: tensor \"a\\nb\": file ends too early: \
                    found 100 bytes, wanted 120";
        assert_eq!(error.to_string(), line);
        assert_eq!(error.chain(), format!("{line}\n  hint: {CUT_SHORT}"));
        assert_eq!(error.kind(), ErrorKind::InvalidFormat);
        assert_eq!(error.tensor(), Some("a\nb"));
        assert_eq!(error.source().unwrap().downcast_ref(), Some(&cause));
    }

    #[test]
    fn header_error_messages_are_bounded() {
        let long = "é".repeat(1 << 20);
        let error = HeaderError::Overlap {
            tensor: long.clone(),
            other: long,
            found: 0,
            wanted: 1,
            range: 0..1,
        };
        assert!(error.to_string().len() < 1000);
        assert!(error.into_error("x").chain().len() < 1200);
        let shape = HeaderError::ShapeOverflow {
            tensor: "t".into(),
            dtype: Dtype::F32,
            shape: vec![9; 1 << 20],
        };
        assert_eq!(
            shape.to_string(),
            "counting the bits of [9, 9, 9, 9, 9, 9, 9, 9, …] of F32 overflows 64 bits"
        );
    }
}
