//! Choice of the engine, and the reason for it.
//!
//! Rings are tried, never inferred from a kernel version: seccomp, sysctls, memlock and sandboxes
//! each refuse in their own way. With [`EngineChoice::Auto`] any refusal means `pread`, and the
//! reason is kept for the report.

use std::fmt;
use std::sync::Arc;

use tload_engine::copier_count::{self, Cores, Pages};
use tload_engine::numa::Cpus;
use tload_engine::{PreadEngine, uring};

use super::remote::{RemoteEngine, RemoteSetup};
use super::shared::{SharedEngine, SharedSetup};
use super::{Engine, EngineSetup, Refusal, tokio_uring};
use crate::error::Result;
use crate::options::EngineChoice;
use crate::report::IN_MEMORY;
use crate::storage::{ReadFile, Source};

/// Maximum number of threads that read from local disks: 128 MiB in flight in reads of 4 MiB. In
/// place of 8 they took 0.96 of the time (2026-11, `cold.md` in
/// `benches/results/2core-amd-2026-11-26`).
const DISK_THREADS_MAX: usize = 32;

/// Maximum number of threads where each read waits for a network or for a server in user space: a
/// waiting thread costs nothing but its stack.
const FAR_THREADS_MAX: usize = 64;

/// Maximum number of threads of one lane that copy from memory for each GPU. More compete for
/// memory with each other, and for cores with the lane and with the caller, who receives tensors:
/// to one H100, 12 threads on 16 cores came closer to the speed of the bus (45 GB/s, at 0.28 CPU
/// seconds per GiB) than 16 (41 GB/s, at 0.36; 2026-11, `benches/results/`). Several GPUs were not
/// measured.
const COPIERS_PER_GPU: usize = 12;

/// Engines for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// `io_uring`.
    Uring,
    /// Threads that call `pread`.
    Pread,
    /// Threads that map files instead of reading them.
    Map,
    /// `io_uring` through the crate `tokio-uring`.
    TokioUring,
}

/// Open engine and its description for the report.
pub struct OpenedEngine {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Name of the engine.
    pub name: &'static str,
    /// Kernel features that it uses.
    pub features: Vec<String>,
    /// Reason why the preferred engine was not used.
    pub refusal: Option<Refusal>,
}

impl fmt::Debug for OpenedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedEngine")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Picks the engine for `files` and returns it with the reason. `copiers` is the result of the
/// function of that name: lanes of GPUs are busy with the driver, and other threads copy for them
/// (to an H100, 5,939 tensors from the page cache: 36 GB/s; lanes with rings: 31; 2026-11,
/// `benches/results/`).
pub fn choose(
    choice: EngineChoice,
    files: &[ReadFile],
    copiers: Option<usize>,
) -> (EngineKind, String) {
    if files.iter().any(|file| file.view().is_some()) {
        return (
            EngineKind::Map,
            "nothing is copied: files are mapped".to_owned(),
        );
    }
    match choice {
        EngineChoice::Uring => (EngineKind::Uring, "requested".to_owned()),
        EngineChoice::Pread => (EngineKind::Pread, "requested".to_owned()),
        EngineChoice::TokioUring => (EngineKind::TokioUring, "requested".to_owned()),
        EngineChoice::Auto => {
            let in_memory = |file: &ReadFile| file.source().file_system().in_memory;
            if !files.is_empty() && files.iter().all(in_memory) {
                let name = &files[0].source().file_system().name;
                (
                    EngineKind::Pread,
                    format!("files on {name} {}: threads copy them", IN_MEMORY[1]),
                )
            } else if copiers.is_some() {
                let reason = format!("{}: threads copy them", IN_MEMORY[0]);
                (EngineKind::Pread, reason)
            } else if are_copied(files) {
                let reason = format!("a ring can be set up; {}", IN_MEMORY[0]);
                (EngineKind::Uring, reason)
            } else {
                (EngineKind::Uring, "a ring can be set up".to_owned())
            }
        }
    }
}

/// Returns the engines for files that can be requested and opened on this machine.
#[must_use]
pub fn available() -> Vec<EngineChoice> {
    let setup = EngineSetup::new([].into(), 1);
    let opens = |choice: &EngineChoice| open(choose(*choice, &[], None).0, true, &setup).is_ok();
    let choices = EngineChoice::ALL.into_iter();
    let requested = choices.filter(|choice| *choice != EngineChoice::Auto);
    requested.filter(opens).collect()
}

/// Returns whether most bytes of `files` are copied from memory, so that the load is CPU-bound and
/// not limited by a device.
pub fn are_copied(files: &[ReadFile]) -> bool {
    let bytes = |copied: bool| -> u64 {
        let files = files.iter().filter(|file| file.is_copied() == copied);
        files.map(|file| file.source().len()).sum()
    };
    bytes(true) > bytes(false)
}

/// Returns the number of threads that copy `files` for the lanes of `gpus` GPUs; `None` if there
/// are no GPUs, or if some of the files are not in memory. `by_pages`: the number depends on the
/// kind of pages that they are in.
pub(crate) fn copiers(files: &[ReadFile], gpus: usize, by_pages: bool) -> Option<usize> {
    let useful = || {
        if by_pages {
            copier_count::by_pages(Cores::here(), Pages::of(files), gpus)
        } else {
            copiers_for(gpus)
        }
    };
    (gpus > 0 && files.iter().all(ReadFile::is_copied)).then(useful)
}

/// Returns the number of threads that copy files in memory for `gpus` GPUs.
pub(crate) fn copiers_for(gpus: usize) -> usize {
    copiers_of_host().min(COPIERS_PER_GPU * gpus).max(2)
}

/// Returns the number of threads that copy for a rank which may use the CPUs `own`, beside `others`
/// of its machine.
pub(crate) fn copiers_of_rank(own: Option<&Cpus>, others: &[Option<Cpus>]) -> usize {
    copier_count::of_rank(own, others, parallelism()).min(COPIERS_PER_GPU)
}

/// Returns the number of threads of this machine that copy without taking the cores of lanes and
/// callers.
fn copiers_of_host() -> usize {
    copier_count::useful(parallelism())
}

/// Returns the number of CPUs that this process can keep busy.
fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Opens the engine of a rank that another rank reads for.
pub fn open_shared(setup: &Arc<SharedSetup>) -> OpenedEngine {
    OpenedEngine {
        engine: Box::new(SharedEngine::open(setup)),
        name: "shared",
        features: setup.features(),
        refusal: None,
    }
}

/// Opens the engine of a leader for bytes that other nodes read.
pub(crate) fn open_remote(setup: &Arc<RemoteSetup>) -> OpenedEngine {
    OpenedEngine {
        engine: Box::new(RemoteEngine::open(setup)),
        name: "remote",
        features: Vec::new(),
        refusal: None,
    }
}

/// Opens an engine of `kind` on the calling thread, which must be the one that uses it. Falls back
/// to threads when a ring is refused, unless it `is_required`.
///
/// # Errors
///
/// [`crate::ErrorKind::Unsupported`] when a ring was required and refused;
/// [`crate::ErrorKind::OutOfMemory`] when no thread can be started.
pub fn open(kind: EngineKind, is_required: bool, setup: &EngineSetup) -> Result<OpenedEngine> {
    let ring = match kind {
        EngineKind::Uring => Some(("uring", uring::open(setup))),
        EngineKind::TokioUring => Some(("tokio-uring", tokio_uring::open(setup))),
        EngineKind::Pread | EngineKind::Map => None,
    };
    let refusal = match ring {
        Some((name, Ok((engine, features)))) => {
            return Ok(OpenedEngine {
                engine,
                name,
                features,
                refusal: None,
            });
        }
        Some((_, Err(refusal))) if is_required => return Err(refusal.into_error()),
        Some((_, Err(refusal))) => Some(refusal),
        None => None,
    };
    let engine = PreadEngine::open(setup, pread_threads(setup))?;
    let mut features = vec![format!("{} threads", engine.threads())];
    features.extend(
        setup
            .strip_bytes
            .map(|bytes| format!("strips of {bytes} bytes")),
    );
    Ok(OpenedEngine {
        engine: Box::new(engine),
        name: if kind == EngineKind::Map {
            "map"
        } else {
            "pread"
        },
        features,
        refusal,
    })
}

/// Returns the number of threads: copies from memory are limited by cores, reads from a device by
/// its queue. Lanes share the reads in flight: each of eight needs an eighth of the threads.
fn pread_threads(setup: &EngineSetup) -> usize {
    let copying = are_copied(&setup.files);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let useful = if let Some(copiers) = setup.copiers {
        copiers
    } else if copying {
        cores.max(2)
    } else if setup.files.iter().any(ReadFile::is_far) {
        FAR_THREADS_MAX
    } else {
        DISK_THREADS_MAX
    };
    // Threads that fill the same job are not limited by the number of jobs.
    let most = setup.strip_bytes.map_or(setup.depth, |_| useful);
    useful.min(most).div_ceil(setup.lanes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_threads() {
        let threads = |depth, lanes| {
            pread_threads(&EngineSetup {
                lanes,
                ..EngineSetup::new([].into(), depth)
            })
        };
        assert_eq!(
            [1, 2, 4, 8].map(|lanes| threads(1000, lanes)),
            [32, 16, 8, 4]
        );
        assert_eq!([1, 3, 256].map(|lanes| threads(8, lanes)), [8, 3, 1]);
        let together = EngineSetup {
            copiers: Some(12),
            strip_bytes: Some(1 << 20),
            ..EngineSetup::new([].into(), 4)
        };
        assert_eq!(pread_threads(&together), 12);
    }
}
