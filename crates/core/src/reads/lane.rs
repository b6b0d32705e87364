//! Lanes of a reader: threads, each with an engine for every group of sources, which serve one call
//! at a time.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::reading::{Reading, Stop};
use crate::engine::{Done, Engine, Job, Wait, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::groups::Opened;
use crate::memory::read_extents::ReadExtent;
use crate::memory::{Lease, Slab, Staging, StagingNeed};
use crate::options::{LoadOptions, format_bytes};
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Most lanes of a reader, and so most calls that read at a time: others wait.
const LANES_MAX: usize = 8;

/// Most slots of staging memory: as many as an engine for single reads has jobs in flight.
const SLOTS_MAX: usize = 16;

/// Calls on their way to lanes, and the lanes.
pub(super) struct Lanes {
    calls: Sender<Call>,
    shared: Arc<Shared>,
    counts: Arc<Mutex<Counts>>,
    queue: Receiver<Call>,
}

#[derive(Default)]
struct Counts {
    lanes: usize,
    /// Calls that have not ended.
    calls: usize,
}

struct Shared {
    opened: Arc<Opened>,
    options: LoadOptions,
    staging: Memory,
}

/// Staging memory, allocated for the first read that needs it.
struct Memory {
    slot_bytes: usize,
    slots: usize,
    slab: OnceLock<Arc<Slab>>,
    events: Arc<EventCount>,
}

/// Extents of one call, in the order in which they are read.
struct Call {
    extents: Vec<ReadExtent>,
    /// Name of the tensor of each request.
    names: Vec<Option<String>>,
    stop: Arc<Stop>,
    outcome: Sender<Result<()>>,
}

impl Lanes {
    pub(super) fn new(
        opened: Arc<Opened>,
        options: &LoadOptions,
        extent_bytes: u64,
    ) -> Result<Self> {
        let slot = extent_bytes.next_multiple_of(opened.alignment_max());
        let limit = options.memory_limit.unwrap_or(u64::MAX);
        if limit < slot {
            let (limit, slot) = (format_bytes(limit), format_bytes(slot));
            let message = format!("‹memory_limit› is {limit}, below one extent of {slot}");
            return Err(Error::invalid_request(message)
                .with_hint("raise ‹memory_limit›, or lower ‹extent_bytes›"));
        }
        let slots = usize::try_from(limit / slot).unwrap_or(usize::MAX);
        let slot_bytes = usize::try_from(slot)
            .map_err(|_| Error::invalid_request("‹extent_bytes› exceeds the address space"))?;
        let (calls, queue) = unbounded();
        Ok(Self {
            calls,
            queue,
            counts: Arc::default(),
            shared: Arc::new(Shared {
                opened,
                options: options.clone(),
                staging: Memory {
                    slot_bytes,
                    slots: slots.min(SLOTS_MAX),
                    slab: OnceLock::new(),
                    events: Arc::default(),
                },
            }),
        })
    }

    /// Queues a call, and starts a lane for it if all are busy.
    pub(super) fn submit(
        &self,
        extents: Vec<ReadExtent>,
        names: Vec<Option<String>>,
    ) -> Result<Reading> {
        let (outcome, answer) = bounded(1);
        let stop = Arc::<Stop>::default();
        let reading = Reading::new(answer, Arc::clone(&stop));
        if extents.is_empty() {
            let _ = outcome.send(Ok(()));
            return Ok(reading);
        }
        {
            let mut counts = self.counts.lock();
            counts.calls += 1;
            if counts.calls > counts.lanes && counts.lanes < LANES_MAX {
                match self.start() {
                    Ok(()) => counts.lanes += 1,
                    Err(error) if counts.lanes == 0 => {
                        counts.calls -= 1;
                        let _ = outcome.send(Ok(()));
                        return Err(error);
                    }
                    // The others serve it in turn.
                    Err(_) => {}
                }
            }
        }
        let call = Call {
            extents,
            names,
            stop,
            outcome,
        };
        self.calls.send(call).expect("holds a receiver itself");
        Ok(reading)
    }

    fn start(&self) -> Result<()> {
        let (queue, counts) = (self.queue.clone(), Arc::clone(&self.counts));
        let shared = Arc::clone(&self.shared);
        let serve = move || {
            // Engines stay on the thread that opens them.
            let mut lane = Lane::new(shared);
            // Ends when the reader is dropped and its calls have been served.
            while let Ok(call) = queue.recv() {
                let result = lane.serve(&call);
                let Call {
                    extents, outcome, ..
                } = call;
                // Memory of the caller is returned before the caller is told.
                drop(extents);
                counts.lock().calls -= 1;
                let _ = outcome.send(result);
            }
        };
        let thread = Builder::new().name("tload-reader".to_owned());
        let started = thread.spawn(serve);
        started.map(drop).map_err(Error::cannot_start_thread)
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").finish_non_exhaustive()
    }
}

impl Memory {
    fn slab(&self) -> Result<&Arc<Slab>> {
        if let Some(slab) = self.slab.get() {
            return Ok(slab);
        }
        let staging = Staging::take(&StagingNeed {
            slot_bytes: self.slot_bytes,
            slots: self.slots,
            bytes_max: usize::MAX,
            context: None,
        })?;
        let events = Arc::clone(&self.events);
        // If another lane was faster, this memory is kept for the next load.
        Ok(self
            .slab
            .get_or_init(|| Slab::staging(staging, self.slot_bytes, self.slots, events)))
    }
}

/// One thread's engines.
struct Lane {
    shared: Arc<Shared>,
    /// By group; opened for the first extent of it.
    engines: Vec<Option<Box<dyn Engine>>>,
    stop: Arc<CancelFlag>,
}

impl Lane {
    fn new(shared: Arc<Shared>) -> Self {
        let engines = shared.opened.groups.iter().map(|_| None).collect();
        Self {
            shared,
            engines,
            stop: Arc::default(),
        }
    }

    /// Reads the extents of a call. When it returns, no engine has any of their memory.
    fn serve(&mut self, call: &Call) -> Result<()> {
        call.stop.serve(&self.stop);
        let reading = || self.read(call);
        let result = catch_unwind(AssertUnwindSafe(reading)).unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Io, "a reading thread panicked")
                .with_hint("this is a bug in tload; please report it"))
        });
        call.stop.served();
        let in_flight = self.engines.iter().flatten().any(|it| it.in_flight() > 0);
        if in_flight || self.stop.is_cancelled() {
            // Dropping an engine waits for its reads.
            self.engines.iter_mut().for_each(|engine| *engine = None);
            self.stop = Arc::default();
        }
        result
    }

    fn read(&mut self, call: &Call) -> Result<()> {
        let mut failure = None;
        let (mut next, mut in_flight) = (0, 0);
        let mut done = Vec::new();
        loop {
            let events = self.shared.staging.events.count();
            while failure.is_none() && next < call.extents.len() {
                if call.stop.is_wanted() {
                    failure = Some(cancelled());
                } else {
                    match self.begin(next, &call.extents[next]) {
                        Ok(true) => (next, in_flight) = (next + 1, in_flight + 1),
                        Ok(false) => break,
                        Err(error) => failure = Some(call.named(next, error)),
                    }
                }
            }
            if in_flight == 0 {
                if failure.is_some() || next == call.extents.len() {
                    break;
                }
                // Other lanes have all of the staging memory, and return it.
                self.shared.staging.events.wait_past(events);
                continue;
            }
            self.reap(&mut done);
            for one in done.drain(..) {
                let Some(one) = self.confirm(call, one) else {
                    continue;
                };
                in_flight -= 1;
                let number = one.extent;
                let finished = finish(&call.extents[number], one);
                if let Err(error) = finished {
                    failure.get_or_insert_with(|| call.named(number, error));
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let unchanged = self.shared.opened.verify_unchanged(&call.extents);
        unchanged.map_err(|error| call.changed(error))
    }

    /// Submits the read of an extent. Returns whether there was room for it.
    fn begin(&mut self, number: usize, extent: &ReadExtent) -> Result<bool> {
        let engine = self.engine(extent.group)?;
        if engine.in_flight() >= engine.depth() {
            return Ok(false);
        }
        let Some(lease) = self.lease(extent)? else {
            return Ok(false);
        };
        self.engine(extent.group)?.submit(Job {
            extent: number,
            source: extent.source,
            offset: extent.window.start,
            needed: extent.needed(),
            lease,
        });
        Ok(true)
    }

    fn engine(&mut self, group: usize) -> Result<&mut Box<dyn Engine>> {
        let slot = &mut self.engines[group];
        if slot.is_none() {
            let Shared {
                opened, options, ..
            } = &*self.shared;
            let mut engine = opened.groups[group].open_engine(options, &self.stop)?;
            engine.stop_when(&self.stop);
            *slot = Some(engine);
        }
        Ok(slot.as_mut().expect("opened above"))
    }

    /// Returns the window of an extent; none while all staging memory is in use.
    fn lease(&self, extent: &ReadExtent) -> Result<Option<Lease>> {
        if extent.is_in_place {
            let start = extent.target_offset;
            let range = start..start + extent.wanted_len();
            #[expect(unsafe_code, reason = "leases what the caller lends to the call")]
            // SAFETY: the target belongs to the call until it has ended, which is after its leases,
            // and its extents do not overlap. Its memory is initialised: it was borrowed as bytes,
            // or is a buffer that torch, numpy or Python shows to everyone.
            return Ok(Some(unsafe { extent.target.lease(range) }));
        }
        Ok(self.shared.staging.slab()?.try_lease(extent.window_len()))
    }

    /// Takes completions of all engines; waits for one if there are none.
    fn reap(&mut self, done: &mut Vec<Done>) {
        let busy = |engine: &&mut Box<dyn Engine>| engine.in_flight() > 0;
        let mut engines: Vec<_> = self.engines.iter_mut().flatten().filter(busy).collect();
        if let [only] = &mut engines[..] {
            only.reap(Wait::ForOne, done);
            return;
        }
        for engine in &mut engines {
            engine.reap(Wait::No, done);
        }
        if done.is_empty()
            && let Some(first) = engines.first_mut()
        {
            first.reap(Wait::ForOne, done);
        }
    }

    /// Has the engine confirm a completion; none if it reads again.
    fn confirm(&mut self, call: &Call, done: Done) -> Option<Done> {
        let group = call.extents[done.extent].group;
        match &mut self.engines[group] {
            Some(engine) => engine.confirm(done),
            None => Some(done),
        }
    }
}

/// Moves the bytes of an extent to the caller, unless they are there.
fn finish(extent: &ReadExtent, done: Done) -> Result<()> {
    let filled = done.result?;
    if !extent.is_in_place {
        let bytes = &filled.bytes()[extent.skipped()..][..extent.wanted_len()];
        #[expect(unsafe_code, reason = "writes into what the caller lends to the call")]
        // SAFETY: the target belongs to the call, and no other extent has these bytes of it.
        unsafe {
            extent.target.write(extent.target_offset, bytes);
        };
    }
    Ok(())
}

impl Call {
    /// Returns the error with the name of the tensor and its bytes.
    fn named(&self, number: usize, error: Error) -> Error {
        let extent = &self.extents[number];
        let error = match error.range() {
            Some(_) => error,
            None if error.kind() == ErrorKind::Cancelled => return error,
            None => error.with_range(extent.wanted.clone()),
        };
        match &self.names[extent.request] {
            Some(name) => error.with_tensor(name.clone()),
            None => error,
        }
    }

    /// Returns the error of a file that has changed, with the first tensor of the call from it.
    fn changed(&self, error: Error) -> Error {
        self.named(0, error)
    }
}
