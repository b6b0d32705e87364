//! The CUDA driver: contexts, streams, events, pinned memory. All that the crate knows of it, and no more than it needs.
//!
//! Nothing is linked: the driver is looked for when a load wants it, and a machine without one is told so. Everything works in
//! the primary context of a device, the one that PyTorch and others use, and leaves the calling thread's current context as it
//! was. Knows nothing of files and tensors; staging memory (`buffer`) and the CUDA sink are built on it.

mod context;
mod driver;
mod event;
mod memory;
mod pinned;
mod stream;

pub use context::{Bound, Context, DeviceFacts, FreeMemory};
pub use driver::{DriverFacts, driver};
pub use event::Event;
pub use memory::{Allocation, free_leftovers};
pub use pinned::Pinned;
pub use stream::Stream;
