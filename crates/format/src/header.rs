//! The header of a safetensors file: its length, its JSON, and the rules that tie the JSON to the
//! file's length.
//!
//! ```text
//! 0          8                    8 + N                            file length
//! ├─ N: u64 ─┼─ N bytes of JSON ──┼─ tensor ─┬─ tensor ─┬─ tensor ─┤
//! ```
//!
//! Accepts what the safetensors crate accepts, and detects every failure itself in order to name
//! it. Stricter in three points, each of which the specification backs: a name or key may not occur
//! twice, an entry is an object, and a dtype is a string (serde would also take an array, and
//! `{"F32": null}`). Called with the bytes that `storage` fetched: first [`header_len`], then
//! [`parse`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use serde_json::error::Category;

use super::HEADER_BYTES_MAX;
use super::dtype::Dtype;
use super::header_error::{HeaderError, clip};
use super::other_format;
pub(super) use fields::AnyValue;
use fields::{Place, Reading};

mod fields;
#[cfg(test)]
mod tests;

/// Bytes of the header length, the little-endian `u64` that every file begins with.
pub const LENGTH_BYTES: u64 = 8;

/// Contents of the header of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors in file order; those without bytes at the same offset by name.
    pub tensors: Vec<Entry>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Length of the header and its length field: offset of the first tensor. Need not be aligned
    /// to anything.
    pub bytes: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name: any text, including the empty one.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, row-major; empty for a scalar.
    pub shape: Vec<usize>,
    /// Range of its bytes, from the start of the file.
    pub range: Range<u64>,
}

/// Returns the header length N, from the first bytes of a file: `min(8, file_bytes)` of them, or
/// more, from which other formats are told.
pub fn header_len(prefix: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let Some(&length) = prefix.first_chunk::<8>() else {
        return Err(HeaderError::FileTooSmall { file_bytes });
    };
    let bytes = u64::from_le_bytes(length);
    if bytes == 0 {
        return Err(HeaderError::LengthZero);
    }
    if bytes > HEADER_BYTES_MAX {
        return Err(match other_format::recognize(prefix) {
            Some((format, hint)) => HeaderError::OtherFormat { format, hint },
            None => HeaderError::LengthTooLarge { bytes },
        });
    }
    if LENGTH_BYTES + bytes > file_bytes {
        return Err(HeaderError::LengthBeyondFile { bytes, file_bytes });
    }
    Ok(bytes)
}

/// Parses `header`, the header without its length field, of a file of `file_bytes` bytes.
///
/// Uses memory for its result: at worst about eight times the header, when that is one shape of
/// countless dimensions.
pub fn parse(header: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
    let bytes = header.len() as u64;
    if LENGTH_BYTES + bytes > file_bytes {
        return Err(HeaderError::LengthBeyondFile { bytes, file_bytes });
    }
    let text = str::from_utf8(header).map_err(|error| HeaderError::NotUtf8 {
        position: LENGTH_BYTES + error.valid_up_to() as u64,
    })?;
    let first = first_char(text);
    if first != Some('{') {
        return Err(HeaderError::NotAnObject { found: first });
    }

    let mut reading = Reading::default();
    let (mut tensors, metadata) =
        fields::read(text, &mut reading).map_err(|error| explain(&error, reading, text))?;
    check_names(&tensors)?;
    tensors.sort_by(|a, b| {
        (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name))
    });
    check_layout(&tensors, LENGTH_BYTES + bytes, file_bytes)?;
    for tensor in &mut tensors {
        // The sum cannot overflow, because the layout ends where the file does.
        tensor.range.start += LENGTH_BYTES + bytes;
        tensor.range.end += LENGTH_BYTES + bytes;
    }
    Ok(Header {
        tensors,
        metadata,
        bytes: LENGTH_BYTES + bytes,
    })
}

/// Returns the first character of a JSON text. White space before it is allowed: some writers pad
/// there to align the tensors.
pub(super) fn first_char(text: &str) -> Option<char> {
    text.chars()
        .find(|char| !matches!(char, ' ' | '\t' | '\n' | '\r'))
}

/// Turns an error of the JSON parser into a [`HeaderError`]: the failure that the visitors
/// recorded, or one about the place where they stopped.
fn explain(error: &serde_json::Error, reading: Reading, text: &str) -> HeaderError {
    if let Some(failure) = reading.failure {
        return failure;
    }
    let (line, column) = (error.line(), error.column());
    let whole = error.to_string();
    let text_only = whole.strip_suffix(&format!(" at line {line} column {column}"));
    let what = clip(&in_our_words(text_only.unwrap_or(&whole))).into_owned();
    match (error.classify(), reading.place) {
        (Category::Data, Place::Metadata { key }) => HeaderError::InvalidMetadata { key, what },
        (
            Category::Data,
            Place::Entry {
                tensor,
                field: Some(field),
            },
        ) => HeaderError::InvalidEntry {
            tensor,
            what: format!("{field}: {what}"),
        },
        (
            Category::Data,
            Place::Entry {
                tensor,
                field: None,
            },
        ) => HeaderError::InvalidEntry { tensor, what },
        _ => HeaderError::NotJson {
            line,
            column,
            position: position(text, line, column),
            what,
        },
    }
}

/// Rewords serde's messages like all others: `invalid type: null, expected a string` becomes
/// `found null, wanted a string`.
fn in_our_words(what: &str) -> Cow<'_, str> {
    let found = what
        .strip_prefix("invalid type: ")
        .or_else(|| what.strip_prefix("invalid value: "))
        .or_else(|| {
            what.strip_prefix("invalid ")
                .filter(|found| found.starts_with("length "))
        });
    // Split at the last ", expected ": the text that was found may itself contain one.
    match found.and_then(|found| found.rsplit_once(", expected ")) {
        Some((found, wanted)) => Cow::Owned(format!("found {found}, wanted {wanted}")),
        None => Cow::Borrowed(what),
    }
}

/// Returns the position in the file of the last byte that the parser read, given its line and
/// column in the header. Column 0 is the line feed before the line; the end of the text lies behind
/// its last byte.
fn position(text: &str, line: usize, column: usize) -> u64 {
    let line_begin: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    let byte = (line_begin + column)
        .saturating_sub(1)
        .min(text.len().saturating_sub(1));
    LENGTH_BYTES + byte as u64
}

fn check_names(tensors: &[Entry]) -> Result<(), HeaderError> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors
        .iter()
        .find(|tensor| !names.insert(tensor.name.as_str()))
    {
        Some(twice) => Err(HeaderError::DuplicateTensor {
            tensor: twice.name.clone(),
        }),
        None => Ok(()),
    }
}

/// Checks that the sorted `tensors` tile the file from `base`, the end of the header, to its last
/// byte, and that each spans the bytes that its shape and dtype need.
///
/// Worked example: a header that ends at 100, `a: U8 [4]` at [0, 4] and `b: F32 [2]` at [4, 12]
/// need a file of 112 bytes. With `b` at [5, 13] byte 104 is a hole; at [3, 11] byte 103 belongs to
/// both.
fn check_layout(tensors: &[Entry], base: u64, file_bytes: u64) -> Result<(), HeaderError> {
    let absolute = |begin: u64, end: u64| base.saturating_add(begin)..base.saturating_add(end);
    let mut wanted = 0;
    let mut previous: Option<&Entry> = None;
    for entry in tensors {
        let Range { start: found, end } = entry.range;
        let tensor = || entry.name.clone();
        let before = || previous.map(|previous| previous.name.clone());
        if end < found {
            return Err(HeaderError::ReversedOffsets {
                tensor: tensor(),
                begin: found,
                end,
            });
        }
        match found.cmp(&wanted) {
            Ordering::Greater => {
                let range = absolute(wanted, found);
                let (tensor, after) = (tensor(), before());
                return Err(HeaderError::Hole {
                    tensor,
                    after,
                    found,
                    wanted,
                    range,
                });
            }
            Ordering::Less => {
                let range = absolute(found, wanted);
                // `wanted` is 0 until there is a previous tensor, and nothing is less than 0.
                let (tensor, other) = (tensor(), before().unwrap_or_default());
                return Err(HeaderError::Overlap {
                    tensor,
                    other,
                    found,
                    wanted,
                    range,
                });
            }
            Ordering::Equal => {}
        }
        let bytes = byte_len(entry)?;
        if bytes != end - found {
            return Err(HeaderError::SizeMismatch {
                tensor: tensor(),
                dtype: entry.dtype,
                shape: entry.shape.clone(),
                found: end - found,
                wanted: bytes,
                range: absolute(found, end),
            });
        }
        wanted = end;
        previous = Some(entry);
    }
    check_end(tensors, base, base.saturating_add(wanted), file_bytes)
}

/// Checks that a file of `file_bytes` bytes ends where its last tensor does, at `wanted`.
fn check_end(
    tensors: &[Entry],
    base: u64,
    wanted: u64,
    file_bytes: u64,
) -> Result<(), HeaderError> {
    match file_bytes.cmp(&wanted) {
        Ordering::Greater => Err(HeaderError::TrailingBytes {
            found: file_bytes,
            wanted,
        }),
        Ordering::Less => {
            // The ends ascend, so the first tensor beyond the file is found by bisection.
            let whole = tensors.partition_point(|tensor| tensor.range.end <= file_bytes - base);
            let tensor = tensors
                .get(whole)
                .map(|tensor| tensor.name.clone())
                .unwrap_or_default();
            Err(HeaderError::Truncated {
                tensor,
                found: file_bytes,
                wanted,
            })
        }
        Ordering::Equal => Ok(()),
    }
}

/// Returns the bytes that the shape and dtype of `entry` need. Multiplies from left to right and
/// rejects overflow in any step, as the safetensors crate does: `[0, 2^63, 4]` is empty,
/// `[2^63, 4, 0]` is an error.
fn byte_len(entry: &Entry) -> Result<u64, HeaderError> {
    let overflow = || HeaderError::ShapeOverflow {
        tensor: entry.name.clone(),
        dtype: entry.dtype,
        shape: entry.shape.clone(),
    };
    let elements = entry
        .shape
        .iter()
        .try_fold(1_usize, |product, &dimension| {
            product.checked_mul(dimension)
        })
        .ok_or_else(overflow)?;
    let bits = elements
        .checked_mul(entry.dtype.bits())
        .ok_or_else(overflow)?;
    if !bits.is_multiple_of(8) {
        let (tensor, dtype) = (entry.name.clone(), entry.dtype);
        return Err(HeaderError::SubByteSize {
            tensor,
            dtype,
            elements,
        });
    }
    Ok((bits / 8) as u64)
}
