//! Storage faults and their outcomes: one table for files, objects and GPUs, run row by row and
//! printed to `docs/faults.md`; the contracts over failing storage; and loads with random faults.
//!
//! To add a fault, add a row in `on_files.rs`, `on_objects.rs`, `on_hubs.rs`, `on_devices.rs` or
//! `in_contents.rs`. `TLOAD_BLESS=1` rewrites the page, `TLOAD_SEEDS=1000` draws more random
//! faults.
#![cfg(target_os = "linux")]

mod bench;
mod contracts;
#[path = "../it/files.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod files;
#[path = "../it/growing_timeouts.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod growing_timeouts;
mod in_contents;
mod on_devices;
mod on_files;
mod on_hubs;
mod on_objects;
mod page;
mod random_faults;
#[path = "../it/requirement.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod requirement;
mod row;
#[path = "../it/sealing.rs"]
mod sealing;
#[path = "../cuda/stub.rs"]
mod stub;
mod table;
mod traces;
