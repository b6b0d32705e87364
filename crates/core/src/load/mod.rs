//! Loads of tensors, from the request to the stream.
//!
//! `loader.rs` collects a request, `request.rs` resolves it, and `start.rs` is the outline of a
//! load: the only file that names every stage. Before the first read, `groups/` beside this folder
//! opens the sources, `prepare.rs` plans the reads, and `outputs.rs` provides memory and sinks.
//! Then each lane runs the loop of `pipeline/` on a thread of `lane.rs`, and `stream/` hands
//! finished tensors over.
//!
//! Where one call opens and loads, `early.rs` prepares GPUs meanwhile.
//!
//! Memory that a load may hold is charged to its budget until the caller has received it; that is
//! the only back-pressure. A lane never calls the caller's allocator (`device_alloc.rs` does, on
//! the caller's thread) and writes to the caller's memory only inside its write gate.

pub(crate) mod budget;
pub(crate) mod check;
pub(crate) mod destinations;
pub(crate) mod device_alloc;
pub(crate) mod device_map;
mod distributed;
pub(crate) mod early;
pub(crate) mod ending;
pub(crate) mod lane;
pub(crate) mod load_target;
pub(crate) mod metrics;
pub(crate) mod near_gpu;
mod on_thread;
pub(crate) mod orphaned;
pub(crate) mod outputs;
pub(crate) mod pipeline;
pub(crate) mod prepare;
pub(crate) mod read_one;
mod staging;
pub(crate) mod stream;
mod unified;
mod wanted;
pub(crate) mod watch;

mod boxes;
mod checkpoint;
mod conversions;
mod loader;
mod request;
mod source_table;
mod start;

pub use checkpoint::Checkpoint;
pub use loader::Loader;
