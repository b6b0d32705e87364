//! Parts of tload under tools that detect undefined behaviour, in a crate with few dependencies,
//! because these tools rebuild all of them.
//!
//! The state of a node's leader is compiled here a second time, in a model of its ranks (`node.rs`):
//! `tests/loom.rs` tries every interleaving of their messages. The other tests use the core itself:
//! `tests/simulated.rs` runs under Miri, `tests/engines.rs` under sanitizers and valgrind.

// The unit tests in these files run in the core.
#![cfg(not(test))]

/// State of a node's leader, and a model of its ranks.
#[expect(dead_code, reason = "the modules are compiled as a whole")]
#[path = "../../core/src/ranks"]
pub mod ranks {
    mod holdings;
    #[path = "../../../soundness/src/node.rs"]
    pub mod node;
    mod wire;
}
