//! Receiving end of a load: a stream of finished tensors.
//!
//! Lanes push finished tensors into a queue; the caller takes them by blocking, by polling, or
//! through a `futures` stream. The queue needs no separate bound: queued tensors are charged to
//! the budget.
//!
//! ```text
//!  Running ──▶ Failed ──▶ Orphaned      a lane fails; then its reads do not return in time
//!     ├──────────┴──────────┴─▶ Abandoned      cancelled, dropped, past the deadline
//!     └──────────┴──────────┴───────┴──▶ Ended      the caller has received the last item
//! ```
//!
//! A `Running` or `Failed` load ends when its lanes have ended. The others end once nothing more is
//! written to the caller's memory: their lanes end by themselves, and no caller waits for storage
//! that does not respond. Only an `Abandoned` load discards finished tensors before its error.
//!
//! The transitions are in `state.rs`, early ends in `ending.rs`, the hand-over in `handover.rs`,
//! and cancellation from other threads in `canceller.rs`.

mod canceller;
mod ending;
mod handover;
mod queue;
mod state;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::device_alloc::AllocatorBridge;
use super::metrics::count_load;
use crate::engine::cancelled;
use crate::error::{Error, Result};
use crate::report::Report;
use crate::sync::threads::Builder;
use crate::tensor::{Tensor, TensorInfo};
pub use canceller::Canceller;
pub use handover::{Handover, LastSteps, StreamSetup};

/// Time for which dropping a stream waits for reads in flight. They complete within milliseconds
/// unless storage hangs; then the lanes are orphaned with their memory, and end when the kernel
/// completes the reads. Half of the 0.2 s within which Ctrl-C must take effect; the other half is
/// left to the caller (2026-11).
const DROP_WAIT: Duration = Duration::from_millis(100);

/// Iterator over the tensors of a load, in the requested order: an [`Iterator`] and a
/// [`futures_core::Stream`]. It ends after an error. Dropping it cancels the load.
///
/// # Examples
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
///
/// let mut stream = tload::Checkpoint::open(path)?.load().stream()?;
/// let mut bytes = 0;
/// while let Some(tensor) = stream.next() {
///     bytes += tensor?.byte_len();
/// }
/// let progress = stream.progress();
/// assert_eq!((progress.tensors_received, progress.bytes_received), (3, bytes));
/// # Ok::<(), tload::Error>(())
/// ```
pub struct TensorStream {
    handover: Arc<Handover>,
    threads: Vec<JoinHandle<()>>,
    /// The caller's allocator, if the load uses it.
    allocator_bridge: Option<AllocatorBridge>,
    /// True once the load is in the metrics of the process.
    is_counted: bool,
}

/// Progress of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Number of tensors that the load yields.
    pub tensors_total: u64,
    /// Number of tensors that the caller has received.
    pub tensors_received: u64,
    /// Bytes of all tensors that the load yields.
    pub bytes_total: u64,
    /// Bytes of the tensors that the caller has received.
    pub bytes_received: u64,
    /// Bytes that have arrived so far, from storage or from other ranks, including those read only
    /// for alignment. Runs ahead of `bytes_received`, since large tensors fill side by side.
    pub bytes_read: u64,
}

impl Progress {
    /// Returns the bytes that a progress bar shows, up to `bytes_total`: those that have arrived,
    /// also of tensors that are not complete.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// let mut stream = tload::Checkpoint::open(path)?.load().stream()?;
    /// stream.by_ref().for_each(drop);
    /// let progress = stream.progress();
    /// assert_eq!(progress.bytes_done(), progress.bytes_total);
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[must_use]
    pub fn bytes_done(&self) -> u64 {
        self.bytes_read
            .min(self.bytes_total)
            .max(self.bytes_received)
    }
}

impl TensorStream {
    #[doc(hidden)]
    pub fn new(handover: Arc<Handover>, threads: Vec<JoinHandle<()>>) -> Self {
        Self {
            handover,
            threads,
            allocator_bridge: None,
            is_counted: false,
        }
    }

    /// Sets the caller's allocator, if it provides the load's device memory.
    pub(crate) fn with_allocator(mut self, allocator_bridge: Option<AllocatorBridge>) -> Self {
        self.allocator_bridge = allocator_bridge;
        self
    }

    /// Allocates regions from the caller's allocator as far as the budgets allow. A failure ends
    /// the load.
    fn provide(&mut self) {
        AllocatorBridge::serve(&mut self.allocator_bridge, |error| {
            self.handover.abandon(error);
        });
    }

    /// Passes an item on. Its part of the budget is free for later tensors.
    fn hand_over(&mut self, item: Poll<Option<Result<Tensor>>>) -> Poll<Option<Result<Tensor>>> {
        match &item {
            Poll::Ready(Some(Ok(_))) => self.provide(),
            Poll::Ready(None | Some(Err(_))) => self.count(),
            Poll::Pending => {}
        }
        item
    }

    /// Adds the load, which has ended, to the metrics of the process.
    fn count(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            count_load(&self.report());
        }
    }

    /// Returns whether the load was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.handover.lock().state.outcome().is_some()
    }

    /// Ends the load with `error`, before the caller has received anything, and returns it. Metrics
    /// do not count the load.
    pub(crate) fn refuse(mut self, error: Error) -> Error {
        self.is_counted = true;
        self.handover.abandon(error.again());
        error
    }

    /// Starts a thread that ends the load after `timeout`. If none can be started, the load fails.
    pub(crate) fn limit(&mut self, timeout: Duration) -> Result<()> {
        let handover = Arc::clone(&self.handover);
        let started = Builder::new()
            .name("tload-deadline".to_owned())
            .spawn(move || handover.watch(timeout));
        self.limited(started)
    }

    fn limited(&mut self, started: io::Result<JoinHandle<()>>) -> Result<()> {
        let thread = started.map_err(|error| {
            let error = Error::cannot_start_thread(error);
            // Record the error first: dropping the stream would make cancellation the reason for
            // the end.
            self.handover.abandon(error.again());
            error
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the next tensor if it arrives within `timeout`, else [`Poll::Pending`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use std::task::Poll;
    /// use std::time::Duration;
    ///
    /// let mut stream = tload::Checkpoint::open(path)?.load().stream()?;
    /// loop {
    ///     match stream.wait(Duration::from_millis(100)) {
    ///         Poll::Ready(Some(tensor)) => println!("{:?}", tensor?),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => println!("waiting for storage"),
    ///     }
    /// }
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn wait(&mut self, timeout: Duration) -> Poll<Option<Result<Tensor>>> {
        let item = self.handover.wait(Instant::now().checked_add(timeout));
        self.hand_over(item)
    }

    /// Returns the next tensor, if it is already available.
    pub fn try_next(&mut self) -> Poll<Option<Result<Tensor>>> {
        let (item, _unyielded) = Handover::take(&mut self.handover.lock());
        self.hand_over(item)
    }

    /// Returns the next tensor, if it is already available, without releasing memory or calling an
    /// allocator: it never takes long. If [`Self::wants_memory`] afterwards,
    /// [`Self::provide_memory`] must follow.
    #[doc(hidden)]
    pub fn take_ready(&mut self) -> Option<Tensor> {
        self.handover.take_ready()
    }

    /// Returns whether the caller's allocator has to be called.
    #[doc(hidden)]
    #[must_use]
    pub fn wants_memory(&self) -> bool {
        let bridge = self.allocator_bridge.as_ref();
        bridge.is_some_and(AllocatorBridge::has_request)
    }

    /// Calls the caller's allocator as far as the budgets allow. A failure ends the load.
    #[doc(hidden)]
    pub fn provide_memory(&mut self) {
        self.provide();
    }

    /// Returns the tensors that the load yields, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.handover.setup.tensors.iter()
    }

    /// Cancels the load: the next item is [`Cancelled`](crate::ErrorKind::Cancelled). Returns at
    /// once. Reads in flight complete by themselves, and their memory is freed then; until then it
    /// counts as [`crate::orphaned_bytes`].
    ///
    /// The outcome in the report and the metrics is `"cancelled"`, or `"complete"` if the caller
    /// has received all tensors and does not wait for the end. The same holds for a stream that is
    /// dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::ErrorKind;
    ///
    /// let mut stream = tload::Checkpoint::open(path)?.load().stream()?;
    /// stream.cancel();
    /// let error = stream.next().expect("the error").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Cancelled);
    /// assert!(stream.next().is_none());
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.handover.abandon(cancelled());
    }

    /// Returns a handle that cancels this load from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller::of(&self.handover)
    }

    /// Returns the progress of the load.
    pub fn progress(&self) -> Progress {
        let inner = self.handover.lock();
        Progress {
            tensors_total: self.handover.setup.tensors.len() as u64,
            tensors_received: inner.state.received(),
            bytes_total: self.handover.bytes_total,
            bytes_received: inner.bytes_received,
            bytes_read: self.handover.setup.counters.arrived_bytes(),
        }
    }

    /// Returns the report of the load so far; it is final once the stream has ended.
    pub fn report(&self) -> Report {
        self.handover.report()
    }
}

impl Iterator for TensorStream {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.handover.wait(None);
        match self.hand_over(item) {
            Poll::Ready(item) => item,
            Poll::Pending => unreachable!("waits without a deadline"),
        }
    }
}

impl futures_core::Stream for TensorStream {
    type Item = Result<Tensor>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        let mut inner = stream.handover.lock();
        let (item, _unyielded) = Handover::take(&mut inner);
        if item.is_pending() {
            inner.state.awaited();
            inner.waker = Some(context.waker().clone());
        }
        drop(inner);
        stream.hand_over(item)
    }
}

impl Drop for TensorStream {
    fn drop(&mut self) {
        self.cancel();
        self.count();
        // Another thread may have ended the load, and still be waiting for queued writes to the
        // caller's memory.
        self.handover.setup.gate.close();
        if self.handover.wait_for_lanes(DROP_WAIT) {
            // A thread cannot join itself: an executor may drop the stream inside a wake-up, on a
            // thread of this load.
            let own = std::thread::current().id();
            for thread in self
                .threads
                .drain(..)
                .filter(|thread| thread.thread().id() != own)
            {
                // Joining cannot fail: the lane catches its panics.
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for TensorStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorStream")
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}
