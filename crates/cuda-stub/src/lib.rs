//! A stand-in for NVIDIA's driver library, `libcuda.so`, over host memory: to test on any machine, in every order of events, what
//! otherwise needs a GPU.
//!
//! The cdylib is the driver: it has the driver's C functions as far as loading weights needs them, does its work on a thread per
//! stream, and watches what a GPU lets pass. It reports as violations:
//!
//! * a pinned host buffer that is written before its copy to the device has run;
//! * memory of the stream-ordered allocator that is used on a stream not ordered after its allocation;
//! * device or pinned memory that is freed before its uses are known to be over, by a wait of the host or the order of streams.
//!
//! Use of freed memory fails as on a device: the call is refused, or the context is lost. Delays, faults and the machine's size are
//! set by environment variables `TLOAD_CUDA_STUB_…` (`settings.rs`) or at run time with [`Stub::set`].
//!
//! The rlib is for tests: [`library`] and [`folder`] say where the cdylib is, [`Stub`] talks to it. It has nothing of the driver's
//! state; that is in the library that was opened.
//!
//! A call's way: `export/` takes it from C, `driver.rs` checks it, `stream.rs` queues its work, `copy.rs` runs it.

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
