//! Tests of tload under tools that detect undefined behaviour, in a crate with few dependencies,
//! because these tools rebuild all of them: `tests/simulated.rs` runs under Miri,
//! `tests/engines.rs` under sanitizers and valgrind.
