//! The whole CUDA path on a driver over host memory (`crates/cuda-stub`). Tests run one at a time:
//! the driver's faults, delays and counts are per process. Tests that need a process of their own
//! start one: `processes.rs`.

mod allocators;
mod batches;
mod boxes;
mod budgets;
#[path = "../it/child.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod child;
mod counts;
mod devices;
mod early;
mod endings;
mod faults;
mod fixtures;
mod foreign;
#[path = "../it/growing_timeouts.rs"]
mod growing_timeouts;
mod lifetimes;
mod loads;
mod numa;
mod objects;
mod pinning;
mod processes;
mod ranks;
mod regions;
mod reuse;
mod sinks;
mod stub;
mod targets;
mod unified;
mod verified;
