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
//! # A tensor's life, in six files
//!
//! `format/header.rs` finds it in a file's header. `plan/split.rs` decides which memory it shares
//! and `plan/place.rs` which reads fetch it. `pipeline.rs` moves each read's window of memory from
//! `buffer/` to an engine (`engine/uring/mod.rs`) and on to `sink/host.rs` or `sink/cuda/mod.rs`,
//! which completes the tensor. `stream.rs` hands it over.
//!
//! # Stability
//!
//! The items re-exported here are the crate's interface. The modules `buffer`, `cuda`, `engine`,
//! `plan`, `schedule`, `sink`, `source` and `pipeline` are public for extensions of tload and for
//! its tests, and may change in any release.

pub mod buffer;
pub mod copy;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
pub mod cuda;
pub mod engine;
pub mod pipeline;
pub mod plan;
pub mod probe;
pub mod schedule;
pub mod sink;
pub mod source;
#[cfg(feature = "testing")]
pub mod testing;
pub mod verify;

mod budget;
mod checkpoint;
mod crc;
mod delivery;
mod destinations;
mod error;
mod format;
mod lane;
mod load;
mod over;
mod parked;
mod per_process;
mod prepare;
mod provide;
mod read_one;
mod receivers;
mod report;
mod request;
mod retry;
mod room;
mod side_by_side;
mod sources;
mod stall;
mod stream;
mod sync;
mod tally;
mod tensor;
mod within;

pub use buffer::{KeepAlive, Target, release_staging};
pub use checkpoint::{Checkpoint, OpenOptions, Shard};
pub use error::{Comparison, Error, ErrorKind, FailedRequest, Result, printable};
pub use format::{Dtype, HeaderError};
pub use load::{Ceiling, Loader};
pub use over::Over;
pub use parked::parked_bytes;
pub use plan::{Selection, Slice, Steps};
pub use provide::DeviceAllocator;
pub use receivers::{Receiver, ReceiverLayout, ReceiverRules};
pub use report::{
    DepthReport, DeviceReport, EngineReport, Report, StageTimes, StagingReport, Unverified,
    VerificationReport, VerifiedBy,
};
pub use request::{Device, EngineChoice, Options, Order, format_bytes, parse_bytes};
pub use sink::DeviceMemory;
pub use source::{Cache, Location, Protocol, StoreOptions};
pub use stream::{Canceller, Progress, TensorStream};
pub use tensor::{Tensor, TensorInfo};
pub use verify::Verify;
