//! Stand-in for NVIDIA's driver library, `libcuda.so`, over host memory: it tests on any machine,
//! and in every order of events, code that otherwise needs a GPU.
//!
//! The cdylib is the driver: it exports the driver's C functions that loading weights needs, does
//! its work on one thread per stream, and detects errors that a GPU does not report. It counts as
//! violations:
//!
//! * a pinned host buffer that is written before its copy to the device has run, through any
//!   mapping of any process;
//! * copies of one batch that depend on each other;
//! * memory of the stream-ordered allocator used on a stream not ordered after its allocation;
//! * device or pinned memory freed before its uses are known to be over, by a wait of the host or
//!   the order of streams.
//!
//! Use of freed memory fails as on a device: the call is refused, or the context is lost. Delays,
//! faults and the machine's size are set by environment variables `TLOAD_CUDA_STUB_…`
//! (`settings.rs`) or at run time with [`Stub::set`].
//!
//! The rlib is for tests: [`library`] and [`folder`] locate the cdylib, [`Stub`] controls it. The
//! rlib has none of the driver's state, which is in the opened library.
//!
//! Path of a call: `export/` takes it from C, `driver.rs` checks it, `stream.rs` queues its work,
//! `copy.rs` runs it.

mod capture;
mod clock;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod export;
mod harness;
mod host;
mod inspect;
mod mapping;
mod memory;
mod pool;
mod settings;
mod status;
mod stream;

pub use harness::{Stub, folder, library};
