//! Tensors: what a checkpoint says of one, and one that has been loaded.
//!
//! Owns the bytes of a loaded tensor together with its neighbours in the same region. Knows nothing of how they came.

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use crate::buffer::RegionBytes;
use crate::format::{Dtype, Entry};

/// Name, dtype, shape, and where the bytes are. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorInfo(Arc<Described>);

#[derive(PartialEq, Eq)]
struct Described {
    entry: Entry,
    shard: usize,
}

impl TensorInfo {
    pub(crate) fn new(entry: Entry, shard: usize) -> Self {
        Self(Arc::new(Described { entry, shard }))
    }

    /// The tensor's name. It comes from a file: escape it (`{:?}`) before printing.
    pub fn name(&self) -> &str {
        &self.0.entry.name
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.0.entry.dtype
    }

    /// Elements along each dimension, row-major; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.0.entry.shape
    }

    /// Number of elements. Never overflows: the header was checked.
    pub fn element_count(&self) -> u64 {
        self.shape().iter().map(|&dim| dim as u64).product()
    }

    /// Length in bytes.
    pub fn byte_len(&self) -> u64 {
        self.0.entry.range.end - self.0.entry.range.start
    }

    /// Index of the shard that holds it, in [`crate::Checkpoint::shards`].
    pub fn shard(&self) -> usize {
        self.0.shard
    }

    /// Its bytes in that shard, from the start of the file.
    pub fn file_range(&self) -> Range<u64> {
        self.0.entry.range.clone()
    }
}

impl fmt::Debug for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TensorInfo({:?}, {}, {:?})",
            self.name(),
            self.dtype(),
            self.shape()
        )
    }
}

/// A loaded tensor. Its bytes stay valid while any clone lives, whatever the stream that made it does.
///
/// Small tensors that are neighbours in the file share memory: keeping one keeps at most about 1 MiB beside it.
#[derive(Clone)]
pub struct Tensor {
    info: TensorInfo,
    /// None when it has no bytes.
    bytes: Option<RegionBytes>,
}

impl Tensor {
    pub(crate) fn new(info: TensorInfo, bytes: Option<RegionBytes>) -> Self {
        Self { info, bytes }
    }

    /// The tensor now belongs to the caller: its bytes leave the budget when all its neighbours' have.
    pub(crate) fn received(&self) {
        if let Some(bytes) = &self.bytes {
            bytes.region().tensor_received();
        }
    }

    /// What the checkpoint says of it.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype()
    }

    /// Elements along each dimension, row-major; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.info.shape()
    }

    /// Length in bytes.
    pub fn byte_len(&self) -> u64 {
        self.info.byte_len()
    }

    /// The bytes: row-major, little endian, sub-byte elements packed.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], RegionBytes::as_slice)
    }

    /// The address of the first byte: a multiple of the dtype's alignment, also when the tensor has no bytes (then nothing
    /// may be read there).
    pub fn as_ptr(&self) -> *const u8 {
        match &self.bytes {
            Some(bytes) => bytes.as_ptr(),
            None => ptr::without_provenance(self.dtype().alignment()),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({:?}, {}, {:?})",
            self.name(),
            self.dtype(),
            self.shape()
        )
    }
}
