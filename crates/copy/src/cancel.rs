//! Cancels a copy: every wait for a request, a list or another worker is also a wait for the
//! cancellation.
//!
//! Owns the flag and both ways of waiting for it, in threads and in futures. Set by `executor`
//! on the first failure, by `fetch` on a full disk, and by the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::{Either, select};

use crate::control::Ongoing;
use crate::error::{Error, ErrorKind, Result, thread_hint};
use crate::storage::Remote;
use crate::sync::event_count::EventCount;
use crate::sync::threads::Builder;

/// Returns the error for a copy that was cancelled.
pub fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the copy was cancelled")
}

/// Cancellation flag, set once by the first failure or by the caller.
#[derive(Debug, Default)]
pub struct Stop {
    is_set: AtomicBool,
    changes: EventCount,
    told: tokio::sync::watch::Sender<bool>,
    /// Time from which the flag counts as set.
    deadline: Option<Instant>,
}

impl Stop {
    /// Returns a flag that counts as set from `deadline` on.
    pub(super) fn at(deadline: Option<Instant>) -> Self {
        Self {
            deadline,
            ..Self::default()
        }
    }

    /// Sets the flag.
    pub fn cancel(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.told.send_replace(true);
        self.changes.notify();
    }

    /// Returns whether the flag is set.
    pub fn is_cancelled(&self) -> bool {
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            return true;
        }
        self.is_set.load(Ordering::SeqCst)
    }

    /// Returns the events that workers wait for, including the cancellation.
    pub fn changes(&self) -> &EventCount {
        &self.changes
    }

    /// Returns when the flag is set.
    async fn wait(&self) {
        let mut changes = self.told.subscribe();
        let told = changes.wait_for(|told| *told);
        // The sender lives as long as `self`, and the flag counts as set at the deadline too.
        match self.deadline {
            Some(deadline) => drop(tokio::time::timeout_at(deadline.into(), told).await),
            None => drop(told.await),
        }
    }
}

/// Returns the outcome of `task`, or an error if the copy is cancelled first. All requests of a
/// copy go through here.
pub async fn unless_stopped<T>(
    ongoing: &Ongoing,
    task: impl Future<Output = Result<T>>,
) -> Result<T> {
    let stopping = std::pin::pin!(ongoing.stop.wait());
    match select(std::pin::pin!(task), stopping).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(cancelled()),
    }
}

/// Like [`unless_stopped`], for an `ask` that blocks. It runs on a separate thread; a
/// cancellation leaves this thread behind, and it ends with its request. It does not use the
/// runtime's threads, whose number is limited: name lookups need them, and no `ask` could end
/// without these.
pub(super) fn ask_unless_stopped<T: Send + 'static>(
    remote: &Remote,
    ongoing: &Arc<Ongoing>,
    ask: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, answer) = tokio::sync::oneshot::channel();
    Builder::new()
        .name("tload-ask".to_owned())
        .spawn(move || {
            // Sending fails after a cancellation, which drops the receiver.
            let _ = sender.send(ask());
        })
        .map_err(cannot_start)?;
    let ongoing = Arc::clone(ongoing);
    // No timeout is needed here, because the request has its own limits.
    remote.run(async move {
        unless_stopped(&ongoing, async {
            answer.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Remote, "a request panicked")
                    .with_hint("this is a bug in tload; please report it"))
            })
        })
        .await
    })
}

/// Returns the error for a thread that cannot be started.
pub fn cannot_start(error: std::io::Error) -> Error {
    let hint = format!("{}, or lower ‹depth›", thread_hint(&error));
    Error::cannot_start_thread(error).with_hint(hint)
}
