//! The server of `tload serve`: files and objects over HTTP, read-only.
//!
//! The command `tload` starts it; users depend on the crate `tload`. It knows neither the command
//! line nor signals: [`ServeOptions`] says what is served, and a function ends [`Server::run`].
//!
//! ```text
//! listener ─▶ connections (limit) ─▶ a thread per connection:
//!   request ─▶ answer: token, method, target ─▶ tree (confined) ─▶ condition, range ─▶ response
//!                                             └▶ objects               transmit ─▶ socket, tls
//! ```
//!
//! Threads, because `sendfile(2)` blocks: an asynchronous server would have to copy each file
//! through its own memory. `httparse`, the parser of hyper, parses requests. `condition`, `host`,
//! `listing`, `range`, `request`, `response`, `target` and `version` decide without I/O.

#![forbid(unsafe_code)]

mod answer;
mod condition;
mod connection;
mod connections;
mod digests;
mod host;
mod listing;
mod metrics;
mod objects;
mod range;
mod request;
mod response;
mod socket;
mod target;
mod tls;
mod token;
mod transmit;
mod tree;
mod version;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tload::{Error, ErrorKind, Location, Result, StoreOptions};
use tload_base::sync::threads::Builder;

use self::answer::{Served, Site};
use self::connection::Connection;
use self::connections::{Admission, Connections};
use self::metrics::Metrics;
use self::objects::Objects;
use self::tls::Tls;
use self::token::Token;
use self::tree::Tree;

/// Longest time until a request to stop is noticed.
const STEP: Duration = Duration::from_millis(100);

/// Time that responses in progress have to end. Less than the time after a signal until the command
/// ends the process.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Settings of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Directory, file or URL to serve; `None` for the objects in the cache.
    pub location: Option<Location>,
    /// Options of the object store, and of its cache.
    pub store: StoreOptions,
    /// Address and port to listen on. Port 0 chooses a free one.
    pub listen: String,
    /// File with the token that every request must have.
    pub token_file: Option<PathBuf>,
    /// Files for HTTPS; `None` for HTTP.
    pub tls: Option<TlsFiles>,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Time without a request, or without progress of a response, until a connection is closed.
    pub client_timeout: Duration,
}

/// PEM files with the identity of a server.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain, the server's certificate first.
    pub certificate: PathBuf,
    /// Private key of the server's certificate.
    pub key: PathBuf,
}

/// A server that listens. Clients are accepted while it runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
}

/// State that all connections share.
#[derive(Debug)]
struct Service {
    site: Site,
    tls: Option<Tls>,
    client_timeout: Duration,
    connections: Arc<Connections>,
    metrics: Metrics,
}

impl Server {
    /// Reads the files that `options` name, and begins to listen.
    ///
    /// # Errors
    ///
    /// Errors of the location, the token, the certificate and the address. Advice in them names
    /// flags of the command. A store that may be there later is a [doubt](Self::doubt).
    pub fn bind(options: &ServeOptions) -> Result<Self> {
        let served = match &options.location {
            Some(local) if local.as_path().is_some() => Served::Files(Tree::open(local)?),
            location => Served::Objects(Objects::open(location.as_ref(), &options.store)?),
        };
        let token_file = options.token_file.as_deref();
        let token = token_file.map(Token::read).transpose()?;
        let tls = options.tls.as_ref().map(Tls::read);
        let listening = |error| cannot_listen(error, &options.listen);
        let listener = TcpListener::bind(&*options.listen).map_err(listening)?;
        // A client that is gone before it is accepted must not block the thread.
        listener.set_nonblocking(true).map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let site = Site {
            served,
            is_local: token.is_none() && host::is_loopback(address.ip()),
            token,
        };
        Ok(Self {
            address,
            listener,
            service: Arc::new(Service {
                site,
                tls: tls.transpose()?,
                client_timeout: options.client_timeout,
                connections: Arc::new(Connections::new(options.max_connections)),
                metrics: Metrics::default(),
            }),
        })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as a URL.
    pub fn url(&self) -> String {
        let scheme = if self.service.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}/", self.address)
    }

    /// Returns why the store or the cache could not be asked at the start; it may be there later.
    pub fn doubt(&self) -> Option<&Error> {
        match &self.service.site.served {
            Served::Files(_) => None,
            Served::Objects(objects) => objects.doubt(),
        }
    }

    /// Serves until `stops_within` returns true, and then ends responses in progress within a
    /// second. That function waits for a request to stop, at most as long as its argument says, and
    /// returns whether there is one. It is called several times a second.
    pub fn run(&self, stops_within: impl Fn(Duration) -> bool) {
        while !stops_within(Duration::ZERO) {
            // Above the limit, clients wait in the kernel's queue.
            if self.service.connections.has_room(STEP) && self.has_client() {
                match self.listener.accept() {
                    Ok((stream, _)) => self.begin(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        // The client has gone, or the process has no descriptors left.
                        tracing::warn!("cannot accept a connection: {error}");
                        stops_within(STEP);
                    }
                }
            }
        }
        let ended = self.service.connections.stop(STOP_GRACE);
        tracing::info!("stopped; {ended} responses were cut off");
    }

    /// Waits until a client connects, for a short time.
    fn has_client(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.listener, PollFlags::IN)];
        let timeout = Timespec::try_from(STEP).expect("it is short");
        // An interrupted call counts as none.
        poll(&mut descriptors, Some(&timeout)).unwrap_or(0) > 0
    }

    /// Serves a client on a thread of its own.
    fn begin(&self, stream: TcpStream) {
        let twin = match stream.try_clone() {
            Ok(twin) => twin,
            Err(error) => {
                tracing::warn!("cannot set a connection up: {error}");
                return;
            }
        };
        let admission = self.service.connections.admit(twin);
        self.service
            .metrics
            .accepted
            .fetch_add(1, Ordering::Relaxed);
        let service = Arc::clone(&self.service);
        let thread = Builder::new()
            .name("tload-serve".to_owned())
            .spawn(move || service.serve(stream, &admission));
        if let Err(error) = thread {
            // The connection is closed with the closure.
            tracing::warn!("cannot start a thread: {error}");
        }
    }
}

impl Service {
    fn serve(&self, stream: TcpStream, admission: &Admission) {
        match Connection::new(self, admission, stream) {
            Ok(connection) => connection.run(),
            // The client has gone already.
            Err(error) => tracing::debug!("cannot set a connection up: {error}"),
        }
    }
}

fn cannot_listen(error: io::Error, listen: &str) -> Error {
    let kind = error.kind();
    let error = if kind == io::ErrorKind::InvalidInput {
        Error::new(ErrorKind::InvalidRequest, "is no address to listen on").with_source(error)
    } else {
        Error::from_io("cannot listen", error)
    };
    let error = error.with_location(listen);
    let hints = HINTS.iter().find(|(it, _)| *it == kind);
    match hints {
        Some((_, hint)) => error.with_hint(*hint),
        None => error,
    }
}

/// Advice for errors of the listener.
const HINTS: [(io::ErrorKind, &str); 4] = [
    (
        io::ErrorKind::AddrInUse,
        "another program listens there: choose another port with --listen, or 0 for any",
    ),
    (
        io::ErrorKind::AddrNotAvailable,
        "the machine does not have this address: 0.0.0.0 stands for all that it has",
    ),
    (
        io::ErrorKind::PermissionDenied,
        "ports below 1024 are reserved for root: choose another one with --listen",
    ),
    (
        io::ErrorKind::InvalidInput,
        "write an address and a port: 127.0.0.1:8080",
    ),
];

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::thread;

    use super::*;

    #[test]
    fn server_answers_until_it_is_told_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        let server = Server::bind(&ServeOptions {
            location: Some(Location::from_path(folder.path())),
            store: StoreOptions::new(),
            listen: "127.0.0.1:0".to_owned(),
            token_file: None,
            tls: None,
            max_connections: 4,
            client_timeout: Duration::from_secs(60),
        })
        .unwrap();
        assert_eq!(server.url(), format!("http://{}/", server.address()));
        let (running, ended) = mpsc::channel::<()>();
        let address = server.address();
        let response = thread::scope(|scope| {
            // Dropped at the end, also by a panic.
            let _running = running;
            let stops =
                move |timeout| ended.recv_timeout(timeout) != Err(RecvTimeoutError::Timeout);
            scope.spawn(move || server.run(stops));
            let mut client = TcpStream::connect(address).unwrap();
            client
                .write_all(b"GET /config.json HTTP/1.0\r\n\r\n")
                .unwrap();
            let mut response = String::new();
            client.read_to_string(&mut response).unwrap();
            response
        });
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\n{}"), "{response}");
    }
}
