//! Opens and reads files: without waiting for the writer of a FIFO, and with retries where the file
//! system is a network's. Knows nothing of checkpoints; `storage` opens their files with it, and
//! stores read their settings.

mod file_system;

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub use self::file_system::is_network;
pub use self::file_system::{FileSystem, file_system};
use crate::error::{Error, Result};
use crate::sync::retry::{Retries, Transient};
use crate::sync::retry_counter::RetryCounter;

/// Opens a file for buffered reads. Does not block on a FIFO: the caller rejects it by its type
/// instead of waiting for a writer.
pub fn open_plain(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// Reads a small regular file, up to `most` bytes of it, with the [usual retries](usual_retries).
///
/// # Errors
///
/// Errors of the file system;
/// [`ErrorKind::InvalidRequest`](crate::error::ErrorKind::InvalidRequest) for what is no regular
/// file.
pub fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let read = || {
        let file = open_plain(path).map_err(|error| Error::from_io("cannot open", error))?;
        let status = file.metadata();
        let status = status.map_err(|error| Error::from_io("cannot read the file's status", error));
        if !status?.is_file() {
            return Err(Error::invalid_request("is not a regular file"));
        }
        let mut bytes = Vec::new();
        match file.take(most).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(Error::from_io("cannot read", error)),
        }
    };
    let retries = || usual_retries(is_network(path));
    retry_transient(&RetryCounter::default(), retries, read)
        .map_err(|error| error.with_location(path.display()))
}

/// Default retries: on a network file system, long enough for its server to be repaired; else none.
pub fn usual_retries(is_network: bool) -> Retries {
    if is_network {
        Retries::default().in_mid_load()
    } else {
        Retries::NONE
    }
}

/// Calls `once`, and again after a backoff while it fails with a transient error. Blocks the
/// calling thread: for few, small reads.
pub fn retry_transient<T>(
    retry_counter: &RetryCounter,
    retries: impl Fn() -> Retries,
    once: impl Fn() -> Result<T>,
) -> Result<T> {
    let mut failed = 0;
    loop {
        let error = match once() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let Some(what) = error.errno().and_then(Transient::from_errno) else {
            return Err(error);
        };
        failed += 1;
        let Some(pause) = retries().wait(what, failed, None, fastrand::u32(..)) else {
            return Err(with_attempts(error, failed));
        };
        tracing::debug!(%error, ?pause, "retrying");
        retry_counter.count(&error);
        // Sleeps: nothing is ever sent on this channel.
        let _ = crossbeam_channel::never::<()>().recv_timeout(pause);
    }
}

/// Adds the number of attempts to the error of the last one.
fn with_attempts(error: Error, attempts: u32) -> Error {
    if attempts < 2 {
        return error;
    }
    let advice = error.marked_hint();
    let advice = advice
        .as_deref()
        .unwrap_or("check the mount and its server");
    let hint = format!("failed after {attempts} attempts: {advice}");
    error.with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn small_files_are_read_up_to_a_limit_and_only_regular_ones() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("a");
        std::fs::write(&path, b"bytes").expect("written");
        assert_eq!(read_small(&path, 9).expect("is there"), b"bytes");
        assert_eq!(read_small(&path, 2).expect("is there"), b"by");
        let kind = |path: &Path| read_small(path, 9).expect_err("no file").kind();
        assert_eq!(kind(folder.path()), ErrorKind::InvalidRequest);
        assert_eq!(kind(&folder.path().join("b")), ErrorKind::NotFound);
        // No process writes to it.
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.expect("runs").success());
        assert_eq!(kind(&fifo), ErrorKind::InvalidRequest);
    }
}
