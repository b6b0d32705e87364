//! Waiting for descriptors, and for a signal of another thread.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Signal that a thread can wait for together with descriptors.
#[derive(Debug)]
pub(super) struct Wake {
    sender: UnixStream,
    receiver: UnixStream,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Self { sender, receiver })
    }

    /// Sets the signal.
    pub(super) fn set(&self) {
        // If the channel is full, the signal is set already.
        let _ = (&self.sender).write(&[0]);
    }

    /// Clears the signal.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 256];
        while (&self.receiver)
            .read(&mut bytes)
            .is_ok_and(|read| read == bytes.len())
        {}
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

/// Waits until one of the descriptors is ready for what is asked, or until the deadline. Returns
/// which of them are.
pub(super) fn wait_for(
    descriptors: &[(BorrowedFd<'_>, PollFlags)],
    deadline: Option<Instant>,
) -> io::Result<Vec<bool>> {
    let mut polled: Vec<_> = descriptors
        .iter()
        .map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags))
        .collect();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => {
                return Ok(polled
                    .iter()
                    .map(|polled| !polled.revents().is_empty())
                    .collect());
            }
        }
    }
}
