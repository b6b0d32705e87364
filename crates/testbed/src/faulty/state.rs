//! State shared by all connections: objects, rules, the log, and waiting threads.
//!
//! One lock and one condition. Owns the order of requests and the counts; `answer` builds the
//! responses. Called by the public interface and by each connection.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::answer;
use super::credentials::{self, Gatekeeper, Issue};
use super::dates;
use super::reply::Reply;
use super::rule::{Asked, Fault, Operation, Rules};
use super::store::Store;
use super::wire::Head;

/// Interval at which a stalled response checks whether its client is still connected.
const CLIENT_CHECK: Duration = Duration::from_millis(20);

/// Headers that [`Request`] keeps and does not print.
const SECRET_HEADERS: [&str; 2] = ["authorization", "x-amz-security-token"];

/// Request as the server received it. Its `Debug` omits the values of headers that hold
/// credentials.
#[derive(Clone)]
pub struct Request {
    /// Number, from 1 over all connections. `x-amz-request-id` is this number as `REQ0001`.
    pub order: usize,
    /// Number of its connection, from 1.
    pub connection: usize,
    /// Operation.
    pub operation: Operation,
    /// Method as sent.
    pub method: String,
    /// Path `bucket/key`, decoded, without the leading slash.
    pub path: String,
    /// Query, decoded, in the order sent.
    pub query: Vec<(String, String)>,
    /// Bytes of the object that a correct response would hold, if a `Range` was sent and the object
    /// has any of it.
    pub range: Option<Range<u64>>,
    /// Headers by name in lower case.
    pub headers: BTreeMap<String, String>,
    /// Status of the response; `None` until it is sent, and for good if it never is.
    pub status: Option<u16>,
    /// True if a rule applied.
    pub faulted: bool,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: BTreeMap<&str, &str> = (self.headers.iter())
            .map(|(name, value)| {
                let secret = SECRET_HEADERS.contains(&name.as_str());
                (
                    name.as_str(),
                    if secret { "(hidden)" } else { value.as_str() },
                )
            })
            .collect();
        f.debug_struct("Request")
            .field("order", &self.order)
            .field("connection", &self.connection)
            .field("operation", &self.operation)
            .field("path", &self.path)
            .field("range", &self.range)
            .field("headers", &headers)
            .field("status", &self.status)
            .field("faulted", &self.faulted)
            .finish_non_exhaustive()
    }
}

/// Counters of the server's activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests accepted since the start.
    pub requests: usize,
    /// Accepted requests to which a rule applied, since the start.
    pub faulted: usize,
    /// Accepted requests whose responses are not completely written.
    pub in_flight: usize,
    /// Maximum number of requests in flight at one time.
    pub in_flight_max: usize,
    /// Connections accepted since the start.
    pub connections: usize,
    /// Connections that are open now.
    pub open_connections: usize,
    /// Bytes of bodies passed to the kernel since the start, and those being passed. They do not
    /// wake waiting threads.
    pub body_bytes: u64,
}

/// State behind the lock.
pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) rules: Rules,
    pub(super) log: Vec<Request>,
    pub(super) gatekeeper: Option<Gatekeeper>,
    pub(super) issues: VecDeque<Issue>,
    pub(super) counts: Counts,
    pub(super) stopping: bool,
    pub(super) streams: HashMap<usize, Arc<TcpStream>>,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// Incremented by each `clear_faults`, which releases the responses stalled before it.
    clearings: u64,
}

/// Request with its response in progress.
pub(super) struct Job {
    pub(super) head: Head,
    pub(super) reply: Reply,
    pub(super) fault: Option<Fault>,
    order: usize,
    clearings: u64,
}

pub(super) struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    body_bytes: AtomicU64,
}

impl Shared {
    pub(super) fn new() -> Self {
        let inner = Inner {
            store: Store::new(),
            rules: Rules::default(),
            log: Vec::new(),
            gatekeeper: None,
            issues: VecDeque::new(),
            counts: Counts::default(),
            stopping: false,
            streams: HashMap::new(),
            threads: Vec::new(),
            clearings: 0,
        };
        let body_bytes = AtomicU64::new(0);
        Self {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            body_bytes,
        }
    }

    /// Locks the state, also after a panic: a test that failed with the lock held has reported it;
    /// the server must stop all the same.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change that other threads wait for.
    pub(super) fn change<T>(&self, with: impl FnOnce(&mut Inner) -> T) -> T {
        let result = with(&mut self.lock());
        self.changed.notify_all();
        result
    }

    pub(super) fn clear_faults(&self) {
        self.change(|inner| {
            inner.rules.clear();
            inner.clearings += 1;
        });
    }

    /// Ends all reads and writes in progress, and refuses further connections.
    pub(super) fn stop(&self) {
        self.change(|inner| {
            inner.stopping = true;
            for stream in inner.streams.values() {
                // A socket that its client has closed already needs no more.
                drop(stream.shutdown(Shutdown::Both));
            }
        });
    }

    pub(super) fn counts(&self) -> Counts {
        self.with_bytes(self.lock().counts)
    }

    fn with_bytes(&self, counts: Counts) -> Counts {
        Counts {
            body_bytes: self.body_bytes.load(Ordering::Relaxed),
            ..counts
        }
    }

    pub(super) fn count_body_bytes(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).expect("a length in memory fits 64 bits");
        self.body_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn wait_until(
        &self,
        timeout: Duration,
        mut enough: impl FnMut(&Counts) -> bool,
    ) -> bool {
        let wait = |inner: &mut Inner| !enough(&self.with_bytes(inner.counts));
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, wait);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Accepts a request: records it, selects its fault and builds its response, all in one step.
    pub(super) fn take_up(&self, connection: usize, head: Head) -> Job {
        self.change(|inner| {
            inner.counts.requests += 1;
            inner.counts.in_flight += 1;
            inner.counts.in_flight_max = inner.counts.in_flight_max.max(inner.counts.in_flight);
            inner.answer(connection, head)
        })
    }

    /// Records the status before it is sent, so that a client that has read it finds it here.
    pub(super) fn note_status(&self, job: &Job) {
        let mut inner = self.lock();
        let request = inner
            .log
            .iter_mut()
            .rev()
            .find(|request| request.order == job.order);
        if let Some(request) = request {
            request.status = Some(job.reply.status);
        }
    }

    /// Stalls a response for a time, or for good; less if faults are cleared. Returns an error if
    /// the client is gone.
    pub(super) fn hold(
        &self,
        job: &Job,
        stream: &TcpStream,
        time: Option<Duration>,
    ) -> io::Result<()> {
        let until = time.map(|time| Instant::now() + time);
        let mut inner = self.lock();
        while inner.clearings == job.clearings && !inner.stopping {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(());
            }
            let step = left.map_or(CLIENT_CHECK, |left| left.min(CLIENT_CHECK));
            let waited = self.changed.wait_timeout(inner, step);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            if is_closed(stream)? {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        if inner.stopping {
            Err(io::ErrorKind::ConnectionAborted.into())
        } else {
            Ok(())
        }
    }
}

impl Inner {
    fn answer(&mut self, connection: usize, head: Head) -> Job {
        let order = self.counts.requests;
        let id = format!("REQ{order:04}");
        let operation = answer::operation_of(&head);
        let refusal = match (&self.gatekeeper, operation) {
            (None, _) | (_, Operation::Credentials) => None,
            (Some(gatekeeper), _) => gatekeeper.refusal(head.header("authorization"), &id),
        };
        let object = self.store.find(&head.path, head.query("versionId"));
        let span = object.and_then(|object| head.wanted().within(object.size()));
        let fault = if refusal.is_some() {
            None
        } else {
            let begin = span
                .as_ref()
                .map_or(head.wanted().begin(), |span| span.start);
            let span = span.clone();
            self.rules.take(&Asked {
                operation,
                path: &head.path,
                begin,
                span,
            })
        };
        self.counts.faulted += usize::from(fault.is_some());
        self.log.push(Request {
            order,
            connection,
            operation,
            method: head.method.clone(),
            path: head.path.clone(),
            query: head.query.clone(),
            range: span.filter(|_| head.header("range").is_some()),
            headers: head.headers.clone(),
            status: None,
            faulted: fault.is_some(),
        });
        let mut reply =
            refusal.unwrap_or_else(|| self.reply(operation, &head, fault.as_ref(), &id));
        reply.set_if_absent("Date", dates::http(dates::now()));
        reply.set("x-amz-request-id", id);
        if head.method == "HEAD" {
            reply.leave_off_body();
        }
        if !head.keep_alive {
            reply.set("Connection", "close");
        }
        Job {
            head,
            reply,
            fault,
            order,
            clearings: self.clearings,
        }
    }

    fn reply(
        &mut self,
        operation: Operation,
        head: &Head,
        fault: Option<&Fault>,
        id: &str,
    ) -> Reply {
        answer::change_first(&mut self.store, &head.path, fault);
        let replaces = matches!(
            fault,
            Some(Fault::Status(..) | Fault::StatusWithHeaders { .. })
        );
        if operation == Operation::Credentials && !replaces {
            credentials::answer(&mut self.issues, id)
        } else {
            answer::answer(&self.store, head, fault, id)
        }
    }
}

fn is_closed(stream: &TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(count) => Ok(count == 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
