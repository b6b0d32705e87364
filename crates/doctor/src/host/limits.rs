//! Resource limits of this process: open files, locked memory, processes (`getrlimit(2)`, which
//! needs no `/proc`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits that matter for a load, as the process was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open files.
    pub files: Limit,
    /// Locked memory, bytes.
    pub locked_memory: Limit,
    /// Threads of all processes of this user.
    pub threads: Limit,
}

/// One limit; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Soft limit, which is enforced.
    pub now: Option<u64>,
    /// Hard limit, up to which a process without privileges may raise the soft limit.
    pub most: Option<u64>,
}

impl Limits {
    /// Returns the limits in force.
    pub fn current() -> Self {
        let limit = |resource| {
            let Rlimit { current, maximum } = getrlimit(resource);
            Limit {
                now: current,
                most: maximum,
            }
        };
        Self {
            files: limit(Resource::Nofile),
            locked_memory: limit(Resource::Memlock),
            threads: limit(Resource::Nproc),
        }
    }

    /// Raises the limit of open files to the maximum. A checkpoint can have more shards than the
    /// usual limit of 1024, which exists for programs that call `select`; this one does not.
    pub fn raise_files(&self) {
        let most = self.files.most;
        let raised = Rlimit {
            current: most,
            maximum: most,
        };
        if self.files.now != most {
            // If this fails, a load without enough descriptors reports that.
            let _ = setrlimit(Resource::Nofile, raised);
        }
    }
}

impl Limit {
    /// Returns whether the limit permits `wanted`.
    pub fn has(self, wanted: u64) -> bool {
        self.now.is_none_or(|now| now >= wanted)
    }

    /// Returns whether the user may raise the limit to `wanted`.
    pub fn may_have(self, wanted: u64) -> bool {
        self.most.is_none_or(|most| most >= wanted)
    }
}
