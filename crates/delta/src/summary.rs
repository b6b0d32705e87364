//! Report of what a patch changes.

use std::fmt;

use serde::Serialize;
use tload::internal::format_bytes;
use tload_base::error::counted;

/// Report of what a patch changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Tensors of the new checkpoint, or of those in memory that the patch is about.
    pub tensors: usize,
    /// Tensors of which single elements differ.
    pub sparse: usize,
    /// Tensors that the patch has as a whole.
    pub whole: usize,
    /// Tensors of the base that the new checkpoint lacks.
    pub removed: usize,
    /// Elements that differ in the sparse tensors.
    pub elements: u64,
    /// Bytes of all these tensors.
    pub total_bytes: u64,
    /// Bytes of the changes in the patch.
    pub patch_bytes: u64,
}

impl Summary {
    /// Adds a tensor of so many bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.tensors += 1;
        self.total_bytes += bytes;
    }

    /// Adds the changes of a tensor of which `elements` differ.
    pub(crate) fn add_sparse(&mut self, elements: u64, patch_bytes: u64) {
        self.sparse += 1;
        self.elements += elements;
        self.patch_bytes += patch_bytes;
    }

    /// Adds a tensor that the patch has as a whole.
    pub(crate) fn add_whole(&mut self, patch_bytes: u64) {
        self.whole += 1;
        self.patch_bytes += patch_bytes;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = counted(self.tensors as u64, "tensor");
        write!(f, "{tensors}, {}: ", format_bytes(self.total_bytes))?;
        if self.sparse + self.whole + self.removed == 0 {
            return f.write_str("no differences");
        }
        let elements = counted(self.elements, "element");
        write!(f, "{elements} changed in {} of them", self.sparse)?;
        write!(f, ", {} replaced, {} removed", self.whole, self.removed)?;
        write!(f, "; {} of changes", format_bytes(self.patch_bytes))
    }
}
