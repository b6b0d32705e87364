//! Configuration of engines for files, and the reason why no ring can be set up.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::memory::Slab;
use crate::storage::ReadFile;

/// Configuration of an engine that is opened on a lane's thread.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    /// Sources, in the order of [`crate::Job::source`].
    pub files: Arc<[ReadFile]>,
    /// Number of jobs in flight that the engine must accept.
    pub depth: usize,
    /// Number of threads that copy from memory for GPUs; `None` if the files determine it.
    pub copiers: Option<usize>,
    /// Number of lanes that share the reads in flight, and so the threads, from the beginning of
    /// this one on.
    pub lanes: usize,
    /// Length of the strips in which threads fill a job together, bytes; `None` if each job has one
    /// thread.
    pub strip_bytes: Option<usize>,
    /// True if threads that copy let lanes go first.
    pub yields: bool,
    /// Long-lived memory that leases come from, to be registered with the kernel.
    pub slab: Option<Arc<Slab>>,
}

impl EngineSetup {
    /// Returns the configuration of the only lane over `files`, without registered memory.
    #[must_use]
    pub fn new(files: Arc<[ReadFile]>, depth: usize) -> Self {
        Self {
            files,
            depth,
            copiers: None,
            lanes: 1,
            strip_bytes: None,
            yields: false,
            slab: None,
        }
    }
}

/// Reason why no ring could be set up, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Message of the kernel.
    pub reason: String,
    /// Advice on what to do about it.
    pub hint: String,
    /// Error number of the kernel, if it returned one.
    pub errno: Option<i32>,
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        let hint = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "containers often block it through seccomp (allow io_uring_setup, io_uring_enter and io_uring_register), and \
                 sysctl kernel.io_uring_disabled must be 0"
            }
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => {
                "the kernel is older than 5.6, or a seccomp profile (podman's, CRI-O's) or a sandbox such as gVisor hides it"
            }
            Some(libc::ENOMEM) => "raise the locked-memory limit (ulimit -l)",
            Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
            _ => "see tload doctor",
        };
        Self {
            reason: error.to_string(),
            hint: hint.to_owned(),
            errno: error.raw_os_error(),
        }
    }
}

impl Refusal {
    /// Returns the error for a caller who requires a ring.
    pub fn into_error(self) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!("io_uring cannot be used: {}", self.reason),
        )
        .with_hint(format!(
            "{}; or use ‹engine=auto› or ‹engine=pread›",
            self.hint
        ))
    }
}

/// Result of setting up a ring.
#[derive(Clone, Debug, Default)]
pub struct RingProbe {
    /// Reason why there is no ring.
    pub refusal: Option<Refusal>,
    /// Kernel features that a ring uses.
    pub features: Vec<String>,
    /// Largest buffer, of the sizes tried, that could be registered, bytes.
    pub registered_bytes_max: Option<u64>,
}
