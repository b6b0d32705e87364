//! One connection: requests in turn, each answered before the next is read.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use http::{Method, StatusCode};
use rustix::event::PollFlags;

use crate::Service;
use crate::connections::Admission;
use crate::request::{HEAD_MAX, Parsed, Request};
use crate::response::{Body, Response};
use crate::socket::{Socket, Transport};
use crate::transmit::{Ended, Transfer};

/// Longest time from the first byte of a request to the end of its head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of what a client may still send while its connection is closed. Without reading it, the
/// kernel would discard the response.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;

/// A client's connection.
pub(crate) struct Connection<'a> {
    service: &'a Service,
    admission: &'a Admission,
    transport: Transport,
    /// Bytes that were received and not used yet.
    received: Vec<u8>,
    /// Memory for bytes that are copied.
    buffer: Vec<u8>,
}

/// Request, or why there is none.
enum Received {
    Request(Box<Request>),
    Refused(StatusCode),
    /// The client has closed the connection or sends nothing.
    Closed,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(
        service: &'a Service,
        admission: &'a Admission,
        stream: TcpStream,
    ) -> io::Result<Self> {
        let socket = Socket::new(stream, service.client_timeout)?;
        Ok(Self {
            service,
            admission,
            transport: Transport::new(socket, service.tls.as_ref())?,
            received: Vec::new(),
            buffer: Vec::new(),
        })
    }

    /// Serves requests until the client or the server closes the connection.
    pub(crate) fn run(mut self) {
        loop {
            let received = self.receive();
            self.admission.set_idle(false);
            let goes_on = match received {
                Received::Closed => return,
                Received::Refused(status) => {
                    if self.send(&Response::plain(status), false, true).is_ok() {
                        self.linger();
                    }
                    return;
                }
                Received::Request(request) => self.respond(&request),
            };
            if !goes_on {
                return;
            }
            self.admission.set_idle(true);
        }
    }

    /// Receives the next request.
    fn receive(&mut self) -> Received {
        let now = Instant::now();
        let head_timeout = HEAD_TIMEOUT.min(self.service.client_timeout);
        let mut has_begun = !self.received.is_empty();
        let timeout = if has_begun {
            head_timeout
        } else {
            self.service.client_timeout
        };
        self.transport.socket().read_until(now + timeout);
        loop {
            if has_begun {
                match Request::parse(&self.received) {
                    Parsed::Complete(request, len) => {
                        self.received.drain(..len);
                        return Received::Request(request);
                    }
                    Parsed::Invalid(status) => return Received::Refused(status),
                    Parsed::Incomplete => {}
                }
            }
            let mut bytes = [0; HEAD_MAX];
            match self.transport.read(&mut bytes) {
                Ok(0) => return Received::Closed,
                Ok(len) => {
                    if !has_begun {
                        let deadline = Instant::now() + head_timeout;
                        self.transport.socket().read_until(deadline);
                        has_begun = true;
                    }
                    self.received.extend_from_slice(&bytes[..len]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    self.service.metrics.silent.fetch_add(1, Ordering::Relaxed);
                    return if has_begun {
                        Received::Refused(StatusCode::REQUEST_TIMEOUT)
                    } else {
                        Received::Closed
                    };
                }
                Err(_) => return Received::Closed,
            }
        }
    }

    /// Answers a request and returns whether another may follow.
    fn respond(&mut self, request: &Request) -> bool {
        let (service, started) = (self.service, Instant::now());
        let response = service.site.answer(request, SystemTime::now(), || {
            let connections = &service.connections;
            service
                .metrics
                .text(connections.count(), connections.limit())
        });
        let keeps_alive = request.keeps_alive && self.admission.may_continue();
        let with_body = request.method != Method::HEAD;
        let sent = self.send(&response, keeps_alive, with_body);
        service.metrics.count_time(started.elapsed());
        log(request, &response, sent.as_ref().err());
        match sent {
            Ok(()) if keeps_alive => true,
            Ok(()) => {
                self.linger();
                false
            }
            Err(ended) => {
                let metrics = &service.metrics;
                let counter = match ended {
                    Ended::Changed => &metrics.changed_files,
                    Ended::Unreadable(_) | Ended::Store(_) | Ended::Refused(_) => {
                        &metrics.failed_reads
                    }
                    Ended::Client(_) => &metrics.unfinished,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    fn send(
        &mut self,
        response: &Response,
        keeps_alive: bool,
        with_body: bool,
    ) -> Result<(), Ended> {
        let mut head = match response.head(SystemTime::now(), keeps_alive) {
            Ok(head) => head.into_bytes(),
            Err(name) => {
                let refusal = Response::plain(StatusCode::INTERNAL_SERVER_ERROR);
                self.send(&refusal, false, with_body)?;
                return Err(Ended::Refused(name));
            }
        };
        let metrics = &self.service.metrics;
        metrics.count(response.status);
        if let (Body::Text(text), true) = (&response.body, with_body) {
            head.extend_from_slice(text.as_bytes());
            metrics
                .sent_bytes
                .fetch_add(response.len(), Ordering::Relaxed);
        }
        // Before the head: a client that has it may hang up.
        let closed = match &response.body {
            Body::Object(..) => self.transport.socket().closed(),
            Body::None | Body::Text(_) | Body::File(..) => PollFlags::empty(),
        };
        self.transport.write_all(&head).map_err(Ended::Client)?;
        self.transport.flush().map_err(Ended::Client)?;
        if let (Body::File(file, version, range), true) = (&response.body, with_body) {
            let transfer = Transfer {
                file,
                version,
                range: range.clone(),
                sent_bytes: &metrics.sent_bytes,
            };
            transfer.run(&mut self.transport, &mut self.buffer)?;
        }
        if let (Body::Object(object, range), true) = (&response.body, with_body) {
            let to = &mut self.transport;
            object.send(range.clone(), to, closed, &metrics.sent_bytes)?;
        }
        Ok(())
    }

    /// Ends the connection after a complete response, and reads what the client is still sending.
    fn linger(&mut self) {
        if self.transport.finish().is_err() {
            return;
        }
        self.transport.socket().read_until(Instant::now() + LINGER);
        let mut left = LINGER_BYTES;
        let mut bytes = [0; HEAD_MAX];
        while let Ok(len @ 1..) = self.transport.socket().read(&mut bytes) {
            left = left.saturating_sub(len);
            if left == 0 {
                return;
            }
        }
    }
}

/// Logs a request. Headers may contain the token, and stay out.
fn log(request: &Request, response: &Response, ended: Option<&Ended>) {
    let (method, path) = (&request.method, request.uri.path());
    let (status, bytes) = (response.status.as_str(), response.len());
    match ended {
        None => tracing::info!("{method} {path}: {status}, {bytes} bytes"),
        Some(Ended::Changed) => tracing::warn!("{method} {path}: ended early, the file changed"),
        Some(Ended::Store(error)) => {
            tracing::warn!("{method} {path}: ended early, {}", error.chain());
        }
        Some(Ended::Unreadable(error)) => {
            tracing::warn!("{method} {path}: ended early, the file cannot be read: {error}");
        }
        Some(Ended::Refused(name)) => {
            tracing::warn!("{method} {path}: not sent, the header {name} has control characters");
        }
        Some(Ended::Client(error)) => {
            tracing::info!("{method} {path}: ended early, the client does not receive: {error}");
        }
    }
}
