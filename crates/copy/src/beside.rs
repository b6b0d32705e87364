//! Reads a small file beside a checkpoint, such as its configuration.

use std::sync::Arc;

use super::fetch::Sources;
use crate::error::{Error, ErrorKind, Result};
use crate::options::format_bytes;
use crate::options::{Location, StoreOptions};

/// Suffixes of a checkpoint that is a file: other names are those of directories and prefixes.
const FILES: [&str; 2] = [".safetensors", ".json"];

/// Returns the content of the file `name` in a checkpoint's directory. The checkpoint is given by
/// the location of the directory, of an index or of a safetensors file, and need not be valid.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is no such file; [`ErrorKind::InvalidFormat`] if it has more
/// than `bytes_max` bytes; and errors of opening and reading it.
pub fn read_beside(
    checkpoint: &Location,
    name: &str,
    bytes_max: u64,
    store: &StoreOptions,
) -> Result<Vec<u8>> {
    let is_file = FILES
        .iter()
        .any(|suffix| checkpoint.file_name().ends_with(suffix));
    let folder = if is_file {
        checkpoint.parent()
    } else {
        checkpoint.clone()
    };
    let (sources, shared) = (Sources::new(store), Arc::default());
    let location = sources.in_cache(folder.join(name))?;
    let opened = sources.open(&location, &shared)?;
    let bytes = opened.origin()?.len;
    if bytes > bytes_max {
        let message = format!(
            "has {}, at most {} were expected",
            format_bytes(bytes),
            format_bytes(bytes_max)
        );
        return Err(Error::new(ErrorKind::InvalidFormat, message).with_location(&location));
    }
    opened.bytes(&shared)
}
