//! Loads LLM weights as fast as the hardware allows.
//!
//! Plain safetensors checkpoints, one file or shards with an index, are read in place. Tensors
//! arrive in host or GPU memory while later ones are still being read.
//!
//! ```
//! # let model = tload_testing::ExampleModel::new(); let path = model.path();
//! use tload::Checkpoint;
//!
//! // A path, or a URL such as `s3://bucket/model`.
//! let checkpoint = Checkpoint::open(path)?;
//! let mut stream = checkpoint.load().stream()?;
//! for tensor in &mut stream {
//!     let tensor = tensor?;
//!     println!("{}: {} bytes", tensor.name(), tensor.bytes().len());
//! }
//! println!("{}", stream.report());
//! # Ok::<(), tload::Error>(())
//! ```
//!
//! A load is configured in a chain: which tensors, to which device, within which limits.
//!
//! ```no_run
//! use tload::{Checkpoint, Device, LoadOptions, Selection};
//!
//! let checkpoint = Checkpoint::open("s3://bucket/model")?;
//! let mut stream = checkpoint
//!     .load()
//!     .select(Selection::glob("*.weight")?)
//!     .device(Device::Cuda(0))
//!     .options(LoadOptions::new().memory_limit(1 << 30))
//!     .stream()?;
//! # Ok::<(), tload::Error>(())
//! ```
//!
//! # A tensor's life, in seven files
//!
//! `header.rs` of the crate `tload-format` finds it in a file's header. `split.rs` of `tload-plan`
//! decides which memory it shares and `place.rs` which reads fetch it. `load/pipeline/mod.rs` moves
//! each read's window of memory (`lease` of the crate `tload-memory`) to an engine
//! (`uring/mod.rs` of `tload-engine`) and on to `sink/host.rs` or `sink/cuda/mod.rs`, which
//! completes the tensor. `load/stream/mod.rs` hands it over.

#[cfg(feature = "object")]
pub mod cache;
pub mod extend;
#[doc(hidden)]
pub mod internal;
pub mod report;

#[cfg(feature = "object")]
mod custom_store;
mod engine;
mod groups;
mod load;
#[cfg(feature = "object")]
mod manifest_object;
mod options;
mod probe;
mod reads;
mod sink;
mod tensor;

// Paths of modules that are in crates below.
pub(crate) use tload_base::{crc, error, sync};
pub(crate) use tload_memory::{self as memory, cuda};
pub(crate) use tload_plan::{self as plan, schedule};
pub(crate) use tload_storage as storage;
pub(crate) use {tload_checkpoint as checkpoint, tload_format as format};

/// Copies of checkpoints, with everything beside them, into directories and object stores.
#[cfg(feature = "object")]
pub mod copy {
    #[doc(inline)]
    pub use tload_copy::{
        CopyAction, CopyControl, CopyJob, CopyOptions, CopyPlan, CopyProgress, CopyReport,
        ListedFile, PlannedFile, list_files, read_beside,
    };
    #[doc(inline)]
    pub use tload_upload::{AnyCopy, UploadJob};
    // These are for the command and the Python package.
    #[doc(hidden)]
    pub use tload_upload::{SmallObject, publish_fragments};
}

/// Digests of checkpoints: what bytes are compared with, and the comparison of a whole checkpoint.
///
/// # Examples
///
/// Compares what a load reads:
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
/// use tload::{Checkpoint, LoadOptions, Verify};
///
/// let checkpoint = Checkpoint::open(path)?;
/// // The example has no digests.
/// let strict = LoadOptions::new().verify(Verify::Require);
/// assert!(checkpoint.load().options(strict).stream().is_err());
/// let lenient = LoadOptions::new().verify(Verify::Auto);
/// assert_eq!(checkpoint.load().options(lenient).stream()?.count(), 3);
/// # Ok::<(), tload::Error>(())
/// ```
pub mod verify {
    #[cfg(feature = "object")]
    #[doc(inline)]
    pub use crate::manifest_object::ManifestObject;
    #[doc(inline)]
    pub use tload_options::verify::{
        Algorithm, Comparison, Digest, Expectation, Expected, FileError, FileOutcome, FileReport,
        MANIFEST_NAME, Manifest, ManifestFile, ManifestHeader, ManifestTarget, ManifestTensor,
        Mismatch, SignatureText, SignedFiles, Verification, Verify, VerifyControl, VerifyOptions,
        VerifyProgress, VerifyReport, find, read_signature, require_files,
    };
    pub(crate) use tload_options::verify::{HINT, corrupt, find_now, implied_header};
}

/// Checkpoints that are written: all of their files, or none.
pub mod write {
    #[doc(inline)]
    pub use tload_write::{
        Leftover, TensorSpec, WriteOptions, WriteReport, Writer, remove_incomplete,
    };
}

/// Encrypted checkpoints: sealing, unsealing, and keys.
#[cfg(feature = "sealed")]
pub mod sealed {
    #[doc(inline)]
    pub use tload_checkpoint::sealed::stream::Algorithm;
    #[doc(inline)]
    pub use tload_checkpoint::sealed::{
        Recipients, SealOptions, WrittenCheckpoint, rekey, seal, unseal, write_new_key,
    };
    #[doc(inline)]
    pub use tload_sealing::Sealing;
}

/// Processes that load one checkpoint together.
pub mod ranks {
    #[doc(inline)]
    pub use tload_ranks::{
        Group, JoinLimits, LocalGroup, MESSAGE_BYTES_MAX, Transport, finish_serving, give_up,
    };
}

#[doc(inline)]
pub use checkpoint::{Key, OpenOptions, Shard};
#[doc(inline)]
pub use error::{Error, ErrorKind, FailedRequest, Result};
#[doc(inline)]
pub use format::{Dtype, Indices, Precedence, Slice, TensorInfo};
pub use load::device_alloc::DeviceAllocator;
pub use load::device_map::DeviceMap;
pub use load::load_target::{LoadTarget, LoadTargetLayout, LoadTargetRules};
pub use load::orphaned::orphaned_bytes;
pub use load::stream::{Canceller, Progress, TensorStream};
pub use load::{Checkpoint, Loader};
pub use memory::{DeviceBytes, KeepAlive, Target, release_staging};
#[doc(inline)]
pub use options::Order;
#[doc(inline)]
pub use options::{CacheMode, Location, Protocol, StoreOptions};
pub use options::{Device, EngineChoice, LoadOptions, OnPeerLoss, Share};
#[doc(inline)]
pub use plan::{Selection, Sharded, Sharding};
pub use ranks::{Group, LocalGroup};
pub use reads::{ReadRequest, Reader, Reading};
pub use report::Report;
pub use sink::DeviceMemory;
#[doc(inline)]
pub use storage::StoreClient;
pub use tensor::Tensor;
#[doc(inline)]
pub use verify::Verify;
