//! Starts the reader, and becomes the command.

#![expect(
    unsafe_code,
    reason = "forks between a fork and an exec, so that the reader is no child of the command"
)]

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{meeting, program};

/// Exit status of a program that is not found, as of `env(1)`.
const NOT_FOUND: u8 = 127;

/// Exit status of a program that cannot be started.
const CANNOT_START: u8 = 126;

/// Why the command was not started.
#[derive(Debug)]
pub struct Failed {
    name: OsString,
    error: io::Error,
    /// Exit status that says so, as that of `env(1)`.
    pub status: u8,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run `{}`: {}", self.name.display(), self.error)
    }
}

/// Starts a reader and replaces this process by `command`. Loads in it get the settings of the
/// `cache`, by key, in their variables, and the variable that lets them stop the reader.
/// `arguments` are those of this process, of which the first is its name; the reader gets them
/// after a mark that [`is_reader`](crate::is_reader) knows. If the reader cannot be started, `warn`
/// is told, and the command starts without it.
///
/// The command is as this process was: descriptors, terminal, directory, limits. As of every
/// program that Rust starts, SIGPIPE has its default action, and no signal is blocked.
pub fn launch<'a>(
    arguments: &[OsString],
    command: &[OsString],
    cache: impl IntoIterator<Item = (&'static str, &'a OsString)>,
    warn: impl FnOnce(&io::Error),
) -> Failed {
    let mut words = command.iter();
    let name = words.next().cloned().unwrap_or_default();
    let mut command = Command::new(&name);
    command.args(words);
    for (key, value) in cache {
        command.env(format!("TLOAD_{}", key.to_uppercase()), value);
    }
    match start_reader(arguments) {
        Ok(socket) => {
            command.env(meeting::VARIABLE, socket);
        }
        Err(error) => {
            command.env_remove(meeting::VARIABLE);
            warn(&error);
        }
    }
    let error = command.exec();
    let status = if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        CANNOT_START
    };
    Failed {
        name,
        error,
        status,
    }
}

/// Starts the reader, and returns the name of the socket that stops it.
#[cfg(target_os = "linux")]
fn start_reader(arguments: &[OsString]) -> io::Result<String> {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    // This process, which will be the command: also if it ends before the reader looks.
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let (socket, name) = meeting::open()?;
    let mut reader = program::reader(arguments);
    reader.stdin(this).stdout(socket);
    // SAFETY: `depart` allocates nothing and takes no lock, so it may run between fork and exec.
    unsafe { reader.pre_exec(depart) };
    // Its parent is gone by now, so that it is a child of the first process.
    reader.spawn()?.wait()?;
    Ok(name)
}

#[cfg(not(target_os = "linux"))]
fn start_reader(_arguments: &[OsString]) -> io::Result<String> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "works on Linux only",
    ))
}

/// Leaves the session of the command, lets its descriptors go at the exec, and forks once more: the
/// child goes on.
#[cfg(target_os = "linux")]
fn depart() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;

    rustix::process::setsid()?;
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: the system call takes three numbers, and closes nothing yet.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) };
    // Before Linux 5.11 it fails, and the reader keeps what it has inherited until it ends.
    // SAFETY: this process has one thread, which goes on to the exec.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(()),
        // SAFETY: ends this process, in which nothing has to be cleaned up.
        _ => unsafe { libc::_exit(0) },
    }
}
