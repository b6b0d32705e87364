//! Which engine reads, and why that one.
//!
//! Rings are tried, never guessed from a version: seccomp, sysctls, memlock and sandboxes all say no in ways of their own. With
//! [`EngineChoice::Auto`] any refusal means `pread`, and the reason is kept for the report.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "object")]
use super::object::{ObjectEngine, ObjectSetup};
use super::pread::PreadEngine;
use super::{Engine, tokio_uring, uring};
use crate::buffer::Slab;
use crate::error::{Error, ErrorKind, Result};
use crate::request::EngineChoice;
#[cfg(feature = "object")]
use crate::source::ObjectSource;
use crate::source::{ReadFile, Source};

/// Reading threads of one `pread` engine: with up to 8 a load reached 0.97 of the ring's throughput at twice its CPU time
/// (`engines.md` in `benches/results/2core-virtio-2026-11-20`). More were not measured.
const PREAD_THREADS_MAX: usize = 8;

/// The same where each read waits for a network, or for a server in user space: a thread that waits costs nothing but its stack.
const FAR_THREADS_MAX: usize = 64;

/// What an engine needs to be opened on a lane's thread.
#[derive(Debug)]
pub struct EngineSetup {
    /// The sources, in the order of [`super::Job::source`].
    pub files: Arc<[ReadFile]>,
    /// Jobs that it must take at a time.
    pub depth: usize,
    /// Long-lived memory that leases come from, to register with the kernel.
    pub slab: Option<Arc<Slab>>,
}

/// The engines for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// `io_uring`.
    Uring,
    /// Threads.
    Pread,
    /// Threads that map files instead of reading them.
    Map,
    /// `io_uring` through the crate `tokio-uring`.
    TokioUring,
}

/// An engine, and what the report says of it.
pub struct OpenedEngine {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Its name.
    pub name: &'static str,
    /// What of the kernel's offers it uses.
    pub features: Vec<String>,
    /// Why not the one that was preferred.
    pub refusal: Option<Refusal>,
}

impl fmt::Debug for OpenedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedEngine")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Why no ring could be set up, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the kernel said.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
    /// The kernel's error number, if it gave one.
    pub errno: Option<i32>,
}

impl Refusal {
    /// The error for a caller who insists on a ring.
    pub fn into_error(self) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!("io_uring cannot be used: {}", self.reason),
        )
        .with_hint(format!("{}; or use engine=auto or engine=pread", self.hint))
    }
}

/// Picks the engine for `files` and says why.
pub fn choose(choice: EngineChoice, files: &[ReadFile]) -> (EngineKind, String) {
    if files.iter().any(|file| file.view().is_some()) {
        return (EngineKind::Map, "nothing is copied: cache=map".to_owned());
    }
    match choice {
        EngineChoice::Uring => (EngineKind::Uring, "asked for".to_owned()),
        EngineChoice::Pread => (EngineKind::Pread, "asked for".to_owned()),
        EngineChoice::TokioUring => (EngineKind::TokioUring, "asked for".to_owned()),
        EngineChoice::Auto => {
            let in_memory = |file: &ReadFile| file.source().file_system().in_memory;
            if !files.is_empty() && files.iter().all(in_memory) {
                let name = &files[0].source().file_system().name;
                (
                    EngineKind::Pread,
                    format!("files on {name} are in memory: threads copy them"),
                )
            } else if are_copied(files) {
                let reason = "a ring can be set up; the page cache holds the files";
                (EngineKind::Uring, reason.to_owned())
            } else {
                (EngineKind::Uring, "a ring can be set up".to_owned())
            }
        }
    }
}

/// Whether most bytes of `files` are to be copied from memory: then cores are the limit, and no device.
pub fn are_copied(files: &[ReadFile]) -> bool {
    let bytes = |copied: bool| -> u64 {
        let files = files.iter().filter(|file| file.is_copied() == copied);
        files.map(|file| file.source().len()).sum()
    };
    bytes(true) > bytes(false)
}

/// Opens an engine of `kind` on the calling thread, which must be the one that uses it; falls back to threads when a ring is
/// refused, unless the caller insists on one.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] when a ring was asked for and refused; [`ErrorKind::OutOfMemory`] when no thread starts.
pub fn open(kind: EngineKind, choice: EngineChoice, setup: &EngineSetup) -> Result<OpenedEngine> {
    if kind == EngineKind::TokioUring {
        // Chosen by nobody but the caller, so there is nothing to fall back to.
        let (engine, features) = tokio_uring::open(setup).map_err(Refusal::into_error)?;
        return Ok(OpenedEngine {
            engine,
            name: "tokio-uring",
            features,
            refusal: None,
        });
    }
    let refusal = if kind == EngineKind::Uring {
        match uring::open(setup) {
            Ok((engine, features)) => {
                return Ok(OpenedEngine {
                    engine,
                    name: "uring",
                    features,
                    refusal: None,
                });
            }
            Err(refusal) if choice == EngineChoice::Uring => return Err(refusal.into_error()),
            Err(refusal) => Some(refusal),
        }
    } else {
        None
    };
    let engine = PreadEngine::open(&setup.files, pread_threads(setup), setup.depth)?;
    let features = vec![format!("{} threads", engine.threads())];
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

/// Opens the engine for object stores.
#[cfg(feature = "object")]
pub fn open_objects(setup: &Arc<ObjectSetup>) -> OpenedEngine {
    let mut features = vec![format!("{} connections", setup.connections)];
    let mut credentials: Vec<_> = setup
        .objects
        .iter()
        .map(ObjectSource::credentials)
        .collect();
    credentials.sort();
    credentials.dedup();
    features.extend(
        credentials
            .iter()
            .map(|source| format!("credentials: {source}")),
    );
    OpenedEngine {
        engine: Box::new(ObjectEngine::open(Arc::clone(setup))),
        name: "object",
        features,
        refusal: None,
    }
}

/// Copies from memory are limited by cores, reads from a device by its queue.
fn pread_threads(setup: &EngineSetup) -> usize {
    let copying = are_copied(&setup.files);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let useful = if copying {
        cores.max(2)
    } else if setup.files.iter().any(ReadFile::is_far) {
        FAR_THREADS_MAX
    } else {
        PREAD_THREADS_MAX
    };
    useful.min(setup.depth).max(1)
}
