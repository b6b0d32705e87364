//! Group of processes of one node that meet at a Unix socket.
//!
//! A star: rank 0 listens, and a thread of it gathers the messages of all ranks and sends each
//! rank all of them. `wire.rs` and `verdict.rs` are its messages, `gather.rs` its decisions,
//! `server.rs` the thread, `connection.rs` one connection, and `socket_file.rs` the socket at the
//! path. This file is the view of one rank.

mod connection;
mod gather;
mod server;
mod socket_file;
mod verdict;
mod wire;

#[cfg(test)]
mod tests;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::connection::Connection;
use self::server::Server;
use self::socket_file::SocketFile;
use self::verdict::Verdict;
use self::wire::{Frame, Frames, Hello, VERSION};
use super::{Group, MESSAGE_BYTES_MAX, TIMEOUT_MAX};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock::{Condvar, Mutex};
use crate::sync::per_process::process_id;
use crate::sync::threads::Builder;

/// Most ranks of a group: far more than one node has, and few enough for rank 0's memory.
const SIZE_MAX: usize = 1024;

/// Time beyond a deadline in which rank 0 can still say which ranks are missing.
const VERDICT_GRACE: Duration = Duration::from_secs(2);

/// Group of processes of one node, of one user, that meet at the path of a Unix socket.
///
/// Dropping it leaves the group: exchanges of the other ranks then fail.
#[derive(Debug)]
pub struct LocalGroup {
    rank: usize,
    size: usize,
    path: PathBuf,
    /// Process that joined. A forked child is another one.
    process: u32,
    /// Connection to rank 0's thread. `None` in a group of one.
    link: Option<Link>,
    /// Socket and thread of rank 0.
    host: Option<Host>,
}

/// Connection of a rank, which one thread at a time uses.
#[derive(Debug)]
struct Link {
    state: Mutex<LinkState>,
    changed: Condvar,
}

#[derive(Debug)]
struct LinkState {
    /// Away while a thread uses it.
    connection: Option<Connection>,
    /// First failure, which every later exchange repeats.
    failure: Option<Error>,
}

/// Socket and thread of rank 0.
#[derive(Debug)]
struct Host {
    file: Option<SocketFile>,
    thread: Option<JoinHandle<()>>,
}

impl LocalGroup {
    /// Joins the group of `size` ranks at `path` as `rank`, and returns when all ranks have joined.
    /// Rank 0 creates the socket, with access for this user only; the others wait for it. All this
    /// takes `timeout` at most, and up to two seconds more if rank 0 is stopped. The shortest
    /// timeout counts for all ranks. A group of one needs no socket.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) with the
    /// [ranks](crate::error::Error::ranks) that do not join in time, that leave again, that two
    /// processes claim, or whose `size` differs from that of rank 0; the same on all ranks that
    /// wait. Rank 0 also gets it if another group is alive at the path; the socket of a dead one is
    /// replaced.
    pub fn join(path: &Path, rank: usize, size: usize, timeout: Duration) -> Result<Self> {
        check(rank, size).map_err(|error| error.with_location(path.display()))?;
        let deadline = Instant::now() + timeout.min(TIMEOUT_MAX);
        let mut group = Self {
            rank,
            size,
            path: path.to_owned(),
            process: process_id(),
            link: None,
            host: None,
        };
        if size == 1 {
            return Ok(group);
        }
        let failed = |error| Error::from_io("cannot join the group", error);
        let mut hello = None;
        let connection = if rank == 0 {
            let (host, stream) = Host::start(path, size, deadline)?;
            group.host = Some(host);
            Connection::new(stream, Frames::of_answers(size), None)
        } else {
            let (stream, process) = socket_file::connect(path, deadline)?;
            let version = VERSION;
            hello = Some(Frame::Hello(Hello {
                version,
                rank,
                size,
            }));
            Connection::new(stream, Frames::of_answers(size), process.end())
        };
        let connection = connection.map_err(|error| group.located(failed(error)))?;
        let state = LinkState {
            connection: Some(connection),
            failure: None,
        };
        let link = group.link.insert(Link {
            state: Mutex::new(state),
            changed: Condvar::default(),
        });
        let joined = link.exchange(hello.as_ref(), &[], deadline);
        joined.map_err(|error| group.located(error))?;
        Ok(group)
    }

    fn located(&self, error: Error) -> Error {
        error.with_location(self.path.display())
    }

    /// Returns whether this is the process that joined.
    fn is_own_process(&self) -> bool {
        self.process == process_id()
    }
}

fn check(rank: usize, size: usize) -> Result<()> {
    let error = if size == 0 {
        Error::invalid_request("a group of 0 ranks; a group needs at least 1")
    } else if size > SIZE_MAX {
        Error::invalid_request(format!(
            "a group of {size} ranks; one node can have {SIZE_MAX} at most"
        ))
    } else if rank >= size {
        Error::invalid_request(format!("there is no rank {rank} in a group of {size}"))
            .with_hint(format!("ranks count from 0: the last one is {}", size - 1))
    } else {
        return Ok(());
    };
    Err(error)
}

impl Group for LocalGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, message: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        if !self.is_own_process() {
            let error = Error::invalid_request(format!(
                "the group belongs to process {}, from which this one was forked",
                self.process
            ));
            return Err(self.located(error.with_hint("join a group after the fork, not before")));
        }
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(self.located(Error::invalid_request(format!(
                "a message of {} bytes; {MESSAGE_BYTES_MAX} are allowed",
                message.len()
            ))));
        }
        match &self.link {
            None => Ok(vec![message.to_vec()]),
            Some(link) => link
                .exchange(None, message, deadline)
                .map_err(|error| self.located(error)),
        }
    }
}

impl Link {
    /// Takes part in one exchange, after `hello` if it is the first.
    fn exchange(
        &self,
        hello: Option<&Frame>,
        message: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_busy = |state: &LinkState| state.connection.is_none() && state.failure.is_none();
        let mut state = (self.changed).wait_timeout_while(self.state.lock(), left, is_busy);
        if let Some(failure) = &state.failure {
            return Err(failure.again());
        }
        let Some(mut connection) = state.connection.take() else {
            return Err(Error::new(
                ErrorKind::TimedOut,
                "another thread used the group until the deadline",
            ));
        };
        drop(state);
        let result = converse(&mut connection, hello, message, deadline);
        let mut state = self.state.lock();
        // The connection stays open after a failure, which the thread of rank 0 still reports to
        // latecomers.
        state.connection = Some(connection);
        state.failure = result.as_ref().err().map(Error::again);
        drop(state);
        self.changed.notify_all();
        result
    }
}

/// Sends a message to rank 0 and returns its answer.
fn converse(
    connection: &mut Connection,
    hello: Option<&Frame>,
    message: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    let message = Frame::Message {
        remaining: deadline.saturating_duration_since(Instant::now()),
        bytes: message.to_vec(),
    };
    let frames = hello.into_iter().chain([&message]);
    let bytes: Vec<_> = frames.flat_map(Frame::encode).collect();
    connection.queue(bytes.into());
    let last = deadline + VERDICT_GRACE;
    loop {
        connection.flush();
        connection.receive();
        let error = match connection.next() {
            Ok(Some(Frame::All(messages))) => return Ok(messages),
            Ok(Some(Frame::Failed(verdict))) => return Err(verdict.error()),
            Ok(None) if !connection.is_open() => Verdict::Gone { ranks: vec![0] }.error(),
            Ok(None) if Instant::now() < last => {
                connection.wait(last);
                continue;
            }
            Ok(None) => Error::new(ErrorKind::Peer, "rank 0 did not answer by the deadline")
                .with_ranks([0])
                .with_hint("check whether the process of rank 0 is stopped"),
            Ok(Some(Frame::Hello(_) | Frame::Message { .. })) | Err(_) => {
                Error::new(ErrorKind::Peer, "rank 0 sent an answer of no known form")
                    .with_ranks([0])
                    .with_hint("check that only tload listens at this path")
            }
        };
        // Close the connection, so that the others do not wait for this rank.
        connection.close();
        return Err(error);
    }
}

impl Host {
    /// Listens at `path` and starts the thread. Returns rank 0's own connection to it.
    fn start(path: &Path, size: usize, deadline: Instant) -> Result<(Self, UnixStream)> {
        let (listener, file) = SocketFile::listen(path, deadline)?;
        let failed =
            |error| Error::from_io("cannot start the group", error).with_location(path.display());
        let (stream, other_end) = UnixStream::pair().map_err(failed)?;
        let server = Server::new(listener, other_end, size).map_err(failed)?;
        let thread = Builder::new()
            .name("tload-group".to_owned())
            .spawn(move || server.run())
            .map_err(Error::cannot_start_thread)?;
        let host = Self {
            file: Some(file),
            thread: Some(thread),
        };
        Ok((host, stream))
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        // A forked child has neither the thread nor a say in the group.
        if !self.is_own_process() {
            return;
        }
        if let Some(host) = &mut self.host {
            // Remove the file before the listener is closed, so that the next run does not find a
            // dead socket.
            host.file = None;
        }
        if let Some(link) = &self.link
            && let Some(connection) = &mut link.state.lock().connection
        {
            connection.close();
        }
        if let Some(thread) = self.host.as_mut().and_then(|host| host.thread.take()) {
            // The thread ends when its connection closes, and gives up on ranks that do not read.
            // If it has panicked, its connections are closed.
            let _ = thread.join();
        }
    }
}
