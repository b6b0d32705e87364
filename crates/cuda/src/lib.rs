//! The CUDA driver: contexts, streams, events, pinned memory. All use of the driver is here.
//!
//! Nothing is linked: the driver is loaded when a load needs it, and without one the load fails
//! with an error. Everything works in the primary context of a device, which PyTorch and others use
//! as well, and leaves the calling thread's current context unchanged. Knows nothing of files and
//! tensors; staging memory and the CUDA sink are built on it.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

mod batch;
mod context;
mod driver;
mod event;
mod facts;
mod kind;
mod memory;
mod pinned;
mod rows;
mod stream;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, sync};

pub use batch::Batch;
pub use context::{Bound, Context};
pub use driver::driver;
pub use event::Event;
pub use facts::{DeviceFacts, DriverFacts, FreeMemory};
pub use kind::{MemoryAttributes, MemoryKind};
pub use memory::{Allocation, free_leftovers, wait_for_freed, wait_for_work};
pub use pinned::Pinned;
pub use rows::RowCopy;
pub use stream::Stream;
