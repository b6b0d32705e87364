//! An S3 and plain HTTP range server in this process, which fails on command.
//!
//! It serves objects from memory and behaves well until a [`Rule`] says otherwise. Faults are counted, never drawn by
//! chance, so that a test sees the same failures in every run. This file owns the public face; what is served is in
//! `store` and `answer`, what goes wrong in `rule`, and how bytes reach the socket in `listener` and `delivery`.
//! Called by tests only: signatures are not checked and nothing is written to disk.

mod answer;
mod credentials;
mod dates;
mod delivery;
mod hub;
mod listener;
mod listing;
mod reply;
mod rule;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use credentials::Issue;
pub use hub::{Access, Hub, HubRequest};
pub use rule::{Fault, Operation, Rule};
pub use state::{Counts, Request};

use credentials::Gatekeeper;
use state::Shared;

/// A range server on a free port of `127.0.0.1`, stopped and joined when dropped.
///
/// Paths are `bucket/key`, with or without a slash in front. A bucket exists from the first object put in it. Two
/// clients share nothing but the objects and the rules, and each connection has a thread.
///
/// ```
/// use tload_lab::{Fault, FaultyServer, Rule};
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
    /// Panics if this machine gives no port on the loopback or no thread.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .expect("the loopback has a free port for a test server");
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

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where credentials are handed out: a value for `AWS_CONTAINER_CREDENTIALS_FULL_URI`.
    pub fn credentials_url(&self) -> String {
        format!("{}/{}", self.url(), credentials::PATH)
    }

    /// Puts an object in place, or replaces it, and returns its `ETag`.
    ///
    /// Each call gives a new `ETag`, version and `Last-Modified`; the clock behind the last is the server's own and
    /// goes one second forward with each call, so two writes never look alike.
    pub fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) -> String {
        self.shared.lock().store.put(path, Arc::new(bytes.into()))
    }

    /// Removes an object, and says whether there was one. Its bucket stays.
    pub fn remove(&self, path: &str) -> bool {
        self.shared.lock().store.remove(path)
    }

    /// Lists at most this many entries in one answer; 1000 until told otherwise, and at least one.
    pub fn list_page_entries(&self, entries: usize) {
        self.shared.lock().store.page_entries = entries.max(1);
    }

    /// Sends `x-amz-version-id` and answers `versionId` queries from now on, for objects put from now on.
    pub fn keep_versions(&self) {
        self.shared.lock().store.versioned = true;
    }

    /// Sends neither `ETag` nor `Last-Modified` nor a version from now on.
    pub fn leave_out_validators(&self) {
        self.shared.lock().store.without_validators = true;
    }

    /// Says from now on, of the object at this path, what its checksums are: with these headers.
    ///
    /// Those that begin with `x-amz-` are sent as S3 does: to who asks for them (`x-amz-checksum-mode: ENABLED`) and not with ranges.
    pub fn state_checksums(&self, path: &str, headers: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(owned).collect();
        let path = path.trim_start_matches('/').to_owned();
        self.shared.lock().store.checksums.insert(path, headers);
    }

    /// Adds a rule behind those already there. The first that matches a request applies, and no other.
    pub fn fault(&self, rule: Rule) {
        self.shared.lock().rules.add(rule);
    }

    /// Drops all rules, and lets stalled and slow answers go on at once.
    pub fn clear_faults(&self) {
        self.shared.clear_faults();
    }

    /// Refuses requests that do not come with this access key, as 403 `ExpiredToken`; `None` lets everybody in again.
    ///
    /// A request comes with the key if its `Authorization` has a `Credential=` or a `Bearer` that begins with it.
    /// Refused requests use up no rules. The credentials endpoint is open to all.
    pub fn require_access_key(&self, key: Option<&str>) {
        self.require_access_key_or(key, 403, "ExpiredToken");
    }

    /// As [`Self::require_access_key`], with another refusal. S3 itself says 400 `ExpiredToken` for a session that
    /// has ended and 403 `InvalidAccessKeyId` for a key it does not know.
    pub fn require_access_key_or(&self, key: Option<&str>, status: u16, code: &str) {
        self.shared.lock().gatekeeper = key.map(|key| Gatekeeper::new(key, status, code));
    }

    /// What the credentials endpoint answers from now on: each request takes the next, and the last one repeats.
    /// With nothing to issue, which is how a server starts, it answers 404.
    pub fn issue_credentials(&self, issues: impl IntoIterator<Item = Issue>) {
        self.shared.lock().issues = issues.into_iter().collect();
    }

    /// Every request so far, in the order in which the server took them up.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().log.clone()
    }

    /// Forgets the requests so far, but not their numbers.
    pub fn forget_requests(&self) {
        self.shared.lock().log.clear();
    }

    /// How much is going on.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Connections that are open now.
    pub fn open_connections(&self) -> usize {
        self.counts().open_connections
    }

    /// Requests taken up whose answers are not yet written out.
    pub fn in_flight(&self) -> usize {
        self.counts().in_flight
    }

    /// Waits until `enough` holds, and says whether it did so in time.
    pub fn wait_until(&self, timeout: Duration, enough: impl FnMut(&Counts) -> bool) -> bool {
        self.shared.wait_until(timeout, enough)
    }

    /// Waits until at least this many requests are in flight, and says whether they were in time.
    pub fn wait_for_in_flight(&self, requests: usize, timeout: Duration) -> bool {
        self.wait_until(timeout, |counts| counts.in_flight >= requests)
    }

    /// Waits until no request is in flight, and says whether that came in time. The last answer's reader may have
    /// all of it a moment before it counts as written.
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
