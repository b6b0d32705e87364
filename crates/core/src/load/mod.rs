//! The public entry point: turns a request into a running load. The only file that names every
//! stage.

pub(crate) mod budget;
pub(crate) mod destinations;
pub(crate) mod device_alloc;
pub(crate) mod groups;
pub(crate) mod lane;
pub(crate) mod load_target;
pub(crate) mod orphaned;
pub(crate) mod outputs;
pub mod pipeline;
pub(crate) mod prepare;
pub(crate) mod read_one;
pub(crate) mod stream;

mod ending;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::unbounded;

use crate::checkpoint::{Checkpoint, OpenOptions};
use crate::engine;
use crate::error::{Error, Result};
use crate::load::budget::raw_bytes;
use crate::load::destinations::{Destinations, DeviceRules};
use crate::load::device_alloc::{AllocatorBridge, DeviceAllocator};
use crate::load::lane::{LaneEvents, OpenSink, Refused};
use crate::load::load_target::{LoadTarget, LoadTargetRules};
use crate::load::outputs::Outputs;
use crate::load::pipeline::{Feed, Memory};
use crate::load::prepare::Prepared;
use crate::load::stream::{Shared, StreamSetup, TensorStream};
use crate::memory::cgroup::cgroup_memory;
use crate::memory::{Pool, RegionCache, Slab, Target};
use crate::options::{CacheMode, Location};
use crate::options::{Device, Options, Order};
use crate::plan::{Plan, Selection, Slice};
use crate::report::{Counters, Report};
use crate::schedule::Schedule;
use crate::sink::DiscardSink;
use crate::sync::lock::Mutex;
use crate::tensor::{Tensor, TensorInfo};
use crate::verify::{self, Expectation};
use ending::{add_depths, completion, verification};

/// Maximum address space for the windows of a ceiling, in bytes: an object engine may have
/// thousands of small jobs in flight, and each has a slot large enough for the largest job. Only
/// used slots are touched.
const SLAB_BYTES_MAX: usize = 2 << 30;

/// Configuration of a load: which tensors of a checkpoint, to which devices, within which limits.
///
/// Between two loads, a loader keeps the memory of tensors that the caller has dropped, up to the
/// budget, so that the next load need not touch fresh memory. Dropping the loader and its clones
/// frees it.
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
    devices: DeviceRules,
    targets: Arc<HashMap<String, Target>>,
    slices: Arc<HashMap<String, Slice>>,
    options: Options,
    /// Expectations by shard, which replace those that would be discovered.
    expectations: Option<Arc<[Expectation]>>,
    /// True if the caller selected tensors by name alone.
    by_name: bool,
    /// True for a load of one tensor, which cannot mix shards: even if the index changes, the
    /// tensor is consistent.
    is_one_tensor: bool,
    region_cache: RegionCache,
}

/// Kind of baseline to compare a load with: the same reads without tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// Reads into a few registered windows that are reused: the limit of storage and engine.
    Recycled,
    /// Reads every byte into its own fresh huge-page memory, kept to the end: the limit of a load
    /// that keeps every tensor.
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

    /// Opens the checkpoint at `location` with [`OpenOptions`], or
    /// [`StoreOptions`](crate::StoreOptions) alone.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open_with`].
    pub fn open_with(location: &Location, options: impl Into<OpenOptions>) -> Result<Self> {
        Checkpoint::open_with(location, options).map(Self::new)
    }

    /// Creates a loader for an open checkpoint: all tensors, into host memory, with default
    /// options.
    pub fn new(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            selection: Selection::all(),
            devices: DeviceRules::default(),
            targets: Arc::default(),
            slices: Arc::default(),
            options: Options::default(),
            expectations: None,
            by_name: false,
            is_one_tensor: false,
            region_cache: RegionCache::default(),
        }
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Sets the tensors to load.
    #[must_use]
    pub fn tensors(mut self, selection: Selection) -> Self {
        self.by_name = selection.is_by_name();
        self.selection = selection;
        self
    }

    /// Returns the checkpoint, if the load could mix shards of two states of it.
    fn indexed(&self) -> Option<&Checkpoint> {
        (!self.is_one_tensor).then_some(&self.checkpoint)
    }

    /// Marks the load as one of a single tensor.
    #[must_use]
    pub(crate) fn of_one_tensor(mut self) -> Self {
        self.is_one_tensor = true;
        self
    }

    /// Sets the device of all tensors.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.devices.otherwise = device;
        self
    }

    /// Sets devices by name: the first rule that selects a name applies; [`Self::device`] is the
    /// default for the others.
    #[must_use]
    pub fn device_map(mut self, rules: impl IntoIterator<Item = (Selection, Device)>) -> Self {
        self.devices.rules = rules.into_iter().collect();
        self
    }

    /// Sets caller memory for tensors, by name. The bytes are written there, and the tensors that
    /// the stream yields only report completion. Tensors without a target get memory that the load
    /// allocates.
    #[must_use]
    pub fn targets(mut self, targets: impl IntoIterator<Item = (String, Target)>) -> Self {
        self.targets = Arc::new(targets.into_iter().collect());
        self
    }

    /// Sets slices of tensors, by name. Only the slice is read, and it is yielded as a tensor with
    /// the slice's shape. Gaps that are cheaper to read than to skip are read and discarded;
    /// compare [`Report::read_bytes`] with [`Report::tensor_bytes`] for the amount. A slice does
    /// not select its tensor.
    #[must_use]
    pub fn slices(mut self, slices: impl IntoIterator<Item = (String, Slice)>) -> Self {
        self.slices = Arc::new(slices.into_iter().collect());
        self
    }

    /// Sets the limits and preferences of the load.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the expectations of the files, one for each of [`Checkpoint::shards`]. They replace
    /// those that [`Options::verify`] would discover and are enforced as strictly as it says; with
    /// [`crate::Verify::Off`] they are ignored.
    #[must_use]
    pub fn expectations(mut self, expectations: impl IntoIterator<Item = Expectation>) -> Self {
        self.expectations = Some(expectations.into_iter().collect());
        self
    }

    /// Returns the tensors that the load will yield, in file order.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoSuchTensor`] for a name or pattern that selects nothing, and for a
    /// slice of a tensor that does not exist; [`crate::ErrorKind::InvalidRequest`] for a slice
    /// outside the tensor's shape.
    pub fn selected(&self) -> Result<Vec<TensorInfo>> {
        let all = self.checkpoint.tensors();
        let selected = self.selection.resolve(&self.names());
        let selected = selected.map_err(|error| error.with_location(self.checkpoint.location()))?;
        let located = |error: Error| error.with_location(self.checkpoint.location());
        if !self.slices.is_empty() {
            let there = Selection::names(self.slices.keys().cloned()).resolve(&self.names());
            there.map_err(located)?;
        }
        let sliced = |info: &TensorInfo| match self.slices.get(info.name()) {
            Some(slice) => info.sliced(slice).map_err(located),
            None => Ok(info.clone()),
        };
        selected
            .into_iter()
            .map(|index| sliced(&all[index]))
            .collect()
    }

    /// Returns the device of each selected tensor; for a tensor with a target, that of the target.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::NoSuchTensor`] for a name or pattern that selects nothing.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let names = self.names();
        let selected = self.selection.resolve(&names);
        let selected = selected.map_err(|error| error.with_location(self.checkpoint.location()))?;
        let devices = self.devices.devices(&names, &selected);
        let mut devices =
            devices.map_err(|error| error.with_location(self.checkpoint.location()))?;
        for (device, index) in devices.iter_mut().zip(selected) {
            if let Some(target) = self.targets.get(names[index]) {
                *device = target.ordinal().map_or(Device::Cpu, Device::Cuda);
            }
        }
        Ok(devices)
    }

    /// Configures the load to fill existing tensors: each tensor goes into the load target of
    /// its name. Sets selection, devices and targets. A tensor whose load target has no memory is
    /// yielded in memory of the load on the load target's device, for the caller to copy.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidRequest`] that lists every mismatch; nothing has been written in
    /// that case.
    pub fn into_targets(
        self,
        load_targets: Vec<LoadTarget>,
        rules: LoadTargetRules,
    ) -> Result<Self> {
        let selected = self.selected()?;
        let by_name = self.by_name;
        let matched = load_target::matched(&selected, load_targets, rules)
            .map_err(|error| error.with_location(self.checkpoint.location()))?;
        let mut loader = self
            .tensors(matched.selection)
            .device_map(matched.devices)
            .targets(matched.targets);
        // The names are those of the caller's memory: usually a whole model.
        loader.by_name = by_name;
        Ok(loader)
    }

    fn names(&self) -> Vec<&str> {
        let tensors = self.checkpoint.tensors().iter();
        tensors.map(TensorInfo::name).collect()
    }

    /// Maps the selected tensors to destinations.
    fn destinations(&self, tensors: &[TensorInfo]) -> Result<Destinations> {
        let names = self.names();
        let selected = self.selection.resolve(&names)?;
        let devices = self
            .devices
            .devices(&names, &selected)
            .map_err(|error| error.with_location(self.checkpoint.location()))?;
        Destinations::new(tensors, &devices, &self.targets)
    }

    /// Starts the load. Tensors are yielded while later ones are still being read.
    ///
    /// # Errors
    ///
    /// Everything that can be known before the first read: [`NoSuchTensor`]; [`InvalidRequest`];
    /// [`OutOfMemory`] for a budget smaller than the largest tensor or a GPU with too little
    /// memory; [`Unsupported`] for a requested engine or cache mode that is unavailable, or without
    /// a CUDA driver; [`Device`][DeviceFailed] if the driver fails; [`Changed`] for a file that was
    /// replaced; [`Corrupt`] for a file known to differ from its expectation.
    ///
    /// [`Corrupt`]: crate::ErrorKind::Corrupt
    /// [`NoSuchTensor`]: crate::ErrorKind::NoSuchTensor
    /// [`InvalidRequest`]: crate::ErrorKind::InvalidRequest
    /// [`OutOfMemory`]: crate::ErrorKind::OutOfMemory
    /// [`Unsupported`]: crate::ErrorKind::Unsupported
    /// [DeviceFailed]: crate::ErrorKind::Device
    /// [`Changed`]: crate::ErrorKind::Changed
    pub fn stream(&self) -> Result<TensorStream> {
        self.start(None)
    }

    /// Starts the load with GPU memory from `allocator`, which runs on the thread that calls this
    /// method and the stream.
    ///
    /// # Errors
    ///
    /// As [`Self::stream`], and the errors of the allocator.
    pub fn stream_with(&self, allocator: Box<dyn DeviceAllocator>) -> Result<TensorStream> {
        self.start(Some(allocator))
    }

    fn start(&self, mut allocator: Option<Box<dyn DeviceAllocator>>) -> Result<TensorStream> {
        let started = Instant::now();
        self.options.validate()?;
        let selected = self.selected()?;
        let destinations = self.destinations(&selected)?;
        let prepared = Prepared::new(&self.checkpoint, selected, destinations, &self.options)?;
        let (plan, given) = (&prepared.plan, self.expectations.as_ref());
        let choice = &self.options.verify;
        let what = verify::Loaded::new(plan, &prepared.tensors, self.by_name);
        let timeout = self.options.timeout;
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        let check = verify::check(&self.checkpoint, what, given, choice, left)?;
        let borrowed = allocator
            .as_mut()
            .map(|allocator| &mut **allocator as &mut dyn DeviceAllocator);
        let outputs = Outputs::new(&prepared, &self.options, &self.region_cache, borrowed)?;
        let (slab, regions) = (outputs.slab().cloned(), outputs.regions());
        let (events, gate) = (Arc::clone(outputs.events()), Arc::clone(outputs.gate()));
        let wiring = outputs.split();
        let schedule = Schedule::new(plan, self.options.order, prepared.groups());
        let feed = Feed::new(
            Arc::clone(plan),
            schedule,
            wiring.memories,
            slab.clone(),
            events,
        );
        let feed = Arc::new(feed.checked(check.clone()));
        let counters = Arc::<Counters>::default();
        let setups = prepared.lanes(&self.options, &feed, &counters, slab.as_ref());
        let lanes = setups.len();
        let report = self.report(&prepared);
        let shared = Shared::new(
            StreamSetup {
                feed: Arc::clone(&feed),
                gate,
                counters,
                tensors: Arc::clone(&prepared.tensors),
                order: self.options.order,
                lanes,
                report,
                complete: completion(&feed, wiring.complete, &prepared.sources, check.as_ref()),
                verify: verification(self.indexed(), &prepared.sources, check.as_ref()),
            },
            started,
        );
        if lanes == 0 {
            return Ok(TensorStream::new(shared, Vec::new()));
        }
        let mut allocator_bridge =
            allocator.map(|allocator| AllocatorBridge::new(allocator, regions, Arc::clone(&feed)));
        if let Some(allocator_bridge) = &mut allocator_bridge {
            allocator_bridge.top_up().inspect_err(|_| feed.close())?;
        }
        let (threads, opened) =
            match lane::start(setups, &wiring.open_sink, || lane_events(&shared)) {
                Ok(started) => started,
                Err(refused) => return Err(TensorStream::refused(shared, refused)),
            };
        say_once(opened.refusal.as_ref());
        say_unpinned_once(slab.as_ref());
        let mut stream = TensorStream::new(shared, threads);
        stream.set_engine(opened);
        if let Some(allocator_bridge) = allocator_bridge {
            stream.set_provider(allocator_bridge);
        }
        if let Some(timeout) = self.options.timeout {
            stream.limit(timeout)?;
        }
        Ok(stream)
    }

    /// Reads everything that [`Self::stream`] would read, with the same plan and the same engine,
    /// and discards it. The report's seconds begin with the first read, when engines are open and
    /// memory is registered.
    ///
    /// # Errors
    ///
    /// As [`Self::stream`] and its items.
    pub fn ceiling(&self, ceiling: Ceiling) -> Result<Report> {
        self.options.validate()?;
        let selected = self.selected()?;
        let destinations = Destinations::host(&selected);
        let mut options = self.options.clone();
        if options.cache == CacheMode::Map {
            // A mapped load reads nothing and so has no ceiling; measure the copy that it saves.
            options.cache = CacheMode::Auto;
        }
        let prepared = Prepared::new(&self.checkpoint, selected, destinations, &options)?;
        let plan = &prepared.plan;
        let (memory, registered, jobs) = raw_memory(plan, &prepared, ceiling)?;
        let open_sink: Arc<OpenSink<DiscardSink>> = Arc::new(move || {
            Ok(match ceiling {
                Ceiling::Recycled => DiscardSink::recycling(),
                Ceiling::Fresh => DiscardSink::keeping(),
            })
        });
        let schedule = Schedule::new(plan, Order::Ready, prepared.groups().at_most(jobs));
        let feed = Arc::new(Feed::new(
            Arc::clone(plan),
            schedule,
            vec![memory],
            registered.clone(),
            Arc::default(),
        ));
        let counters = Arc::<Counters>::default();
        let setups = prepared.lanes(&options, &feed, &counters, registered.as_ref());
        let mut report = self.report(&prepared);
        let lanes = setups.len();
        let (ended, endings) = unbounded();
        let events = || {
            let ended = ended.clone();
            LaneEvents {
                deliver: Box::new(Vec::clear),
                failing: Box::new(|_| ()),
                // The receiver waits below for every lane.
                ended: Box::new(move |result| drop(ended.send(result))),
            }
        };
        let (threads, opened) = lane::start(setups, &open_sink, events).map_err(Refused::joined)?;
        let endings: Vec<_> = endings.iter().take(lanes).collect();
        let since = counters.reading_since.get().copied();
        report.seconds = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        for thread in threads {
            // Panics have been caught inside.
            let _ = thread.join();
        }
        endings.into_iter().collect::<Result<()>>()?;
        report.engine = opened.report;
        add_depths(&mut report, &feed, &prepared.sources);
        report.tensors = prepared.tensors.len() as u64;
        report.tensor_bytes = prepared.tensors.iter().map(TensorInfo::byte_len).sum();
        "complete".clone_into(&mut report.outcome);
        counters.fill(&mut report);
        Ok(report)
    }

    fn report(&self, prepared: &Prepared) -> Report {
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
            depth: prepared.reads_in_flight(),
            in_flight_bytes: prepared.start_bytes(),
            extent_bytes: prepared.read_bytes_max(),
            ..Report::default()
        }
    }
}

/// Allocates memory to read into without creating tensors. Returns the memory, the slab that lanes
/// should register, and the number of jobs that it holds. Fresh memory is not registered: that
/// would touch all of it, serially, before the first read.
fn raw_memory(
    plan: &Plan,
    prepared: &Prepared,
    ceiling: Ceiling,
) -> Result<(Memory, Option<Arc<Slab>>, usize)> {
    match ceiling {
        Ceiling::Recycled => {
            let window = plan.window_bytes_max().max(1);
            let group = cgroup_memory(Path::new("/"));
            let most = raw_bytes(group.as_ref(), SLAB_BYTES_MAX) / window;
            let slots = prepared.raw_slots(most).min(most).max(1);
            let slab = Slab::new(plan.window_bytes_max(), slots, Arc::default())?;
            Ok((Memory::Slots, Some(slab), slots))
        }
        Ceiling::Fresh => {
            let bytes = plan.extents.iter().map(|extent| extent.window).sum();
            let pool = Pool::new(u64::MAX, Arc::default());
            let whole = pool.try_region(bytes, 1)?.expect("the budget has no limit");
            Ok((Memory::Whole(Mutex::new(whole)), None, usize::MAX))
        }
    }
}

/// Connects the events of a lane to its stream.
fn lane_events(stream: &Arc<Shared>) -> LaneEvents<(usize, Tensor)> {
    let [receiver, hearer, owner] = [(); 3].map(|()| Arc::clone(stream));
    LaneEvents {
        deliver: Box::new(move |ready| receiver.push(ready)),
        failing: Box::new(move |error| hearer.lane_failing(error)),
        ended: Box::new(move |result| owner.lane_ended(result)),
    }
}

/// Logs once per process that staging memory is not pinned; every report has it too.
fn say_unpinned_once(slab: Option<&Arc<Slab>>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let facts = slab.and_then(|slab| slab.facts());
    if let Some(refusal) = facts.and_then(|facts| facts.refusal.as_ref()) {
        // No lock: a process that is forked meanwhile must not block on it.
        if !SAID.swap(true, Ordering::Relaxed) {
            tracing::warn!(%refusal, "not all staging memory can be pinned; the driver makes an extra copy of the rest");
        }
    }
}

/// Logs once per process that `io_uring` is unavailable.
fn say_once(refusal: Option<&engine::Refusal>) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if let Some(refusal) = refusal
        && !SAID.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            reason = %refusal.reason,
            hint = %refusal.hint,
            "io_uring cannot be used; reading with threads instead"
        );
    }
}
