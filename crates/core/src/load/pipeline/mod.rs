//! The loop of one lane: lease → engine → sink → lease.
//!
//! The only code that uses both traits, `Engine` and `Sink`. It makes no decisions: the
//! [`Feed`] chooses what to read next and into which memory, the engine fills that memory, and the
//! sink completes tensors. After the first failure the loop starts no more reads, reaps everything
//! in flight, and returns the failure.
//!
//! ```text
//!   feed.take() ─▶ Job ─▶ engine.submit … reap ─▶ Done ─▶ (check) ─▶ sink.submit … reap ─▶ deliver
//!        ▲                                  │
//!        └────────── feed.ended() ◀─────────┘
//! ```

mod feed;
mod in_flight;
mod lease_origin;
mod not_begun;
mod published;
mod slabs;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::{Duration, Instant};

pub use feed::Feed;
use feed::{LaneWait, NextJob};
pub use in_flight::Waiting;
pub use lease_origin::LeaseOrigin;
pub use published::PublishedMemory;
pub use slabs::Slabs;

use crate::engine::{Done, Engine, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::load::check::Passage;
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
    lane.counters.reading_since.get_or_init(Instant::now);
    engine.stop_when(feed.cancel());
    let out = HashMap::with_capacity(engine.depth());
    let lane_loop = LaneLoop {
        feed,
        group,
        engine,
        sink,
        lane,
        watch: StageTimer::new(lane.counters),
        out,
        held: 0,
        lacks_slot: false,
        allowed: 0,
        done: Vec::new(),
        returned: Vec::new(),
        ready: Vec::new(),
        failure: None,
        has_told: false,
    };
    lane_loop.run()
}

/// State of the loop of one lane.
struct LaneLoop<'a, E, S: Sink> {
    feed: &'a Feed,
    group: usize,
    engine: &'a mut E,
    sink: &'a mut S,
    lane: &'a LaneWork<'a, S::Tensor>,
    watch: StageTimer<'a>,
    /// Start of the window of each extent that the sink has not received.
    out: HashMap<usize, usize>,
    /// Bytes that the engine owns.
    held: u64,
    /// The next job needs a slot, and none was free.
    lacks_slot: bool,
    /// Bytes that the engine knows it may have in flight.
    allowed: u64,
    /// Completions of the engine that the sink has not received.
    done: Vec<Done>,
    /// Memory for those that are being passed on; empty otherwise.
    returned: Vec<Done>,
    /// Finished tensors that have not been delivered.
    ready: Vec<S::Tensor>,
    failure: Option<Error>,
    /// The lane has signalled the failure.
    has_told: bool,
}

impl<E: Engine, S: Sink> LaneLoop<'_, E, S> {
    fn run(mut self) -> Result<()> {
        loop {
            let rung = self.feed.events.count();
            let in_flight = self.engine.in_flight();
            let is_exhausted = self.submit();
            self.deliver(self.engine.in_flight() > in_flight);
            if !self.wait(rung, is_exhausted) {
                return self.failure.map_or(Ok(()), Err);
            }
            self.complete_all();
            self.tell_failure();
            self.watch.lap(Stage::Deliver);
            if let Some((busy, watched)) = self.watch.window() {
                self.feed.observe(self.group, busy, watched);
            }
        }
    }

    /// Submits as many jobs as the feed gives. Returns whether nothing is left to read.
    fn submit(&mut self) -> bool {
        let mut is_exhausted = false;
        self.lacks_slot = false;
        while self.failure.is_none() {
            if self.engine.in_flight() >= self.engine.depth() {
                self.feed.engine_is_full(self.group);
                break;
            }
            match self.feed.take(self.group, self.lane.index, self.held) {
                Ok(NextJob::Job(job)) => {
                    self.out.insert(job.extent, job.lease.start());
                    self.held += job.lease.len() as u64;
                    self.engine.submit(job);
                }
                Ok(NextJob::Wait) => break,
                Ok(NextJob::NoSlot) => {
                    self.lacks_slot = true;
                    break;
                }
                Ok(NextJob::Done) => {
                    is_exhausted = true;
                    break;
                }
                Err(error) => self.failure = Some(error),
            }
        }
        let limit = self.feed.limit_bytes(self.group);
        if limit != self.allowed {
            self.allowed = limit;
            self.engine.allow(limit);
        }
        self.watch.lap(Stage::Submit);
        is_exhausted
    }

    /// Hands finished tensors over. `has_submitted`: reads were just submitted. They begin before
    /// that: it wakes the caller, who may take this lane's core. Without any, no engine is reaped,
    /// which may copy first.
    fn deliver(&mut self, has_submitted: bool) {
        if self.ready.is_empty() {
            return;
        }
        if has_submitted {
            self.engine.reap(Wait::No, &mut self.done);
            self.watch.lap(Stage::StorageWait);
        }
        (self.lane.deliver)(&mut self.ready);
        self.watch.lap(Stage::Deliver);
    }

    /// Waits for a copy if only a slot is missing, else for a completion, or for memory if nothing
    /// is in flight. Returns false if there is nothing to wait for.
    fn wait(&mut self, rung: u64, is_exhausted: bool) -> bool {
        if !self.done.is_empty() {
            // Completions are already pending; do not block.
        } else if self.lacks_slot && self.sink.in_flight() > 0 {
            // Wait for a copy and not for a read: only a copy that ends frees a slot.
            self.engine.reap(Wait::No, &mut self.done);
            if self.done.is_empty() {
                self.await_copy();
            }
            self.watch.lap(Stage::CopyWait);
        } else if self.engine.in_flight() > 0 {
            self.engine.reap(Wait::ForOne, &mut self.done);
            self.watch.lap(Stage::StorageWait);
        } else if self.sink.in_flight() > 0 {
            self.await_copy();
            self.watch.lap(Stage::CopyWait);
        } else if is_exhausted || self.failure.is_some() {
            return false;
        } else {
            let events = &self.feed.events;
            self.feed
                .during(LaneWait::Memory, || events.wait_past(rung));
            self.watch.lap(Stage::MemoryWait);
        }
        true
    }

    /// Passes all completions on to the sink. Comparing and copying bytes takes time, so the reads
    /// that take the place of completed ones begin before each, unless a read failed.
    fn complete_all(&mut self) {
        // Free the slots of copies that have ended, for the reads that begin next.
        self.reap_sink(Wait::No);
        let mut has_failed = false;
        for done in &self.done {
            has_failed |= done.result.is_err();
            self.held -= self.feed.plan.extents[done.extent].window as u64;
            self.feed.ended(done.extent);
        }
        let mut returned = std::mem::replace(&mut self.done, std::mem::take(&mut self.returned));
        for done in returned.drain(..) {
            let in_flight = self.engine.in_flight();
            if !has_failed {
                self.submit();
            }
            if self.engine.in_flight() > in_flight {
                self.engine.reap(Wait::No, &mut self.done);
                has_failed |= self.done.iter().any(|done| done.result.is_err());
                self.watch.lap(Stage::Submit);
            }
            let extent = done.extent;
            let confirmed = self.engine.confirm(done);
            self.watch.lap(Stage::Verify);
            if let Some(done) = confirmed {
                if let Err(error) = self.complete(done) {
                    self.failure.get_or_insert(error);
                }
            } else {
                self.held += self.feed.plan.extents[extent].window as u64;
                self.feed.again(self.group, extent);
            }
            self.watch.lap(Stage::Deliver);
        }
        // Assigning the vector back keeps its capacity.
        self.returned = returned;
        self.reap_sink(Wait::No);
    }

    /// Checks that a completion belongs to the window of its job, and passes it to the sink.
    fn complete(&mut self, done: Done) -> Result<()> {
        let start = self.out.remove(&done.extent);
        let Self {
            feed, sink, watch, ..
        } = self;
        if let Ok(filled) = &done.result {
            // Sinks rely on this pairing: a wrong one would fill a tensor with the bytes of another
            // tensor.
            assert!(
                start == Some(filled.start()),
                "the engine mixed up extent {}",
                done.extent
            );
        }
        let extent = &feed.plan.extents[done.extent];
        self.lane.counters.count(done.transfer);
        let result = done.result.and_then(|mut filled| {
            if feed.plan.slice_in(extent).is_some() && !filled.is_gathered() {
                feed.plan.gather(extent, filled.bytes_mut());
            }
            let passage = feed.check.passage().unwrap_or_else(|| {
                watch.lap(Stage::Deliver);
                let passage = feed.check.wait();
                watch.lap(Stage::Verify);
                passage
            });
            let check = match passage {
                Passage::Open => return sink.submit(extent, filled),
                Passage::Checked(check) => check,
                Passage::Closed => return Ok(()),
            };
            watch.lap(Stage::Deliver);
            // The check calls back for each extent that it passes on: none if this one has to wait
            // for others of its file, or also those that waited for this one.
            let compared = check.pass(done.extent, filled, &mut |extent, filled| {
                watch.lap(Stage::Verify);
                let submitted = sink.submit(extent, filled);
                watch.lap(Stage::Deliver);
                submitted
            });
            watch.lap(Stage::Verify);
            compared
        });
        match result {
            // The engine cancelled this read because the load is over, and the cause is reported
            // elsewhere.
            Err(error) if error.kind() == ErrorKind::Cancelled && feed.cancel().is_cancelled() => {
                Ok(())
            }
            result => result,
        }
    }

    fn await_copy(&mut self) {
        let feed = self.feed;
        feed.during(LaneWait::Copy, || self.reap_sink(Wait::ForOne));
    }

    fn reap_sink(&mut self, wait: Wait) {
        let reaped = self.sink.reap(wait, &mut self.ready);
        self.failure = self.failure.take().or(reaped.err());
    }

    /// Signals the first failure: reads in flight may never return.
    fn tell_failure(&mut self) {
        if let Some(error) = &self.failure
            && !std::mem::replace(&mut self.has_told, true)
        {
            self.feed.stop();
            (self.lane.failing)(error);
        }
    }
}

/// Interface of the pipeline to its lane.
pub struct LaneWork<'a, T> {
    /// The lane's number in its group.
    pub index: usize,
    /// Takes every finished tensor out of the list.
    pub deliver: &'a dyn Fn(&mut Vec<T>),
    /// Receives the first failure, while reads in flight have not returned yet.
    pub failing: &'a dyn Fn(&Error),
    /// Counts what the lane does.
    pub counters: &'a Counters,
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
