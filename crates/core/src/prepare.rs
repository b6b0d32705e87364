//! From a request to what is known before the first read: sources opened for this load, plan, limits, lanes.

use std::sync::Arc;

use crate::buffer::Slab;
use crate::checkpoint::{Checkpoint, ShardSource};
use crate::destinations::Destinations;
use crate::engine::{self, EngineSetup};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{LaneEngine, LaneSetup};
use crate::pipeline::Feed;
use crate::plan::{self, Layout, Plan, Wanted};
use crate::report::Counters;
use crate::request::{Options, format_bytes};
use crate::schedule::{Depth, Groups, Member};
#[cfg(feature = "object")]
use crate::source::{ObjectSource, Retries};
use crate::source::{ReadFile, ReadHints, RefusedDirect};
use crate::tensor::TensorInfo;

/// Most reads of one load: their plan takes about 100 bytes each, and 16 TiB in default extents are as many (2026-11).
const EXTENTS_MAX: u64 = 1 << 22;

/// Most jobs that an engine for objects takes at a time. Neighbours share a request, so there are more of them than requests.
#[cfg(feature = "object")]
const OBJECT_JOBS_MAX: usize = 4096;

/// What is known before the first read.
pub(crate) struct Prepared {
    pub(crate) files: Arc<[ReadFile]>,
    #[cfg(feature = "object")]
    objects: Arc<[ObjectSource]>,
    pub(crate) tensors: Arc<[TensorInfo]>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) destinations: Destinations,
    /// By source of the plan.
    members: Vec<Member>,
    limits: Vec<Limits>,
}

/// One group of sources and what it may have in flight.
#[derive(Clone, Copy, Debug)]
struct Limits {
    kind: Kind,
    depth: Depth,
    /// Reads or requests of the largest size at a time.
    reads: usize,
    /// Longest request, bytes.
    #[cfg(feature = "object")]
    request_bytes: u64,
}

/// What engines a group needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Files,
    #[cfg(feature = "object")]
    Objects,
}

/// The sources that something is wanted of, opened for one load.
#[derive(Default)]
struct Sources {
    files: Vec<ReadFile>,
    #[cfg(feature = "object")]
    objects: Vec<ObjectSource>,
    /// In the order of the plan: its kind, and its number among those of that kind.
    all: Vec<(Kind, usize)>,
}

impl Prepared {
    /// Opens the sources of `tensors` and plans their reads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a plan beyond all bounds; whatever opening a file for direct
    /// I/O runs into.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        tensors: Vec<TensorInfo>,
        destinations: Destinations,
        options: &Options,
    ) -> Result<Self> {
        let tensors: Arc<[TensorInfo]> = tensors.into();
        // Only shards that something is wanted of; `source_of` numbers them.
        let mut refused = RefusedDirect::default();
        let mut source_of = vec![None; checkpoint.shards().len()];
        let mut sources = Sources::default();
        for tensor in tensors.iter().filter(|tensor| tensor.byte_len() > 0) {
            if source_of[tensor.shard()].is_none() {
                source_of[tensor.shard()] = Some(sources.all.len());
                let source = checkpoint.shards()[tensor.shard()].source();
                sources.open(source, options, &mut refused)?;
            }
        }
        let wanted: Vec<Wanted> = tensors
            .iter()
            .enumerate()
            .map(|(index, tensor)| Wanted {
                source: source_of[tensor.shard()].unwrap_or(0),
                range: tensor.file_range(),
                alignment: tensor.dtype().alignment(),
                destination: destinations.of(index),
            })
            .collect();
        let hints: Vec<ReadHints> = sources.all.iter().map(|at| sources.hints(*at)).collect();
        let layouts: Vec<Layout> = hints
            .iter()
            .map(|hints| layout(hints, options, destinations.staged()))
            .collect();
        refuse_too_many_reads(&tensors, &layouts)?;
        let plan = Arc::new(plan::build(&wanted, &layouts, &destinations.arrangements()));

        let kinds = sources.kinds();
        let limits = kinds
            .iter()
            .map(|kind| {
                let of_kind = |source: usize| sources.all[source].0 == *kind;
                let hints = (0..hints.len())
                    .filter(|source| of_kind(*source))
                    .map(|source| hints[source])
                    .fold(NO_HINTS, greatest);
                let windows = plan.extents.iter().filter(|extent| of_kind(extent.source));
                let window = windows.map(|extent| extent.window).max().unwrap_or(0);
                kind.limits(options, &hints, window)
            })
            .collect();
        let group = |kind| kinds.iter().position(|other| *other == kind);
        let members = sources
            .all
            .iter()
            .map(|&(kind, index)| Member {
                group: group(kind).expect("every kind has a group"),
                index,
            })
            .collect();
        Ok(Self {
            files: sources.files.into(),
            #[cfg(feature = "object")]
            objects: sources.objects.into(),
            tensors,
            plan,
            destinations,
            members,
            limits,
        })
    }

    /// Which sources share limits.
    pub(crate) fn groups(&self) -> Groups {
        let depths = self.limits.iter().map(|limits| limits.depth).collect();
        Groups::new(depths, self.members.clone())
    }

    /// Reads of the largest size that may be in flight.
    pub(crate) fn reads_in_flight(&self) -> usize {
        self.limits.iter().map(|limits| limits.reads).sum()
    }

    /// Bytes that may be in flight.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.limits.iter().map(|limits| limits.depth.bytes()).sum()
    }

    /// Jobs that may be in flight.
    pub(crate) fn jobs(&self) -> usize {
        self.limits.iter().map(|limits| limits.depth.jobs()).sum()
    }

    /// Bytes that the extents of a group need.
    #[cfg(feature = "object")]
    fn bytes_of(&self, group: usize) -> u64 {
        let extents = self.plan.extents.iter();
        extents
            .filter(|extent| self.members[extent.source].group == group)
            .map(|extent| extent.needed as u64)
            .sum()
    }

    /// Longest read or request, bytes.
    pub(crate) fn read_bytes_max(&self) -> u64 {
        let windows = self.plan.window_bytes_max() as u64;
        #[cfg(feature = "object")]
        let windows = self
            .limits
            .iter()
            .map(|limits| limits.request_bytes)
            .fold(windows, u64::max);
        windows
    }

    /// The lanes of a load: as many as asked for of files, one of objects, whose requests have threads of their own. None when
    /// there is nothing to read.
    pub(crate) fn lanes(
        &self,
        options: &Options,
        feed: &Arc<Feed>,
        counters: &Arc<Counters>,
        slab: Option<&Arc<Slab>>,
    ) -> Vec<LaneSetup> {
        let mut lanes = Vec::new();
        for (group, limits) in self.limits.iter().enumerate() {
            let extents = self.plan.extents.len();
            let depth = limits.depth.jobs().min(extents).max(1);
            let (engine, count) = match limits.kind {
                Kind::Files => {
                    let (kind, reason) = engine::choose(options.engine, &self.files);
                    let setup = EngineSetup {
                        files: Arc::clone(&self.files),
                        depth,
                        slab: slab.cloned(),
                    };
                    let choice = options.engine;
                    let engine = LaneEngine::Files {
                        setup: Arc::new(setup),
                        kind,
                        choice,
                        reason,
                    };
                    (engine, options.lanes.unwrap_or(1))
                }
                #[cfg(feature = "object")]
                Kind::Objects => {
                    let setup = engine::ObjectSetup {
                        objects: Arc::clone(&self.objects),
                        connections: limits.reads,
                        request_bytes: limits.request_bytes,
                        total_bytes: self.bytes_of(group),
                        retries: options.retries.map(Retries::up_to),
                        depth,
                        over: Arc::clone(feed.over()),
                    };
                    let setup = Arc::new(setup);
                    let choice = options.engine;
                    (LaneEngine::Objects { setup, choice }, 1)
                }
            };
            let setup = LaneSetup {
                feed: Arc::clone(feed),
                group,
                engine,
                counters: Arc::clone(counters),
            };
            lanes.extend(std::iter::repeat_n(setup, count));
        }
        lanes
    }
}

impl Sources {
    fn open(
        &mut self,
        source: &ShardSource,
        options: &Options,
        refused: &mut RefusedDirect,
    ) -> Result<()> {
        match source {
            ShardSource::File(file) => {
                self.all.push((Kind::Files, self.files.len()));
                let file = ReadFile::open(Arc::clone(file), options.cache, refused)?;
                self.files.push(file);
            }
            #[cfg(feature = "object")]
            ShardSource::Object(object) => {
                self.all.push((Kind::Objects, self.objects.len()));
                self.objects.push(object.clone());
            }
        }
        Ok(())
    }

    fn hints(&self, (kind, index): (Kind, usize)) -> ReadHints {
        match kind {
            Kind::Files => self.files[index].hints(),
            #[cfg(feature = "object")]
            Kind::Objects => self.objects[index].hints(),
        }
    }

    /// Those that there are sources of, in the order in which they are met.
    fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for (kind, _) in &self.all {
            if !kinds.contains(kind) {
                kinds.push(*kind);
            }
        }
        kinds
    }
}

impl Kind {
    /// What the caller asked for, else what the sources like. `window` is the longest read, bytes.
    fn limits(self, options: &Options, hints: &ReadHints, window: usize) -> Limits {
        let reads = options.depth.unwrap_or(hints.depth);
        match self {
            Self::Files => {
                let bytes = options
                    .in_flight_bytes
                    .unwrap_or_else(|| match options.depth {
                        Some(jobs) => window as u64 * jobs as u64,
                        // Windows are a little longer than extents: alignment at both edges must not cost a whole read in flight.
                        None => hints.in_flight_bytes + 2 * hints.alignment * reads as u64,
                    });
                let depth = Depth::fixed(reads, bytes);
                Limits {
                    kind: self,
                    depth,
                    reads: depth.reads_of(window),
                    #[cfg(feature = "object")]
                    request_bytes: 0,
                }
            }
            #[cfg(feature = "object")]
            Self::Objects => {
                let request_bytes = options.extent_bytes.unwrap_or(hints.request_bytes);
                // Extents leave the count as they arrive, so a request on its way holds half of its bytes on average; an eighth
                // more is what comes next. One extent for each request at the least.
                let all = request_bytes * reads as u64;
                let least = window as u64 * (reads as u64 + 1);
                let bytes = options.in_flight_bytes.unwrap_or((all / 8 * 5).max(least));
                Limits {
                    kind: self,
                    depth: Depth::fixed(OBJECT_JOBS_MAX, bytes).with_stride(request_bytes),
                    reads,
                    request_bytes,
                }
            }
        }
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

const NO_HINTS: ReadHints = ReadHints {
    extent_bytes: 1,
    request_bytes: 1,
    alignment: 1,
    gap_bytes: 0,
    depth: 1,
    in_flight_bytes: 1,
};

fn greatest(a: ReadHints, b: ReadHints) -> ReadHints {
    ReadHints {
        extent_bytes: a.extent_bytes.max(b.extent_bytes),
        request_bytes: a.request_bytes.max(b.request_bytes),
        alignment: a.alignment.max(b.alignment),
        gap_bytes: a.gap_bytes.max(b.gap_bytes),
        depth: a.depth.max(b.depth),
        in_flight_bytes: a.in_flight_bytes.max(b.in_flight_bytes),
    }
}

fn layout(hints: &ReadHints, options: &Options, staged: bool) -> Layout {
    let extent_bytes = match options.extent_bytes {
        // A tensor is never too large for staging memory: it goes through in smaller reads, two at a time at least.
        None if staged && options.memory_limit.is_some() => {
            let room = options.memory_limit.unwrap_or(u64::MAX) / 2;
            let edges = 2 * hints.alignment;
            let most = room.saturating_sub(edges) / hints.alignment * hints.alignment;
            // Slots are whole pages, edges and all, however short the reads.
            let page = 4096_u64.saturating_sub(2 * hints.alignment.max(64));
            let least = page.max(hints.alignment);
            hints.extent_bytes.min(most.max(least))
        }
        // What was asked for is the length of requests, which bring several extents.
        Some(bytes) if hints.request_bytes > hints.extent_bytes => bytes.min(hints.extent_bytes),
        Some(bytes) => bytes,
        None => hints.extent_bytes,
    };
    Layout {
        extent_bytes: extent_bytes.next_multiple_of(hints.alignment),
        alignment: hints.alignment,
        gap_bytes: hints.gap_bytes,
    }
}
