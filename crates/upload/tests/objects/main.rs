//! Copies to object stores: real servers, and a proxy that fails on command.

#![expect(clippy::disallowed_methods, reason = "a test reads its own variable")]

mod copies;
#[path = "../../../write/tests/expected/mod.rs"]
#[expect(dead_code, reason = "tests of writes use the rest")]
mod expected;
mod faults;
mod kill;
mod model;
#[path = "../../../write/tests/objects/proxy.rs"]
#[expect(dead_code, reason = "tests of writes use the rest")]
mod proxy;
#[path = "../../../write/tests/objects/sites.rs"]
#[expect(dead_code, reason = "tests of writes use the rest")]
mod sites;
