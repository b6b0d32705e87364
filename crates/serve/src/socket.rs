//! A client's socket, with time limits for both directions, and TLS over it if wanted.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::tls::{Tls, TlsStream};

/// Shortest timeout of a read: zero would mean none.
const TICK: Duration = Duration::from_millis(1);

/// Socket whose reads end at a deadline, and whose writes end when the client takes nothing.
pub(crate) struct Socket {
    stream: TcpStream,
    deadline: Instant,
    /// Longest wait of a write without progress.
    timeout: Duration,
}

impl Socket {
    /// `timeout` limits how long a write waits without progress.
    pub(crate) fn new(stream: TcpStream, timeout: Duration) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self {
            stream,
            deadline: Instant::now() + timeout,
            timeout,
        })
    }

    /// Sets the time at which all reads from now on fail.
    pub(crate) fn read_until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Returns which directions of the connection are closed: the client's, or both.
    pub(crate) fn closed(&self) -> PollFlags {
        // Other systems report the end of both directions only.
        #[cfg(target_os = "linux")]
        let wanted = PollFlags::RDHUP;
        #[cfg(not(target_os = "linux"))]
        let wanted = PollFlags::empty();
        let mut descriptors = [PollFd::new(&self.stream, wanted)];
        // An interrupted call reports nothing.
        let _ = poll(&mut descriptors, Some(&Timespec::default()));
        descriptors[0].revents()
    }

    /// Calls `send` with the socket until it returns `false`, and waits while the socket is full. A
    /// call that blocks in the kernel instead is slower: it is woken for each bit of room.
    #[cfg(target_os = "linux")]
    pub(crate) fn send_with(
        &mut self,
        mut send: impl FnMut(&TcpStream) -> io::Result<bool>,
    ) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let outcome = loop {
            match send(&self.stream) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if let Err(error) = self.wait_for_room() {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.stream.set_nonblocking(false)?;
        outcome
    }

    #[cfg(target_os = "linux")]
    fn wait_for_room(&self) -> io::Result<()> {
        let mut descriptors = [PollFd::new(&self.stream, PollFlags::OUT)];
        let timeout = Timespec::try_from(self.timeout).ok();
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left.max(TICK)))?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Names a timeout of the kernel, which reports it as a socket that would block.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock {
        ErrorKind::TimedOut.into()
    } else {
        error
    }
}

/// Connection to a client.
pub(crate) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

impl Transport {
    pub(crate) fn new(socket: Socket, tls: Option<&Tls>) -> io::Result<Self> {
        match tls {
            None => Ok(Self::Plain(socket)),
            Some(tls) => Ok(Self::Tls(Box::new(tls.accept(socket)?))),
        }
    }

    pub(crate) fn socket(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// Tells the client that no more follows. It may still be sending.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if let Self::Tls(stream) = self {
            stream.finish()?;
        }
        self.socket().stream.shutdown(std::net::Shutdown::Write)
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
