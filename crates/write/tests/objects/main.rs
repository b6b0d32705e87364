//! Checkpoints written to object stores: real servers, and a proxy that fails on command.

#![expect(clippy::disallowed_methods, reason = "a test reads its own variable")]

#[path = "../expected/mod.rs"]
mod expected;
mod faults;
mod kill;
mod proxy;
mod sites;
mod writes;
