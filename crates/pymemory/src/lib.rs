//! Memory that Python libraries and `tload` hand to each other, for the extension module
//! `tload._tload` in `crates/py`.
//!
//! * [`load_targets`]: torch tensors and numpy arrays that a load writes into.
//! * [`bytes`]: buffers that a write reads.
//! * [`dlpack`]: loaded tensors that other libraries take over without a copy.
//! * [`error`]: errors of the core as Python exceptions, which both raise.
//! * [`location`]: locations as Python callers write them.
//!
//! The classes that Python sees are in `crates/py`.

pub mod bytes;
pub mod dlpack;
pub mod error;
pub mod load_targets;
pub mod location;
