//! The front door: from a request to a running load. The only file that names every stage.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crossbeam_channel::unbounded;

use crate::buffer::{Mapping, Pool, Shelf, Slab};
use crate::checkpoint::Checkpoint;
use crate::engine::{self, EngineSetup};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{self, LaneEvents, LaneSetup};
use crate::pipeline::{Feed, Memory};
use crate::plan::{self, Layout, Plan, Selection, Wanted};
use crate::report::{Counters, Report};
use crate::request::{Device, Options, Order, format_bytes};
use crate::schedule::{Depth, Schedule};
use crate::sink::{DiscardSink, HostSink};
use crate::source::{Location, ReadFile, ReadHints, RefusedDirect};
use crate::stream::{Shared, StreamSetup, TensorStream};
use crate::tensor::TensorInfo;

/// The budget when none is given, bytes: room for the tensors of several shards of a dense model side by side. A checkpoint with
/// tensors near that size or above gets its largest one and a quarter, so that others go on beside it.
const MEMORY_LIMIT: u64 = 512 << 20;

/// Most reads of one load: their plan takes about 100 bytes each, and 16 TiB in default extents are as many (2026-11).
const EXTENTS_MAX: u64 = 1 << 22;

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
        let prepared = Prepared::new(self)?;
        let plan = &prepared.plan;
        let pool = self.shelf.pool(self.memory_limit(&prepared)?);
        let bell = Arc::clone(pool.bell());
        let depth = prepared.depth(&self.options);
        let schedule = Schedule::new(plan, self.options.order, depth);
        let feed = Arc::new(Feed::new(
            Arc::clone(plan),
            schedule,
            Memory::Regions(pool),
            bell,
        ));
        let sink = HostSink::new(Arc::clone(plan), Arc::clone(&prepared.tensors));
        // A plan without reads needs no engine.
        let lanes = if plan.extents.is_empty() {
            0
        } else {
            self.options.lanes.unwrap_or(1)
        };
        let counters = Arc::<Counters>::default();
        let setup = self.lane_setup(&prepared, &feed, &counters, depth, None);

        let mut report = self.report(&prepared, depth);
        report.lanes = lanes;
        let shared = Shared::new(
            StreamSetup {
                feed: Arc::clone(&feed),
                counters,
                tensors: Arc::clone(&prepared.tensors),
                order: self.options.order,
                lanes,
                report,
                complete: completion(&feed, &sink, &setup.engine.files),
                verify: verification(&setup.engine.files),
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
        let (threads, opened) = lane::start(lanes, &setup, || sink.clone(), events)?;
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
        let prepared = Prepared::new(self)?;
        let plan = &prepared.plan;
        let depth = prepared.depth(&self.options);
        let (memory, registered) = raw_memory(plan, depth, ceiling)?;
        let sink = || match ceiling {
            Ceiling::Recycled => DiscardSink::recycling(),
            Ceiling::Fresh => DiscardSink::keeping(),
        };
        let schedule = Schedule::new(plan, Order::Ready, depth);
        let feed = Arc::new(Feed::new(
            Arc::clone(plan),
            schedule,
            memory,
            Arc::default(),
        ));
        let counters = Arc::<Counters>::default();
        let setup = self.lane_setup(&prepared, &feed, &counters, depth, registered);

        let mut report = self.report(&prepared, depth);
        report.lanes = self.options.lanes.unwrap_or(1);
        let (ended, endings) = unbounded();
        let events = || {
            let ended = ended.clone();
            LaneEvents {
                deliver: Box::new(Vec::clear),
                // The receiver waits below for every lane.
                ended: Box::new(move |result| drop(ended.send(result))),
            }
        };
        let (threads, opened) = lane::start(report.lanes, &setup, sink, events)?;
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

    fn lane_setup(
        &self,
        prepared: &Prepared,
        feed: &Arc<Feed>,
        counters: &Arc<Counters>,
        depth: Depth,
        slab: Option<Arc<Slab>>,
    ) -> LaneSetup {
        let (kind, reason) = engine::choose(self.options.engine, &prepared.files);
        let depth = depth.jobs().min(prepared.plan.extents.len()).max(1);
        LaneSetup {
            feed: Arc::clone(feed),
            engine: Arc::new(EngineSetup {
                files: Arc::clone(&prepared.files),
                depth,
                slab,
            }),
            kind,
            choice: self.options.engine,
            reason,
            counters: Arc::clone(counters),
        }
    }

    /// The budget, which must hold the largest region.
    fn memory_limit(&self, prepared: &Prepared) -> Result<u64> {
        let largest = Mapping::charge(prepared.plan.region_bytes_max()) as u64;
        let limit = self
            .options
            .memory_limit
            .unwrap_or(MEMORY_LIMIT.max(largest + largest / 4));
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

    fn report(&self, prepared: &Prepared, depth: Depth) -> Report {
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
            depth: depth.reads_of(prepared.plan.window_bytes_max()),
            in_flight_bytes: depth.bytes(),
            extent_bytes: prepared.plan.window_bytes_max() as u64,
            ..Report::default()
        }
    }
}

/// What is known before the first read.
struct Prepared {
    files: Arc<[ReadFile]>,
    tensors: Arc<[TensorInfo]>,
    plan: Arc<Plan>,
    hints: ReadHints,
}

impl Prepared {
    fn new(loader: &Loader) -> Result<Self> {
        loader.options.validate()?;
        let Device::Cpu = loader.device;
        let checkpoint = &loader.checkpoint;
        let tensors: Arc<[TensorInfo]> = loader.selected()?.into();

        // Only shards that something is wanted of; `source_of` numbers them.
        let mut refused = RefusedDirect::default();
        let mut source_of = vec![None; checkpoint.shards().len()];
        let mut files = Vec::new();
        for tensor in tensors.iter().filter(|tensor| tensor.byte_len() > 0) {
            if source_of[tensor.shard()].is_none() {
                source_of[tensor.shard()] = Some(files.len());
                let source = Arc::clone(checkpoint.shards()[tensor.shard()].source());
                files.push(ReadFile::open(source, loader.options.cache, &mut refused)?);
            }
        }
        let wanted: Vec<Wanted> = tensors
            .iter()
            .map(|tensor| Wanted {
                source: source_of[tensor.shard()].unwrap_or(0),
                range: tensor.file_range(),
                alignment: tensor.dtype().alignment(),
            })
            .collect();
        let layouts: Vec<Layout> = files
            .iter()
            .map(|file| layout(file, &loader.options))
            .collect();
        refuse_too_many_reads(&tensors, &layouts)?;
        let plan = Arc::new(plan::build(&wanted, &layouts));
        let hints = files
            .iter()
            .map(ReadFile::hints)
            .fold(NO_HINTS, |a, b| ReadHints {
                extent_bytes: a.extent_bytes.max(b.extent_bytes),
                alignment: a.alignment.max(b.alignment),
                gap_bytes: a.gap_bytes.max(b.gap_bytes),
                depth: a.depth.max(b.depth),
                in_flight_bytes: a.in_flight_bytes.max(b.in_flight_bytes),
            });
        Ok(Self {
            files: files.into(),
            tensors,
            plan,
            hints,
        })
    }

    /// What the caller asked for, else what the sources like.
    fn depth(&self, options: &Options) -> Depth {
        let window = self.plan.window_bytes_max() as u64;
        let jobs = options.depth.unwrap_or(self.hints.depth);
        let bytes = options
            .in_flight_bytes
            .unwrap_or_else(|| match options.depth {
                Some(jobs) => window * jobs as u64,
                // Windows are a little longer than extents: alignment at both edges must not cost a whole read in flight.
                None => self.hints.in_flight_bytes + 2 * self.hints.alignment * jobs as u64,
            });
        Depth::fixed(jobs, bytes)
    }
}

/// A sparse file may claim a tensor of petabytes: planning its reads would take more memory than any budget.
fn refuse_too_many_reads(tensors: &[TensorInfo], layouts: &[Layout]) -> Result<()> {
    let lengths = tensors.iter().map(TensorInfo::byte_len);
    let bytes = lengths.fold(0, u64::saturating_add);
    let smallest = layouts
        .iter()
        .map(|layout| layout.extent_bytes)
        .min()
        .unwrap_or(1);
    if bytes / smallest > EXTENTS_MAX {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!(
                "{} in reads of {} are more than {EXTENTS_MAX} reads",
                format_bytes(bytes),
                format_bytes(smallest)
            ),
        )
        .with_hint("raise extent_bytes, or select fewer tensors"));
    }
    Ok(())
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

const NO_HINTS: ReadHints = ReadHints {
    extent_bytes: 1,
    alignment: 1,
    gap_bytes: 0,
    depth: 1,
    in_flight_bytes: 1,
};

fn layout(file: &ReadFile, options: &Options) -> Layout {
    let hints = file.hints();
    let extent_bytes = options.extent_bytes.unwrap_or(hints.extent_bytes);
    Layout {
        extent_bytes: extent_bytes.next_multiple_of(hints.alignment),
        alignment: hints.alignment,
        gap_bytes: hints.gap_bytes,
    }
}

/// Memory to read into without making tensors, and what of it lanes should register. Fresh memory is not registered: that would
/// touch it all, serially, before the first read.
fn raw_memory(plan: &Plan, depth: Depth, ceiling: Ceiling) -> Result<(Memory, Option<Arc<Slab>>)> {
    match ceiling {
        Ceiling::Recycled => {
            let slots = plan.extents.len().min(depth.jobs()).max(1);
            let slab = Slab::new(plan.window_bytes_max(), slots, Arc::default())?;
            Ok((Memory::Slab(Arc::clone(&slab)), Some(slab)))
        }
        Ceiling::Fresh => {
            let bytes = plan.extents.iter().map(|extent| extent.window).sum();
            let pool = Pool::new(u64::MAX, Arc::default());
            let whole = pool.try_region(bytes, 1)?.expect("the budget has no limit");
            Ok((Memory::Whole(Mutex::new(whole)), None))
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
