//! The loop of one lane: lease → engine → sink → lease.
//!
//! The only code that uses both traits, `Engine` and `Sink`. It makes no decisions: the
//! [`Feed`] chooses what to read next and into which memory, the engine fills that memory, and the
//! sink completes tensors. After the first failure the loop starts no more reads, reaps everything
//! in flight, and returns the failure.
//!
//! ```text
//!   feed.take() ─▶ Job ─▶ engine.submit … reap ─▶ Done ─▶ (check) ─▶ sink.submit … reap ─▶ deliver
//!        ▲                                          │
//!        └───────────── feed.ended() ◀──────────────┘
//! ```

mod feed;
mod in_flight;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use feed::NextJob;
pub use feed::{Feed, LeaseOrigin};
pub use in_flight::Waiting;

use crate::engine::{Done, Engine, Transfer, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::report::{Counters, Stage};
use crate::schedule::WINDOW;
use crate::sink::Sink;

/// Runs one lane of `group` until nothing is left to read, or until the first failure.
///
/// `deliver` receives every finished tensor. `counters` are incremented.
///
/// # Errors
///
/// The first failure of engine or sink, after everything in flight has been reaped.
pub fn run<E: Engine, S: Sink>(
    feed: &Feed,
    group: usize,
    engine: &mut E,
    sink: &mut S,
    lane: &LaneWork<'_, S::Tensor>,
) -> Result<()> {
    let mut watch = StageTimer::new(lane.counters);
    lane.counters.reading_since.get_or_init(Instant::now);
    engine.stop_when(feed.cancel());
    let (mut failure, mut failed) = (None, false);
    let mut done: Vec<Done> = Vec::new();
    let mut ready = Vec::new();
    // Start of the window of each extent that the engine owns.
    let mut out = HashMap::with_capacity(engine.depth());
    let mut held = 0;
    let mut allowed = 0;
    loop {
        let rung = feed.events.count();
        let mut exhausted = false;
        while failure.is_none() && engine.in_flight() < engine.depth() {
            match feed.take(group, lane.index, held) {
                Ok(NextJob::Job(job)) => {
                    out.insert(job.extent, job.lease.start());
                    held += job.lease.len() as u64;
                    engine.submit(job);
                }
                Ok(NextJob::Wait) => break,
                Ok(NextJob::Done) => {
                    exhausted = true;
                    break;
                }
                Err(error) => failure = Some(error),
            }
        }
        let limit = feed.limit_bytes(group);
        if limit != allowed {
            allowed = limit;
            engine.allow(limit);
        }
        watch.lap(Stage::Submit);

        if !ready.is_empty() {
            // The reads that were just queued begin before tensors are handed over: handing over
            // wakes the caller, who may take this lane's core.
            engine.reap(Wait::No, &mut done);
            (lane.deliver)(&mut ready);
            watch.lap(Stage::Deliver);
        }
        if !done.is_empty() {
            // Completions are already pending; do not block.
        } else if engine.in_flight() > 0 {
            engine.reap(Wait::ForOne, &mut done);
            watch.lap(Stage::StorageWait);
        } else if sink.in_flight() > 0 {
            failure = failure.or(sink.reap(Wait::ForOne, &mut ready).err());
            watch.lap(Stage::CopyWait);
        } else if exhausted || failure.is_some() {
            return failure.map_or(Ok(()), Err);
        } else {
            feed.events.wait_past(rung);
            watch.lap(Stage::MemoryWait);
        }

        for done in done.drain(..) {
            let start = out.remove(&done.extent);
            held -= feed.plan.extents[done.extent].window as u64;
            if let Err(error) = complete(feed, sink, lane, &mut watch, done, start) {
                failure.get_or_insert(error);
            }
        }
        failure = failure.or(sink.reap(Wait::No, &mut ready).err());
        if let Some(error) = &failure
            && !std::mem::replace(&mut failed, true)
        {
            feed.stop();
            // Reads in flight may never return; report the failure of this lane now.
            (lane.failing)(error);
        }
        watch.lap(Stage::Deliver);
        if let Some((busy, watched)) = watch.window() {
            feed.observe(group, busy, watched, lane.counters.read_bytes());
        }
    }
}

/// Checks that a completion belongs to the window that began at `start`, and passes it to the sink.
fn complete<S: Sink>(
    feed: &Feed,
    sink: &mut S,
    lane: &LaneWork<'_, S::Tensor>,
    watch: &mut StageTimer<'_>,
    done: Done,
    start: Option<usize>,
) -> Result<()> {
    if let Ok(filled) = &done.result {
        // Sinks rely on this: a wrong pairing would fill a tensor with the bytes of another one.
        assert!(
            start == Some(filled.start()),
            "the engine mixed up extent {}",
            done.extent
        );
    }
    let extent = &feed.plan.extents[done.extent];
    lane.count(done.transfer);
    let result = done.result.and_then(|mut filled| {
        if feed.plan.has_gaps(extent) {
            feed.plan.gather(extent, filled.bytes_mut());
        }
        let Some(check) = &feed.check else {
            return sink.submit(extent, filled);
        };
        watch.lap(Stage::Deliver);
        // Passes on this extent; none if it must wait for others of its file; or several that
        // waited for it.
        let compared = check.pass(done.extent, filled, &mut |extent, filled| {
            watch.lap(Stage::Verify);
            let submitted = sink.submit(extent, filled);
            watch.lap(Stage::Deliver);
            submitted
        });
        watch.lap(Stage::Verify);
        compared
    });
    feed.ended(done.extent);
    match result {
        // An engine cancelled the read because the load is over: the cause is reported elsewhere.
        Err(error) if error.kind() == ErrorKind::Cancelled && feed.cancel().is_cancelled() => {
            Ok(())
        }
        result => result,
    }
}

/// Interface of the pipeline to its lane.
pub struct LaneWork<'a, T> {
    /// The lane's number in its group.
    pub(crate) index: usize,
    /// Takes every finished tensor out of the list.
    pub deliver: &'a dyn Fn(&mut Vec<T>),
    /// Receives the first failure, while reads in flight have not returned yet.
    pub(crate) failing: &'a dyn Fn(&Error),
    pub(crate) counters: &'a Counters,
}

impl<T> LaneWork<'_, T> {
    fn count(&self, transfer: Transfer) {
        Counters::add(&self.counters.extents, 1);
        Counters::add(&self.counters.direct_bytes, transfer.direct_bytes);
        Counters::add(&self.counters.buffered_bytes, transfer.buffered_bytes);
        Counters::add(&self.counters.mapped_bytes, transfer.mapped_bytes);
        Counters::add(&self.counters.remote_bytes, transfer.remote_bytes);
        Counters::add(&self.counters.requests, u64::from(transfer.requests));
        Counters::add(&self.counters.short_reads, u64::from(transfer.short_reads));
        Counters::add(&self.counters.retries, u64::from(transfer.retries));
        self.counters.count_troubles(transfer.into());
    }
}

impl<T> std::fmt::Debug for LaneWork<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneWork").finish_non_exhaustive()
    }
}

/// Adds the time since the last lap to a stage, and periodically reports how busy the thread is.
struct StageTimer<'a> {
    counters: &'a Counters,
    since: Instant,
    window_since: Instant,
    busy_before: Duration,
}

impl<'a> StageTimer<'a> {
    fn new(counters: &'a Counters) -> Self {
        let now = Instant::now();
        Self {
            counters,
            since: now,
            window_since: now,
            busy_before: busy(),
        }
    }

    fn lap(&mut self, stage: Stage) {
        let now = Instant::now();
        self.counters.spent(stage, now - self.since);
        self.since = now;
    }

    /// Returns the CPU time and the wall time of the thread since the last window, once per window.
    /// Only the CPU clock can tell them apart: in the call in which the ring waits, it also copies
    /// and touches fresh memory for the first time.
    fn window(&mut self) -> Option<(Duration, Duration)> {
        let watched = self.since - self.window_since;
        if watched < WINDOW {
            return None;
        }
        let (before, now) = (self.busy_before, busy());
        self.window_since = self.since;
        self.busy_before = now;
        Some((now.saturating_sub(before), watched))
    }
}

/// Returns the CPU time that this thread has used so far.
fn busy() -> Duration {
    if cfg!(miri) {
        // Miri's threads have no CPU clock.
        return Duration::ZERO;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}
