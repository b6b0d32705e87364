//! tload under tools that look for undefined behaviour, as a crate of its own: little has to be built for them.
//!
//! The core's memory is compiled here once more, from the same files, with loom's locks and counters in place of the standard
//! library's: `tests/loom.rs` runs threads that hand it over in every order of their steps. The other tests use the core as it is:
//! `tests/simulated.rs` runs under Miri, `tests/engines.rs` under sanitizers and valgrind.

// The unit tests in these files are the core's.
#![cfg(not(test))]

/// In the core: the standard library's.
mod sync {
    pub(crate) use loom::sync::atomic::AtomicU32;
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
}

#[expect(dead_code, reason = "what memory needs of it, and the rest")]
#[path = "../../core/src/buffer/mod.rs"]
pub mod buffer;
#[path = "../../core/src/no_cuda.rs"]
pub mod cuda;
#[expect(dead_code, reason = "as above")]
#[path = "../../core/src/error.rs"]
pub mod error;
#[path = "../../core/src/per_process.rs"]
mod per_process;

/// The end of a tensor's way: what the stream does for whoever receives one.
pub fn received(region: &buffer::Region) {
    region.tensor_received();
}
