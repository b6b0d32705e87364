//! Events: the work that they were last recorded behind, and the time when it ran.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::clock::Clock;
use crate::copy::Work;
use crate::driver::{Driver, Lock};
use crate::status::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Outcome};

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) ordinal: i32,
    timed: bool,
    record: Option<Record>,
}

#[derive(Clone, Debug)]
struct Record {
    /// All work before the event.
    clock: Clock,
    stamp: Stamp,
}

/// Time when the last of the recorded work ran.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    since: Instant,
    nanos: Arc<AtomicU64>,
}

impl Stamp {
    fn new(since: Instant) -> Self {
        Self {
            since,
            nanos: Arc::default(),
        }
    }

    pub(crate) fn set(&self) {
        let nanos = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Seconds from `origin`, which is the same for all stamps.
    fn seconds(&self, origin: Instant) -> f64 {
        let nanos = std::time::Duration::from_nanos(self.nanos.load(Ordering::Relaxed));
        ((self.since - origin) + nanos).as_secs_f64()
    }
}

impl Driver {
    pub(crate) fn create_event(&mut self, ordinal: i32, flags: u32) -> Outcome<u64> {
        let untimed = flags & DISABLE_TIMING != 0;
        let unknown = flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0;
        if unknown || (flags & INTERPROCESS != 0 && !untimed) {
            return Err(INVALID_VALUE);
        }
        let event = Event {
            ordinal,
            timed: !untimed,
            record: None,
        };
        let id = self.fresh();
        self.events.insert(id, event);
        Ok(id)
    }

    /// Returns an event of any context. A lost context is an error.
    fn event(&self, id: u64) -> Outcome<&Event> {
        let event = self.events.get(&id).ok_or(INVALID_HANDLE)?;
        self.lost(event.ordinal)?;
        Ok(event)
    }

    /// Destroys an event. Streams that wait for it go on waiting for the work it was recorded
    /// behind.
    pub(crate) fn destroy_event(&mut self, id: u64) -> Outcome {
        let event = self.events.remove(&id).ok_or(INVALID_HANDLE)?;
        self.lost(event.ordinal)
    }

    /// Records an event in place of its earlier record. Event and stream must belong to one
    /// context, else `INVALID_HANDLE`.
    pub(crate) fn record(&mut self, id: u64, named: u64, here: i32) -> Outcome {
        let ordinal = self.event(id)?.ordinal;
        let stream = self.stream(named, here)?;
        if self.ordinal_of(stream) != ordinal {
            return Err(INVALID_HANDLE);
        }
        let stamp = Stamp::new(Instant::now());
        let none = Clock::default();
        self.submit(stream, &none, &[], Work::Stamp(stamp.clone()));
        let clock = self.streams[&stream].clock.clone();
        self.set_record(id, Record { clock, stamp });
        Ok(())
    }

    /// Implements `cuCtxRecordEvent`: records an event behind all work of the context so far.
    pub(crate) fn record_context(&mut self, id: u64, ordinal: i32) -> Outcome {
        if self.event(id)?.ordinal != ordinal {
            return Err(INVALID_HANDLE);
        }
        let stamp = Stamp::new(Instant::now());
        let mut clock = self.known(ordinal).retired.clone();
        for stream in self.streams.values_mut() {
            if stream.ordinal == ordinal {
                clock.join(&stream.clock);
            }
        }
        let open = |(id, stream): (&u64, &crate::stream::Stream)| {
            (stream.ordinal == ordinal && !stream.closing).then_some(*id)
        };
        let streams: Vec<_> = self.streams.iter().filter_map(open).collect();
        for stream in streams {
            let none = Clock::default();
            clock.advance(self.submit(stream, &none, &[], Work::Stamp(stamp.clone())));
        }
        self.set_record(id, Record { clock, stamp });
        Ok(())
    }

    fn set_record(&mut self, id: u64, record: Record) {
        let event = self.events.get_mut(&id).expect("looked up by the caller");
        event.record = Some(record);
    }

    /// Orders the stream's later work behind the work that the event is recorded behind now.
    /// Contexts may differ.
    pub(crate) fn stream_waits(&mut self, named: u64, id: u64, here: i32) -> Outcome {
        let record = self.event(id)?.record.clone();
        let stream = self.stream(named, here)?;
        if let Some(record) = record {
            self.submit(stream, &record.clock, &[], Work::Nothing);
        }
        Ok(())
    }

    /// Returns `NOT_READY` while recorded work has not run. An event that was never recorded is
    /// complete.
    pub(crate) fn query_event(&mut self, id: u64) -> Outcome {
        let Some(record) = self.event(id)?.record.clone() else {
            return Ok(());
        };
        if !self.has_run(&record.clock) {
            return Err(NOT_READY);
        }
        self.host.join(&record.clock);
        Ok(())
    }

    /// Returns the milliseconds between two events of one device with timing, both recorded and
    /// complete.
    pub(crate) fn elapsed(&self, start: u64, end: u64) -> Outcome<f32> {
        let (start, end) = (self.event(start)?, self.event(end)?);
        if start.ordinal != end.ordinal || !start.timed || !end.timed {
            return Err(INVALID_HANDLE);
        }
        let first = start.record.as_ref().ok_or(INVALID_HANDLE)?;
        let last = end.record.as_ref().ok_or(INVALID_HANDLE)?;
        if !self.has_run(&first.clock) || !self.has_run(&last.clock) {
            return Err(NOT_READY);
        }
        let origin = first.stamp.since.min(last.stamp.since);
        let seconds = last.stamp.seconds(origin) - first.stamp.seconds(origin);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "milliseconds as the driver gives them"
        )]
        let milliseconds = (seconds * 1e3) as f32;
        Ok(milliseconds)
    }
}

/// Implements `cuEventSynchronize`: waits for the work that the event is recorded behind now.
pub(crate) fn synchronize(driver: &mut Lock, id: u64) -> Outcome {
    let event = driver.event(id)?;
    let ordinal = event.ordinal;
    if let Some(record) = event.record.clone() {
        driver.wait_while(|driver| !driver.has_run(&record.clock));
        driver.reached(&record.clock, ordinal);
    }
    driver.lost(ordinal)
}
