//! Early start of a load to GPUs: a thread opens contexts and prepares staging memory while the
//! checkpoint is opened and its headers are parsed.
//!
//! Nothing here fails a load. If something cannot be prepared, the load tries it again at its own
//! time, and reports the error. A load that never begins frees what was prepared.

use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use super::budget::raw_bytes;
use super::lane::caught;
use crate::cuda::{Context, MemoryKind};
use crate::engine::copiers_for;
use crate::memory::cgroup::cgroup_memory;
use crate::memory::{Staging, StagingNeed, release_untaken_staging};
use crate::options::{CacheMode, LoadOptions, Location};
use crate::plan::ReadHints;
use crate::storage::file_system;
use crate::sync::lock::{Condvar, Mutex};
use crate::sync::per_process::process_id;
use crate::sync::threads::Builder;

/// Extent of most loads, bytes.
const EXTENT_BYTES: u64 = 4 << 20;

/// Staging memory of a load from a disk, bytes: four times what is in flight at first, and a slot
/// for each of these reads.
const DISK_BYTES: u64 = 80 << 20;

/// Part of a slot beside its extent, bytes: a page at each edge, and room to join small tensors.
const EDGES_BYTES: u64 = (1 << 20) + (8 << 10);

/// Contexts and memory that a thread prepares for one load. Clones share them; the last one frees
/// what no load has taken.
#[derive(Clone)]
pub struct EarlyStart(Arc<Owner>);

/// Owner of what is prepared, other than the thread that prepares it.
struct Owner {
    /// `None` only while being dropped.
    shared: Option<Arc<Shared>>,
    process: u32,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Preparing,
    Prepared(Option<Prepared>),
    /// No load takes it.
    Abandoned,
}

/// Result of the preparation. Fields are dropped in this order: memory is unpinned in its context.
struct Prepared {
    staging: Option<Staging>,
    contexts: Vec<Context>,
}

/// Size of the staging memory, as far as options decide on it.
#[derive(Clone, Copy)]
enum Sizing {
    Default,
    Ring(u64),
    /// The load computes it from a limit of the caller.
    Unknown,
}

/// Preparation of a load that begins. Contexts stay open until it has opened its own; memory that
/// it has not taken by then is freed.
pub(crate) struct Taken {
    _contexts: Vec<Context>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        release_untaken_staging();
    }
}

impl Sizing {
    fn new(options: &LoadOptions) -> Self {
        let limits = [
            options.memory_limit,
            options.in_flight_bytes,
            options.trial.slot,
        ];
        match options.trial.ring {
            _ if options.memory_limit.is_some() => Self::Unknown,
            Some(bytes) => Self::Ring(bytes),
            None if limits.iter().any(Option::is_some) => Self::Unknown,
            None if options.depth.is_some() || options.extent_bytes.is_some() => Self::Unknown,
            None => Self::Default,
        }
    }
}

impl EarlyStart {
    /// Begins to prepare a load of `locations` to the GPUs `ordinals`. `None` if there is nothing
    /// to prepare, or no thread for it.
    #[must_use]
    pub fn begin(
        ordinals: &[usize],
        locations: Vec<Location>,
        options: &LoadOptions,
    ) -> Option<Self> {
        if !options.trial.early || ordinals.is_empty() || options.cache == CacheMode::Map {
            return None;
        }
        let shared = Arc::<Shared>::default();
        let (theirs, ordinals) = (Arc::clone(&shared), ordinals.to_vec());
        let sizing = Sizing::new(options);
        let thread = Builder::new().name("tload-early".to_owned());
        let started = thread.spawn(move || {
            let prepared = caught(|| Ok(Prepared::new(&ordinals, &locations, sizing)));
            theirs.finish(prepared.ok());
        });
        started.ok()?;
        Some(Self(Arc::new(Owner {
            shared: Some(shared),
            process: process_id(),
        })))
    }

    /// Waits until everything is prepared, and keeps the memory for the load to take.
    pub(crate) fn take(&self) -> Option<Taken> {
        let shared = self.0.shared()?;
        let mut state = shared.state.lock();
        while matches!(*state, State::Preparing) {
            state = shared.changed.wait(state);
        }
        let prepared = match &mut *state {
            State::Prepared(prepared) => prepared.take(),
            State::Preparing | State::Abandoned => None,
        };
        drop(state);
        let Prepared { staging, contexts } = prepared?;
        if let Some(staging) = staging {
            staging.keep();
        }
        Some(Taken {
            _contexts: contexts,
        })
    }

    /// Frees what no load has taken. If the thread is still preparing it, that frees it.
    pub fn end(&self) {
        self.0.end();
    }
}

impl Owner {
    /// Returns the state, unless this is a forked process: there, the memory, the driver and the
    /// lock belong to the parent.
    fn shared(&self) -> Option<&Arc<Shared>> {
        let shared = self.shared.as_ref();
        shared.filter(|_| self.process == process_id())
    }

    fn end(&self) {
        if let Some(shared) = self.shared() {
            let before = std::mem::replace(&mut *shared.state.lock(), State::Abandoned);
            shared.changed.notify_all();
            // The lock is released first, because unpinning takes a while.
            drop(before);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
        if self.process != process_id() {
            let _left_alone = ManuallyDrop::new(self.shared.take());
        }
    }
}

impl Shared {
    fn finish(&self, prepared: Option<Prepared>) {
        let mut state = self.state.lock();
        if matches!(*state, State::Abandoned) {
            drop(state);
            drop(prepared);
            return;
        }
        *state = State::Prepared(prepared);
        self.changed.notify_all();
    }
}

impl Prepared {
    fn new(ordinals: &[usize], locations: &[Location], sizing: Sizing) -> Self {
        let contexts: Vec<_> = ordinals
            .iter()
            .filter_map(|ordinal| Context::open(*ordinal).ok())
            .collect();
        let staging = match &contexts[..] {
            // With several GPUs, the load decides which one the memory is near to; in memory that a
            // GPU shares, how much there is.
            [context] if ordinals.len() == 1 && !is_shared(context) => {
                staging(context, locations, sizing)
            }
            _ => None,
        };
        Self { staging, contexts }
    }
}

fn is_shared(context: &Context) -> bool {
    context.memory().kind() == MemoryKind::Shared
}

/// Allocates as much staging memory as a load of `locations` needs at least.
fn staging(context: &Context, locations: &[Location], sizing: Sizing) -> Option<Staging> {
    let bytes = usize::try_from(staging_bytes(locations, sizing)).ok()?;
    let group = cgroup_memory(Path::new("/"));
    if bytes == 0 || raw_bytes(group.as_ref(), bytes) < bytes {
        return None;
    }
    let page = 4 << 10;
    let need = StagingNeed {
        slot_bytes: page,
        slots: bytes.div_ceil(page),
        bytes_max: bytes,
        context: Some(context),
    };
    Staging::ahead(&need).ok().flatten()
}

/// Returns the size of the staging memory of a load of local files, bytes; 0 for others.
fn staging_bytes(locations: &[Location], sizing: Sizing) -> u64 {
    let ring = match sizing {
        Sizing::Default => None,
        Sizing::Ring(bytes) => Some(bytes),
        Sizing::Unknown => return 0,
    };
    let paths: Option<Vec<&Path>> = locations.iter().map(Location::as_path).collect();
    let Some(paths) = paths else {
        return 0;
    };
    let in_memory = |path: &&Path| file_system(path).is_ok_and(|found| found.in_memory);
    let extents = ReadHints {
        extent_bytes: EXTENT_BYTES,
        request_bytes: EXTENT_BYTES,
        alignment: 1,
        gap_bytes: 0,
        depth: 1,
        in_flight_bytes: u64::MAX,
        in_flight_bytes_max: u64::MAX,
    };
    // As many again wait to be copied to the GPU.
    let copied = 2 * extents.copied_by(copiers_for(1), 0, ring).in_flight_bytes;
    let most = if paths.iter().all(in_memory) {
        copied
    } else {
        copied.max(DISK_BYTES)
    };
    let files = paths.iter().map(|path| file_bytes(path));
    let files = files.fold(EXTENT_BYTES, u64::saturating_add);
    let slots = ring.unwrap_or(most).min(files).div_ceil(EXTENT_BYTES);
    slots * (EXTENT_BYTES + EDGES_BYTES)
}

/// Returns the size of a file, or of the files of a directory, bytes; 0 if it cannot be read.
fn file_bytes(path: &Path) -> u64 {
    let folder = match path.extension() {
        Some(extension) if extension == "json" => path.parent().unwrap_or(path),
        _ => path,
    };
    let Ok(entries) = std::fs::read_dir(folder) else {
        return std::fs::metadata(path).map_or(0, |file| file.len());
    };
    let files = entries.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
    files.map(|file| file.len()).fold(0, u64::saturating_add)
}

impl fmt::Debug for EarlyStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarlyStart").finish_non_exhaustive()
    }
}
