//! Errors, locations and retries that all crates of tload share.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! [`error`] is the one error type. [`options`] has locations, the options of stores, and values as
//! text. [`sync`] has tools for threads and time, [`files`] reads small files, and [`mod@crc`] adds
//! up CRCs of pieces.

pub mod crc;
pub mod error;
pub mod files;
pub mod options;
pub mod sync;
