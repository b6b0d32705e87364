//! Errors of the operating system: their kind, their number, and the hint for it.

use std::error::Error as StdError;
use std::io;

use super::{Error, ErrorKind};

const SERVER_HINT: &str = "check the server of the file system and the network path to it";

/// Returns the hint for a failure to write a file or to create a directory with this `errno`.
fn write_hint(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EACCES | libc::EPERM => {
            Some("give this user write permission to the directory, or write to another one")
        }
        libc::EROFS => Some("its file system is read-only: write to another directory"),
        libc::ENOSPC => Some("free some space, or write to another disk"),
        libc::EDQUOT => Some("the quota is used up: free some space, or raise the quota"),
        libc::EFBIG => {
            Some("the file is larger than the limit (ulimit -f) or its file system allows")
        }
        libc::ENAMETOOLONG => Some("choose a shorter name: most file systems allow 255 bytes"),
        libc::EISDIR => Some("this is a directory: pass the path of a file"),
        libc::ENOTDIR => Some("one of the directories in its path is a file: choose another path"),
        libc::ENOENT => Some("create the directory first"),
        _ => storage_hint(errno),
    }
}

/// Returns the hint for a storage failure with this `errno`.
fn storage_hint(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EIO => {
            Some("check the disk, or the mount and its server; the kernel log (dmesg) may say more")
        }
        libc::ESTALE => Some("the file was replaced or removed on the server: load again"),
        libc::ENOTCONN => Some("the server of the file system is gone: mount it again"),
        libc::ETIMEDOUT | libc::EAGAIN => Some(SERVER_HINT),
        #[cfg(target_os = "linux")]
        libc::EREMOTEIO => Some(SERVER_HINT),
        libc::EACCES | libc::EPERM => Some("give this user read permission"),
        _ => None,
    }
}

/// Kinds of errors of the operating system. Every other one is plain I/O.
const KINDS: [(io::ErrorKind, ErrorKind); 6] = [
    (io::ErrorKind::NotFound, ErrorKind::NotFound),
    (io::ErrorKind::PermissionDenied, ErrorKind::PermissionDenied),
    (io::ErrorKind::OutOfMemory, ErrorKind::OutOfMemory),
    (io::ErrorKind::StorageFull, ErrorKind::OutOfMemory),
    (io::ErrorKind::QuotaExceeded, ErrorKind::OutOfMemory),
    (io::ErrorKind::Unsupported, ErrorKind::Unsupported),
];

impl ErrorKind {
    /// Returns the kind for an error of the operating system.
    pub fn from_io(error: &io::Error) -> Self {
        // A path with a zero byte is refused before any system call.
        if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() {
            return Self::InvalidRequest;
        }
        let found = KINDS.iter().find(|(it, _)| *it == error.kind());
        found.map_or(Self::Io, |(_, kind)| *kind)
    }
}

impl From<ErrorKind> for io::ErrorKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::PermissionDenied => Self::PermissionDenied,
            ErrorKind::InvalidFormat | ErrorKind::Corrupt => Self::InvalidData,
            ErrorKind::NoSuchTensor | ErrorKind::InvalidRequest => Self::InvalidInput,
            ErrorKind::Unsupported => Self::Unsupported,
            ErrorKind::OutOfMemory => Self::OutOfMemory,
            ErrorKind::TimedOut => Self::TimedOut,
            // Not `Interrupted` for a cancelled load: the standard library retries after that.
            ErrorKind::Io
            | ErrorKind::Remote
            | ErrorKind::Device
            | ErrorKind::Changed
            | ErrorKind::Cancelled
            | ErrorKind::Peer => Self::Other,
        }
    }
}

/// For functions that return [`io::Result`]. The error of the crate stays inside:
/// [`io::Error::get_ref`] returns it.
///
/// ```
/// use std::io;
/// use tload_base::error::{Error, ErrorKind};
///
/// let error = io::Error::from(Error::new(ErrorKind::NotFound, "does not exist"));
/// assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
/// assert_eq!(inner.map(Error::message), Some("does not exist"));
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), error)
    }
}

/// Returns the advice for a thread that cannot be started.
pub fn thread_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => "raise the process's address-space limit (ulimit -v)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "raise the limit of processes (ulimit -u)",
    }
}

impl Error {
    /// Creates an error from one of the operating system while doing `what` (for example `"cannot
    /// open"`); keeps the `errno`.
    ///
    /// Adds a hint for common storage failures; callers that know more may replace it.
    pub fn from_io(what: impl Into<String>, error: io::Error) -> Self {
        Self::from_os(what.into(), error, storage_hint)
    }

    /// Like [`Self::from_io`], for an operation that writes a file or creates a directory.
    #[doc(hidden)]
    pub fn from_write(what: impl Into<String>, error: io::Error) -> Self {
        Self::from_os(what.into(), error, write_hint)
    }

    fn from_os(what: String, error: io::Error, hint: fn(i32) -> Option<&'static str>) -> Self {
        let hint = error.raw_os_error().and_then(hint);
        let new = Self::new(ErrorKind::from_io(&error), what).with_source(error);
        match hint {
            Some(hint) => new.with_hint(hint),
            None => new,
        }
    }

    /// Creates the error for a thread that the system refuses, or that has no room.
    #[doc(hidden)]
    pub fn cannot_start_thread(error: io::Error) -> Self {
        Self::new(ErrorKind::OutOfMemory, "cannot start a thread")
            .with_hint(thread_hint(&error))
            .with_source(error)
    }

    /// Returns the operating system's error number, if the chain has one.
    pub fn errno(&self) -> Option<i32> {
        let mut cause: Option<&(dyn StdError + 'static)> = self.source();
        while let Some(error) = cause {
            if let Some(errno) = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::raw_os_error)
            {
                return Some(errno);
            }
            cause = error.source();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_systems_numbers() {
        for (errno, kind) in [
            (libc::ENOENT, ErrorKind::NotFound),
            (libc::EACCES, ErrorKind::PermissionDenied),
            (libc::ENOMEM, ErrorKind::OutOfMemory),
            (libc::ENOSPC, ErrorKind::OutOfMemory),
            (libc::EDQUOT, ErrorKind::OutOfMemory),
            (libc::EOPNOTSUPP, ErrorKind::Unsupported),
            (libc::EIO, ErrorKind::Io),
            (libc::EROFS, ErrorKind::Io),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(ErrorKind::from_io(&error), kind, "{error}");
        }
    }

    #[test]
    fn hints_of_writes_are_about_writing() {
        let hint = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            let error = Error::from_write("cannot write", error);
            error.hint().expect("a hint").to_owned()
        };
        for (errno, wanted) in [
            (libc::EACCES, "write permission to the directory"),
            (libc::EPERM, "write permission to the directory"),
            (libc::EROFS, "read-only"),
            (libc::ENOSPC, "free some space"),
            (libc::EDQUOT, "quota"),
            (libc::ENAMETOOLONG, "shorter name"),
            (libc::EISDIR, "is a directory"),
            (libc::EIO, "check the disk"),
        ] {
            assert!(hint(errno).contains(wanted), "{errno}: {}", hint(errno));
            assert!(!hint(errno).contains("read permission"), "{errno}");
        }
        let other = io::Error::from_raw_os_error(libc::EBADF);
        assert_eq!(Error::from_write("cannot write", other).hint(), None);
    }
}
