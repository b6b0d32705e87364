//! Sends bytes of a file to a client.
//!
//! Without TLS, and where the system has it, `sendfile(2)` sends pages of the page cache without
//! copying them into this process. The last bytes are always read, and sent only if the file is
//! then still in the state that the response describes: a client that receives a complete response
//! has no bytes of a file that was written to before. Pages that are queued in the kernel are those
//! of the file, so a write within the last moment can still reach the client; a file that is
//! replaced by renaming cannot.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use tload::Error;

use crate::socket::{Socket, Transport};
use crate::version::Version;

/// Bytes between two checks of the file's version. Checks cost a microsecond each.
const STRIDE: u64 = 4 << 20;

/// Bytes that are read at once where they are copied.
const COPY: u64 = 1 << 20;

/// Bytes at the end of each response that are read and checked before they are sent.
const CHECKED_END: u64 = 64 << 10;

/// Reason why a response ended early. The connection is closed: the client sees less than the
/// `Content-Length`.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The file is not the one that the response describes any more.
    Changed,
    /// The file cannot be read.
    Unreadable(io::Error),
    /// The object cannot be read.
    Store(Error),
    /// The response has control characters in the header of this name, and was not sent.
    Refused(&'static str),
    /// The client closed the connection, or takes nothing.
    Client(io::Error),
}

/// File that is being sent.
pub(crate) struct Transfer<'a> {
    pub(crate) file: &'a File,
    pub(crate) version: &'a Version,
    /// Bytes that are left to send.
    pub(crate) range: Range<u64>,
    pub(crate) sent_bytes: &'a AtomicU64,
}

impl Transfer<'_> {
    /// Sends the bytes of the range, or fails before it sends the last of them.
    pub(crate) fn run(mut self, to: &mut Transport, buffer: &mut Vec<u8>) -> Result<(), Ended> {
        self.advise();
        if let Transport::Plain(socket) = to {
            self.send_pages(socket)?;
        }
        while self.left() > 0 {
            self.copy(to, buffer)?;
        }
        Ok(())
    }

    fn left(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn advance(&mut self, len: u64) {
        self.range.start += len;
        self.sent_bytes.fetch_add(len, Ordering::Relaxed);
    }

    /// Tells the kernel that the range is read in order, for a larger read-ahead.
    fn advise(&self) {
        #[cfg(target_os = "linux")]
        if self.left() > COPY {
            use rustix::fs::{Advice, fadvise};
            // Only a hint: some file systems refuse it.
            let _ = fadvise(self.file, 0, None, Advice::Sequential);
        }
    }

    /// Sends all but the last bytes from the page cache. Leaves everything to [`Self::copy`] if the
    /// file system cannot do this, or fails.
    #[cfg(target_os = "linux")]
    fn send_pages(&mut self, to: &mut Socket) -> Result<(), Ended> {
        use rustix::fs::sendfile;
        use rustix::io::Errno;

        let mut ended = None;
        let sent = to.send_with(|stream| {
            if self.left() <= CHECKED_END {
                return Ok(false);
            }
            let wanted = (self.left() - CHECKED_END).min(STRIDE);
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            let mut offset = self.range.start;
            let checked = match sendfile(stream, self.file, Some(&mut offset), wanted) {
                Ok(0) => Err(Ended::Changed),
                Ok(len) => {
                    self.advance(len as u64);
                    self.check()
                }
                Err(Errno::INTR) => Ok(()),
                Err(errno @ (Errno::AGAIN | Errno::PIPE | Errno::CONNRESET)) => {
                    return Err(errno.into());
                }
                // Is it of the file or of the socket? A read and a write tell.
                Err(_) => return Ok(false),
            };
            ended = checked.err();
            Ok(ended.is_none())
        });
        match ended {
            Some(ended) => Err(ended),
            None => sent.map_err(Ended::Client),
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "the signature of Linux"
    )]
    fn send_pages(&mut self, _to: &mut Socket) -> Result<(), Ended> {
        Ok(())
    }

    /// Reads the next bytes, and sends them if the file is still the same.
    fn copy(&mut self, to: &mut Transport, buffer: &mut Vec<u8>) -> Result<(), Ended> {
        let wanted = usize::try_from(self.left().min(COPY)).unwrap_or(usize::MAX);
        if buffer.len() < wanted {
            buffer.resize(wanted, 0);
        }
        let len = match self.file.read_at(&mut buffer[..wanted], self.range.start) {
            Ok(0) => return Err(Ended::Changed),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(Ended::Unreadable(error)),
        };
        self.check()?;
        to.write_all(&buffer[..len]).map_err(Ended::Client)?;
        to.flush().map_err(Ended::Client)?;
        self.advance(len as u64);
        Ok(())
    }

    /// Fails if the file has changed since the response began.
    fn check(&self) -> Result<(), Ended> {
        let metadata = self.file.metadata().map_err(Ended::Unreadable)?;
        if self.version.is_of(&metadata) {
            Ok(())
        } else {
            Err(Ended::Changed)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn error_of_the_file_is_not_the_clients() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let len = 4 * CHECKED_END;
        // Neither `sendfile` nor `read` accepts this descriptor.
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        file.set_len(len).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let socket = Socket::new(stream, Duration::from_secs(60)).unwrap();
        let transfer = Transfer {
            file: &file,
            version: &Version::new(&file.metadata().unwrap()),
            range: 0..len,
            sent_bytes: &AtomicU64::new(0),
        };
        let mut to = Transport::new(socket, None).unwrap();
        let ended = transfer.run(&mut to, &mut Vec::new());
        assert!(matches!(ended, Err(Ended::Unreadable(_))), "{ended:?}");
    }
}
