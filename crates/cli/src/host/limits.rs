//! What this process is allowed: open files, locked memory, processes (`getrlimit(2)`, which needs no `/proc`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limits that matter for a load, as the process was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) files: Limit,
    /// Bytes.
    pub(crate) locked_memory: Limit,
    /// Threads of this user's, all processes together.
    pub(crate) threads: Limit,
}

/// None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The one that counts.
    pub(crate) now: Option<u64>,
    /// What a process without privileges may raise it to.
    pub(crate) most: Option<u64>,
}

impl Limits {
    pub(crate) fn look() -> Self {
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

    /// Lets this process open as many files as it may: a checkpoint can have more shards than the limit that shells start with (1024,
    /// for programs that call `select`, which this one does not).
    pub(crate) fn raise_files(&self) {
        let most = self.files.most;
        let raised = Rlimit {
            current: most,
            maximum: most,
        };
        if self.files.now != most {
            // Whoever has too few descriptors hears of it when they run out.
            let _ = setrlimit(Resource::Nofile, raised);
        }
    }
}

impl Limit {
    /// Whether `wanted` fit.
    pub(crate) fn has(self, wanted: u64) -> bool {
        self.now.is_none_or(|now| now >= wanted)
    }

    /// Whether the user may raise it to `wanted` by himself.
    pub(crate) fn may_have(self, wanted: u64) -> bool {
        self.most.is_none_or(|most| most >= wanted)
    }
}
