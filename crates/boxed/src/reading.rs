//! Reads the index and the headers of a file of Tensorizer.

use std::ops::Range;

use tload_tensorizer::{FormatError, Index, Tensor, TensorHeader, index_end, parse};

use crate::error::{Error, ErrorKind, Result};
use crate::storage::Source;

/// Reads and checks the index, given the first bytes of the file: without a further read if it fits
/// into them, else with one. Also returns the bytes up to its end.
///
/// # Errors
///
/// [`ErrorKind::InvalidFormat`] and [`ErrorKind::Unsupported`] for a file that breaks the format,
/// and those of reading.
pub fn index_of(source: &dyn Source, first: Vec<u8>) -> Result<(Index, Vec<u8>)> {
    let invalid = |error: FormatError| error.into_error(source.location());
    let mut bytes = first;
    let end = index_end(&bytes, source.len()).map_err(invalid)?;
    let read = bytes.len() as u64;
    if read < end {
        bytes.extend(fetch(source, read..end)?);
    }
    bytes.truncate(usize::try_from(end).expect("at most 100 MB"));
    let index = parse(&bytes, source.len()).map_err(invalid)?;
    Ok((index, bytes))
}

/// Requires that the source shows tensors as they were before they were encrypted.
///
/// # Errors
///
/// [`ErrorKind::PermissionDenied`] if no key has opened them.
pub fn require_opened(source: &dyn Source, index: &Index) -> Result<()> {
    let is_opened = source.stored().is_some_and(|(_, it)| it.keeps_headers());
    if !index.is_encrypted || is_opened {
        return Ok(());
    }
    let message = "missing key: the file is encrypted by Tensorizer, and no key was given";
    Err(Error::new(ErrorKind::PermissionDenied, message)
        .with_location(source.location())
        .with_hint("pass key= (in the command --key-file or --key-command), or set TLOAD_KEY, TLOAD_KEY_FILE or TLOAD_KEY_COMMAND"))
}

/// Reads and checks the header of a tensor.
///
/// # Errors
///
/// [`ErrorKind::InvalidFormat`] for one that is damaged or of another tensor, and those of reading.
pub fn read_header(source: &dyn Source, tensor: &Tensor, index: &Index) -> Result<TensorHeader> {
    let bytes = fetch(source, tensor.header.clone())?;
    let parsed = TensorHeader::parse(&bytes, tensor, index);
    parsed.map_err(|error| error.into_error(source.location()))
}

/// Returns these bytes of a source, all of them.
///
/// # Errors
///
/// [`ErrorKind::Changed`] if it has fewer, and those of reading.
pub fn fetch(source: &dyn Source, range: Range<u64>) -> Result<Vec<u8>> {
    let len = usize::try_from(range.end - range.start).expect("bounded by the format");
    let bytes = source.fetch(range.start, len)?;
    if bytes.len() == len {
        return Ok(bytes);
    }
    let message = format!("found {} bytes, wanted {len}: it has shrunk", bytes.len());
    Err(Error::new(ErrorKind::Changed, message)
        .with_location(source.location())
        .with_range(range))
}
