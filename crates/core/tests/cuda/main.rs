//! The whole CUDA path on a driver over host memory: `crates/cuda-stub`. One test at a time: the driver's faults, delays and
//! counts are the process's. What needs a process of its own starts one: `processes.rs`.

mod allocators;
mod budgets;
mod devices;
mod endings;
mod faults;
mod fixtures;
mod foreign;
mod lifetimes;
mod loads;
mod objects;
mod pinning;
mod processes;
mod reuse;
mod sinks;
mod stub;
mod targets;
mod verified;
