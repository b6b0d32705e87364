//! Parts of tload under tools that detect undefined behaviour, in a crate with few dependencies,
//! because these tools rebuild all of them.
//!
//! The core's `memory` module is compiled here a second time, from the same files, with loom's
//! locks and atomics in place of the standard library's: `tests/loom.rs` runs threads that hand
//! memory over in every interleaving of their steps. So is the state of a node's leader, in a model
//! of its ranks (`node.rs`). The other tests use the core itself:
//! `tests/simulated.rs` runs under Miri, `tests/engines.rs` under sanitizers and valgrind.

// The unit tests in these files run in the core.
#![cfg(not(test))]

/// Locks and atomics of loom; the core has the standard library's here.
#[path = "../../base/src/sync"]
pub mod sync {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::AtomicU32;

    /// Locks beneath those of `lock`.
    pub mod primitives {
        pub use loom::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
    }

    #[expect(dead_code, reason = "the module is compiled as a whole")]
    pub mod address_space;
    pub mod event_count;
    pub mod lock;
    pub mod per_process;
}

#[expect(
    dead_code,
    unreachable_pub,
    reason = "the module is compiled as a whole"
)]
#[path = "../../base/src/crc.rs"]
mod crc;
#[path = "../../core/src/no_cuda.rs"]
pub mod cuda;
#[path = "../../base/src/error/mod.rs"]
pub mod error;
#[expect(
    dead_code,
    unreachable_pub,
    reason = "the module is compiled as a whole"
)]
#[path = "../../core/src/memory/mod.rs"]
pub mod memory;

/// State of a node's leader, and a model of its ranks.
#[expect(dead_code, reason = "the modules are compiled as a whole")]
#[path = "../../core/src/ranks"]
pub mod ranks {
    mod holdings;
    #[path = "../../../soundness/src/node.rs"]
    pub mod node;
    mod wire;
}

/// Records that the caller has received one of the region's tensors, as the stream does.
pub fn received(region: &memory::Region) {
    region.tensor_received();
}
