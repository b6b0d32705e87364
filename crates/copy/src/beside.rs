//! Reads a small file beside a checkpoint, such as its configuration.

use std::sync::Arc;

use super::fetch::Sources;
use crate::error::{Error, ErrorKind, Result};
use crate::options::format_bytes;
use crate::options::{Location, StoreOptions};
use crate::storage::StoreClient;

/// Suffixes of a checkpoint that is a file: other names are those of directories and prefixes.
const FILES: [&str; 2] = [".safetensors", ".json"];

/// Returns the content of the file `name` in a checkpoint's directory. The checkpoint is given by
/// the location of the directory, of an index or of a safetensors file, and need not be valid.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is no such file; [`ErrorKind::InvalidFormat`] if it has more
/// than `bytes_max` bytes; and errors of opening and reading it.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::Error;
/// #     pub use tload_base::options::StoreOptions;
/// #     pub mod copy { pub use tload_copy::*; }
/// # }
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path();
/// # std::fs::write(path.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
/// use tload::StoreOptions;
/// use tload::copy::read_beside;
///
/// std::fs::write(path.join("config.json"), "{}").expect("the disk has room");
/// let config = read_beside(path, "config.json", 1 << 20, &StoreOptions::new())?;
/// assert_eq!(config, b"{}");
/// # Ok::<(), tload::Error>(())
/// ```
pub fn read_beside(
    checkpoint: impl Into<Location>,
    name: &str,
    bytes_max: u64,
    store: &StoreOptions,
) -> Result<Vec<u8>> {
    let checkpoint = checkpoint.into();
    let is_file = FILES
        .iter()
        .any(|suffix| checkpoint.file_name().ends_with(suffix));
    let folder = if is_file {
        checkpoint.parent()
    } else {
        checkpoint
    };
    let (sources, ongoing) = (Sources::new(store, &StoreClient::default()), Arc::default());
    let location = sources.in_cache(folder.join(name))?;
    let opened = sources.open(&location, &ongoing)?;
    let bytes = opened.origin()?.len;
    if bytes > bytes_max {
        let message = format!(
            "has {}, at most {} were expected",
            format_bytes(bytes),
            format_bytes(bytes_max)
        );
        return Err(Error::new(ErrorKind::InvalidFormat, message).with_location(&location));
    }
    opened.bytes(&ongoing)
}
