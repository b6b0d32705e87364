//! What is expected of the sources of a checkpoint, and who says so.

use std::collections::BTreeMap;

use super::Digest;

/// What is expected of one source, and who says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// For errors and reports: `manifest /m/tload-manifest.json`, `the object's own CRC-64/NVME`, …
    pub by: String,
    /// Its length, bytes.
    pub len: Option<u64>,
    /// The digest of all its bytes, header and all.
    pub whole: Option<Digest>,
    /// By name: the digests of its tensors. Where one authority has several of one tensor, one that combines: it costs less.
    pub tensors: BTreeMap<String, Digest>,
}

/// What is expected of one source, or why nothing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// This.
    Of(Expected),
    /// Nobody says anything.
    Nothing {
        /// As the end of "was not verified: …".
        why: String,
    },
}
