//! Streams: a queue and a worker thread each, and the order that calls give their work.

use std::collections::VecDeque;
use std::thread;

use crate::clock::{Clock, Point};
use crate::context;
use crate::copy::{self, Work};
use crate::driver::{Driver, Lock, changed};
use crate::status::{INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, OPERATING_SYSTEM, Outcome};

/// Handles that stand for default streams in every function with a stream argument.
pub(crate) const LEGACY: [u64; 2] = [0, 1];
const PER_THREAD: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Created,
    Legacy,
    /// Default stream of the thread with this number.
    PerThread(u64),
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) ordinal: i32,
    pub(crate) kind: Kind,
    /// The stream waits for the legacy stream, and the legacy stream for it.
    blocking: bool,
    /// The caller has destroyed the stream; queued work still runs.
    pub(crate) closing: bool,
    /// Work before the next work of this stream.
    pub(crate) clock: Clock,
    queue: VecDeque<Queued>,
    submitted: u64,
    completed: u64,
}

#[derive(Debug)]
struct Queued {
    /// Work of other streams that must have run before.
    after: Clock,
    work: Work,
}

/// Memory that work accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch {
    /// Device memory by its first address.
    Device(usize),
    /// Pinned memory by its first address.
    Pinned(usize),
}

impl Driver {
    /// Returns the stream for a handle, possibly of another context. A lost context is an error.
    pub(crate) fn stream(&mut self, named: u64, here: i32) -> Outcome<u64> {
        if LEGACY.contains(&named) {
            return self.legacy(here);
        }
        if named == PER_THREAD {
            return self.per_thread(here);
        }
        let stream = self.created(named)?;
        self.lost(stream)?;
        Ok(named)
    }

    /// Returns the ordinal of a stream that was created and not destroyed.
    fn created(&self, named: u64) -> Outcome<i32> {
        self.streams
            .get(&named)
            .filter(|stream| stream.kind == Kind::Created && !stream.closing)
            .map(|stream| stream.ordinal)
            .ok_or(INVALID_HANDLE)
    }

    pub(crate) fn ordinal_of(&self, stream: u64) -> i32 {
        self.streams
            .get(&stream)
            .map(|stream| stream.ordinal)
            .expect("callers have looked the stream up")
    }

    fn legacy(&mut self, here: i32) -> Outcome<u64> {
        if let Some(stream) = self.known(here).legacy {
            return Ok(stream);
        }
        let stream = self.start(here, Kind::Legacy, false)?;
        self.known(here).legacy = Some(stream);
        Ok(stream)
    }

    fn per_thread(&mut self, here: i32) -> Outcome<u64> {
        let thread = context::thread().ok_or(INVALID_CONTEXT)?;
        if let Some(stream) = self.known(here).per_thread.get(&thread) {
            return Ok(*stream);
        }
        let stream = self.start(here, Kind::PerThread(thread), true)?;
        self.known(here).per_thread.insert(thread, stream);
        Ok(stream)
    }

    /// Creates a stream and its worker.
    pub(crate) fn start(&mut self, ordinal: i32, kind: Kind, blocking: bool) -> Outcome<u64> {
        let id = self.fresh();
        let stream = Stream {
            ordinal,
            kind,
            blocking,
            closing: false,
            clock: Clock::default(),
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
        };
        self.streams.insert(id, stream);
        let worker = thread::Builder::new().name("cuda-stub".to_owned());
        if worker.spawn(move || work(id)).is_err() {
            self.streams.remove(&id);
            return Err(OPERATING_SYSTEM);
        }
        Ok(id)
    }

    /// Queues work behind all work that the driver's rules put before it, and behind `after`.
    pub(crate) fn submit(
        &mut self,
        id: u64,
        after: &Clock,
        touches: &[Touch],
        work: Work,
    ) -> Point {
        let mut before = self.implied(id);
        before.join(after);
        let host = self.host.clone();
        let stream = self.streams.get_mut(&id).expect("looked up by the caller");
        stream.clock.join(&before);
        stream.clock.join(&host);
        stream.submitted += 1;
        let point = Point {
            stream: id,
            count: stream.submitted,
        };
        stream.clock.advance(point);
        let clock = stream.clock.clone();
        stream.queue.push_back(Queued {
            after: before,
            work,
        });
        for touch in touches {
            self.touch(*touch, point, &clock);
        }
        changed();
        point
    }

    /// Returns the order implied by the legacy default stream: its work comes after all earlier
    /// work of the context's blocking streams, and before all their later work.
    fn implied(&mut self, id: u64) -> Clock {
        let mut before = Clock::default();
        let ordinal = self.ordinal_of(id);
        let legacy = self.known(ordinal).legacy;
        if legacy == Some(id) {
            for stream in self.streams.values() {
                if stream.ordinal == ordinal && stream.blocking {
                    before.join(&stream.clock);
                }
            }
            before.join(&self.known(ordinal).retired_blocking);
        } else if let Some(legacy) = legacy.and_then(|legacy| self.streams.get(&legacy))
            && self.streams[&id].blocking
        {
            before.join(&legacy.clock);
        }
        before
    }

    /// Returns whether all these points have run. A stream that is gone has run all its work.
    pub(crate) fn has_run(&self, clock: &Clock) -> bool {
        clock.points().all(|point| {
            self.streams
                .get(&point.stream)
                .is_none_or(|stream| stream.completed >= point.count)
        })
    }

    /// Records that the host has waited for these points of work of a device.
    pub(crate) fn reached(&mut self, clock: &Clock, ordinal: i32) {
        self.host.join(clock);
        self.trim_pools(ordinal);
    }

    /// Implements `cuStreamDestroy`: queued work still runs, and the call does not wait for it.
    pub(crate) fn destroy_stream(&mut self, named: u64) -> Outcome {
        let ordinal = self.created(named)?;
        let stream = self.streams.get_mut(&named).expect("found above");
        stream.closing = true;
        let (clock, blocking) = (stream.clock.clone(), stream.blocking);
        let device = self.known(ordinal);
        device.retired.join(&clock);
        if blocking {
            device.retired_blocking.join(&clock);
        }
        changed();
        self.lost(ordinal)
    }

    pub(crate) fn query_stream(&mut self, named: u64, here: i32) -> Outcome {
        let id = self.stream(named, here)?;
        let clock = self.streams[&id].clock.clone();
        if !self.has_run(&clock) {
            return Err(NOT_READY);
        }
        self.host.join(&clock);
        Ok(())
    }
}

pub(crate) fn synchronize(driver: &mut Lock, named: u64, here: i32) -> Outcome {
    let id = driver.stream(named, here)?;
    wait(driver, id)
}

/// Waits for all work submitted to a stream.
pub(crate) fn wait(driver: &mut Lock, id: u64) -> Outcome {
    let ordinal = driver.ordinal_of(id);
    let clock = driver.streams[&id].clock.clone();
    driver.wait_while(|driver| !driver.has_run(&clock));
    driver.reached(&clock, ordinal);
    driver.lost(ordinal)
}

/// Worker thread: runs a stream's work in order, and ends when the stream is closing and empty.
fn work(id: u64) {
    let mut driver = Lock::take();
    loop {
        driver.wait_while(|driver| match driver.streams[&id].queue.front() {
            Some(queued) => !driver.has_run(&queued.after),
            None => !driver.streams[&id].closing,
        });
        let ordinal = driver.ordinal_of(id);
        let stream = driver
            .streams
            .get_mut(&id)
            .expect("only its worker removes it");
        let Some(queued) = stream.queue.pop_front() else {
            break;
        };
        copy::run(&mut driver, ordinal, queued.work);
        let stream = driver
            .streams
            .get_mut(&id)
            .expect("only its worker removes it");
        stream.completed += 1;
        changed();
    }
    driver.streams.remove(&id);
    changed();
}
