//! Sinks take filled leases and complete tensors: the interface between the pipeline and tensor
//! memory.
//!
//! A sink knows tensors and memory, not files. It owns each lease until the bytes have been copied
//! out. `submit` takes an extent with its filled lease, `reap` returns the tensors that are
//! complete. A sink takes nothing but a [`Filled`], so memory that was not read cannot become a
//! tensor.

mod bands;
mod cuda;
mod discard;
mod host;
mod publish;
mod route;
mod target;

pub use bands::PublishedBands;
pub use cuda::{
    CudaLoad, CudaPlaces, CudaSink, CudaUsage, DeviceMemory, DeviceRegions, DeviceStart, FreedWait,
    MemoryRequest, TargetPlaces, joined_bytes_max,
};
pub use discard::DiscardSink;
pub use host::HostSink;
pub use publish::{PublishSink, Publisher};
pub use route::RouteSink;
pub use target::TargetSink;

use crate::engine::Wait;
use crate::error::Result;
use crate::memory::Filled;
use crate::plan::Extent;

/// Takes filled leases and turns them into tensors in some memory.
pub trait Sink {
    /// Output of the sink.
    type Tensor;

    /// Number of leases that the sink still holds.
    fn in_flight(&self) -> usize;

    /// Takes an extent's bytes. Never blocks; the sink owns the lease until its bytes have been
    /// copied out.
    ///
    /// # Errors
    ///
    /// The extent's bytes cannot be taken; the load is over.
    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()>;

    /// Releases leases whose bytes have been copied out, and moves finished tensors into `ready`.
    ///
    /// # Errors
    ///
    /// A copy failed; the load is over.
    fn reap(&mut self, wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()>;
}
