//! Receiving end of a load: a stream of finished tensors.
//!
//! Lanes push finished tensors into a queue; the caller takes them by blocking, by polling, or
//! through a `futures` stream. The queue needs no bound of its own: queued tensors are charged to
//! the budget.
//!
//! ```text
//!  running ──last tensor──▶ ended(complete)
//!     ├── a lane fails ───▶ ready tensors, then the error, then ended
//!     └── cancel, drop, deadline ──▶ the error at once; lanes end by themselves and free memory
//! ```
//!
//! No caller waits for storage that does not respond: lanes that have not ended in time are
//! orphaned, with the memory that they hold (`load/stream/ending.rs`).

mod ending;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::device_alloc::AllocatorBridge;
use super::lane;
use super::pipeline::Feed;
use crate::engine::cancelled;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::WriteGate;
use crate::options::Order;
use crate::report::{Counters, Report};
use crate::tensor::{Tensor, TensorBytes, TensorInfo};

/// Time for which dropping a stream waits for reads in flight. They complete within milliseconds
/// unless storage hangs; then the lanes are orphaned with their memory, and end when the kernel
/// completes the reads. Half of the 0.2 s within which Ctrl-C must take effect; the other half is
/// left to the caller (2026-11).
const DROP_WAIT: Duration = Duration::from_millis(100);

/// Iterator over the tensors of a load, in the requested order: an [`Iterator`] and a
/// [`futures_core::Stream`]. It ends after an error.
pub struct TensorStream {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The caller's allocator, if the load uses it.
    allocator_bridge: Option<AllocatorBridge>,
}

/// Handle that cancels a load from another thread. Cheap to clone.
#[derive(Clone)]
pub struct Canceller(Weak<Shared>);

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
    /// Bytes read from storage, including those read only for alignment.
    pub bytes_read: u64,
}

/// Parts that `load` passes to a new stream.
pub(crate) struct StreamSetup {
    pub(crate) feed: Arc<Feed>,
    /// Write gate of the caller memory that the load writes to.
    pub(crate) gate: Arc<WriteGate>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tensors: Arc<[TensorInfo]>,
    pub(crate) order: Order,
    pub(crate) lanes: usize,
    /// Report of the load before it begins.
    pub(crate) report: Report,
    /// Completes a report: memory, copies, notes.
    pub(crate) complete: Box<dyn Fn(&mut Report) + Send + Sync>,
    /// Called once by the last lane that ends; its argument is true if the load was complete.
    /// Checks that the files are unchanged.
    pub(crate) verify: Box<dyn Fn(bool) -> Result<()> + Send + Sync>,
}

/// State shared by the lanes and the caller.
pub(crate) struct Shared {
    feed: Arc<Feed>,
    gate: Arc<WriteGate>,
    counters: Arc<Counters>,
    tensors: Arc<[TensorInfo]>,
    bytes_total: u64,
    order: Order,
    complete: Box<dyn Fn(&mut Report) + Send + Sync>,
    verify: Box<dyn Fn(bool) -> Result<()> + Send + Sync>,
    started: Instant,
    state: Mutex<State>,
    /// Signalled when there is an item to take, or at the end.
    news: Condvar,
    /// Signalled when a lane has ended, or when the load was abandoned.
    lane_ended: Condvar,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each flag is awaited by a different thread"
)]
struct State {
    queue: VecDeque<Tensor>,
    /// File order: tensors that completed before their turn.
    early: BTreeMap<usize, Tensor>,
    /// File order: index of the next tensor.
    turn: usize,
    waker: Option<Waker>,
    /// A thread sleeps on `news`. Without a sleeper, waking would still cost a system call per
    /// tensor.
    sleeping: bool,
    /// Lanes that still read: the last of them closes the load.
    lanes_reading: usize,
    /// Lanes that have not reported their end.
    lanes_running: usize,
    error: Option<Error>,
    /// Cancelled: tensors that still complete are discarded.
    abandoned: bool,
    /// The load has just ended early: the caller is told once nothing more is written to its
    /// memory.
    closing: bool,
    /// Failure of a lane that still waits for its reads in flight.
    failing: Option<Error>,
    /// Dropped when all lanes have ended: the grace period of a failed lane is over then.
    grace: Option<crossbeam_channel::Sender<()>>,
    /// A lane has failed and reads have not returned within the grace period: they are orphaned.
    orphaned: bool,
    ended: Option<Instant>,
    tensors_received: u64,
    bytes_received: u64,
    consumer_wait: Duration,
    report: Report,
}

impl State {
    /// Records that a lane ended with `error`. An earlier failure of a lane is the cause, even if
    /// that lane has not ended yet.
    fn fail(&mut self, error: Error) {
        let first = self.failing.take();
        // The error with which a lane ends has more of the cause than the copy kept in `failing`.
        if let Some(first) = first.filter(|first| first.to_string() != error.to_string()) {
            self.error.get_or_insert(first);
        }
        self.error.get_or_insert(error);
    }

    /// File order: moves the next tensor, and all that follow it without a gap, into the queue.
    fn queue_whose_turn_it_is(&mut self) {
        while let Some(tensor) = self.early.remove(&self.turn) {
            self.queue.push_back(tensor);
            self.turn += 1;
        }
    }
}

impl Shared {
    pub(crate) fn new(setup: StreamSetup, started: Instant) -> Arc<Self> {
        let shared = Arc::new(Self {
            feed: setup.feed,
            gate: setup.gate,
            counters: setup.counters,
            bytes_total: setup.tensors.iter().map(TensorInfo::byte_len).sum(),
            tensors: setup.tensors,
            order: setup.order,
            complete: setup.complete,
            verify: setup.verify,
            started,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                early: BTreeMap::new(),
                turn: 0,
                waker: None,
                sleeping: false,
                lanes_reading: setup.lanes,
                lanes_running: setup.lanes,
                error: None,
                abandoned: false,
                closing: false,
                failing: None,
                grace: None,
                orphaned: false,
                ended: None,
                tensors_received: 0,
                bytes_received: 0,
                consumer_wait: Duration::ZERO,
                report: setup.report,
            }),
            news: Condvar::new(),
            lane_ended: Condvar::new(),
        });
        let empty = shared
            .tensors
            .iter()
            .enumerate()
            .filter(|(_, info)| info.byte_len() == 0);
        let mut ready: Vec<_> = empty
            .map(|(index, info)| (index, Tensor::new(info.clone(), TensorBytes::Empty)))
            .collect();
        if !ready.is_empty() {
            shared.push(&mut ready);
        }
        shared
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that runs under the lock leaves the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues tensors that a lane has finished.
    pub(crate) fn push(&self, ready: &mut Vec<(usize, Tensor)>) {
        let mut state = self.lock();
        if state.abandoned || state.orphaned {
            drop(state);
            ready.clear(); // Without the lock: this may unmap memory.
            return;
        }
        if state.report.first_tensor_seconds.is_none() {
            state.report.first_tensor_seconds = Some(self.started.elapsed().as_secs_f64());
        }
        match self.order {
            Order::Ready => state
                .queue
                .extend(ready.drain(..).map(|(_, tensor)| tensor)),
            Order::File => {
                state.early.extend(ready.drain(..));
                state.queue_whose_turn_it_is();
            }
        }
        if !state.queue.is_empty() {
            self.wake(state);
        }
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        if state.sleeping {
            self.news.notify_all();
        }
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records that a lane has ended and that all its reads have returned.
    pub(crate) fn lane_ended(&self, result: Result<()>) {
        let last = {
            let mut state = self.lock();
            // Before the last lane checks the files: a failed read explains more than a changed
            // file.
            if let Err(error) = result {
                state.fail(error);
            }
            state.lanes_reading -= 1;
            let is_whole = state.error.is_none() && !state.abandoned && !state.orphaned;
            (state.lanes_reading == 0).then_some(is_whole)
        };
        let mut verified = Ok(());
        if let Some(is_whole) = last {
            // Outside the lock: queries file systems and stores.
            verified = lane::caught(|| {
                self.feed.close();
                (self.verify)(is_whole)
            });
        }
        let mut state = self.lock();
        if let Err(error) = verified {
            state.error.get_or_insert(error);
        }
        state.lanes_running -= 1;
        self.lane_ended.notify_all();
        if state.lanes_running == 0 {
            state.grace = None;
            self.wake(state);
        }
    }

    /// Returns the next item if there is one, or if the load has ended.
    fn take(&self, state: &mut State) -> Poll<Option<Result<Tensor>>> {
        if state.ended.is_some() {
            return Poll::Ready(None);
        }
        let complete = state.tensors_received == self.tensors.len() as u64;
        if let Some(tensor) = state.queue.pop_front() {
            tensor.received();
            state.tensors_received += 1;
            state.bytes_received += tensor.byte_len();
            return Poll::Ready(Some(Ok(tensor)));
        }
        let ended = state.abandoned || state.orphaned;
        if state.closing || (state.lanes_running > 0 && !ended) {
            return Poll::Pending;
        }
        state.ended = Some(Instant::now());
        // In file order, tensors that completed before their turn, which an error has prevented.
        state.early.clear();
        if let Some(error) = state.error.take() {
            error.kind().name().clone_into(&mut state.report.outcome);
            return Poll::Ready(Some(Err(error)));
        }
        assert!(complete, "all lanes ended well but tensors are missing");
        "complete".clone_into(&mut state.report.outcome);
        Poll::Ready(None)
    }

    /// Waits for the next item, until `deadline` at most.
    fn wait(&self, deadline: Option<Instant>) -> Poll<Option<Result<Tensor>>> {
        let mut state = self.lock();
        let mut since = None;
        loop {
            let item = self.take(&mut state);
            let now = Instant::now();
            let expired = deadline.is_some_and(|deadline| now >= deadline);
            if item.is_ready() || expired {
                state.consumer_wait += since.map_or(Duration::ZERO, |since| now - since);
                return item;
            }
            since = since.or(Some(now));
            state.sleeping = true;
            state = match deadline {
                None => self
                    .news
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    self.news
                        .wait_timeout(state, deadline - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
            state.sleeping = false;
        }
    }
}

impl TensorStream {
    pub(crate) fn new(shared: Arc<Shared>, threads: Vec<JoinHandle<()>>) -> Self {
        Self {
            shared,
            threads,
            allocator_bridge: None,
        }
    }

    /// Sets the caller's allocator, which provides the load's device memory.
    pub(crate) fn set_provider(&mut self, allocator_bridge: AllocatorBridge) {
        self.allocator_bridge = Some(allocator_bridge);
    }

    /// Allocates regions from the caller's allocator as far as the budgets allow. A failure ends
    /// the load.
    fn provide(&mut self) {
        AllocatorBridge::serve(&mut self.allocator_bridge, |error| {
            self.shared.abandon(error);
        });
    }

    /// Passes an item on. Its part of the budget is free for later tensors.
    fn hand_over(&mut self, item: Poll<Option<Result<Tensor>>>) -> Poll<Option<Result<Tensor>>> {
        if let Poll::Ready(Some(Ok(_))) = &item {
            self.provide();
        }
        item
    }

    /// Starts a thread that ends the load after `timeout`.
    pub(crate) fn limit(&mut self, timeout: Duration) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("tload-deadline".to_owned())
            .spawn(move || shared.watch(timeout))
            .map_err(|error| {
                Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                    .with_hint("raise the limit of processes (ulimit -u)")
                    .with_source(error)
            })?;
        self.threads.push(thread);
        Ok(())
    }

    pub(crate) fn set_engine(&self, opened: lane::Opened) {
        let mut state = self.shared.lock();
        state.report.engine = opened.report;
        if let Some(refusal) = opened.refusal {
            state.report.notes.push(format!(
                "io_uring could not be used ({}), so threads read instead; {}",
                refusal.reason, refusal.hint
            ));
        }
    }

    /// Returns the next tensor if it arrives within `timeout`, else [`Poll::Pending`].
    pub fn wait(&mut self, timeout: Duration) -> Poll<Option<Result<Tensor>>> {
        let item = self.shared.wait(Instant::now().checked_add(timeout));
        self.hand_over(item)
    }

    /// Returns the next tensor, if it is already available.
    pub fn try_next(&mut self) -> Poll<Option<Result<Tensor>>> {
        let item = self.shared.take(&mut self.shared.lock());
        self.hand_over(item)
    }

    /// Returns the tensors that the load yields, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.shared.tensors.iter()
    }

    /// Cancels the load: the next item is [`ErrorKind::Cancelled`]. Returns at once. Reads in
    /// flight complete by themselves, and their memory is freed then; until then it counts as
    /// [`crate::parked_bytes`].
    pub fn cancel(&self) {
        self.shared.abandon(cancelled());
    }

    /// Returns a handle that cancels this load from another thread.
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::downgrade(&self.shared))
    }

    /// Returns the progress of the load.
    pub fn progress(&self) -> Progress {
        let state = self.shared.lock();
        Progress {
            tensors_total: self.shared.tensors.len() as u64,
            tensors_received: state.tensors_received,
            bytes_total: self.shared.bytes_total,
            bytes_received: state.bytes_received,
            bytes_read: self.shared.counters.read_bytes(),
        }
    }

    /// Returns the report of the load so far; it is final once the stream has ended.
    pub fn report(&self) -> Report {
        let is_over;
        let mut report = {
            let state = self.shared.lock();
            let mut report = state.report.clone();
            let end = state.ended.unwrap_or_else(Instant::now);
            report.seconds = (end - self.shared.started).as_secs_f64();
            report.tensors = state.tensors_received;
            report.tensor_bytes = state.bytes_received;
            report.stages.consumer_wait = state.consumer_wait.as_secs_f64();
            is_over = state.abandoned || state.orphaned;
            report
        };
        let feed = &self.shared.feed;
        self.shared.counters.fill(&mut report);
        report.stalls += feed.stalled();
        (self.shared.complete)(&mut report);
        let held = feed.waiting();
        if is_over && held.reads > 0 {
            (report.parked_bytes, report.parked_reads) = (held.bytes, held.reads as u64);
            report.notes.push(held.held());
        }
        report
    }
}

impl Canceller {
    /// Cancels the load. Does nothing if it has ended.
    pub fn cancel(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.abandon(cancelled());
        }
    }
}

impl Iterator for TensorStream {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.shared.wait(None);
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
        let mut state = stream.shared.lock();
        let item = stream.shared.take(&mut state);
        if item.is_pending() {
            state.waker = Some(context.waker().clone());
        }
        drop(state);
        stream.hand_over(item)
    }
}

impl Drop for TensorStream {
    fn drop(&mut self) {
        self.cancel();
        // Another thread may have ended the load, and still be waiting for queued writes to the
        // caller's memory.
        self.shared.gate.close();
        if self.shared.wait_for_lanes(DROP_WAIT) {
            // An executor may drop the stream inside a wake-up, on a thread of this load.
            let own = std::thread::current().id();
            for thread in self
                .threads
                .drain(..)
                .filter(|thread| thread.thread().id() != own)
            {
                // Panics have been caught inside.
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

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}
