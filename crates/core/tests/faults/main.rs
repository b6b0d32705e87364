//! What may go wrong with storage, and what then happens: one table for files, objects and GPUs, run row by row and printed into
//! `docs/faults.md`; the contracts over storage that fails; and loads with faults drawn by chance.
//!
//! A new fault is one more row, in `on_files.rs`, `on_objects.rs`, `on_devices.rs` or `in_contents.rs`. Run with `TLOAD_BLESS=1` to write the
//! page anew, and with `TLOAD_SEEDS=1000` to draw more often.
#![cfg(target_os = "linux")]

mod bench;
mod chance;
mod contracts;
#[path = "../it/files.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod files;
mod in_contents;
mod on_devices;
mod on_files;
mod on_objects;
mod page;
#[path = "../it/requirement.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod requirement;
mod row;
#[path = "../cuda/stub.rs"]
mod stub;
mod table;
mod traces;
