//! Result of a write.

use serde::Serialize;

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WriteReport {
    /// The destination, without secrets.
    pub location: String,
    /// Identifier of the write, as in the names of its shards.
    pub id: String,
    /// Names of the files with tensors, in the order of the index.
    pub files: Vec<String>,
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of the tensors.
    pub tensor_bytes: u64,
    /// Bytes of the files with tensors.
    pub file_bytes: u64,
    /// Checkpoint that this one replaced and that is kept until `remove_incomplete`; `None` if
    /// there was none.
    pub replaced: Option<String>,
    /// True if files were written with direct I/O.
    pub direct: bool,
}
