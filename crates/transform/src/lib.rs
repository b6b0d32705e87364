//! Engine in front of another one, for sources whose bytes are computed from stored ones.
//!
//! ```text
//! submit ▶ [job] ─ units ▶ [read] ─ slot ▶ engine for storage ▶ Filled ─ thread ▶ [job] ▶ reap
//! ```
//!
//! Reads are of whole units, into slots of a slab of its own, and threads compute each unit from
//! its slot straight into the windows of the jobs that want it. Adjacent jobs share the unit in
//! which they meet: a job that comes while a unit is being read waits for that read. No window
//! leaves the engine before all its units were computed without an error.
//!
//! Programs depend on the crate `tload`. The crates are released together, and anything here may
//! change in any release.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tload_base::error::{Error, Result};
use tload_base::sync::cancel::CancelFlag;
use tload_base::sync::event_count::EventCount;
use tload_base::sync::lock::Mutex;
use tload_engine::{Copiers, CopyTask, Done, Engine, Job, Transfer, Wait, cancelled};
use tload_memory::{Filled, Lease, Slab, Transform};

/// Configuration of the engine.
pub struct TransformSetup {
    /// Sources, in the order of [`Job::source`].
    pub sources: Arc<[TransformSource]>,
    /// Most stored bytes of a read, unless a single unit has more.
    pub read_bytes: u64,
    /// Slots that hold one read each.
    pub slab: Arc<Slab>,
    /// Notified when a slot comes back, and when a unit has been computed.
    pub events: Arc<EventCount>,
    /// Number of jobs in flight that the engine must accept.
    pub depth: usize,
    /// Number of threads that compute.
    pub threads: usize,
    /// Distrusts the places that wrong stored bytes came from, and names them in the error.
    pub blame: Box<dyn Fn(Error) -> Error + Send + Sync>,
}

/// Source of the engine.
#[derive(Clone, Debug)]
pub struct TransformSource {
    /// Computes its bytes.
    pub transform: Arc<dyn Transform>,
    /// Alignment of reads of what is stored, bytes.
    pub alignment: u64,
}

/// Engine that computes.
pub struct TransformEngine {
    setup: Arc<TransformSetup>,
    /// Reads what is stored.
    storage: Box<dyn Engine>,
    /// By number.
    jobs: HashMap<usize, Waiting>,
    reads: HashMap<usize, Read>,
    /// Reads that jobs can still wait for, by their source and first unit.
    open: BTreeMap<(usize, u32), usize>,
    /// Reads that have no slot yet.
    queue: VecDeque<usize>,
    next_number: usize,
    copiers: Copiers,
    /// Jobs without a byte.
    ended: Vec<Done>,
    is_cancelled: Arc<AtomicBool>,
}

/// Job that waits for reads.
struct Waiting {
    extent: usize,
    needed: usize,
    window: Arc<JobWindow>,
    /// Number of reads that have not ended.
    reads: usize,
    error: Option<Error>,
    transfer: Transfer,
}

/// Window of a job, and the bytes that belong into it.
struct JobWindow {
    range: Range<u64>,
    /// Taken when all of it is computed.
    lease: Mutex<Option<Lease>>,
}

/// Read of some units.
struct Read {
    source: usize,
    units: Range<u32>,
    /// Numbers of the jobs that want bytes of them.
    jobs: Vec<usize>,
    is_in_flight: bool,
}

impl TransformEngine {
    /// Creates an engine in front of `storage`.
    pub fn new(storage: Box<dyn Engine>, setup: &Arc<TransformSetup>) -> Self {
        Self {
            copiers: Copiers::new(setup.threads, Arc::clone(&setup.events)),
            setup: Arc::clone(setup),
            storage,
            jobs: HashMap::new(),
            reads: HashMap::new(),
            open: BTreeMap::new(),
            queue: VecDeque::new(),
            next_number: 0,
            ended: Vec::new(),
            is_cancelled: Arc::default(),
        }
    }

    fn number(&mut self) -> usize {
        self.next_number += 1;
        self.next_number
    }

    /// Makes a job wait for the reads of its units: those that are under way, and new ones for the
    /// others.
    fn wait_for(&mut self, job: usize, source: usize, mut units: Range<u32>) -> usize {
        let mut count = 0;
        while !units.is_empty() {
            let at = (source, units.start);
            let before = self.open.range(..=at).next_back();
            let before = before.map(|(_, number)| *number);
            let read = before.and_then(|number| self.reads.get_mut(&number));
            let known =
                read.filter(|read| read.source == source && read.units.contains(&units.start));
            if let Some(read) = known {
                read.jobs.push(job);
                units.start = read.units.end.min(units.end);
            } else {
                let mut after = self.open.range(at..).map(|(at, _)| *at);
                let next = after.next().filter(|next| next.0 == source);
                let end = next.map_or(units.end, |next| units.end.min(next.1));
                let read = Read {
                    source,
                    units: self.setup.read_of(source, &(units.start..end)),
                    jobs: vec![job],
                    is_in_flight: false,
                };
                units.start = read.units.end;
                let number = self.number();
                self.open.insert(at, number);
                self.reads.insert(number, read);
                self.queue.push_back(number);
            }
            count += 1;
        }
        count
    }

    /// Begins the reads for which there are a slot and room in the engine for storage.
    fn begin(&mut self, done: &mut Vec<Done>) {
        while let Some(&number) = self.queue.front() {
            if self.is_cancelled.load(Ordering::Relaxed) {
                self.queue.pop_front();
                self.read_ended(number, Some(&cancelled()), done);
                continue;
            }
            if self.storage.in_flight() >= self.storage.depth() {
                return;
            }
            let read = self.reads.get_mut(&number).expect("queued until it begins");
            let TransformSource {
                transform,
                alignment,
            } = &self.setup.sources[read.source];
            let stored = stored(&**transform, &read.units);
            let offset = stored.start / alignment * alignment;
            let window = to_len(stored.end.next_multiple_of(*alignment) - offset);
            let Some(lease) = self.setup.slab.try_lease(window) else {
                return;
            };
            self.queue.pop_front();
            read.is_in_flight = true;
            self.storage.submit(Job {
                extent: number,
                source: read.source,
                offset,
                needed: to_len(stored.end - offset),
                lease,
            });
        }
    }

    /// Takes what storage has read, and has it computed.
    fn take_read(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let mut read = Vec::new();
        self.storage.reap(wait, &mut read);
        for ended in read {
            let Some(ended) = self.storage.confirm(ended) else {
                continue;
            };
            let number = ended.extent;
            let jobs = &self.reads[&number].jobs;
            if let Some(job) = self.jobs.get_mut(&jobs[0]) {
                job.transfer += ended.transfer;
            }
            match ended.result {
                Ok(filled) => {
                    let task = self.computing(number, filled);
                    let mut at_once = Vec::new();
                    self.copiers.copy(number, [task], &mut at_once);
                    self.computed(at_once, done);
                }
                Err(error) => self.read_ended(number, Some(&error), done),
            }
        }
        let mut computed = Vec::new();
        self.copiers.take(&mut computed);
        self.computed(computed, done);
    }

    /// Returns the work on a read. Jobs that come later have to read its units again.
    fn computing(&mut self, number: usize, filled: Filled) -> CopyTask {
        let read = &self.reads[&number];
        let TransformSource {
            transform,
            alignment,
        } = self.setup.sources[read.source].clone();
        let units = read.units.clone();
        self.open.remove(&(read.source, units.start));
        let windows = read.jobs.iter().map(|job| &self.jobs[job].window);
        let windows: Vec<_> = windows.map(Arc::clone).collect();
        Box::new(move || {
            let offset = stored(&*transform, &units).start / alignment * alignment;
            let result = compute(&*transform, &units, offset, filled, &windows);
            Some(Done {
                extent: number,
                result,
                window: None,
                transfer: Transfer::default(),
            })
        })
    }

    fn computed(&mut self, computed: Vec<Done>, done: &mut Vec<Done>) {
        for Done { extent, result, .. } in computed {
            // The slot comes back here.
            let error = result.map(drop).map_err(&self.setup.blame).err();
            self.read_ended(extent, error.as_ref(), done);
        }
    }

    /// Ends the jobs that waited for nothing but this read.
    fn read_ended(&mut self, number: usize, error: Option<&Error>, done: &mut Vec<Done>) {
        let read = self.reads.remove(&number).expect("ends once");
        let at = (read.source, read.units.start);
        if self.open.get(&at) == Some(&number) {
            self.open.remove(&at);
        }
        for number in read.jobs {
            let job = self.jobs.get_mut(&number).expect("waits for the read");
            job.reads -= 1;
            if let Some(error) = error {
                job.error.get_or_insert_with(|| error.again());
            }
            if job.reads == 0 {
                let job = self.jobs.remove(&number).expect("as above");
                done.push(job.end());
            }
        }
    }
}

impl TransformSetup {
    /// Returns the first of these units: as many as are read at once, and at least one.
    fn read_of(&self, source: usize, units: &Range<u32>) -> Range<u32> {
        let transform = &*self.sources[source].transform;
        let limit = transform.unit(units.start).stored.start + self.read_bytes;
        let rest = units.start + 1..units.end;
        let fits = |unit: &u32| transform.unit(*unit).stored.end <= limit;
        units.start..rest.take_while(fits).last().unwrap_or(units.start) + 1
    }
}

impl JobWindow {
    /// Writes to a place of the window.
    fn write<T>(&self, place: Range<usize>, write: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut lease = self.lease.lock();
        let lease = lease.as_mut().expect("taken after the last write");
        write(lease.bytes_mut(place))
    }
}

impl Waiting {
    fn end(self) -> Done {
        let result = self.error.map_or(Ok(()), Err).map(|()| {
            let lease = self.window.lease.lock().take();
            lease.expect("ends once").written(self.needed)
        });
        Done {
            extent: self.extent,
            result,
            window: None,
            transfer: self.transfer,
        }
    }
}

/// Computes units from what is stored of them, which begins at `offset`, into the windows that want
/// them. Returns the memory that they were read to.
fn compute(
    transform: &dyn Transform,
    units: &Range<u32>,
    offset: u64,
    mut filled: Filled,
    windows: &[Arc<JobWindow>],
) -> Result<Filled> {
    for number in units.clone() {
        let unit = transform.unit(number);
        let stored = to_len(unit.stored.start - offset)..to_len(unit.stored.end - offset);
        let common = |window: &JobWindow| {
            let start = window.range.start.max(unit.bytes.start);
            start..window.range.end.min(unit.bytes.end)
        };
        let wants = |window: &&Arc<JobWindow>| !common(window).is_empty();
        let mut wanting = windows.iter().filter(wants);
        match (wanting.next(), wanting.next()) {
            (None, _) => {}
            (Some(window), None) if common(window) == unit.bytes => {
                let place = within(&unit.bytes, window.range.start);
                window.write(place, |to| {
                    transform.apply(number, &filled.bytes()[stored], to)
                })?;
            }
            (Some(_), _) => {
                let bytes = &mut filled.bytes_mut()[stored];
                let bytes = transform.apply_in_place(number, bytes)?;
                for window in windows.iter().filter(wants) {
                    let range = common(window);
                    let from = &bytes[within(&range, unit.bytes.start)];
                    let place = within(&range, window.range.start);
                    window.write(place, |to| to.copy_from_slice(from));
                }
            }
        }
    }
    Ok(filled)
}

/// Returns a range relative to `start`.
fn within(range: &Range<u64>, start: u64) -> Range<usize> {
    to_len(range.start - start)..to_len(range.end - start)
}

/// Returns where units are stored; there is at least one.
#[must_use]
pub fn stored(transform: &dyn Transform, units: &Range<u32>) -> Range<u64> {
    transform.unit(units.start).stored.start..transform.unit(units.end - 1).stored.end
}

fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("fits into a slot or a window")
}

impl Engine for TransformEngine {
    fn depth(&self) -> usize {
        self.setup.depth
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() + self.ended.len()
    }

    fn submit(&mut self, job: Job) {
        let range = job.offset..job.offset + job.needed as u64;
        let units = self.setup.sources[job.source].transform.units(&range);
        if units.is_empty() {
            self.ended.push(Done {
                extent: job.extent,
                result: Ok(job.lease.written(0)),
                window: None,
                transfer: Transfer::default(),
            });
            return;
        }
        let number = self.number();
        let reads = self.wait_for(number, job.source, units);
        let waiting = Waiting {
            extent: job.extent,
            needed: job.needed,
            window: Arc::new(JobWindow {
                range,
                lease: Mutex::new(Some(job.lease)),
            }),
            reads,
            error: None,
            transfer: Transfer::default(),
        };
        self.jobs.insert(number, waiting);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        done.append(&mut self.ended);
        loop {
            let seen = self.setup.events.count();
            self.begin(done);
            self.take_read(Wait::No, done);
            self.begin(done);
            if wait == Wait::No || done.len() > before || self.in_flight() == 0 {
                return;
            }
            if self.copiers.in_flight() > 0 {
                // Computing takes less time than storage.
                self.setup.events.wait_past(seen);
            } else {
                self.take_read(Wait::ForOne, done);
            }
        }
    }

    fn allow(&mut self, bytes: u64) {
        self.storage.allow(bytes);
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        self.storage.stop_when(cancel);
        let is_cancelled = Arc::clone(&self.is_cancelled);
        cancel.on_cancel(move || is_cancelled.store(true, Ordering::Relaxed));
    }
}

impl fmt::Debug for TransformSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformSetup")
            .field("sources", &self.sources.len())
            .field("slots", &self.slab.slots())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TransformEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformEngine")
            .field("jobs", &self.jobs.len())
            .field("reads", &self.reads.len())
            .finish_non_exhaustive()
    }
}
