//! Files and directories that appear under their names when they are complete.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tload::{Error, ErrorKind, Result};

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Something to write, under a temporary name beside its own. Removed unless it is finished.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    temporary: PathBuf,
    is_finished: bool,
}

impl Output {
    /// Plans to write `path`, which must not exist.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let output = Self {
            path: path.to_owned(),
            temporary: temporary(path),
            is_finished: false,
        };
        output.refuse_existing().map(|()| output)
    }

    /// Returns where to write.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Gives it its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        // Another process may have made it meanwhile.
        self.refuse_existing()?;
        let renamed = fs::rename(&self.temporary, &self.path);
        renamed.map_err(|error| cannot_write(&self.path, error))?;
        self.is_finished = true;
        Ok(())
    }

    fn refuse_existing(&self) -> Result<()> {
        if fs::symlink_metadata(&self.path).is_ok() {
            let hint = "choose another name, or remove it";
            let message = "exists already, and is not replaced";
            let error = Error::new(ErrorKind::InvalidRequest, message).with_hint(hint);
            return Err(error.with_location(self.path.display()));
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_finished {
            discard(&self.path);
        }
    }
}

/// Returns where [`diff`](crate::diff) and [`apply`](crate::apply) write until `out` is complete.
pub fn temporary(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!(".{name}.{}.tload-tmp", std::process::id()))
}

/// Removes what a call has written for `out`, for callers that stop waiting for it.
pub fn discard(out: &Path) {
    let temporary = temporary(out);
    // The error of the call says more than one of removing the rest.
    if fs::remove_file(&temporary).is_err() {
        let _ = fs::remove_dir_all(&temporary);
    }
}

/// Creates a file, has it written, and waits until the disk has it.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let failed = |error| cannot_write(path, error);
    let file = File::create_new(path).map_err(failed)?;
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
