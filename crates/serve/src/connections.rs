//! The open connections: their limit, and their end when the server stops.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time without a request after which a connection is closed if another client needs its place.
const REST: Duration = Duration::from_secs(1);

/// Connections that are open.
#[derive(Debug)]
pub(crate) struct Connections {
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, Peer>,
    next_id: u64,
    is_stopping: bool,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// Time since when no request is being served; `None` while one is.
    idle_since: Option<Instant>,
}

/// An open connection, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    connections: Arc<Connections>,
    id: u64,
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().open.len()
    }

    /// Returns whether another connection may be opened. If not, closes the one that has been idle
    /// for longest, and waits for the end of any, up to `timeout`.
    pub(crate) fn has_room(&self, timeout: Duration) -> bool {
        self.has_room_at(Instant::now(), timeout)
    }

    fn has_room_at(&self, now: Instant, timeout: Duration) -> bool {
        let state = self.lock();
        if state.open.len() < self.limit {
            return true;
        }
        let idle = state
            .open
            .values()
            .filter_map(|peer| Some((peer.idle_since?, peer)));
        if let Some((since, peer)) = idle.min_by_key(|(since, _)| *since)
            && now.saturating_duration_since(since) >= REST
        {
            peer.close();
        }
        let is_full = |state: &mut State| state.open.len() >= self.limit;
        let waited = self.changed.wait_timeout_while(state, timeout, is_full);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !is_full(&mut state)
    }

    /// Counts a new connection.
    pub(crate) fn admit(self: &Arc<Self>, stream: TcpStream) -> Admission {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let peer = Peer {
            stream,
            idle_since: Some(Instant::now()),
        };
        state.open.insert(id, peer);
        Admission {
            connections: Arc::clone(self),
            id,
        }
    }

    /// Closes idle connections now, others after the response in progress, and all after
    /// `patience`. Returns the number of those that it interrupted.
    pub(crate) fn stop(&self, patience: Duration) -> usize {
        let mut state = self.lock();
        state.is_stopping = true;
        for peer in state.open.values().filter(|peer| peer.idle_since.is_some()) {
            peer.close();
        }
        let state = self.wait_for_end(state, patience);
        let interrupted = state.open.len();
        for peer in state.open.values() {
            peer.close();
        }
        // A thread that waits for a disk is left to the end of the process.
        drop(self.wait_for_end(state, patience / 4));
        interrupted
    }

    fn wait_for_end<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        patience: Duration,
    ) -> MutexGuard<'a, State> {
        let is_open = |state: &mut State| !state.open.is_empty();
        let waited = self.changed.wait_timeout_while(state, patience, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn close(&self) {
        // Fails if the client has closed it.
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

impl Admission {
    /// Returns whether the connection may wait for another request after this one: not if the
    /// server stops, or other clients may be waiting for a connection.
    pub(crate) fn may_continue(&self) -> bool {
        let state = self.connections.lock();
        !state.is_stopping && state.open.len() < self.connections.limit
    }

    /// Records whether the connection waits for a request.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        let mut state = self.connections.lock();
        let is_stopping = state.is_stopping;
        if let Some(peer) = state.open.get_mut(&self.id) {
            peer.idle_since = is_idle.then(Instant::now);
            if is_idle && is_stopping {
                peer.close();
            }
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.connections.lock().open.remove(&self.id);
        self.connections.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Returns both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn full_server_closes_idle_connections_only() {
        let connections = Arc::new(Connections::new(2));
        let ((mut idle, one), (_busy, other)) = (pair(), pair());
        let resting = connections.admit(one);
        let serving = connections.admit(other);
        serving.set_idle(false);
        assert!(!serving.may_continue());
        // A client that has just connected has time to send a request.
        assert!(!connections.has_room(Duration::ZERO));
        idle.set_nonblocking(true).unwrap();
        let kind = idle.read(&mut [0]).unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::WouldBlock);
        idle.set_nonblocking(false).unwrap();
        assert!(!connections.has_room_at(Instant::now() + REST, Duration::ZERO));
        // The client sees the end of its idle connection; its thread then drops the admission.
        assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        drop(resting);
        assert!(connections.has_room(Duration::ZERO) && serving.may_continue());
        assert_eq!(connections.count(), 1);
    }

    #[test]
    fn stop_waits_for_responses_and_then_closes_them() {
        let connections = Arc::new(Connections::new(2));
        let (mut client, server) = pair();
        let serving = connections.admit(server);
        serving.set_idle(false);
        assert_eq!(connections.stop(Duration::from_millis(1)), 1);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert!(!serving.may_continue());
        drop(serving);
        assert_eq!(connections.stop(Duration::from_secs(3600)), 0);
    }
}
