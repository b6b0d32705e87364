//! Ends a copy: whatever it waits for, a request, a list or another worker, it waits for that or for the stop.
//!
//! Owns the flag and both ways of waiting for it, in threads and in futures. Raised by `work` for the first failure, by `fetch` for a
//! disk that takes no more, and by the caller.

#[cfg(feature = "object")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

#[cfg(feature = "object")]
use futures_util::future::{Either, select};

#[cfg(feature = "object")]
use super::{Shared, cancelled};
#[cfg(feature = "object")]
use crate::error::Result;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "object")]
use crate::source::Remote;

/// Raised once, by the first failure or by the caller.
#[derive(Debug, Default)]
pub(super) struct Stop {
    raised: AtomicBool,
    changes: Changes,
    #[cfg(feature = "object")]
    told: tokio::sync::watch::Sender<bool>,
}

impl Stop {
    pub(super) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        #[cfg(feature = "object")]
        self.told.send_replace(true);
        self.changes.tell();
    }

    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// What workers wait for, of which the stop is one.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns when it is raised.
    #[cfg(feature = "object")]
    async fn wait(&self) {
        // The sender lives as long as `self`.
        let _ = self.told.subscribe().wait_for(|told| *told).await;
    }
}

/// Counts what happens. Who reads the count, looks, and finds nothing to do waits for more than that count: nothing that happens
/// after the look is missed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    count: Mutex<u64>,
    told: Condvar,
}

impl Changes {
    pub(super) fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.told.notify_all();
    }

    /// Returns once more than `seen` has happened.
    pub(super) fn wait_past(&self, seen: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.told
                .wait_while(count, |count| *count == seen)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// What `task` brings, or that the copy was stopped before. All requests of a copy go through here.
#[cfg(feature = "object")]
pub(super) async fn unless_stopped<T>(
    shared: &Shared,
    task: impl Future<Output = Result<T>>,
) -> Result<T> {
    let stopping = std::pin::pin!(shared.stop.wait());
    match select(std::pin::pin!(task), stopping).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(cancelled()),
    }
}

/// The same for an `ask` that blocks: it has a thread of its own, which a stop leaves behind to end when its request does. Not one
/// of the runtime's, of which there are only so many: name lookups need them, and without these no `ask` would end.
#[cfg(feature = "object")]
pub(super) fn ask_unless_stopped<T: Send + 'static>(
    remote: &Remote,
    shared: &Arc<Shared>,
    ask: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, answer) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("tload-ask".to_owned())
        .spawn(move || {
            // Nobody waits any more after a stop.
            let _ = sender.send(ask());
        })
        .map_err(cannot_start)?;
    let shared = Arc::clone(shared);
    // What is asked has limits of its own.
    remote.run(None, async move {
        unless_stopped(&shared, async {
            answer.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Remote, "a request panicked")
                    .with_hint("this is a bug in tload; please report it"))
            })
        })
        .await
    })
}

/// The error for a thread that does not start.
pub(super) fn cannot_start(error: std::io::Error) -> Error {
    Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
        .with_hint("raise the limit of processes (ulimit -u), or lower depth")
        .with_source(error)
}
