//! Writing files, each in one go.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use tload::{Error, Result};
use tload_partial::beside;

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Removes what a call has written for `out`, for callers that stop waiting for it.
pub fn discard(out: &Path) {
    let partial = beside(out);
    // The error of the call says more than one of removing the rest.
    if fs::remove_file(&partial).is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
}

/// Creates a file, has it written, and waits until the disk has it.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let file = File::create_new(path).map_err(|error| cannot_write(path, error))?;
    fill(file, path, write)
}

/// Has a new file written, and waits until the disk has it. `path` is for errors.
pub(crate) fn fill(
    file: File,
    path: &Path,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let failed = |error| cannot_write(path, error);
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
    write(&mut |bytes| file.write_all(bytes).map_err(failed))?;
    let file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

pub(crate) fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::from_write("cannot write", error).with_location(path.display())
}
