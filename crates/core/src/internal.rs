//! Parts of the crate for tload's own command, Python package, server and tests. Anything here may
//! change in any release.

pub use crate::error::{nearest_name, printable};
pub use crate::format::HeaderError;
pub use crate::load::early::EarlyStart;
pub use crate::load::metrics::metrics_text;
pub use crate::options::{
    OptionKey, OptionKind, OptionValue, StoreKey, TRIAL_VARIABLE, Trial, format_bytes, format_rate,
    parse_bytes, parse_duration, unknown_variables,
};
pub use crate::probe::ceiling::Ceiling;
pub use crate::report::{Counters, RecentSpeed, format_left};
pub use crate::sync::descriptors::reserve_descriptors;
pub use crate::sync::per_process::process_id;

/// The comparison of what a load reads.
pub mod check {
    pub use crate::load::check::{Check, LateCheck, SourceFacts};
}

/// The CUDA driver.
pub mod cuda {
    pub use crate::cuda::*;
}

/// Engines, and the choice of one.
pub mod engine {
    pub use crate::engine::*;
}

/// Leases, regions, slabs and budgets.
pub mod memory {
    pub use crate::memory::*;
}

/// CPUs near GPUs.
pub mod numa {
    pub use tload_engine::numa::*;
}

/// The loop of a lane.
pub mod pipeline {
    pub use crate::load::pipeline::*;
}

/// Regions, extents and pieces of a load.
pub mod plan {
    pub use crate::plan::*;
}

/// Queries about this machine and its files.
pub mod probe {
    pub use crate::probe::*;
}

/// Shared memory that GPUs read directly.
pub mod registered {
    pub use tload_ranks::RegionListener;
    pub use tload_registered::*;
}

/// The order of reads, and their number.
pub mod schedule {
    pub use crate::schedule::*;
}

/// Sinks, and what they own.
pub mod sink {
    pub use crate::sink::*;
}

/// Streams, and what ends them.
pub mod stream {
    pub use crate::load::stream::{Handover, LastSteps, StreamSetup};
    pub use tload_memory::convert::Conversions;
}

/// Watchers of loads.
pub mod watch {
    pub use crate::load::watch::{Layer, TensorSink, WatchedLoad, Watcher};
}

/// Files and objects.
pub mod storage {
    pub use crate::storage::*;
}
