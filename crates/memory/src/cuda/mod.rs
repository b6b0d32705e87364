//! The CUDA driver: contexts, streams, events, pinned memory. All use of the driver is here.
//!
//! Nothing is linked: the driver is loaded when a load needs it, and without one the load fails
//! with an error. Everything works in the primary context of a device, which PyTorch and others use
//! as well, and leaves the calling thread's current context unchanged. Knows nothing of files and
//! tensors; staging memory (`memory`) and the CUDA sink are built on it.

mod batch;
mod context;
mod driver;
mod event;
mod facts;
mod memory;
mod pinned;
mod stream;

pub use batch::Batch;
pub use context::{Bound, Context};
pub use driver::driver;
pub use event::Event;
pub use facts::{DeviceFacts, DriverFacts, FreeMemory};
pub use memory::{Allocation, free_leftovers, wait_for_freed};
pub use pinned::Pinned;
pub use stream::Stream;
