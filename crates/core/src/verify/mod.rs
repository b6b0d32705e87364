//! Digests of checkpoints: what bytes are compared with, who says so, and the comparison of a whole
//! checkpoint (`full_scan/`). Loads compare what they read in `load/check/`.
//!
//! `digest` and `expected` hold the vocabulary, `manifest` is tload's own file of digests,
//! `discover` looks up other authorities, and `claims` collects the claims of all of them. [`find`]
//! returns the expectation for each source.

mod choice;
mod claims;
pub(crate) mod corrupt;
mod digest;
mod discover;
mod expected;
mod full_scan;
mod manifest;
mod write;

pub use crate::error::Comparison;
pub use choice::Verify;
pub use digest::{Algorithm, Digest};
pub(crate) use discover::find_now;
#[cfg(feature = "testing")]
pub(crate) use discover::parse_signature;
pub use discover::{find, require_files};
pub(crate) use expected::implied_header;
pub use expected::{Expectation, Expected};
pub use full_scan::{
    FileError, FileOutcome, FileReport, ManifestTarget, Mismatch, SignatureText, SignedFiles,
    Verification, VerifyControl, VerifyOptions, VerifyProgress, VerifyReport, read_signature,
};
pub use manifest::{MANIFEST_NAME, Manifest, ManifestFile, ManifestHeader, ManifestTensor};
