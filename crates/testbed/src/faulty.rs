//! S3 and plain HTTP range server in this process, which fails on command.
//!
//! It serves objects from memory and behaves well until a [`Rule`] says otherwise. Faults are
//! counted, never random, so that a test sees the same failures in every run. This file owns the
//! public interface; `store` and `answer` produce responses, `rule` selects faults, and `listener`
//! and `delivery` send bytes to the socket. Called by tests only: signatures are not checked and
//! nothing is written to disk.

mod answer;
mod bucket;
mod credentials;
mod dates;
mod delivery;
mod hub;
mod hub_files;
mod listener;
mod listing;
mod reply;
mod rule;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod wire;
mod xet;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use credentials::Issue;
pub use hub::{Access, Hub, HubRequest};
pub use rule::{Fault, Operation, Rule};
pub use state::{Counts, Request};
pub use xet::reconstruction;

use credentials::Gatekeeper;
use state::Shared;

/// Range server on a free port of `127.0.0.1`, stopped and joined when dropped.
///
/// Paths are `bucket/key`, with or without a leading slash. A bucket exists from the first object
/// put in it. Clients share only the objects and the rules, and each connection has a thread.
///
/// ```
/// use tload_testbed::{Fault, FaultyServer, Rule};
///
/// let server = FaultyServer::start();
/// server.put("models/a.safetensors", vec![7; 1000]);
/// // The first read that begins at byte 100 or later stops after ten bytes.
/// server.fault(Rule::once(Fault::CutBody(10)).from_byte(100));
/// assert!(server.url().starts_with("http://127.0.0.1:"));
/// ```
pub struct FaultyServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultyServer {
    /// Starts a server with no objects and no faults.
    ///
    /// Panics if this machine has no free port on the loopback or cannot start a thread.
    pub fn start() -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// Like [`Self::start`], at an address of this machine: port 0 chooses a free port.
    pub fn start_at(address: SocketAddr) -> Self {
        let listener =
            TcpListener::bind(address).expect("the loopback has a free port for a test server");
        let address = listener
            .local_addr()
            .expect("a bound listener knows its address");
        let shared = Arc::new(Shared::new());
        let seen = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("faulty-accept".to_owned())
            .spawn(move || listener::accept_all(&listener, &seen))
            .expect("a test may start one thread more");
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://127.0.0.1:PORT`, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the URL of the credentials endpoint: a value for
    /// `AWS_CONTAINER_CREDENTIALS_FULL_URI`.
    pub fn credentials_url(&self) -> String {
        format!("{}/{}", self.url(), credentials::PATH)
    }

    /// Puts an object, or replaces it, and returns its `ETag`.
    ///
    /// Each call gives a new `ETag`, version and `Last-Modified`; the clock behind the last is the
    /// server's own and advances one second with each call, so two writes always differ.
    pub fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) -> String {
        self.shared.lock().store.put(path, Arc::new(bytes.into()))
    }

    /// Removes an object, and returns whether it existed. Its bucket stays.
    pub fn remove(&self, path: &str) -> bool {
        self.shared.lock().store.remove(path)
    }

    /// Sets the maximum number of entries of one listing page; 1000 by default, and at least one.
    pub fn list_page_entries(&self, entries: usize) {
        self.shared.lock().store.page_entries = entries.max(1);
    }

    /// From now on, sends `x-amz-version-id` and supports `versionId` queries, for objects put from
    /// now on.
    pub fn keep_versions(&self) {
        self.shared.lock().store.versioned = true;
    }

    /// From now on, sends neither `ETag` nor `Last-Modified` nor a version.
    pub fn leave_out_validators(&self) {
        self.shared.lock().store.without_validators = true;
    }

    /// From now on, states the checksums of the object at this path with these headers.
    ///
    /// Headers that begin with `x-amz-` are sent as S3 does: for requests with
    /// `x-amz-checksum-mode: ENABLED`, and not with ranges.
    pub fn state_checksums(&self, path: &str, headers: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(owned).collect();
        let path = path.trim_start_matches('/').to_owned();
        self.shared.lock().store.checksums.insert(path, headers);
    }

    /// Adds a rule behind the existing ones. The first that matches a request applies, and no
    /// other.
    pub fn fault(&self, rule: Rule) {
        self.shared.lock().rules.add(rule);
    }

    /// Drops all rules, and resumes stalled and slow responses at once.
    pub fn clear_faults(&self) {
        self.shared.clear_faults();
    }

    /// Refuses requests without this access key, as 403 `ExpiredToken`; `None` admits all requests
    /// again.
    ///
    /// A request has the key if its `Authorization` has a `Credential=` or a `Bearer` that begins
    /// with it. Refused requests do not use up rules. The credentials endpoint is open to all.
    pub fn require_access_key(&self, key: Option<&str>) {
        self.require_access_key_or(key, 403, "ExpiredToken");
    }

    /// Like [`Self::require_access_key`], with another refusal. S3 itself sends 400 `ExpiredToken`
    /// for a session that has ended and 403 `InvalidAccessKeyId` for an unknown key.
    pub fn require_access_key_or(&self, key: Option<&str>, status: u16, code: &str) {
        self.shared.lock().gatekeeper = key.map(|key| Gatekeeper::new(key, status, code));
    }

    /// Sets the responses of the credentials endpoint: each request takes the next, and the last
    /// one repeats. Without any, as at the start, the endpoint responds with 404.
    pub fn issue_credentials(&self, issues: impl IntoIterator<Item = Issue>) {
        self.shared.lock().issues = issues.into_iter().collect();
    }

    /// Returns every request so far, in the order in which the server accepted them.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().log.clone()
    }

    /// Forgets the requests so far, but not their numbers.
    pub fn forget_requests(&self) {
        self.shared.lock().log.clear();
    }

    /// Returns counters of the server's activity.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.counts().open_connections
    }

    /// Returns the number of accepted requests whose responses are not completely written.
    pub fn in_flight(&self) -> usize {
        self.counts().in_flight
    }

    /// Waits until `enough` returns true, and returns whether it did so in time.
    pub fn wait_until(&self, timeout: Duration, enough: impl FnMut(&Counts) -> bool) -> bool {
        self.shared.wait_until(timeout, enough)
    }

    /// Waits until at least this many requests are in flight, and returns whether they were in
    /// time.
    pub fn wait_for_in_flight(&self, requests: usize, timeout: Duration) -> bool {
        self.wait_until(timeout, |counts| counts.in_flight >= requests)
    }

    /// Waits until no request is in flight, and returns whether that happened in time. A client may
    /// have all of the last response a moment before it counts as written.
    pub fn wait_for_idle(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, |counts| counts.in_flight == 0)
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            listener::stop(self.address, &self.shared, acceptor);
        }
    }
}

impl fmt::Debug for FaultyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyServer")
            .field("url", &self.url())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
