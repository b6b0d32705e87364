//! Which bytes of a checkpoint are right, and who says so.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! This crate compares a whole checkpoint (`full_scan/`); a load compares what it reads itself.
//! `digest` and `expected` hold the vocabulary, `manifest` is tload's own file of digests,
//! `discover` looks up other authorities, and `claims` collects the claims of all of them. [`find`]
//! returns the expectation for each source.

mod choice;
mod claims;
mod corrupt;
mod digest;
mod discover;
mod expected;
mod full_scan;
mod manifest;
mod write;

// Paths of modules that are in crates below.
pub(crate) use tload_base::{crc, error, options, sync};
pub(crate) use {tload_checkpoint as checkpoint, tload_format as format, tload_storage as storage};

pub use crate::error::Comparison;
pub use choice::Verify;
pub use corrupt::{HINT, corrupt};
pub use digest::{Algorithm, Digest};
pub use discover::find_now;
pub use discover::parse_signature;
pub use discover::{find, require_files};
pub use expected::implied_header;
pub use expected::{Expectation, Expected};
pub use full_scan::{
    FileError, FileOutcome, FileReport, ManifestTarget, Mismatch, SignatureText, SignedFiles,
    Verification, VerifyControl, VerifyOptions, VerifyProgress, VerifyReport, read_signature,
};
pub use manifest::{MANIFEST_NAME, Manifest, ManifestFile, ManifestHeader, ManifestTensor};
