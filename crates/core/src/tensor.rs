//! Tensors: what a checkpoint says of one, and one that has been loaded.
//!
//! Owns the bytes of a loaded tensor together with its neighbours in the same region. Knows nothing of how they came.

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use crate::buffer::{DeviceBytes, RegionBytes, Target};
use crate::error::Result;
use crate::format::{Dtype, Entry};
use crate::plan::{Slice, Strides};

/// Name, dtype, shape, and where the bytes are. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorInfo(Arc<Described>);

#[derive(PartialEq, Eq)]
struct Described {
    entry: Entry,
    shard: usize,
    /// Of a slice: which bytes of the range are its.
    strides: Option<Strides>,
}

impl TensorInfo {
    pub(crate) fn new(entry: Entry, shard: usize) -> Self {
        Self(Arc::new(Described {
            entry,
            shard,
            strides: None,
        }))
    }

    /// A slice of the tensor, under its name.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidRequest`] for what the tensor does not have.
    pub(crate) fn sliced(&self, slice: &Slice) -> Result<Self> {
        let Described { entry, shard, .. } = &*self.0;
        let cut = slice.cut(&entry.shape, entry.dtype.bits());
        let cut = cut.map_err(|error| error.with_tensor(self.name()))?;
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
        let all = self.0.entry.range.end - self.0.entry.range.start;
        self.strides().map_or(all, Strides::bytes)
    }

    /// Index of the shard that holds it, in [`crate::Checkpoint::shards`].
    pub fn shard(&self) -> usize {
        self.0.shard
    }

    /// Its bytes in that shard, from the start of the file; of a slice, from its first byte to its last.
    pub fn file_range(&self) -> Range<u64> {
        self.0.entry.range.clone()
    }

    /// Of a slice with gaps: which bytes of its range are its.
    pub(crate) fn strides(&self) -> Option<&Strides> {
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

/// A loaded tensor. Its bytes stay valid while any clone lives, whatever the stream that made it does; those in memory of the
/// caller's, as long as that does. All of them are there, also on a GPU: work of any stream may use them.
///
/// Small tensors that are neighbours in the file share memory: keeping one keeps at most about 1 MiB beside it.
#[derive(Clone)]
pub struct Tensor {
    info: TensorInfo,
    bytes: TensorBytes,
}

/// Where the bytes of a tensor are.
#[derive(Clone, Debug)]
pub(crate) enum TensorBytes {
    /// There are none.
    Empty,
    /// In host memory of the load's.
    Host(RegionBytes),
    /// In GPU memory of the load's.
    Device(DeviceBytes),
    /// In memory of the caller's.
    Target(Target),
}

impl Tensor {
    pub(crate) fn new(info: TensorInfo, bytes: TensorBytes) -> Self {
        Self { info, bytes }
    }

    /// The tensor now belongs to the caller: its bytes leave the budget when all its neighbours' have.
    pub(crate) fn received(&self) {
        match &self.bytes {
            TensorBytes::Host(bytes) => bytes.region().tensor_received(),
            TensorBytes::Device(bytes) => bytes.region().tensor_received(),
            TensorBytes::Empty | TensorBytes::Target(_) => {}
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
    ///
    /// # Panics
    ///
    /// For a tensor in GPU memory ([`Self::device_bytes`]) and for one in memory of the caller's, which only the caller may look
    /// into.
    #[expect(clippy::panic, reason = "documented; there is no slice to return")]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            TensorBytes::Empty => &[],
            TensorBytes::Host(bytes) => bytes.as_slice(),
            TensorBytes::Device(_) => panic!("the bytes of {self:?} are in GPU memory"),
            TensorBytes::Target(_) => panic!("the bytes of {self:?} are in memory of the caller's"),
        }
    }

    /// The bytes in GPU memory: device, address, and what keeps them. None for a tensor in host memory, for one in memory of the
    /// caller's, and for one without bytes.
    pub fn device_bytes(&self) -> Option<&DeviceBytes> {
        match &self.bytes {
            TensorBytes::Device(bytes) => Some(bytes),
            TensorBytes::Empty | TensorBytes::Host(_) | TensorBytes::Target(_) => None,
        }
    }

    /// The memory of the caller's that the tensor was loaded into, if it was.
    pub fn target(&self) -> Option<&Target> {
        match &self.bytes {
            TensorBytes::Target(target) => Some(target),
            TensorBytes::Empty | TensorBytes::Host(_) | TensorBytes::Device(_) => None,
        }
    }

    /// The GPU that it is on; none for host memory. A tensor without bytes is nowhere.
    pub fn ordinal(&self) -> Option<usize> {
        match &self.bytes {
            TensorBytes::Device(bytes) => Some(bytes.ordinal()),
            TensorBytes::Target(target) => target.ordinal(),
            TensorBytes::Empty | TensorBytes::Host(_) => None,
        }
    }

    /// Whether its owner may write to it: not to a view of a file, unless it was asked for as writable.
    pub fn is_writable(&self) -> bool {
        match &self.bytes {
            TensorBytes::Host(bytes) => bytes.region().is_writable(),
            TensorBytes::Empty | TensorBytes::Device(_) | TensorBytes::Target(_) => true,
        }
    }

    /// The address of the first byte, in host memory or on its GPU: a multiple of the dtype's alignment, also when the tensor has
    /// no bytes (then nothing may be read there). That of memory of the caller's is what the caller said.
    pub fn as_ptr(&self) -> *const u8 {
        let foreign = |address: u64| {
            let address = usize::try_from(address).expect("addresses have 64 bits");
            ptr::with_exposed_provenance(address)
        };
        match &self.bytes {
            TensorBytes::Empty => ptr::without_provenance(self.dtype().alignment()),
            TensorBytes::Host(bytes) => bytes.as_ptr(),
            TensorBytes::Device(bytes) => foreign(bytes.address()),
            TensorBytes::Target(target) => foreign(target.address()),
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
