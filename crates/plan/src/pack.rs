//! Positions of tensors that are packed into device memory: aligned, else as in the file.

use super::Wanted;

/// Size of the regions that packed tensors share, and their alignment there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Largest region that several tensors share, bytes. A tensor of this size or more has a region
    /// to itself.
    pub region_bytes: u64,
    /// Alignment of tensors, bytes; a power of two. A shorter tensor needs no more than its own
    /// length.
    pub alignment: usize,
}

impl Packing {
    /// Default size of regions: large enough that allocations take little of a load, small enough
    /// that what a kept tensor keeps alive is little of a device's memory. (H100: memory in pieces
    /// of 2 MiB takes 24 ms per GiB to allocate, of 64 MiB 3; 2026-11,
    /// `benches/results/16core-h100-2026-11-28`.)
    pub const REGION_BYTES: u64 = 64 << 20;

    /// Default alignment: vector loads of 16 bytes, matrix products of libraries and most bulk
    /// copies of the device require it of the start of a tensor. (Tensor maps of mixed 4-bit and
    /// 6-bit formats, and interleaved ones, require 32: `cuTensorMapEncodeTiled`.) The lengths of
    /// small tensors are often odd multiples of it, and then one copy moves several.
    pub const ALIGNMENT: usize = 16;
}

impl Default for Packing {
    fn default() -> Self {
        Self {
            region_bytes: Self::REGION_BYTES,
            alignment: Self::ALIGNMENT,
        }
    }
}

/// Tensors packed into one region. Neighbours keep their distance as long as that aligns them, so
/// that one copy moves several.
///
/// Worked example (alignment 16): 4 bytes, then 1000, then 256, without gaps: they begin at 0, 16
/// (4 is not a multiple of 16) and 1024 (1016 is none).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    alignment: usize,
    /// Offset of each tensor.
    offsets: Vec<usize>,
    /// Offset in the source of the last tensor.
    last_start: u64,
    bytes: usize,
}

impl Packed {
    pub(super) fn new(packing: Packing) -> Self {
        Self {
            alignment: packing.alignment,
            offsets: Vec::new(),
            last_start: 0,
            bytes: 0,
        }
    }

    /// Returns the size of the region with `tensor` behind the others, bytes.
    pub(super) fn end_with(&self, tensor: &Wanted) -> u64 {
        self.offset_of(tensor) as u64 + tensor.bytes()
    }

    /// Adds a tensor behind the others.
    pub(super) fn add(&mut self, tensor: &Wanted) {
        let offset = self.offset_of(tensor);
        self.offsets.push(offset);
        self.last_start = tensor.range.start;
        self.bytes = offset + to_len(tensor.bytes());
    }

    /// Offset of each tensor.
    pub(super) fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Size of the region, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn offset_of(&self, tensor: &Wanted) -> usize {
        let natural = self.offsets.last().map_or(0, |offset| {
            offset + to_len(tensor.range.start - self.last_start)
        });
        let len = to_len(tensor.bytes());
        let own = len.next_power_of_two().min(self.alignment);
        natural.next_multiple_of(own.max(tensor.alignment))
    }
}

/// Converts a length inside a region: a region that does not fit into the address space is rejected
/// before it is allocated.
pub(super) fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64-bit addresses")
}
