//! The loop of one lane: lease → engine → sink → lease.
//!
//! The only code that sees both seams. It decides nothing: the [`Feed`] says what to read next and into which memory, the
//! engine fills it, the sink completes tensors. After the first failure it starts nothing more, reaps everything in flight, and
//! returns that failure.
//!
//! ```text
//!   feed.take() ─▶ Job ─▶ engine.submit … engine.reap ─▶ Done ─▶ (check) ─▶ sink.submit … sink.reap ─▶ deliver
//!        ▲                                                 │
//!        └──────────────── feed.ended() ◀──────────────────┘
//! ```

mod feed;
mod reads;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use feed::Take;
pub use feed::{Feed, Memory};
pub use reads::Waiting;

use crate::engine::{Done, Engine, Transfer, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::report::{Counters, Stage};
use crate::schedule::WINDOW;
use crate::sink::Sink;

/// Runs one lane of `group` until nothing is left, or to the first failure.
///
/// `deliver` gets every finished tensor. `counters` is added to.
///
/// # Errors
///
/// The first failure of engine or sink, after all that was in flight has come back.
pub fn run<E: Engine, S: Sink>(
    feed: &Feed,
    group: usize,
    engine: &mut E,
    sink: &mut S,
    lane: &LaneWork<'_, S::Tensor>,
) -> Result<()> {
    let mut watch = Watch::new(lane.counters);
    lane.counters.reading_since.get_or_init(Instant::now);
    engine.stop_when(feed.over());
    let (mut failure, mut failed) = (None, false);
    let mut done: Vec<Done> = Vec::new();
    let mut ready = Vec::new();
    // The window of every extent that the engine has.
    let mut out = HashMap::with_capacity(engine.depth());
    let mut held = 0;
    let mut allowed = 0;
    loop {
        let rung = feed.bell.count();
        let mut exhausted = false;
        while failure.is_none() && engine.in_flight() < engine.depth() {
            match feed.take(group, lane.index, held) {
                Ok(Take::Job(job)) => {
                    out.insert(job.extent, job.lease.start());
                    held += job.lease.len() as u64;
                    engine.submit(job);
                }
                Ok(Take::Wait) => break,
                Ok(Take::Done) => {
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
            // The reads that were just queued begin before tensors are handed over: that wakes the caller, who may take this
            // lane's core.
            engine.reap(Wait::No, &mut done);
            (lane.deliver)(&mut ready);
            watch.lap(Stage::Deliver);
        }
        if !done.is_empty() {
            // Something to go on with already.
        } else if engine.in_flight() > 0 {
            engine.reap(Wait::ForOne, &mut done);
            watch.lap(Stage::StorageWait);
        } else if sink.in_flight() > 0 {
            failure = failure.or(sink.reap(Wait::ForOne, &mut ready).err());
            watch.lap(Stage::CopyWait);
        } else if exhausted || failure.is_some() {
            return failure.map_or(Ok(()), Err);
        } else {
            feed.bell.wait_past(rung);
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
            // What is in flight may never come back; that this lane has failed is known now.
            (lane.failing)(error);
        }
        watch.lap(Stage::Deliver);
        if let Some((busy, watched)) = watch.window() {
            feed.observe(group, busy, watched, lane.counters.read_bytes());
        }
    }
}

/// Takes what the engine gives back for the window that began at `start` to the sink, if it is what it should be.
fn complete<S: Sink>(
    feed: &Feed,
    sink: &mut S,
    lane: &LaneWork<'_, S::Tensor>,
    watch: &mut Watch<'_>,
    done: Done,
    start: Option<usize>,
) -> Result<()> {
    if let Ok(filled) = &done.result {
        // What sinks rely on: a wrong pairing would make a tensor of another one's bytes.
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
        // Of this extent, of none while it waits for others of its file, or of several that waited for it.
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
        // An engine that let go because the load is over: why it is, somebody else knows.
        Err(error) if error.kind() == ErrorKind::Cancelled && feed.over().is_raised() => Ok(()),
        result => result,
    }
}

/// What a lane reports to.
pub struct LaneWork<'a, T> {
    /// Its number in its group.
    pub(crate) index: usize,
    /// Takes every finished tensor out of the list.
    pub deliver: &'a dyn Fn(&mut Vec<T>),
    /// Hears of the first failure, while what is in flight has not come back yet.
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

/// Adds the time since the last lap to a stage, and tells from time to time how busy the thread is.
struct Watch<'a> {
    counters: &'a Counters,
    since: Instant,
    window_since: Instant,
    busy_before: Duration,
}

impl<'a> Watch<'a> {
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

    /// Once a window: how long the thread ran, and out of how much time. Only the CPU clock tells: the ring copies, and takes the
    /// first touch of fresh memory, in the same call in which it waits.
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

/// How long this thread has run so far.
fn busy() -> Duration {
    if cfg!(miri) {
        // Miri's threads have no clock.
        return Duration::ZERO;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}
