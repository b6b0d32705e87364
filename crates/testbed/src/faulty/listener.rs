//! Accepts connections, serves one request after the other on each, and closes them.
//!
//! Owns the threads. Each connection has one, and [`stop`] ends them all: it shuts the sockets
//! down, which wakes every read and write, and wakes stalled responses through the lock's
//! condition. Called by the public interface.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::delivery::{Next, deliver};
use super::state::Shared;
use super::wire::{self, Head};

/// Stack of a connection's thread: enough for a head; hundreds of connections cost little.
const STACK_BYTES: usize = 256 << 10;

/// Timeout of the connection that wakes the listener, on the loopback.
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// Accepts connections until the server stops.
pub(super) fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.lock().stopping {
            return;
        }
        match accepted {
            Ok((stream, _)) => admit(stream, shared),
            // Too many open files, or the client went away before the accept.
            Err(_) => thread::yield_now(),
        }
    }
}

fn admit(stream: TcpStream, shared: &Arc<Shared>) {
    // Without this, the end of a short response waits for the client's acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let stream = Arc::new(stream);
    let number = shared.change(|inner| {
        // The server may have begun to stop since the last check: then this socket would never be
        // shut down.
        if inner.stopping {
            return None;
        }
        inner.counts.connections += 1;
        inner.counts.open_connections += 1;
        inner
            .streams
            .insert(inner.counts.connections, Arc::clone(&stream));
        Some(inner.counts.connections)
    });
    let Some(number) = number else { return };
    let connection = Connection {
        number,
        stream: Some(stream),
        shared: Arc::clone(shared),
    };
    let thread = thread::Builder::new()
        .name(format!("faulty-{number}"))
        .stack_size(STACK_BYTES)
        .spawn(move || connection.serve());
    // Without a thread the connection is dropped and so closed, as by a server out of threads.
    if let Ok(thread) = thread {
        let mut inner = shared.lock();
        inner.threads.retain(|thread| !thread.is_finished());
        inner.threads.push(thread);
    }
}

/// Ends all connections, and waits for their threads and for the accepting thread.
pub(super) fn stop(address: SocketAddr, shared: &Shared, acceptor: JoinHandle<()>) {
    shared.stop();
    while !acceptor.is_finished() {
        // Wakes `accept`. It may take several attempts: a process out of descriptors has none for
        // this connection.
        drop(TcpStream::connect_timeout(&address, WAKE_TIMEOUT));
        thread::yield_now();
    }
    // A panic in a thread has failed there; stopping must not add a second one.
    drop(acceptor.join());
    loop {
        // Taken out first: a thread that ends needs the lock.
        let thread = shared.lock().threads.pop();
        let Some(thread) = thread else { return };
        drop(thread.join());
    }
}

/// Connection, which counts as closed when it is dropped.
struct Connection {
    number: usize,
    stream: Option<Arc<TcpStream>>,
    shared: Arc<Shared>,
}

impl Connection {
    fn serve(self) {
        // An error means a client that went away, or this server's shutdown: both end only the
        // connection.
        while let Ok(Next::Another) = self.serve_one() {}
    }

    fn serve_one(&self) -> io::Result<Next> {
        let Some(stream) = self.stream.as_deref() else {
            return Ok(Next::Close);
        };
        let Some(head) = wire::read_head(stream)? else {
            return Ok(Next::Close);
        };
        let head = Head::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let job = self.shared.take_up(self.number, head);
        let _flight = Flight(&self.shared);
        deliver(stream, &self.shared, &job)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The socket closes with the last of its owners, and must be closed before it counts as
        // closed.
        self.shared.lock().streams.remove(&self.number);
        drop(self.stream.take());
        self.shared
            .change(|inner| inner.counts.open_connections -= 1);
    }
}

/// Accepted request, which counts as done when this is dropped.
struct Flight<'a>(&'a Shared);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.change(|inner| inner.counts.in_flight -= 1);
    }
}
