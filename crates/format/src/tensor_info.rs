//! A tensor as a checkpoint describes it, and the part of it that is to be loaded. Pure.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{Dtype, Entry, Slice, Strides};
use crate::error::Result;

/// Name, dtype, shape and position of a tensor. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorInfo(Arc<Described>);

#[derive(PartialEq, Eq)]
struct Described {
    entry: Entry,
    shard: usize,
    /// For a slice with gaps, the wanted bytes of the range.
    strides: Option<Strides>,
}

impl TensorInfo {
    /// Creates the description of a tensor of the shard with this index.
    #[doc(hidden)]
    pub fn new(entry: Entry, shard: usize) -> Self {
        Self(Arc::new(Described {
            entry,
            shard,
            strides: None,
        }))
    }

    /// Returns a slice of the tensor, under its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](crate::error::ErrorKind::InvalidRequest) for indices that the
    /// tensor does not have.
    pub fn sliced(&self, slice: &Slice) -> Result<Self> {
        let Described { entry, shard, .. } = &*self.0;
        let cut = slice
            .cut(&entry.shape, entry.dtype.bits())
            .map_err(|error| error.with_tensor(self.name()))?;
        let start = entry.range.start;
        Ok(Self(Arc::new(Described {
            entry: Entry {
                shape: cut.shape,
                range: start + cut.range.start..start + cut.range.end,
                ..entry.clone()
            },
            shard: *shard,
            strides: cut.strides,
        })))
    }

    /// Returns the bytes `range` of its file, which the tensor has, under its name. The shape is
    /// that of the tensor.
    #[doc(hidden)]
    #[must_use]
    pub fn ranged(&self, range: Range<u64>) -> Self {
        let Described { entry, shard, .. } = &*self.0;
        if range == entry.range {
            return self.clone();
        }
        Self(Arc::new(Described {
            entry: Entry {
                range,
                ..entry.clone()
            },
            shard: *shard,
            strides: None,
        }))
    }

    /// Returns the tensor's name. It comes from a file: escape it (`{:?}`) before printing.
    #[inline]
    pub fn name(&self) -> &str {
        &self.0.entry.name
    }

    /// Returns the element type.
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.0.entry.dtype
    }

    /// Returns the number of elements along each dimension, row-major; empty for a scalar.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.0.entry.shape
    }

    /// Returns the number of elements. Never overflows: the header was checked.
    pub fn element_count(&self) -> u64 {
        self.shape().iter().map(|&dim| dim as u64).product()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn byte_len(&self) -> u64 {
        let all = self.0.entry.range.end - self.0.entry.range.start;
        self.strides().map_or(all, Strides::bytes)
    }

    /// Returns the index of its shard among those of the checkpoint.
    #[inline]
    pub fn shard(&self) -> usize {
        self.0.shard
    }

    /// Returns the range of its bytes in that shard, from the start of the file; for a slice, from
    /// its first byte to its last.
    #[inline]
    pub fn file_range(&self) -> Range<u64> {
        self.0.entry.range.clone()
    }

    /// Returns the strides of a slice with gaps: which bytes of its range it has.
    #[inline]
    #[doc(hidden)]
    pub fn strides(&self) -> Option<&Strides> {
        self.0.strides.as_ref()
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
