//! Budgets, memory and sinks of the destinations of a load.

use std::path::Path;
use std::sync::Arc;

use super::budget::{Demand, HostBudget};
use super::destinations::{Destination, Destinations};
use super::device_alloc::DeviceAllocator;
use super::lane::OpenSink;
use super::pipeline::Memory;
use super::prepare::Prepared;
use crate::cuda::Context;
use crate::error::Result;
use crate::memory::cgroup::cgroup_memory;
use crate::memory::{
    DeviceBudget, RegionCache, Slab, Staging, StagingNeed, WriteGate, kept_staging,
};
use crate::options::Options;
use crate::plan::Plan;
use crate::report::{DeviceReport, Report, StagingReport};
use crate::schedule::beginnings;
use crate::sink::{
    CudaLoad, CudaPlaces, CudaSink, DeviceRegions, HostSink, RouteSink, Sink, TargetPlaces,
    TargetSink,
};
use crate::sync::event_count::EventCount;
use crate::tensor::Tensor;

/// Memory and sinks of one load.
pub(crate) struct Outputs {
    plan: Arc<Plan>,
    /// By destination.
    by_destination: Vec<Output>,
    slab: Option<Arc<Slab>>,
    events: Arc<EventCount>,
    /// Write gate of the caller's memory.
    gate: Arc<WriteGate>,
}

/// Memory and sink of one destination.
struct Output {
    memory: Memory,
    sink: SinkFactory,
}

/// Factory for the sinks of one destination, one for each lane.
#[derive(Clone)]
enum SinkFactory {
    Host(HostSink),
    Targets(TargetSink),
    Cuda(Arc<CudaLoad>),
}

impl Outputs {
    /// Allocates memory for the load, within its budgets. With an `allocator`, device memory is
    /// left to it.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::OutOfMemory`] for a budget that is too small, or if memory cannot be
    /// allocated; [`crate::ErrorKind::Device`].
    pub(crate) fn new(
        prepared: &Prepared,
        options: &Options,
        region_cache: &RegionCache,
        mut allocator: Option<&mut dyn DeviceAllocator>,
    ) -> Result<Self> {
        let destinations = &prepared.destinations;
        let group = cgroup_memory(Path::new("/"));
        let demand = Demand {
            plan: &prepared.plan,
            tensors: &prepared.tensors,
            in_flight: prepared.in_flight_bytes(),
            staged: prepared.staged_bytes(),
            reads: prepared.reads_in_flight(),
            group: group.as_ref(),
            kept: kept_bytes(region_cache, destinations),
        };
        let in_place = |destination: &Destination| matches!(destination, Destination::Host);
        // Views need no host memory, except for tensors that they cannot align.
        let host = destinations
            .list()
            .iter()
            .position(in_place)
            .filter(|_| prepared.views.is_none() || prepared.realigns());
        let budget = demand.host(host, destinations.staged(), options)?;
        let device_budgets = device_budgets(&demand, prepared, options, &mut allocator)?;

        let pool = region_cache.pool(budget.pool);
        let events = Arc::clone(pool.events());
        let staged = destinations.staged() && !prepared.plan.extents.is_empty();
        let slab = staged.then(|| staging(budget, destinations.gpu(), &events));
        let mut pool = Some(pool);
        let gate = Arc::<WriteGate>::default();
        let mut outputs = Vec::new();
        for (destination, device) in destinations.list().iter().zip(device_budgets) {
            let output = match destination {
                Destination::Host => {
                    let pool = pool.take().expect("there is one such destination");
                    let memory = match &prepared.views {
                        Some(views) => Memory::Views {
                            views: views.clone(),
                            pool,
                        },
                        None => Memory::Regions(pool),
                    };
                    Output::host(prepared, memory)
                }
                Destination::HostTargets => Output::host_targets(prepared, &gate),
                Destination::CudaTargets(context) => {
                    Output::cuda_targets(prepared, context, &gate)?
                }
                Destination::Cuda(context) => {
                    let limit = device.expect("every such destination has a budget");
                    let budget = DeviceBudget::new(context.ordinal(), limit, Arc::clone(&events));
                    let given = allocator.is_some();
                    let regions = regions(prepared, context, budget, options, given)?;
                    Output::cuda(prepared, context, regions)
                }
            };
            outputs.push(output);
        }
        Ok(Self {
            plan: Arc::clone(&prepared.plan),
            by_destination: outputs,
            slab: slab.transpose()?,
            events,
            gate,
        })
    }

    /// Returns the staging memory, for engines to register.
    pub(crate) fn slab(&self) -> Option<&Arc<Slab>> {
        self.slab.as_ref()
    }

    /// Returns the write gate of the caller's memory, which is closed before the caller is told of
    /// an early end.
    pub(crate) fn gate(&self) -> &Arc<WriteGate> {
        &self.gate
    }

    /// Returns the event count that is notified when memory is freed.
    pub(crate) fn events(&self) -> &Arc<EventCount> {
        &self.events
    }

    /// Returns the regions that the caller's allocator must provide memory for.
    pub(crate) fn regions(&self) -> Vec<Arc<DeviceRegions>> {
        let regions = |output: &Output| match &output.memory {
            Memory::Device(regions) => Some(Arc::clone(regions)),
            Memory::Regions(_) | Memory::Views { .. } | Memory::Slots | Memory::Whole(_) => None,
        };
        self.by_destination.iter().filter_map(regions).collect()
    }

    /// Splits into the memories of a feed, the function that opens a lane's sinks, and the function
    /// that completes a report.
    pub(crate) fn split(self) -> Wiring {
        let plan = self.plan;
        let (memories, makers): (Vec<_>, Vec<_>) = self
            .by_destination
            .into_iter()
            .map(|output| (output.memory, output.sink))
            .unzip();
        let reported = makers.clone();
        let open_sink = move || {
            let sinks = makers
                .iter()
                .map(SinkFactory::open)
                .collect::<Result<_>>()?;
            Ok(RouteSink::new(Arc::clone(&plan), sinks))
        };
        let staging = self.slab.as_deref().and_then(staging_report);
        let complete = move |report: &mut Report, memories: &[Memory]| {
            for memory in memories {
                if let Memory::Regions(pool) | Memory::Views { pool, .. } = memory {
                    report.add_usage(pool.usage());
                }
            }
            for sink_factory in &reported {
                sink_factory.complete(report);
            }
            if let Some(staging) = &staging {
                report.add_staging(staging);
            }
        };
        Wiring {
            memories,
            open_sink: Arc::new(open_sink),
            complete: Box::new(complete),
        }
    }
}

/// Completes a report with what only the destinations know; the feed owns the memories.
pub(crate) type Complete = Box<dyn Fn(&mut Report, &[Memory]) + Send + Sync>;

/// Parts of the outputs that a running load uses.
pub(crate) struct Wiring {
    pub(crate) memories: Vec<Memory>,
    pub(crate) open_sink: Arc<OpenSink<RouteSink>>,
    pub(crate) complete: Complete,
}

impl Output {
    fn host(prepared: &Prepared, memory: Memory) -> Self {
        let (plan, tensors) = (Arc::clone(&prepared.plan), Arc::clone(&prepared.tensors));
        Self {
            memory,
            sink: SinkFactory::Host(HostSink::new(plan, tensors)),
        }
    }

    fn host_targets(prepared: &Prepared, gate: &Arc<WriteGate>) -> Self {
        let (plan, tensors) = (Arc::clone(&prepared.plan), Arc::clone(&prepared.tensors));
        let targets = Arc::clone(prepared.destinations.targets());
        Self {
            memory: Memory::Slots,
            sink: SinkFactory::Targets(TargetSink::new(plan, tensors, targets, Arc::clone(gate))),
        }
    }

    fn cuda_targets(prepared: &Prepared, context: &Context, gate: &Arc<WriteGate>) -> Result<Self> {
        let targets = Arc::clone(prepared.destinations.targets());
        let places = CudaPlaces::Targets(TargetPlaces::new(context, targets, Arc::clone(gate))?);
        Ok(Self {
            memory: Memory::Slots,
            sink: SinkFactory::cuda(prepared, context, places),
        })
    }

    fn cuda(prepared: &Prepared, context: &Context, regions: DeviceRegions) -> Self {
        let regions = Arc::new(regions);
        Self {
            memory: Memory::Device(Arc::clone(&regions)),
            sink: SinkFactory::cuda(prepared, context, CudaPlaces::Regions(regions)),
        }
    }
}

fn staging_report(slab: &Slab) -> Option<StagingReport> {
    let facts = slab.facts()?;
    Some(StagingReport {
        bytes: facts.bytes as u64,
        slots: slab.slots(),
        pinned_bytes: facts.pinned_bytes as u64,
        reused: facts.reused,
        refusal: facts.refusal.clone(),
    })
}

impl SinkFactory {
    fn cuda(prepared: &Prepared, context: &Context, places: CudaPlaces) -> Self {
        let (plan, tensors) = (Arc::clone(&prepared.plan), Arc::clone(&prepared.tensors));
        Self::Cuda(CudaLoad::new(plan, tensors, context.clone(), places))
    }

    fn open(&self) -> Result<Box<dyn Sink<Tensor = (usize, Tensor)>>> {
        Ok(match self {
            Self::Host(sink) => Box::new(sink.clone()),
            Self::Targets(sink) => Box::new(sink.clone()),
            Self::Cuda(load) => Box::new(CudaSink::new(Arc::clone(load))?),
        })
    }

    fn complete(&self, report: &mut Report) {
        match self {
            Self::Host(sink) => report.copied_bytes += sink.copied_bytes(),
            Self::Targets(sink) => report.copied_bytes += sink.copied_bytes(),
            Self::Cuda(load) => {
                let usage = load.usage();
                let (limit, peak) = match load.places() {
                    CudaPlaces::Regions(regions) => {
                        (regions.budget().limit(), regions.budget().peak())
                    }
                    CudaPlaces::Targets(_) => (0, 0),
                };
                let device = format!("cuda:{}", load.ordinal());
                let known = report
                    .devices
                    .iter()
                    .position(|known| known.device == device);
                let index = known.unwrap_or_else(|| {
                    report.devices.push(DeviceReport {
                        device,
                        ..DeviceReport::default()
                    });
                    report.devices.len() - 1
                });
                // One load may both allocate memory of a device and fill the caller's memory there.
                let entry = &mut report.devices[index];
                entry.memory_limit += limit;
                entry.memory_peak += peak;
                entry.copies += usage.copies;
                entry.copied_bytes += usage.bytes;
                entry.copy_seconds += usage.seconds;
            }
        }
    }
}

/// Returns the bytes of host memory that earlier loads have left for this one.
fn kept_bytes(region_cache: &RegionCache, destinations: &Destinations) -> u64 {
    let staging = if destinations.staged() {
        kept_staging() as u64
    } else {
        0
    };
    region_cache.kept_bytes() + staging
}

fn staging(
    budget: HostBudget,
    context: Option<&Context>,
    events: &Arc<EventCount>,
) -> Result<Arc<Slab>> {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let staging = Staging::take(&StagingNeed {
        slot_bytes: bytes(budget.slot),
        slots: bytes(budget.slots),
        bytes_max: bytes(budget.staging_max),
        context,
    })?;
    Ok(Slab::staging(
        staging,
        bytes(budget.slot),
        bytes(budget.slots),
        Arc::clone(events),
    ))
}

/// Returns the budget of each destination's device in bytes, if the load allocates tensors there.
fn device_budgets(
    demand: &Demand<'_>,
    prepared: &Prepared,
    options: &Options,
    allocator: &mut Option<&mut dyn DeviceAllocator>,
) -> Result<Vec<Option<u64>>> {
    let mut budgets = Vec::new();
    for (index, destination) in prepared.destinations.list().iter().enumerate() {
        let Destination::Cuda(context) = destination else {
            budgets.push(None);
            continue;
        };
        if demand.plan.regions_of(index).next().is_none() {
            budgets.push(Some(0));
            continue;
        }
        let ordinal = context.ordinal();
        let known = allocator
            .as_mut()
            .and_then(|allocator| allocator.free_bytes(ordinal));
        let free = match known {
            Some(free) => free,
            None => context.available_memory()?,
        };
        budgets.push(Some(demand.device(index, ordinal, free, options)?));
    }
    Ok(budgets)
}

fn regions(
    prepared: &Prepared,
    context: &Context,
    budget: DeviceBudget,
    options: &Options,
    given: bool,
) -> Result<DeviceRegions> {
    let plan = Arc::clone(&prepared.plan);
    let tensors = Arc::clone(&prepared.tensors);
    if !given {
        return DeviceRegions::own(plan, tensors, context.clone(), budget);
    }
    let of_device = |region: &usize| {
        let destination = plan.regions[*region].destination;
        matches!(&prepared.destinations.list()[destination],
            Destination::Cuda(other) if other.ordinal() == context.ordinal())
    };
    let wanted = beginnings(&plan, options.order);
    let wanted = wanted.into_iter().filter(of_device).collect();
    Ok(DeviceRegions::given(
        Arc::clone(&plan),
        tensors,
        context.clone(),
        budget,
        wanted,
    ))
}
