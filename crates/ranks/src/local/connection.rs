//! One end of a connection between rank 0's thread and a rank: frames over a stream that never
//! blocks, and waits with a deadline.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::wire::{Frame, Frames, Malformed};

/// Longest single wait, after which the deadline is looked at again.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Most bytes of one receive call.
const RECEIVED_BYTES_MAX: usize = 16 << 10;

/// A peer that is gone must not end this process by `SIGPIPE`.
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::empty();

#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    frames: Frames,
    outgoing: Arc<[u8]>,
    sent: usize,
    /// Readable when the process at the other end has ended.
    end: Option<OwnedFd>,
    is_open: bool,
}

impl Connection {
    pub(super) fn new(
        stream: UnixStream,
        frames: Frames,
        end: Option<OwnedFd>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            frames,
            outgoing: Arc::default(),
            sent: 0,
            end,
            is_open: true,
        })
    }

    /// Sets the bytes to send. There must not be others.
    pub(super) fn queue(&mut self, bytes: Arc<[u8]>) {
        debug_assert!(!self.has_unsent(), "one answer for each message");
        self.outgoing = bytes;
        self.sent = 0;
    }

    /// Returns whether bytes are queued that the other end can still receive.
    pub(super) fn has_unsent(&self) -> bool {
        self.is_open && self.sent < self.outgoing.len()
    }

    /// Returns whether the other end may send more.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Sends as much as the stream takes now.
    pub(super) fn flush(&mut self) {
        while self.has_unsent() {
            match rustix::net::send(&self.stream, &self.outgoing[self.sent..], SEND_FLAGS) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                // The other end is gone, or no longer reads. It may have sent the reason before.
                Err(Errno::AGAIN) => return,
                Err(_) => self.sent = self.outgoing.len(),
            }
        }
        self.outgoing = Arc::default();
        self.sent = 0;
    }

    /// Receives what has arrived, or the beginning of it.
    pub(super) fn receive(&mut self) {
        let has_ended = self.has_process_ended();
        let mut bytes = [0; RECEIVED_BYTES_MAX];
        match rustix::net::recv(&self.stream, &mut bytes[..], RecvFlags::empty()) {
            Ok((_, 0)) => self.is_open = false,
            Ok((_, received)) => self.frames.push(&bytes[..received]),
            Err(Errno::INTR) => {}
            // All that the process sent before its end has been received.
            Err(Errno::AGAIN) => self.is_open &= !has_ended,
            Err(_) => self.is_open = false,
        }
    }

    /// Takes the first whole frame that has been received.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        self.frames.next()
    }

    /// Ends the connection for both ends, also if a forked child holds a copy of it.
    pub(super) fn close(&mut self) {
        self.is_open = false;
        // The other end may already have closed the connection.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Waits until there is something to do on the connection or the deadline has passed.
    pub(super) fn wait(&self, deadline: Instant) {
        wait(&mut self.watched().collect::<Vec<_>>(), Some(deadline));
    }

    /// Returns the descriptors to wait for.
    pub(super) fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.has_unsent());
        let end = self.end.iter();
        let stream = PollFd::new(&self.stream, events);
        std::iter::once(stream).chain(end.map(|end| PollFd::new(end, PollFlags::IN)))
    }

    fn has_process_ended(&self) -> bool {
        self.end.as_ref().is_some_and(|end| {
            let mut watched = [PollFd::new(end, PollFlags::IN)];
            wait(&mut watched, Some(Instant::now()));
            !watched[0].revents().is_empty()
        })
    }
}

/// Waits until one of the descriptors is ready or the deadline has passed. May return earlier.
pub(super) fn wait(watched: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let left = deadline
        .map_or(WAIT_MAX, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        })
        .min(WAIT_MAX);
    let left = Timespec::try_from(left).expect("an hour at most");
    // `poll` fails only for signals and for lack of memory. The caller tries again.
    let _ = poll(watched, Some(&left));
}
