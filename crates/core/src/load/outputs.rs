//! Budgets, memory and sinks of the destinations of a load.

use std::path::Path;
use std::sync::Arc;

use super::budget::{Demand, MEMORY_LIMIT, RANK_MEMORY_LIMIT};
use super::destinations::{Destination, Destinations};
use super::lane::OpenSink;
use super::pipeline::{LeaseOrigin, PublishedMemory, Slabs};
use super::prepare::Prepared;
use super::staging;
use super::unified::SharedBudget;
use crate::cuda::{Context, MemoryKind};
use crate::error::Result;
use crate::groups::{LeaderGroup, is_shown};
use crate::memory::cgroup::cgroup_memory;
use crate::memory::{
    DeviceBudget, Mapping, Pool, PublishedPool, RegionCache, SharedMemory, Slab, WriteGate,
    kept_staging,
};
use crate::options::LoadOptions;
use crate::plan::{Plan, RegionPlan};
use crate::report::{DeviceReport, Report};
use crate::schedule::beginnings;
use crate::sink::{
    CudaLoad, CudaPlaces, CudaSink, DeviceRegions, HostSink, PublishedBands, RouteSink, Sink,
    TargetPlaces, TargetSink, joined_bytes_max,
};
use crate::sync::event_count::EventCount;
use crate::tensor::Tensor;

/// Bytes of shared memory that the leader of a node begins with: memory that is used again soon is
/// cheaper to fill than more memory. (64 MiB were enough, 2026-11, `benches/results/`.)
const WINDOW_BYTES: u64 = 128 << 20;

/// Bytes of slots from which the leader of a node scatters what it copies from the page cache, or
/// half of what is in flight if that is more: few enough to be in a shared cache of the cores.
/// (2026-11.)
const SCATTERED_BYTES: u64 = 16 << 20;

/// Memory and sinks of one load.
pub(crate) struct Outputs {
    /// By destination.
    pub(crate) origins: Vec<LeaseOrigin>,
    /// Staging memory, for engines to register.
    pub(crate) slabs: Slabs,
    /// Notified when memory is freed.
    pub(crate) events: Arc<EventCount>,
    /// Write gate of the caller's memory, which is closed before the caller is told of an early
    /// end.
    pub(crate) gate: Arc<WriteGate>,
    /// Regions that the caller's allocator must provide memory for.
    pub(crate) regions: Vec<Arc<DeviceRegions>>,
    /// Opens the sinks of a lane.
    pub(crate) open_sink: Arc<OpenSink<RouteSink>>,
    pub(crate) complete: Complete,
}

/// Completes a report with what only the destinations know; the feed owns the origins of leases.
pub(crate) type Complete = Box<dyn Fn(&mut Report, &[LeaseOrigin]) + Send + Sync>;

/// Memory and sink of one destination.
struct Output {
    origin: LeaseOrigin,
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
    /// Allocates memory for the load, within its budgets. If it is `given`, device memory is left
    /// to the caller's allocator.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::OutOfMemory`] for a budget that is too small, or if memory cannot be
    /// allocated; [`crate::ErrorKind::Device`].
    pub(crate) fn new(
        prepared: &Prepared,
        options: &LoadOptions,
        region_cache: &RegionCache,
        given: bool,
    ) -> Result<Self> {
        let destinations = &prepared.destinations;
        let group = cgroup_memory(Path::new("/"));
        let demand = Demand {
            plan: &prepared.plan,
            tensors: &prepared.tensors,
            default: match prepared.leader {
                Some(_) => RANK_MEMORY_LIMIT,
                None => MEMORY_LIMIT,
            },
            device_default: prepared.device_budget,
            in_flight: prepared.in_flight_bytes(),
            staged: prepared.staged_bytes(),
            reads: prepared.reads_in_flight(),
            room: room(prepared),
            group: group.as_ref(),
            kept: kept_bytes(region_cache, destinations),
            limit_divisor: prepared.limit_divisor,
            group_divisor: prepared.limit_divisor,
            has_views: prepared.views.is_some(),
        };
        let host = host_index(destinations);
        let budget = demand.host(host, destinations.staged(), options)?;
        if let Some(leader) = &prepared.leader {
            leader.keep_registered(budget.idle_registered(options));
        }
        let shared = SharedBudget::new(&demand, destinations, options, host, budget)?;
        let budget = shared.map_or(budget, |shared| shared.host);
        let device_budgets = device_budgets(&demand, prepared, options, shared)?;
        let host_regions = host.into_iter().flat_map(|host| demand.regions_of(host));
        let host_bytes = host_regions
            .map(|region| Mapping::charge(region.bytes))
            .sum();
        let pool = region_cache.pool(budget.pool, host_bytes);
        let events = Arc::clone(pool.events());
        let staged = destinations.staged() && !prepared.plan.extents.is_empty();
        let slabs = staged.then(|| staging::slabs(prepared.places(), budget, &events));
        let gate = Arc::<WriteGate>::default();
        let mut host_pool = Some(pool);
        let (mut origins, mut sinks) = (Vec::new(), Vec::new());
        for (destination, device_budget) in destinations.list().iter().zip(device_budgets) {
            let output = match destination {
                Destination::Host => {
                    let pool = host_pool.take().expect("there is one such destination");
                    Output::host(prepared, pool)
                }
                Destination::HostTargets => Output::host_targets(prepared, &gate),
                Destination::CudaTargets(context) => {
                    Output::cuda_targets(prepared, context, &gate, options)?
                }
                Destination::Cuda(context) => {
                    let limit = device_budget.expect("every such destination has a budget");
                    let budget = DeviceBudget::new(context.ordinal(), limit, Arc::clone(&events));
                    let regions = regions(prepared, context, budget, options, given)?;
                    Output::cuda(prepared, context, regions, options)
                }
            };
            origins.push(output.origin);
            sinks.push(output.sink);
        }
        let slabs = slabs.transpose()?.unwrap_or_default();
        Ok(Self {
            regions: device_regions(&origins),
            complete: completion(sinks.clone(), &slabs),
            open_sink: opener(Arc::clone(&prepared.plan), sinks),
            origins,
            slabs,
            events,
            gate,
        })
    }
}

/// Returns the bytes that tensors of one slot are joined in, on their way to GPUs.
fn room(prepared: &Prepared) -> usize {
    let destinations = prepared.destinations.list().iter().enumerate();
    let on_gpu = destinations.filter(|(_, it)| matches!(it, Destination::Cuda(_)));
    let joined = on_gpu.map(|(index, _)| joined_bytes_max(&prepared.plan, index));
    joined.max().unwrap_or(0)
}

/// Returns the index of the destination in host memory of the load, if there is one.
fn host_index(destinations: &Destinations) -> Option<usize> {
    let mut destinations = destinations.list().iter();
    destinations.position(|destination| matches!(destination, Destination::Host))
}

fn device_regions(origins: &[LeaseOrigin]) -> Vec<Arc<DeviceRegions>> {
    let regions = |origin: &LeaseOrigin| match origin {
        LeaseOrigin::Device(regions) => Some(Arc::clone(regions)),
        LeaseOrigin::Regions(_)
        | LeaseOrigin::Published(_)
        | LeaseOrigin::Received { .. }
        | LeaseOrigin::Views { .. }
        | LeaseOrigin::Slots
        | LeaseOrigin::Whole(_) => None,
    };
    origins.iter().filter_map(regions).collect()
}

/// Returns the function that opens the sinks of a lane.
fn opener(plan: Arc<Plan>, sinks: Vec<SinkFactory>) -> Arc<OpenSink<RouteSink>> {
    Arc::new(move || {
        let sinks = sinks.iter().map(SinkFactory::open).collect::<Result<_>>()?;
        Ok(RouteSink::new(Arc::clone(&plan), sinks))
    })
}

fn completion(sinks: Vec<SinkFactory>, slabs: &Slabs) -> Complete {
    let staging = staging::report(slabs);
    Box::new(move |report, origins| {
        for origin in origins {
            if let LeaseOrigin::Regions(pool)
            | LeaseOrigin::Received { pool, .. }
            | LeaseOrigin::Views { pool, .. } = origin
            {
                report.add_usage(pool.usage());
            }
        }
        for sink in &sinks {
            sink.complete(report);
        }
        if let Some(staging) = &staging {
            report.add_staging(staging);
        }
    })
}

impl Output {
    fn host(prepared: &Prepared, pool: Pool) -> Self {
        let (plan, tensors) = (Arc::clone(&prepared.plan), Arc::clone(&prepared.tensors));
        let gpu = prepared.destinations.gpu_in_place().cloned();
        let origin = match &prepared.views {
            Some(views) => LeaseOrigin::Views {
                views: views.clone(),
                pool,
            },
            None => match &prepared.leader {
                Some(leader) => LeaseOrigin::Received {
                    shows: shows(prepared, leader),
                    link: Arc::clone(&leader.link),
                    pool,
                },
                None => LeaseOrigin::Regions(pool),
            },
        };
        Self {
            origin,
            sink: SinkFactory::Host(
                HostSink::new(plan, tensors)
                    .for_gpu(gpu)
                    .converting(prepared.conversions.clone()),
            ),
        }
    }

    fn host_targets(prepared: &Prepared, gate: &Arc<WriteGate>) -> Self {
        let (plan, tensors) = (Arc::clone(&prepared.plan), Arc::clone(&prepared.tensors));
        let targets = Arc::clone(prepared.destinations.targets());
        Self {
            origin: LeaseOrigin::Slots,
            sink: SinkFactory::Targets(TargetSink::new(plan, tensors, targets, Arc::clone(gate))),
        }
    }

    fn cuda_targets(
        prepared: &Prepared,
        context: &Context,
        gate: &Arc<WriteGate>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let targets = Arc::clone(prepared.destinations.targets());
        let places = CudaPlaces::Targets(TargetPlaces::new(context, targets, Arc::clone(gate))?);
        Ok(Self {
            origin: LeaseOrigin::Slots,
            sink: SinkFactory::cuda(prepared, context, places, options),
        })
    }

    fn cuda(
        prepared: &Prepared,
        context: &Context,
        regions: DeviceRegions,
        options: &LoadOptions,
    ) -> Self {
        let regions = Arc::new(regions);
        Self {
            origin: LeaseOrigin::Device(Arc::clone(&regions)),
            sink: SinkFactory::cuda(prepared, context, CudaPlaces::Regions(regions), options),
        }
    }
}

/// Returns, by region of the plan, the region of the node that it shows.
fn shows(prepared: &Prepared, leader: &LeaderGroup) -> Vec<Option<usize>> {
    let shows = |region: &RegionPlan| {
        let shown = leader.region(region.source)?;
        is_shown(&prepared.plan, &prepared.destinations, region).then_some(shown)
    };
    prepared.plan.regions.iter().map(shows).collect()
}

/// Returns the pool of a leader's reads, within its budget, and the memory that they take place in
/// if that is not the pool's. Notifies `events` whenever memory comes back.
///
/// A device needs four times the requests for shared memory of small pages: what it reads goes into
/// private memory, and is copied. (8 threads, 2 GB/s, 2026-11, `benches/results/`: 0.50 s per GiB
/// in place of 1.06.) Regions in `bands` are scattered from private memory in any case.
///
/// # Errors
///
/// [`crate::ErrorKind::OutOfMemory`] for a budget that is too small.
pub(crate) fn published(
    prepared: &Prepared,
    bands: Arc<PublishedBands>,
    options: &LoadOptions,
    events: Arc<EventCount>,
) -> Result<(PublishedMemory, Option<Arc<Slab>>)> {
    let group = cgroup_memory(Path::new("/"));
    let (staged, reads) = if prepared.copies_page_cache() {
        let most = options.memory_limit.unwrap_or(u64::MAX) / 4;
        let bytes = SCATTERED_BYTES.max(prepared.in_flight_bytes() / 2);
        (bytes.min(most), 0)
    } else {
        (prepared.in_flight_bytes(), prepared.reads_in_flight())
    };
    let demand = Demand {
        plan: &prepared.plan,
        tensors: &prepared.tensors,
        default: MEMORY_LIMIT,
        device_default: MEMORY_LIMIT,
        in_flight: prepared.in_flight_bytes(),
        staged,
        reads,
        room: 0,
        group: group.as_ref(),
        kept: 0,
        limit_divisor: prepared.limit_divisor,
        // Half of the memory is shared; the ranks divide the other half.
        group_divisor: 2,
        has_views: false,
    };
    let with_slots = || {
        let kept = kept_staging(None) as u64;
        Demand { kept, ..demand }.host(Some(0), true, options)
    };
    let mut is_copied = prepared.reads_devices() && !SharedMemory::has_huge_pages();
    let budget = if bands.are_any() {
        with_slots()?
    } else if let Some(Ok(budget)) = is_copied.then(with_slots) {
        budget
    } else {
        // Staging for copies only saves time, so a budget without it is enough.
        is_copied = false;
        demand.host(Some(0), false, options)?
    };
    let window = WINDOW_BYTES.max(demand.in_flight.saturating_mul(2));
    let slab = (budget.slots > 0)
        .then(|| staging::slab(budget, None, &events))
        .transpose()?;
    let memory = PublishedMemory {
        pool: PublishedPool::new(budget.pool, window, events),
        bands,
        is_copied,
    };
    Ok((memory, slab))
}

impl SinkFactory {
    fn cuda(
        prepared: &Prepared,
        context: &Context,
        places: CudaPlaces,
        options: &LoadOptions,
    ) -> Self {
        let (plan, tensors) = (Arc::clone(&prepared.plan), Arc::clone(&prepared.tensors));
        let batches = options.trial.batch;
        Self::Cuda(CudaLoad::new(
            plan,
            tensors,
            context.clone(),
            places,
            batches,
        ))
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
            Self::Host(sink) => {
                report.copied_bytes += sink.copied_bytes();
                (report.converted_tensors, report.converted_bytes) = sink.converted();
            }
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
        kept_staging(destinations.gpu()) as u64
    } else {
        0
    };
    region_cache.kept_bytes() + staging
}

/// Returns the budget of each destination's device in bytes, if the load allocates tensors there.
fn device_budgets(
    demand: &Demand<'_>,
    prepared: &Prepared,
    options: &LoadOptions,
    mut shared: Option<SharedBudget>,
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
        let free = prepared.destinations.free(index);
        let free = free.expect("measured before the plan");
        let mut shared = (shared.as_mut())
            .filter(|_| context.memory().kind() == MemoryKind::Shared)
            .map(|shared| (shared, demand.largest_region(index)));
        let free = match &shared {
            Some((shared, largest)) => shared.free_for(*largest),
            None => free,
        };
        let budget = demand.device(index, context.ordinal(), free, options)?;
        if let Some((shared, largest)) = &mut shared {
            shared.take(*largest, budget);
        }
        budgets.push(Some(budget));
    }
    Ok(budgets)
}

fn regions(
    prepared: &Prepared,
    context: &Context,
    budget: DeviceBudget,
    options: &LoadOptions,
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
    let wanted = beginnings(&plan, options.order, &prepared.groups())
        .into_iter()
        .filter(of_device)
        .collect();
    Ok(DeviceRegions::given(
        Arc::clone(&plan),
        tensors,
        context.clone(),
        budget,
        wanted,
    ))
}
