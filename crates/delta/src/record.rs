//! The record of a patch, in its `__metadata__`.

use serde::{Deserialize, Serialize};

/// Value of `format` in the metadata of a patch.
pub(crate) const FORMAT: &str = "tload.delta";

/// Value of `version`.
pub(crate) const VERSION: &str = "1";

/// Begins the names of tensors of a patch that are no tensors of the checkpoint.
pub(crate) const OWN: &str = "tload.delta/";

/// Everything that the tensors of a patch do not say.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Tensors of the new checkpoint, by name.
    pub(crate) tensors: Vec<TensorRecord>,
    /// Tensors of the base that it lacks, by name.
    pub(crate) removed: Vec<String>,
    /// Its files, in order.
    pub(crate) files: Vec<FileRecord>,
    /// Name of its index file, if it has one.
    pub(crate) index: Option<String>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorRecord {
    pub(crate) name: String,
    /// Name of its dtype after the patch.
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) change: Change,
    /// SHA-256 of the bytes after the patch.
    pub(crate) sha256: String,
    /// SHA-256 of the base's bytes, if they are changed, and its dtype and shape are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base_sha256: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// The base has the same bytes, dtype and shape.
    None,
    /// Some elements differ.
    Sparse,
    /// All of it is in the patch.
    Whole,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// Returns the name of the tensor with the header of a file.
pub(crate) fn header_name(file: usize) -> String {
    format!("{OWN}header.{file}")
}

/// Returns the name of the tensor with the index file.
pub(crate) fn index_name() -> String {
    format!("{OWN}index")
}

pub(crate) fn indices_name(tensor: &str) -> String {
    format!("{tensor}.indices")
}

pub(crate) fn values_name(tensor: &str) -> String {
    format!("{tensor}.values")
}
