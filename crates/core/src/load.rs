//! The front door: from a request to a running load. The only file that names every stage.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::unbounded;

use crate::buffer::{Mapping, Pool, Shelf, Slab};
use crate::checkpoint::Checkpoint;
use crate::engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{self, LaneEvents};
use crate::pipeline::{Feed, Memory};
use crate::plan::{Plan, Selection};
use crate::prepare::Prepared;
use crate::report::{Counters, Report};
use crate::request::{Device, Options, Order, format_bytes};
use crate::schedule::Schedule;
use crate::sink::{DiscardSink, HostSink};
use crate::source::{Location, ReadFile, StoreOptions};
use crate::stream::{Shared, StreamSetup, TensorStream};
use crate::tensor::TensorInfo;

/// The budget when none is given, bytes: room for the tensors of several shards of a dense model side by side. A checkpoint with
/// tensors near that size or above gets room for its largest one beside others: a quarter of it, or all that may be in flight. (A
/// load over 16 connections of 20 MB/s each lost a tenth of its time with less: connections idled at the end of each large
/// tensor, 2026-11.)
const MEMORY_LIMIT: u64 = 512 << 20;

/// Address space for the windows of a ceiling, bytes: an engine for objects may have thousands of small jobs in flight, and each
/// has a slot for the largest. Only what is used is touched.
const SLAB_BYTES_MAX: usize = 2 << 30;

/// Which tensors of a checkpoint to load, to where, within what limits.
///
/// Between two loads a loader keeps the memory of tensors that the caller has dropped, at most the budget: the next load need not
/// touch fresh memory. Dropping the loader (and its clones) frees it.
///
/// ```no_run
/// use tload::{Loader, Location, Selection};
///
/// # fn main() -> tload::Result<()> {
/// let loader = Loader::open(&Location::parse("model_dir")?)?;
/// for tensor in loader.tensors(Selection::glob("*.weight")?).stream()? {
///     let tensor = tensor?;
///     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Loader {
    checkpoint: Checkpoint,
    selection: Selection,
    device: Device,
    options: Options,
    shelf: Shelf,
}

/// What a load is compared with: the same reads without tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// Into a few registered windows that are used again: what storage and engine can do.
    Recycled,
    /// Every byte into fresh huge-page memory of its own, kept to the end: what a load that keeps everything can do.
    Fresh,
}

impl Loader {
    /// Opens the checkpoint at `location`.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub fn open(location: &Location) -> Result<Self> {
        Checkpoint::open(location).map(Self::new)
    }

    /// The same, with options for the object store that it is in.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open_with`].
    pub fn open_with(location: &Location, store: &StoreOptions) -> Result<Self> {
        Checkpoint::open_with(location, store).map(Self::new)
    }

    /// Loads from an open checkpoint: all tensors, into host memory, with default options.
    pub fn new(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            selection: Selection::all(),
            device: Device::default(),
            options: Options::default(),
            shelf: Shelf::default(),
        }
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Which tensors to load.
    #[must_use]
    pub fn tensors(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Where to.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Within what limits.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The tensors that the load will bring, in file order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchTensor`] for a name or pattern that selects nothing.
    pub fn selected(&self) -> Result<Vec<TensorInfo>> {
        let all = self.checkpoint.tensors();
        let names: Vec<&str> = all.iter().map(TensorInfo::name).collect();
        let selected = self
            .selection
            .resolve(&names)
            .map_err(|error| error.with_location(self.checkpoint.location()))?;
        Ok(selected
            .into_iter()
            .map(|index| all[index].clone())
            .collect())
    }

    /// Starts the load. Tensors arrive while later ones are still being read.
    ///
    /// # Errors
    ///
    /// Everything that can be known before the first read: [`ErrorKind::NoSuchTensor`], [`ErrorKind::InvalidRequest`],
    /// [`ErrorKind::OutOfMemory`] for a budget that the largest tensor does not fit into, [`ErrorKind::Unsupported`] for an
    /// engine or a cache mode that was demanded and is not to be had, [`ErrorKind::Changed`] for a file that was replaced.
    pub fn stream(&self) -> Result<TensorStream> {
        let started = Instant::now();
        let prepared = self.prepare()?;
        let plan = &prepared.plan;
        let pool = self.shelf.pool(self.memory_limit(&prepared)?);
        let bell = Arc::clone(pool.bell());
        let schedule = Schedule::new(plan, self.options.order, prepared.groups());
        let feed = Arc::new(Feed::new(
            Arc::clone(plan),
            schedule,
            Memory::Regions(pool),
            bell,
        ));
        let sink = HostSink::new(Arc::clone(plan), Arc::clone(&prepared.tensors));
        let counters = Arc::<Counters>::default();
        let setups = prepared.lanes(&self.options, &feed, &counters, None);
        let lanes = setups.len();
        let report = self.report(&prepared, lanes);
        let shared = Shared::new(
            StreamSetup {
                feed: Arc::clone(&feed),
                counters,
                tensors: Arc::clone(&prepared.tensors),
                order: self.options.order,
                lanes,
                report,
                complete: completion(&feed, &sink, &prepared.files),
                verify: verification(&prepared.files),
            },
            started,
        );
        if lanes == 0 {
            return Ok(TensorStream::new(shared, Vec::new()));
        }
        let events = || {
            let (receiver, owner) = (Arc::clone(&shared), Arc::clone(&shared));
            LaneEvents {
                deliver: Box::new(move |ready| receiver.push(ready)),
                ended: Box::new(move |result| owner.lane_ended(result)),
            }
        };
        let (threads, opened) = lane::start(setups, || sink.clone(), events)?;
        say_once(opened.refusal.as_ref());
        let mut stream = TensorStream::new(shared, threads);
        stream.set_engine(opened);
        if let Some(timeout) = self.options.timeout {
            stream.limit(timeout)?;
        }
        Ok(stream)
    }

    /// Reads everything that [`Self::stream`] would read, with the same plan and the same engine, and throws it away. The report's
    /// seconds begin with the first read, when engines are open and memory is registered.
    ///
    /// # Errors
    ///
    /// As [`Self::stream`] and its items.
    pub fn ceiling(&self, ceiling: Ceiling) -> Result<Report> {
        let prepared = self.prepare()?;
        let plan = &prepared.plan;
        let (memory, registered, jobs) = raw_memory(plan, &prepared, ceiling)?;
        let sink = || match ceiling {
            Ceiling::Recycled => DiscardSink::recycling(),
            Ceiling::Fresh => DiscardSink::keeping(),
        };
        let schedule = Schedule::new(plan, Order::Ready, prepared.groups().at_most(jobs));
        let feed = Arc::new(Feed::new(
            Arc::clone(plan),
            schedule,
            memory,
            Arc::default(),
        ));
        let counters = Arc::<Counters>::default();
        let setups = prepared.lanes(&self.options, &feed, &counters, registered.as_ref());
        let mut report = self.report(&prepared, setups.len());
        let (ended, endings) = unbounded();
        let events = || {
            let ended = ended.clone();
            LaneEvents {
                deliver: Box::new(Vec::clear),
                // The receiver waits below for every lane.
                ended: Box::new(move |result| drop(ended.send(result))),
            }
        };
        let (threads, opened) = lane::start(setups, sink, events)?;
        let endings: Vec<_> = endings.iter().take(threads.len()).collect();
        let since = counters.reading_since.get().copied();
        report.seconds = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        for thread in threads {
            // Panics have been caught inside.
            let _ = thread.join();
        }
        endings.into_iter().collect::<Result<()>>()?;
        report.engine = opened.report;
        report.tensors = prepared.tensors.len() as u64;
        report.tensor_bytes = prepared.tensors.iter().map(TensorInfo::byte_len).sum();
        "complete".clone_into(&mut report.outcome);
        counters.fill(&mut report);
        Ok(report)
    }

    fn prepare(&self) -> Result<Prepared> {
        let Device::Cpu = self.device;
        self.options.validate()?;
        Prepared::new(&self.checkpoint, self.selected()?, &self.options)
    }

    /// The budget, which must hold the largest region.
    fn memory_limit(&self, prepared: &Prepared) -> Result<u64> {
        let largest = Mapping::charge(prepared.plan.region_bytes_max()) as u64;
        let in_flight = prepared.in_flight_bytes();
        let limit = self
            .options
            .memory_limit
            .unwrap_or(MEMORY_LIMIT.max(largest + in_flight.max(largest / 4)));
        if largest <= limit || prepared.plan.regions.is_empty() {
            return Ok(limit);
        }
        // Of small tensors that share the largest region, the largest is named.
        let plan = &prepared.plan;
        let in_largest = |tensor: &usize| {
            let place = plan.targets[*tensor].place;
            place.is_some_and(|(region, _)| plan.regions[region].bytes == plan.region_bytes_max())
        };
        let tensor = (0..prepared.tensors.len())
            .filter(in_largest)
            .map(|index| &prepared.tensors[index])
            .max_by_key(|tensor| tensor.byte_len())
            .expect("every region holds a tensor");
        Err(too_large(tensor, largest, limit))
    }

    fn report(&self, prepared: &Prepared, lanes: usize) -> Report {
        Report {
            location: self.checkpoint.location().to_string(),
            outcome: "running".to_owned(),
            open_seconds: self.checkpoint.open_time().as_secs_f64(),
            engine: crate::report::EngineReport {
                name: "none".to_owned(),
                requested: self.options.engine.name().to_owned(),
                reason: "nothing to read".to_owned(),
                features: Vec::new(),
            },
            lanes,
            depth: prepared.reads_in_flight(),
            in_flight_bytes: prepared.in_flight_bytes(),
            extent_bytes: prepared.read_bytes_max(),
            ..Report::default()
        }
    }
}

fn too_large(tensor: &TensorInfo, needed: u64, limit: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "{} ({needed} bytes) are needed at once to load it into host memory; the memory limit is {} ({limit} bytes)",
            format_bytes(needed),
            format_bytes(limit)
        ),
    )
    .with_tensor(tensor.name())
    // Not rounded: whoever follows it must succeed.
    .with_hint(format!("set memory_limit to at least {needed} bytes"))
}

/// Memory to read into without making tensors, what of it lanes should register, and how many jobs it is enough for. Fresh memory
/// is not registered: that would touch it all, serially, before the first read.
fn raw_memory(
    plan: &Plan,
    prepared: &Prepared,
    ceiling: Ceiling,
) -> Result<(Memory, Option<Arc<Slab>>, usize)> {
    match ceiling {
        Ceiling::Recycled => {
            let window = plan.window_bytes_max().max(1);
            let slots = plan
                .extents
                .len()
                .min(prepared.jobs())
                .min(prepared.reads_in_flight().max(SLAB_BYTES_MAX / window))
                .max(1);
            let slab = Slab::new(plan.window_bytes_max(), slots, Arc::default())?;
            Ok((Memory::Slab(Arc::clone(&slab)), Some(slab), slots))
        }
        Ceiling::Fresh => {
            let bytes = plan.extents.iter().map(|extent| extent.window).sum();
            let pool = Pool::new(u64::MAX, Arc::default());
            let whole = pool.try_region(bytes, 1)?.expect("the budget has no limit");
            Ok((Memory::Whole(Mutex::new(whole)), None, prepared.jobs()))
        }
    }
}

/// Adds to a report what only the pool, the sink and the files know.
fn completion(
    feed: &Arc<Feed>,
    sink: &HostSink,
    files: &Arc<[ReadFile]>,
) -> Box<dyn Fn(&mut Report) + Send + Sync> {
    let (feed, sink, files) = (Arc::clone(feed), sink.clone(), Arc::clone(files));
    Box::new(move |report| {
        if let Memory::Regions(pool) = feed.memory() {
            report.add_usage(pool.usage());
        }
        report.copied_bytes = sink.copied_bytes();
        let refused = files.iter().find(|file| file.is_refused());
        if let Some(file) = refused {
            let source = file.source();
            report.notes.push(format!(
                "the file system ({}) refused direct I/O, so files were read through the page cache",
                source.file_system().name
            ));
        }
    })
}

/// Checks at the end that no file changed meanwhile.
fn verification(files: &Arc<[ReadFile]>) -> Box<dyn Fn() -> Result<()> + Send + Sync> {
    let files = Arc::clone(files);
    Box::new(move || {
        files
            .iter()
            .try_for_each(|file| file.source().verify_unchanged())
    })
}

/// A fallback is worth one line in the log of a process; every report has it too.
fn say_once(refusal: Option<&engine::Refusal>) {
    static SAID: std::sync::Once = std::sync::Once::new();
    if let Some(refusal) = refusal {
        SAID.call_once(|| {
            tracing::warn!(
                reason = %refusal.reason,
                hint = %refusal.hint,
                "io_uring cannot be used; reading with threads instead"
            );
        });
    }
}
