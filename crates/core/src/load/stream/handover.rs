//! State shared by the lanes and the caller: finished tensors on their way, and waiting for them.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tload_memory::convert::Conversions;

use super::queue::FinishedQueue;
use super::state::{COMPLETE, State};
use crate::error::{ErrorKind, Result};
use crate::load::lane::{self, LaneEngine, LaneEvents};
use crate::load::pipeline::Feed;
use crate::memory::WriteGate;
use crate::options::Order;
use crate::report::{Counters, Report};
use crate::sync::lock::{Condvar, Mutex, MutexGuard};
use crate::tensor::{Tensor, TensorBytes, TensorInfo};

/// Time after which reads that a load no longer wants are worth a note. Healthy storage responds
/// sooner; a load that fails has waited for them already.
const GRACE: Duration = Duration::from_millis(500);

/// Parts of a load that its stream uses.
pub struct StreamSetup {
    /// When the load began.
    pub started: Instant,
    /// The jobs of the lanes.
    pub feed: Arc<Feed>,
    /// Write gate of the caller memory that the load writes to.
    pub gate: Arc<WriteGate>,
    /// Counters of the lanes.
    pub counters: Arc<Counters>,
    /// Tensors of the load.
    pub tensors: Arc<[TensorInfo]>,
    /// Dtypes that some of them are converted to.
    pub conversions: Conversions,
    /// Order in which tensors are handed out.
    pub order: Order,
    /// Number of lanes.
    pub lanes: usize,
    /// Report of the load before it begins.
    pub report: Report,
    /// Steps at the end of the load.
    pub end: Box<dyn LastSteps>,
}

impl fmt::Debug for StreamSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSetup")
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

/// Steps at the end of a load.
pub trait LastSteps: Send + Sync {
    /// Waits for what other processes have to say about the load. Called once by the last lane that
    /// ends; the argument is true if the load was complete.
    ///
    /// # Errors
    ///
    /// The failure of another process.
    fn settle(&self, _is_whole: bool) -> Result<()> {
        Ok(())
    }

    /// Closes the files. If the argument is true, the load was complete and has been settled: then
    /// checks that the sources are unchanged and that everything was verified. Called once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], [`ErrorKind::Corrupt`], and errors of the check itself.
    fn verify(&self, is_whole: bool) -> Result<()>;

    /// Completes a report: memory, copies, notes.
    fn complete(&self, report: &mut Report);
}

/// State shared by the lanes and the caller.
pub struct Handover {
    pub(super) setup: StreamSetup,
    pub(super) bytes_total: u64,
    inner: Mutex<Inner>,
    /// Signalled when there is an item to take, or at the end.
    news: Condvar,
    /// Signalled when the lanes have ended, or when the load was ended early.
    pub(super) lanes_news: Condvar,
}

/// State under the lock.
pub(super) struct Inner {
    pub(super) state: State<Tensor>,
    /// The caller's task, if it polls.
    pub(super) waker: Option<Waker>,
    /// A thread sleeps on `news`. Without a sleeper, waking would still cost a system call per
    /// tensor.
    sleeping: bool,
    pub(super) bytes_received: u64,
    pub(super) consumer_wait: Duration,
    pub(super) report: Report,
}

impl Inner {
    /// Records that the caller receives a tensor.
    fn hand_out(&mut self, tensor: &Tensor) {
        tensor.received();
        self.bytes_received += tensor.info().byte_len();
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}

impl Handover {
    /// Creates the state of a load whose lanes have not begun.
    pub fn new(mut setup: StreamSetup) -> Arc<Self> {
        let tensors = Arc::clone(&setup.tensors);
        let handover = Arc::new(Self {
            bytes_total: tensors.iter().map(TensorInfo::byte_len).sum(),
            inner: Mutex::new(Inner {
                state: State::new(setup.lanes, tensors.len() as u64, setup.order),
                waker: None,
                sleeping: false,
                bytes_received: 0,
                consumer_wait: Duration::ZERO,
                report: std::mem::take(&mut setup.report),
            }),
            setup,
            news: Condvar::default(),
            lanes_news: Condvar::default(),
        });
        let empty = tensors
            .iter()
            .enumerate()
            .filter(|(_, info)| info.byte_len() == 0);
        let mut ready: Vec<_> = empty
            .map(|(index, info)| {
                let tensor = Tensor::new(info.clone(), TensorBytes::Empty);
                let to = handover.setup.conversions.of(index);
                (index, tensor.converted(to))
            })
            .collect();
        if !ready.is_empty() {
            handover.push(&mut ready);
        }
        handover
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that runs under the lock leaves the state inconsistent.
        self.inner.lock()
    }

    /// Returns the callbacks of a lane of this load.
    pub(crate) fn lane_events(self: &Arc<Self>) -> LaneEvents<(usize, Tensor)> {
        let [receiver, hearer, owner] = [(); 3].map(|()| Arc::clone(self));
        LaneEvents {
            deliver: Box::new(move |ready| receiver.push(ready)),
            failing: Box::new(move |error| hearer.lane_failing(error)),
            ended: Box::new(move |result| owner.lane_ended(result)),
        }
    }

    /// Adds the engine that the lanes have opened to the report.
    pub(crate) fn set_engine(&self, opened: LaneEngine) {
        let mut inner = self.lock();
        inner.report.engine = opened.report;
        if let Some(refusal) = opened.refusal {
            inner.report.notes.push(format!(
                "io_uring could not be used ({}), so threads read instead; {}",
                refusal.reason, refusal.hint
            ));
        }
    }

    /// Queues tensors that a lane has finished.
    pub fn push(&self, ready: &mut Vec<(usize, Tensor)>) {
        let mut inner = self.lock();
        if !inner.state.is_active() {
            drop(inner);
            ready.clear(); // Without the lock: this may unmap memory.
            return;
        }
        let seconds = self.setup.started.elapsed().as_secs_f64();
        inner.report.first_tensor_seconds.get_or_insert(seconds);
        inner.report.ready_seconds = Some(seconds);
        if inner.state.push(ready.drain(..)) {
            self.wake(inner);
        }
    }

    /// Wakes the caller.
    pub(super) fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let waker = inner.waker.take();
        if inner.sleeping {
            self.news.notify_all();
        }
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records that a lane has ended and that all its reads have returned.
    pub fn lane_ended(&self, result: Result<()>) {
        // Record the result before the last lane checks the files, because a failed read explains
        // more than a changed file.
        let last = self.lock().state.lane_returned(result);
        let Some(is_whole) = last else {
            return;
        };
        // The lock is released, because this queries file systems and stores.
        let verified = lane::caught(|| {
            // Settle before the memory is freed, which sets the flag that ends this wait.
            let settled = self.setup.end.settle(is_whole);
            self.setup.feed.close();
            let verified = self.setup.end.verify(is_whole && settled.is_ok());
            settled.and(verified)
        });
        let mut inner = self.lock();
        inner.state.checked(verified);
        self.lanes_news.notify_all();
        self.wake(inner);
    }

    /// Returns the next item if there is one, or if the load has ended; and then the tensors that
    /// it has not yielded, to be dropped without the lock.
    pub(super) fn take(
        inner: &mut Inner,
    ) -> (Poll<Option<Result<Tensor>>>, Option<FinishedQueue<Tensor>>) {
        let item = inner.state.next();
        if let Poll::Ready(Some(Ok(tensor))) = &item {
            inner.hand_out(tensor);
        }
        (item, inner.state.take_unyielded())
    }

    /// Returns the next tensor if there is one. Does nothing else, so that it never takes long.
    pub(super) fn take_ready(&self) -> Option<Tensor> {
        let mut inner = self.lock();
        let tensor = inner.state.next_ready()?;
        inner.hand_out(&tensor);
        Some(tensor)
    }

    /// Waits for the next item, until `deadline` at most.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Poll<Option<Result<Tensor>>> {
        let mut inner = self.lock();
        let mut since = None;
        loop {
            let (item, unyielded) = Self::take(&mut inner);
            let now = Instant::now();
            let expired = deadline.is_some_and(|deadline| now >= deadline);
            if item.is_ready() || expired {
                inner.consumer_wait += since.map_or(Duration::ZERO, |since| now - since);
                drop(inner);
                drop(unyielded);
                return item;
            }
            since = since.or(Some(now));
            inner.state.awaited();
            inner.sleeping = true;
            inner = match deadline {
                None => self.news.wait(inner),
                Some(deadline) => self.news.wait_timeout(inner, deadline - now),
            };
            inner.sleeping = false;
        }
    }

    /// Returns the report so far.
    pub(super) fn report(&self) -> Report {
        let (mut report, is_early, ended) = {
            let inner = self.lock();
            let mut report = inner.report.clone();
            let end = inner.state.end();
            let at = end.map_or_else(Instant::now, |end| end.at);
            if let Some(outcome) = inner.state.outcome() {
                outcome.clone_into(&mut report.outcome);
            }
            report.seconds = (at - self.setup.started).as_secs_f64();
            report.tensors = inner.state.received();
            report.tensor_bytes = inner.bytes_received;
            report.stages.consumer_wait = inner.consumer_wait.as_secs_f64();
            (report, inner.state.is_early(), end.map(|end| end.at))
        };
        let feed = &self.setup.feed;
        self.setup.counters.fill(&mut report);
        report.stalls += feed.stalled();
        self.setup.end.complete(&mut report);
        let held = feed.waiting();
        if is_early && held.reads > 0 {
            (report.parked_bytes, report.parked_reads) = (held.bytes, held.reads as u64);
            let failed = ![COMPLETE, ErrorKind::Cancelled.name()].contains(&&*report.outcome);
            if ended.is_some_and(|at| failed || at.elapsed() >= GRACE) {
                report.notes.push(held.held());
            }
        }
        report.verdict = report.limit();
        report
    }
}
