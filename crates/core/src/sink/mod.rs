//! Sinks take filled leases and complete tensors: the seam between the pipeline and where tensors live.
//!
//! A sink knows tensors and memory, not files. It owns what it was given until the bytes have left it.

mod cuda;
mod discard;
mod host;
mod route;
mod target;

pub use cuda::{
    CudaLoad, CudaPlaces, CudaSink, CudaUsage, DeviceMemory, DeviceRegions, MemoryRequest,
    TargetPlaces,
};
pub use discard::DiscardSink;
pub use host::HostSink;
pub use route::RouteSink;
pub use target::TargetSink;

use crate::buffer::Filled;
use crate::engine::Wait;
use crate::error::Result;
use crate::plan::Extent;

/// Takes filled leases and turns them into tensors somewhere.
pub trait Sink {
    /// What it completes.
    type Tensor;

    /// Leases that it still holds.
    fn in_flight(&self) -> usize;

    /// Takes an extent's bytes. Never blocks; the sink owns the lease until its bytes have left it.
    ///
    /// # Errors
    ///
    /// The extent's bytes cannot be taken; the load is over.
    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()>;

    /// Lets go of leases whose bytes have left, and moves finished tensors into `ready`.
    ///
    /// # Errors
    ///
    /// A copy failed; the load is over.
    fn reap(&mut self, wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()>;
}
