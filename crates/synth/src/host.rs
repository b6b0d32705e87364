//! Seam to the program that writes a checkpoint: it counts progress, interrupts the work, and
//! removes files if it is ended.

use std::io;
use std::path::{Path, PathBuf};

use tload::{Error, Result};

/// Program that runs a [`Synth`](crate::Synth). Several threads call it at once.
pub trait Host: Sync {
    /// Returns an error once the user has interrupted the program.
    fn check(&self) -> Result<()>;

    /// Counts bytes that were written.
    fn advance(&self, bytes: u64);

    /// Registers a file or directory to remove when the guard is dropped, or when the program ends.
    fn temporary(&self, path: PathBuf) -> Box<dyn Temporary + '_>;
}

/// Guard of a file or directory that is removed when it is dropped.
pub trait Temporary: Send {
    /// Leaves the file where it is.
    fn keep(self: Box<Self>);
}

/// Returns the error for a failed operation on a file that is written.
pub fn file_error(what: &str, path: &Path, error: io::Error) -> Error {
    let full = error.kind() == io::ErrorKind::StorageFull;
    let error = Error::from_write(what, error).with_location(path.display());
    if full {
        error.with_hint("free some space, or use a smaller --size")
    } else {
        error
    }
}
