//! Threads of this process that serve other ranks, which its end would take with it.

use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use super::TIMEOUT_MAX;
use crate::sync::per_process::PerProcess;

/// Threads of this process that serve other ranks: a forked child has none of them.
static SERVING: PerProcess<Serving> = PerProcess::new();

#[derive(Default)]
struct Serving {
    threads: usize,
    /// Notified when one of them ends.
    ended: Arc<Condvar>,
}

/// Counts as serving others for [`finish_serving`], until it is dropped.
pub(super) struct ServingGuard;

impl ServingGuard {
    pub(super) fn new() -> Self {
        SERVING.lock().threads += 1;
        Self
    }
}

impl Drop for ServingGuard {
    fn drop(&mut self) {
        let mut serving = SERVING.lock();
        // A forked child does not count what its parent serves.
        serving.threads = serving.threads.saturating_sub(1);
        serving.ended.notify_all();
    }
}

/// Waits until this process reads for no other rank any more, for `timeout` at most. Returns
/// whether that is so.
///
/// A process that leads a node and exits before takes the memory of the ranks that it still reads
/// for with it: they fail with [`ErrorKind::Peer`](crate::error::ErrorKind::Peer), or read for
/// themselves.
///
/// # Examples
///
/// ```
/// # mod tload { pub mod ranks { pub use tload_ranks::*; } }
/// use std::time::Duration;
///
/// // At the end of the process.
/// assert!(tload::ranks::finish_serving(Duration::from_secs(30)));
/// ```
pub fn finish_serving(timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout.min(TIMEOUT_MAX);
    let mut serving = SERVING.lock();
    let ended = Arc::clone(&serving.ended);
    while serving.threads > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let waited = ended.wait_timeout(serving, left);
        serving = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_timeout_is_waited_for() {
        assert!(finish_serving(Duration::MAX));
    }
}
