//! Thread of rank 0: accepts the other ranks, gathers their messages and answers them.
//!
//! Rank 0 itself is a client over a pair of sockets. The thread ends when that connection does.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, wait};
use super::gather::{Answer, Gather};
use super::verdict::Verdict;
use super::wire::{Frame, Frames};
use crate::TIMEOUT_MAX;
use crate::process::Process;

/// Time for the last answers to leave after rank 0's end: ranks that wait read at once, a stopped
/// one must not delay it for long.
const DRAIN_MAX: Duration = Duration::from_secs(2);

pub(super) struct Server {
    /// Closed when accepting has failed.
    listener: Option<UnixListener>,
    clients: Vec<Client>,
    gather: Gather,
}

/// Connected process.
struct Client {
    connection: Connection,
    /// Set once it is admitted.
    rank: Option<usize>,
}

impl Server {
    /// Creates the server of a group of `size` ranks, with the connection to rank 0.
    pub(super) fn new(listener: UnixListener, rank_0: UnixStream, size: usize) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let rank_0 = Client {
            connection: Connection::new(rank_0, Frames::of_rank(), None)?,
            rank: Some(0),
        };
        Ok(Self {
            listener: Some(listener),
            clients: vec![rank_0],
            gather: Gather::new(size),
        })
    }

    /// Serves until rank 0 closes its connection.
    pub(super) fn run(mut self) {
        while self.has_rank_0() {
            self.wait(self.gather.deadline());
            self.accept();
            for client in &mut self.clients {
                client.serve(&mut self.gather);
            }
            self.clients.retain(Client::is_of_use);
            while let Some(answer) = self.gather.answer(Instant::now()) {
                self.send(answer);
            }
        }
        let last = Instant::now() + DRAIN_MAX;
        while self.clients.iter().any(|it| it.connection.has_unsent()) && Instant::now() < last {
            self.wait(Some(last));
            self.listener = None;
            for client in &mut self.clients {
                client.connection.receive();
                client.connection.flush();
            }
            self.clients.retain(Client::is_of_use);
        }
        for client in &mut self.clients {
            client.connection.close();
        }
    }

    fn has_rank_0(&self) -> bool {
        self.clients.iter().any(|client| client.rank == Some(0))
    }

    fn wait(&self, deadline: Option<Instant>) {
        let listener = self
            .listener
            .iter()
            .map(|listener| PollFd::new(listener, PollFlags::IN));
        let clients = self
            .clients
            .iter()
            .flat_map(|client| client.connection.watched());
        wait(&mut listener.chain(clients).collect::<Vec<_>>(), deadline);
    }

    /// Accepts the processes that have connected.
    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            let error = match listener.accept() {
                Ok((stream, _)) => match Client::new(stream) {
                    Ok(client) => {
                        self.clients.extend(client);
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if error.kind() == io::ErrorKind::WouldBlock {
                return;
            }
            let is_over = [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted];
            if is_over.contains(&error.kind()) {
                continue;
            }
            // Descriptors or memory are exhausted. Waiting for them could take forever.
            self.listener = None;
            if self.gather.is_joining() {
                let cause = error.to_string();
                self.gather.fail(Verdict::NotAccepting { cause });
            }
        }
    }

    fn send(&mut self, answer: Answer) {
        let (to, frame) = match answer {
            Answer::All(messages) => (None, Frame::All(messages)),
            Answer::Failed { to, verdict } => (Some(to), Frame::Failed(verdict)),
        };
        let bytes: Arc<[u8]> = frame.encode().into();
        for client in &mut self.clients {
            let Some(rank) = client.rank else {
                continue;
            };
            if to.as_ref().is_none_or(|to| to.contains(&rank)) {
                client.connection.queue(Arc::clone(&bytes));
                client.connection.flush();
            }
        }
    }
}

impl Client {
    /// Takes a process that has connected, unless it runs as another user: that finds out itself.
    fn new(stream: UnixStream) -> io::Result<Option<Self>> {
        let process = Process::at_other_end(&stream)?;
        if !process.is_same_user() {
            tracing::warn!(user = process.user, "turned a process of another user away");
            return Ok(None);
        }
        Ok(Some(Self {
            connection: Connection::new(stream, Frames::of_rank(), process.end())?,
            rank: None,
        }))
    }

    /// Returns whether the other end may send or receive more.
    fn is_of_use(&self) -> bool {
        self.connection.is_open()
    }

    /// Sends what is queued and acts on what has arrived.
    fn serve(&mut self, gather: &mut Gather) {
        self.connection.flush();
        self.connection.receive();
        loop {
            let understood = match self.connection.next() {
                Ok(None) => break,
                Ok(Some(frame)) => self.act(frame, gather),
                Err(_) => false,
            };
            if !understood {
                self.connection.close();
                break;
            }
        }
        if !self.connection.is_open()
            && let Some(rank) = self.rank
        {
            gather.leave(rank);
        }
    }

    /// Acts on a frame. Returns whether the protocol allows it.
    fn act(&mut self, frame: Frame, gather: &mut Gather) -> bool {
        match (frame, self.rank) {
            (Frame::Hello(hello), None) => {
                match gather.admit(&hello) {
                    Ok(()) => self.rank = Some(hello.rank),
                    Err(_) if self.connection.has_unsent() => return false,
                    Err(verdict) => {
                        self.connection
                            .queue(Frame::Failed(verdict).encode().into());
                        self.connection.flush();
                    }
                }
                true
            }
            (Frame::Message { remaining, bytes }, Some(rank)) => {
                let deadline = Instant::now() + remaining.min(TIMEOUT_MAX);
                gather.take(rank, bytes, deadline)
            }
            // This message follows the hello of a process that was turned away.
            (Frame::Message { .. }, None) => true,
            (Frame::Hello(_), Some(_)) | (Frame::All(_) | Frame::Failed(_), _) => false,
        }
    }
}
