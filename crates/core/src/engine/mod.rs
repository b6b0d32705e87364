//! Engines: the choice of one, and those above the crate `tload-engine`, which has the interface
//! and the engines for files.
//!
//! * `uring`: a ring per lane. Used by `auto`, unless `pread` is better.
//! * `tokio-uring`: the crate's runtime on the lane's thread, one task per job. Used on request.
//! * `pread`: up to 32 threads, 64 on a network, for all lanes that begin together. Used on tmpfs,
//!   from the page cache to GPUs, and without rings.
//! * `map`: the threads of `pread` populate the pages of views; nothing is copied. Used with
//!   `cache=map`.
//! * `shared`: waits for the leader of the node, shows its memory or copies from it, by threads of
//!   its own: each core is divided by the ranks that may use it. GPUs may read it without a copy.
//!   Used for what several ranks want.
//! * `remote`: receives from other nodes what several of them want.
//! * `object`: ranged requests on shared network threads, streamed into leases. Used for object
//!   stores, on one lane per store beside the lanes of files.
//!
//! [`TransformEngine`] stands in front of another engine, for sources that are stored in another
//! form (sealed checkpoints).

mod choose;
#[cfg(feature = "object")]
mod object;
#[cfg(not(feature = "object"))]
#[path = "no_objects.rs"]
mod object;
mod object_setup;
mod remote;
mod reread;
mod shared;
#[cfg(not(all(target_os = "linux", feature = "tokio-uring")))]
#[path = "no_tokio_uring.rs"]
mod tokio_uring;

pub use choose::{EngineKind, OpenedEngine, are_copied, available, choose, open, open_shared};
pub(crate) use choose::{copiers, copiers_for, copiers_of_rank, open_remote};
pub(crate) use object::open_cached;
pub use object::open_objects;
pub use object_setup::ObjectSetup;
pub(crate) use remote::{RemoteSetup, RemoteSource};
pub use reread::{RereadSetup, StorageEngines};
pub use shared::{RegisteredSource, SharedSetup};
#[cfg(all(target_os = "linux", feature = "tokio-uring"))]
use tload_tokio_uring as tokio_uring;

pub use tload_engine::uring::probe_ring;
pub use tload_engine::{Done, Engine, EngineSetup, Job, Refusal, RingProbe, Transfer, Wait};
pub(crate) use tload_engine::{cancelled, given_up_bytes};
pub use tload_transform::{TransformEngine, TransformSetup, TransformSource};
