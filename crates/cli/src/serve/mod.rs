//! `tload serve`: files and objects over HTTP, read-only.
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

mod answer;
mod condition;
mod connection;
mod connections;
mod digests;
mod host;
mod listing;
mod metrics;
#[cfg(feature = "object")]
mod objects;
#[cfg(not(feature = "object"))]
#[path = "no_objects.rs"]
mod objects;
mod range;
mod request;
mod response;
mod socket;
mod target;
#[cfg(feature = "object")]
mod tls;
#[cfg(not(feature = "object"))]
#[path = "no_tls.rs"]
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
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tload::{Error, ErrorKind, Location, Result, StoreOptions};

use self::answer::{Served, Site};
use self::connection::Connection;
use self::connections::{Admission, Connections};
use self::metrics::Metrics;
use self::objects::Objects;
use self::tls::Tls;
use self::token::Token;
use self::tree::Tree;
use crate::interrupt::Interrupt;

/// Longest time until a signal is noticed.
const STEP: Duration = Duration::from_millis(100);

/// Time that responses in progress have to end after a signal. Less than the grace of
/// [`Interrupt`], which ends the process.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Settings of a server.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `None` for the objects in the cache.
    pub(crate) location: Option<Location>,
    pub(crate) store: StoreOptions,
    pub(crate) listen: String,
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) max_connections: usize,
    pub(crate) client_timeout: Duration,
}

/// A server that listens.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    server: Arc<Server>,
}

/// State that all connections share.
#[derive(Debug)]
struct Server {
    site: Site,
    tls: Option<Tls>,
    client_timeout: Duration,
    connections: Arc<Connections>,
    metrics: Metrics,
}

impl Listening {
    /// Reads all files that `settings` name, and begins to listen.
    pub(crate) fn start(settings: &Settings) -> Result<Self> {
        let served = match &settings.location {
            Some(local) if local.as_path().is_some() => Served::Files(Tree::open(local)?),
            location => Served::Objects(Objects::open(location.as_ref(), &settings.store)?),
        };
        let token = settings
            .token_file
            .as_deref()
            .map(Token::read)
            .transpose()?;
        let tls = settings.tls.as_ref();
        let tls = tls.map(|(certificate, key)| Tls::read(certificate, key));
        let listening = |error| cannot_listen(error, &settings.listen);
        let listener = TcpListener::bind(&*settings.listen).map_err(listening)?;
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
            server: Arc::new(Server {
                site,
                tls: tls.transpose()?,
                client_timeout: settings.client_timeout,
                connections: Arc::new(Connections::new(settings.max_connections)),
                metrics: Metrics::default(),
            }),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as a URL.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.server.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}/", self.address)
    }

    /// Serves until a signal arrives, and then ends responses in progress within a second.
    pub(crate) fn run(&self, interrupt: &Interrupt) {
        while interrupt.check().is_ok() {
            // Above the limit, clients wait in the kernel's queue.
            if self.server.connections.has_room(STEP) && self.has_client() {
                match self.listener.accept() {
                    Ok((stream, _)) => self.begin(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        // The client has gone, or the process has no descriptors left.
                        tracing::warn!("cannot accept a connection: {error}");
                        drop(interrupt.wait(STEP));
                    }
                }
            }
        }
        let ended = self.server.connections.stop(STOP_GRACE);
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
        let admission = self.server.connections.admit(twin);
        self.server.metrics.accepted.fetch_add(1, Ordering::Relaxed);
        let server = Arc::clone(&self.server);
        let thread = thread::Builder::new()
            .name("tload-serve".to_owned())
            .spawn(move || server.serve(stream, &admission));
        if let Err(error) = thread {
            // The connection is closed with the closure.
            tracing::warn!("cannot start a thread: {error}");
        }
    }
}

impl Server {
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
