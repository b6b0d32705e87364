//! Socket at the path of a local group: created and removed by rank 0, found by the others.
//!
//! The socket of a dead run is replaced, that of a live group never. Rank 0 holds a lock of the
//! directory while it decides, since two may start at once.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[cfg(not(target_os = "linux"))]
use rustix::fs::AtFlags;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::connection::wait;
use crate::error::{Error, ErrorKind, Result};
use crate::process::Process;
use crate::sync::per_process::process_id;

/// Longest path of a Unix socket, bytes, without the zero at its end.
#[cfg(target_os = "linux")]
const PATH_BYTES_MAX: usize = 107;
#[cfg(not(target_os = "linux"))]
const PATH_BYTES_MAX: usize = 103;

/// Connections that may wait to be accepted, as in the standard library.
#[cfg(target_os = "linux")]
const BACKLOG: i32 = 128;

/// Time between two attempts to connect, or to lock a directory.
const RETRY: Duration = Duration::from_millis(10);

/// Socket of a group, removed when this value is dropped in the process that created it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    process: u32,
}

impl SocketFile {
    /// Listens at `path`, where nothing exists or the socket of a dead run.
    pub(super) fn listen(path: &Path, deadline: Instant) -> Result<(UnixListener, Self)> {
        check(path)?;
        let _lock = DirectoryLock::take(path, deadline)?;
        remove_stale(path)?;
        let failed = |error| {
            Error::from_write("cannot create the socket of the group", error)
                .with_location(path.display())
        };
        let listener = bind(path).map_err(failed)?;
        let metadata = path.symlink_metadata().map_err(failed)?;
        let file = Self {
            path: std::path::absolute(path).map_err(failed)?,
            identity: identity(&metadata),
            process: process_id(),
        };
        Ok((listener, file))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_own = |metadata: &fs::Metadata| identity(metadata) == self.identity;
        let found = self.path.symlink_metadata();
        if self.process == process_id() && found.is_ok_and(|found| is_own(&found)) {
            // If removing fails, the next run replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at a path where nothing exists, for this user. The thread that accepts looks at the user
/// all the same.
#[cfg(target_os = "linux")]
fn bind(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::SocketFlags;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // The file gets the permissions of the socket (`unix_bind_bsd`). Setting them by its path could
    // change those of another file: who may write to the directory may replace it by a link.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Listens at a path where nothing exists, for this user.
#[cfg(not(target_os = "linux"))]
fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    let (mode, flags) = (Mode::RUSR | Mode::WUSR, AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::chmodat(rustix::fs::CWD, path, mode, flags)?;
    Ok(listener)
}

/// Connects to the group at `path`, and waits for its rank 0 until the deadline.
pub(super) fn connect(path: &Path, deadline: Instant) -> Result<(UnixStream, Process)> {
    check(path)?;
    loop {
        match attempt(path).map_err(|error| cannot_connect(error, path))? {
            Attempt::Connected(stream, process) if process.is_same_user() => {
                return Ok((stream, process));
            }
            Attempt::Connected(_, process) => return Err(other_user(process, path)),
            Attempt::Absent if !directory(path).is_dir() => return Err(no_directory(path)),
            Attempt::Dead => check_type(path.metadata(), path)?,
            Attempt::Absent | Attempt::Busy => {}
        }
        if Instant::now() >= deadline {
            return Err(Error::new(
                ErrorKind::Peer,
                "rank 0 did not listen at the path of the group by the deadline",
            )
            .with_ranks([0])
            .with_location(path.display())
            .with_hint(
                "check that rank 0 has started, on this node and with the same path; or allow \
                 more time",
            ));
        }
        wait(&mut [], Some(deadline.min(Instant::now() + RETRY)));
    }
}

/// Result of one attempt to connect.
enum Attempt {
    Connected(UnixStream, Process),
    /// Nothing exists at the path.
    Absent,
    /// No live process listens there.
    Dead,
    /// The listener does not accept at the moment: it may be stopped.
    Busy,
}

fn attempt(path: &Path) -> io::Result<Attempt> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => {
            let stream = UnixStream::from(socket);
            let process = Process::at_other_end(&stream)?;
            // Forked children of a dead rank 0 keep its socket open.
            if process.has_ended() {
                return Ok(Attempt::Dead);
            }
            Ok(Attempt::Connected(stream, process))
        }
        Err(Errno::NOENT) => Ok(Attempt::Absent),
        Err(Errno::CONNREFUSED | Errno::NOTSOCK | Errno::CONNRESET) => Ok(Attempt::Dead),
        Err(Errno::AGAIN | Errno::INTR | Errno::INPROGRESS) => Ok(Attempt::Busy),
        Err(error) => Err(error.into()),
    }
}

/// Creates a socket that does not block, not even in `connect`.
#[cfg(target_os = "linux")]
fn socket() -> io::Result<OwnedFd> {
    use rustix::net::SocketFlags;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// Creates a socket that does not block, not even in `connect`.
#[cfg(not(target_os = "linux"))]
fn socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Removes the socket of a dead run.
fn remove_stale(path: &Path) -> Result<()> {
    check_type(path.symlink_metadata(), path)?;
    match attempt(path).map_err(|error| cannot_connect(error, path))? {
        Attempt::Absent => Ok(()),
        Attempt::Dead => fs::remove_file(path).map_err(|error| {
            Error::from_write("cannot replace the socket of a dead run", error)
                .with_location(path.display())
        }),
        Attempt::Connected(_, process) if !process.is_same_user() => Err(other_user(process, path)),
        Attempt::Connected(..) | Attempt::Busy => Err(Error::new(
            ErrorKind::Peer,
            "another process is already rank 0 of a group at this path",
        )
        .with_ranks([0])
        .with_location(path.display())
        .with_hint("give each group its own path, or end the other group first")),
    }
}

/// Checks a path without looking at it.
fn check(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let error = if bytes.is_empty() {
        Error::invalid_request("the path of the group is empty")
    } else if bytes.contains(&0) {
        Error::invalid_request("the path of the group has a zero byte")
    } else if bytes.len() > PATH_BYTES_MAX {
        Error::invalid_request(format!(
            "the path of the group has {} bytes; sockets allow {PATH_BYTES_MAX}",
            bytes.len()
        ))
        .with_hint("choose a shorter path, for example below /tmp or /run/user")
    } else {
        return Ok(());
    };
    Err(error.with_location(path.display()))
}

/// Refuses anything but a socket.
fn check_type(found: io::Result<fs::Metadata>, path: &Path) -> Result<()> {
    match found {
        Ok(found) if !found.file_type().is_socket() => Err(Error::invalid_request(
            "the path of the group is in use by something that is not a socket",
        )
        .with_location(path.display())
        .with_hint("choose another path, or remove what is there")),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn no_directory(path: &Path) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the directory of the group's path does not exist",
    )
    .with_location(path.display())
    .with_hint("create the directory first, or choose another path")
}

fn other_user(process: Process, path: &Path) -> Error {
    let (found, own) = (process.user, rustix::process::geteuid().as_raw());
    Error::new(
        ErrorKind::Peer,
        format!("rank 0 runs as user {found}, this process as user {own}"),
    )
    .with_ranks([0])
    .with_location(path.display())
    .with_hint("run all ranks of a group as the same user")
}

fn cannot_connect(error: io::Error, path: &Path) -> Error {
    let refused = error.kind() == io::ErrorKind::PermissionDenied;
    let error = Error::from_io("cannot connect to rank 0 of the group", error)
        .with_location(path.display());
    if refused {
        error.with_hint("run all ranks of a group as the same user, and give it access to the path")
    } else {
        error
    }
}

/// Exclusive lock of the directory of a path.
struct DirectoryLock(Option<OwnedFd>);

impl DirectoryLock {
    /// Takes the lock; does without where directories cannot be opened or locked.
    fn take(path: &Path, deadline: Instant) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(directory(path), flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Err(no_directory(path)),
            Err(_) => return Ok(Self(None)),
        };
        loop {
            match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(Some(opened))),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    wait(&mut [], Some(deadline.min(Instant::now() + RETRY)));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(Error::new(
                        ErrorKind::TimedOut,
                        "another process holds a lock of the directory of the group's path",
                    )
                    .with_location(path.display())
                    .with_hint("choose a path in a directory of its own"));
                }
                Err(_) => return Ok(Self(None)),
            }
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if let Some(directory) = &self.0 {
            // Unlock explicitly, because a child that was forked meanwhile holds the lock too.
            let _ = flock(directory, FlockOperation::Unlock);
        }
    }
}
