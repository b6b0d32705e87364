//! Memory that several processes map: filled by one of them, read by all.
//!
//! `memory` is what the process that fills it has, `view` what the others see.

mod memory;
mod view;

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests;

use std::io;

pub use memory::SharedMemory;
pub(super) use view::ViewRef;
pub use view::{SharedView, ViewEnd};

use crate::error::{Error, ErrorKind};

fn cannot_map(len: usize, error: impl Into<io::Error>) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!("cannot map {len} bytes of shared memory"),
    )
    .with_hint(
        "raise the process's address-space limit (ulimit -v) or its number of mappings (sysctl vm.max_map_count)",
    )
    .with_source(error.into())
}
