//! Outline of a load: the only file that names every stage.
//!
//! Refusals come before the first tensor. Unknown names, a budget below the largest region and an
//! unavailable engine are errors of `stream()`, which returns when its first lanes have engines.
//! Expected digests are looked up beside the first reads, and `stream()` also waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::Loader;
use super::check::{self, LateCheck};
use super::device_alloc::{AllocatorBridge, DeviceAllocator, free_bytes};
use super::distributed::Joined;
use super::early::EarlyStart;
use super::ending::LoadEnd;
use super::lane::{self, LaneEngine, Refused};
use super::outputs::Outputs;
use super::pipeline::{Feed, Slabs};
use super::prepare::Prepared;
use super::source_table::Others;
use super::stream::{Handover, StreamSetup, TensorStream};
use super::{unified, watch};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::report::{Counters, EngineReport, Report};
use crate::schedule::Schedule;
use crate::sink::DeviceRegions;
use crate::sync::timeline::Timeline;
use crate::verify::Verify;

/// Load that has been planned.
struct Preparation {
    started: Instant,
    timeline: Timeline,
    prepared: Prepared,
    options: LoadOptions,
    joined: Option<Joined>,
}

impl Loader {
    /// Starts the load. Tensors are yielded while later ones are still being read.
    ///
    /// # Errors
    ///
    /// Everything that can be known before the first tensor: [`NoSuchTensor`]; [`InvalidRequest`];
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
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// let mut stream = tload::Checkpoint::open(path)?.load().stream()?;
    /// for tensor in &mut stream {
    ///     println!("{:?}", tensor?);
    /// }
    /// // Complete once the stream has ended.
    /// assert_eq!(stream.report().outcome, "complete");
    /// # Ok::<(), tload::Error>(())
    /// ```
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
        let preparation = self.prepare(allocator.as_deref_mut())?;
        let check = self.check(&preparation)?;
        let mut stream = self.begin(preparation, allocator, &check)?;
        if let Err(error) = check.settle(|| stream.is_cancelled()) {
            return Err(stream.refuse(error));
        }
        if let Some(timeout) = self.options.timeout {
            stream.limit(timeout)?;
        }
        Ok(stream)
    }

    /// Starts the lanes of a load, which pass nothing on before `check` is ready.
    fn begin(
        &self,
        preparation: Preparation,
        allocator: Option<Box<dyn DeviceAllocator>>,
        check: &Arc<LateCheck>,
    ) -> Result<TensorStream> {
        let Preparation {
            started,
            timeline,
            prepared,
            options,
            joined,
        } = preparation;
        let planned = Instant::now();
        // Until the load has its own contexts and memory.
        let _prepared = self.early.as_ref().and_then(EarlyStart::take);
        let outputs = Outputs::new(&prepared, &options, &self.region_cache, allocator.is_some())?;
        let schedule = Schedule::new(&prepared.plan, options.order, prepared.groups());
        let feed = Arc::new(
            Feed::new(
                Arc::clone(&prepared.plan),
                schedule,
                outputs.origins,
                None,
                outputs.events,
            )
            .with_slabs(outputs.slabs.clone())
            .checked(Arc::clone(check)),
        );
        let counters = Arc::<Counters>::default();
        let mut lanes = prepared.lanes(&options, &feed, &counters, &outputs.slabs);
        let watcher = self.watcher.as_deref();
        let open_sink = watch::around(watcher, &prepared, &mut lanes, outputs.open_sink);
        timeline.record("memory", planned);
        let (opened_at, opening) = self.checkpoint.opening();
        let handover = Handover::new(StreamSetup {
            started,
            feed: Arc::clone(&feed),
            gate: outputs.gate,
            counters: Arc::clone(&counters),
            tensors: Arc::clone(&prepared.tensors),
            conversions: prepared.conversions.clone(),
            order: options.order,
            lanes: lanes.len(),
            report: self.report(&prepared),
            end: Box::new(LoadEnd {
                started,
                timeline: timeline.clone(),
                opened_at,
                opening: opening.clone(),
                feed: Arc::clone(&feed),
                counters: Arc::clone(&counters),
                sources: Arc::clone(&prepared.sources),
                leader: prepared.leader.clone(),
                gpu_places: prepared.gpu_places.clone(),
                group_names: prepared.group_names(),
                check: Arc::clone(check),
                destinations: outputs.complete,
                joined,
                index: self.indexed().cloned(),
                options: options.clone(),
            }),
        });
        self.canceller.begin(&handover, lanes.len())?;
        if lanes.is_empty() {
            return TensorStream::empty(handover);
        }
        let allocator = bridge(allocator, outputs.regions, feed, &handover, lanes.len())?;
        let start = || lane::start(lanes, &open_sink, || handover.lane_events());
        let (threads, opened) = match timeline.time("lanes", start) {
            Ok(started) => started,
            Err(refused) => return Err(TensorStream::refused(handover, refused)),
        };
        warn_once(&opened, &outputs.slabs);
        handover.set_engine(opened);
        Ok(TensorStream::new(handover, threads).with_allocator(allocator))
    }

    /// Joins the other ranks, opens the sources and plans the reads.
    fn prepare(
        &self,
        allocator: Option<&mut (dyn DeviceAllocator + 'static)>,
    ) -> Result<Preparation> {
        let started = Instant::now();
        let requested = self.requested();
        let (selected, destinations) = requested.inspect_err(|error| self.give_up(error))?;
        let mut joined = self.join(started)?;
        let part = joined
            .as_mut()
            .and_then(|joined| joined.shares.take())
            .map(Others::Leader);
        let is_shared = part.is_some();
        let divisor = (joined.as_ref()).map_or(1, |joined| joined.limit_divisor(is_shared));
        let options = self.options.with_divided_memory(divisor);
        let options = unified::adapted(options, destinations.sharing());
        let free = free_bytes(&destinations, allocator)?;
        let destinations = destinations.measured(free);
        let copiers = joined.as_ref().map(|joined| joined.copiers);
        let mut prepared = Prepared::new(
            &self.checkpoint,
            selected,
            destinations,
            &options,
            part,
            copiers,
        )?;
        prepared.limit_divisor = divisor;
        let timeline = Timeline::default();
        timeline.record("plan", started);
        Ok(Preparation {
            started,
            timeline,
            prepared,
            options,
            joined,
        })
    }

    /// Prepares the verification of a load, if it is requested, beside its first reads. Takes no
    /// longer than the timeout leaves. It is ready before the reads of a load in a group, since
    /// other ranks wait for these, and of one into the caller's memory, which a refusal leaves as
    /// it was.
    fn check(&self, preparation: &Preparation) -> Result<Arc<LateCheck>> {
        let Preparation {
            started,
            timeline,
            prepared,
            joined,
            ..
        } = preparation;
        let choice = self.options.verify.clone();
        if choice == Verify::Off {
            return Ok(LateCheck::ready(None));
        }
        let timeout = self.options.timeout;
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        let (checkpoint, given) = (self.checkpoint.clone(), self.expectations.clone());
        let by_name = self.by_name;
        // The leader verifies what it reads for all ranks, but may have selected tensors by name,
        // where files may be missing.
        let is_led = prepared.leader.is_some();
        let loaded = check::Loaded::new(
            &prepared.plan,
            &prepared.tensors,
            Arc::clone(&prepared.sources) as _,
            by_name,
        );
        let timeline = timeline.clone();
        let prepare = move || {
            if !is_led {
                return check::check(&checkpoint, loaded, given.as_ref(), &choice, left);
            }
            if !by_name && given.is_none() {
                check::require_files_within(&checkpoint, &choice, left)?;
            }
            Ok(None)
        };
        let prepare = move || timeline.time("check", || lane::caught(prepare));
        let check = LateCheck::prepare(check::likely_crc(&self.options.verify), prepare);
        if joined.is_some() || !self.targets.is_empty() {
            check.settle(|| false)?;
        }
        Ok(check)
    }

    /// Returns the report of a load before it begins.
    pub(crate) fn report(&self, prepared: &Prepared) -> Report {
        Report {
            location: self.checkpoint.location().to_string(),
            outcome: "running".to_owned(),
            open_seconds: self.checkpoint.open_time().as_secs_f64(),
            engine: EngineReport {
                name: "none".to_owned(),
                requested: self.options.engine.name().to_owned(),
                reason: "nothing to read".to_owned(),
                features: Vec::new(),
            },
            depth: prepared.reads_in_flight(),
            in_flight_bytes: prepared.start_bytes(),
            extent_bytes: prepared.read_bytes_max(),
            notes: (self.checkpoint.notes().iter().cloned())
                .chain(unified::note(&prepared.destinations, &self.options))
                .collect(),
            ..Report::default()
        }
    }
}

/// Allocates the first regions from the caller's allocator, if there is one. A failure ends the
/// load, none of whose `lanes` have been started.
fn bridge(
    allocator: Option<Box<dyn DeviceAllocator>>,
    regions: Vec<Arc<DeviceRegions>>,
    feed: Arc<Feed>,
    handover: &Arc<Handover>,
    lanes: usize,
) -> Result<Option<AllocatorBridge>> {
    let begun = allocator.map(|allocator| AllocatorBridge::begin(allocator, regions, feed));
    begun.transpose().map_err(|error| {
        let refused = Refused::before_threads(error, lanes);
        TensorStream::refused(Arc::clone(handover), refused)
    })
}

/// Logs, once per process each, fallbacks that make loads slower. The target: every report has them
/// too, as notes, and Python logs these.
fn warn_once(opened: &LaneEngine, slabs: &Slabs) {
    static NO_RING: AtomicBool = AtomicBool::new(false);
    static NOT_PINNED: AtomicBool = AtomicBool::new(false);
    // An atomic replaces a lock, on which a process that is forked meanwhile could block.
    let is_first = |said: &AtomicBool| !said.swap(true, Ordering::Relaxed);
    if let Some(refusal) = &opened.refusal
        && is_first(&NO_RING)
    {
        tracing::warn!(
            target: "tload::notes",
            reason = %refusal.reason,
            hint = %refusal.hint,
            "io_uring cannot be used; reading with threads instead"
        );
    }
    let mut refusals = slabs.iter().filter_map(|it| it.facts()?.refusal.as_ref());
    if let Some(refusal) = refusals.next()
        && is_first(&NOT_PINNED)
    {
        tracing::warn!(target: "tload::notes", %refusal, "not all staging memory can be pinned; the driver makes an extra copy of the rest");
    }
}
