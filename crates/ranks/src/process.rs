//! The process at the other end of a Unix socket: its user, its number, and its end.
//!
//! A connection alone does not show that a process has ended: a forked child keeps it open.

#![expect(unsafe_code, reason = "reads the credentials of a socket's peer")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Process that has connected or that listens, as the kernel recorded it at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    /// Effective user.
    pub(super) user: u32,
    /// Number of the process, if it is visible from here.
    number: Option<rustix::process::Pid>,
}

impl Process {
    /// Returns the process at the other end.
    ///
    /// Not rustix's `socket_peercred`: the number is 0 for a process of another container, which
    /// its type cannot hold (1.1.6).
    #[cfg(target_os = "linux")]
    pub(super) fn at_other_end(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut length =
            libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few bytes are few bytes");
        // SAFETY: `found` and `length` are local variables, and `length` is the size of `found`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            user: found.uid,
            number: rustix::process::Pid::from_raw(found.pid),
        })
    }

    /// Returns the process at the other end, whose number is not known here.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn at_other_end(socket: impl AsFd) -> io::Result<Self> {
        let (mut user, mut group) = (0, 0);
        // SAFETY: `user` and `group` are local variables.
        let result =
            unsafe { libc::getpeereid(socket.as_fd().as_raw_fd(), &raw mut user, &raw mut group) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { user, number: None })
    }

    /// Returns whether the process runs as the same user as this one.
    pub(super) fn is_same_user(self) -> bool {
        self.user == rustix::process::geteuid().as_raw()
    }

    /// Returns whether the process is known to have ended.
    pub(super) fn has_ended(self) -> bool {
        self.number.is_some_and(|number| {
            rustix::process::test_kill_process(number) == Err(rustix::io::Errno::SRCH)
        })
    }

    /// Returns a descriptor that becomes readable at the end of the process, where there is one.
    #[cfg(target_os = "linux")]
    pub(super) fn end(self) -> Option<OwnedFd> {
        // The descriptor is closed on exec.
        rustix::process::pidfd_open(self.number?, rustix::process::PidfdFlags::empty()).ok()
    }

    /// Returns nothing: there is no such descriptor.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "as on Linux")]
    pub(super) fn end(self) -> Option<OwnedFd> {
        None
    }
}
