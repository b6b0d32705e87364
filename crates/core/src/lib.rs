//! Loads LLM weights as fast as the hardware allows.
//!
//! Plain safetensors checkpoints, one file or shards with an index, are read in place. Tensors
//! arrive in host or GPU memory while later ones are still being read.
//!
//! ```no_run
//! # fn main() -> tload::Result<()> {
//! let loader = tload::Loader::open(&tload::Location::parse("model_dir")?)?;
//! let mut stream = loader.stream()?;
//! for tensor in &mut stream {
//!     let tensor = tensor?;
//!     println!("{}: {} bytes", tensor.name(), tensor.bytes().len());
//! }
//! println!("{}", stream.report());
//! # Ok(())
//! # }
//! ```
//!
//! # A tensor's life, in seven files
//!
//! `header.rs` of the crate `tload-format` finds it in a file's header. `plan/split.rs` decides
//! which memory it shares and `plan/place.rs` which reads fetch it. `load/pipeline/mod.rs` moves
//! each read's window of memory from `memory/` to an engine (`engine/uring/mod.rs`) and on to
//! `sink/host.rs` or `sink/cuda/mod.rs`, which completes the tensor. `load/stream/mod.rs` hands it
//! over.
//!
//! # Stability
//!
//! The items re-exported here are the crate's interface. The modules `cuda`, `engine`, `memory`,
//! `pipeline`, `plan`, `schedule`, `sink` and `storage` are public for extensions of tload and for
//! its tests, and may change in any release.

pub mod engine;
pub mod plan;
pub mod probe;
pub mod schedule;
pub mod sink;

#[cfg(feature = "testing")]
pub mod testing;
pub mod verify;

mod checkpoint;
mod load;
mod options;
mod report;
mod tensor;

// Paths of modules that are in crates below.
pub(crate) use tload_base::{crc, error, sync};
pub(crate) use tload_format as format;
pub use tload_memory::{self as memory, cuda};

/// Copies of checkpoints, with everything beside them, into a local directory.
pub mod copy {
    #[doc(inline)]
    pub use tload_copy::{
        Copy, CopyAction, CopyControl, CopyOptions, CopyPlan, CopyProgress, CopyReport, ListedFile,
        PlannedFile, list_files, read_beside,
    };
}

/// Byte sources: files, objects, and memory for tests.
pub mod storage {
    #[doc(inline)]
    pub use tload_storage::{
        Access, CacheReport, ConfinedDir, ConfinedEntry, ConnectionRate, DirectIo, FileSource,
        FileSystem, Identity, MemorySource, MirrorReport, ReadFile, ReadHints, RefusedDirect,
        Residency, Retries, Source, StoreProbe, evict, file_system, residency,
    };
    #[cfg(feature = "object")]
    #[doc(inline)]
    pub use tload_storage::{
        CacheDirectory, CacheEntry, CacheRemoval, ObjectIdentity, ObjectSite, ObjectSource,
        Pruning, finish_caching,
    };

    // Names that other crates of tload use.
    pub(crate) use tload_storage::*;
}

/// Processes that load one checkpoint together.
pub mod ranks {
    #[doc(inline)]
    pub use tload_ranks::{
        Group, JoinLimits, LocalGroup, MESSAGE_BYTES_MAX, Transport, finish_serving, give_up,
    };
}

pub use checkpoint::{Checkpoint, OpenOptions, Shard};
#[doc(inline)]
pub use error::{Comparison, Error, ErrorKind, FailedRequest, Result, nearest_name, printable};
#[doc(inline)]
pub use format::{Dtype, HeaderError, Precedence, Slice, Steps, TensorInfo};
pub use load::Loader;
pub use load::device_alloc::DeviceAllocator;
pub use load::device_map::DeviceMap;
pub use load::load_target::{LoadTarget, LoadTargetLayout, LoadTargetRules};
pub use load::metrics::metrics_text;
pub use load::orphaned::parked_bytes;
pub use load::pipeline;
pub use load::stream::{Canceller, Progress, TensorStream};
pub use memory::{KeepAlive, Target, release_staging};
#[doc(inline)]
pub use options::{
    CacheMode, Device, EngineChoice, Location, OnPeerLoss, OptionKey, OptionKind, OptionValue,
    Options, Order, Protocol, Share, StoreKey, StoreOptions, format_bytes, parse_bytes,
    parse_duration, unknown_variables,
};
pub use plan::{Selection, Sharded, Sharding};
pub use probe::ceiling::Ceiling;
pub use ranks::{Group, LocalGroup, Transport, finish_serving};
pub use report::{
    CacheReport, DepthReport, DeviceReport, EngineReport, GroupReport, MirrorReport, PhaseReport,
    Report, StageTimes, StagingReport, Unverified, VerificationReport, VerifiedBy,
};
pub use sink::DeviceMemory;
#[cfg(feature = "object")]
pub use storage::{CacheDirectory, CacheEntry, CacheRemoval, Pruning, finish_caching};
#[doc(inline)]
pub use sync::cancel::CancelFlag;
#[doc(inline)]
pub use sync::descriptors::reserve_descriptors;
#[doc(inline)]
pub use sync::per_process::process_id;
pub use tensor::Tensor;
pub use verify::Verify;
