//! Boxes: parts of a tensor that go to elements of the caller's memory with gaps between them.
//!
//! ```text
//!  tensor     a0 a1 a2 a3 b0 b1 b2 b3        run: 2 bytes each
//!  box        └─┘   ┌─────┘                  dims: 2 × (4 bytes in the tensor, 6 in memory)
//!  memory     a0 a1 .. .. .. .. b0 b1
//! ```
//!
//! Knows nothing of reads: any range of the tensor's bytes may come, in any order. `cast.rs`
//! converts elements on the way, `rows.rs` divides a box into copies of a GPU.

#![expect(
    unsafe_code,
    reason = "writes into memory that the caller has vouched for"
)]

mod cast;
mod rows;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

pub use cast::Cast;
use cast::Casting;
pub use rows::Rows;

/// Memory of the caller that boxes are in, of the host or of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxMemory {
    /// Address of the first byte; not 0.
    pub address: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Part of a tensor, and the elements of the caller's memory that its bytes go to.
#[derive(Clone, Debug)]
pub struct TargetBox {
    /// Address of the first element.
    address: usize,
    /// Offset of the first byte in the tensor.
    offset: usize,
    /// Bytes that are contiguous on both sides, in the tensor.
    run: usize,
    /// Repetitions of the run, from the outermost in. An inner one never reaches, in the tensor,
    /// into the next step of the one around it.
    dims: Box<[BoxDim]>,
    /// Conversion of the elements; clones share those that have not arrived as a whole.
    cast: Option<Arc<Casting>>,
}

/// Repetition along one dimension of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxDim {
    /// Number of steps.
    pub count: usize,
    /// Bytes from one step to the next, in the tensor.
    pub source_stride: usize,
    /// Bytes from one step to the next, in memory.
    pub stride: usize,
}

/// Bytes of a tensor on their way into a box.
struct Piece<'a> {
    bytes: &'a [u8],
    /// Their offset in the tensor.
    first: usize,
    start: NonNull<u8>,
    run: usize,
    cast: Option<&'a Casting>,
}

impl TargetBox {
    /// Creates a box in `memory`, of elements of `element` bytes that begin at `offset` in the
    /// tensor and at `place` in memory. Dimensions come in any order.
    ///
    /// Returns `None` for a box that leaves the memory or has no elements, or whose dimensions
    /// reach into each other in the tensor, or into the run in memory.
    pub fn new(
        memory: BoxMemory,
        offset: usize,
        place: usize,
        element: usize,
        dims: impl IntoIterator<Item = BoxDim>,
    ) -> Option<Self> {
        Self::made(memory, (offset, element), (place, element), dims)
    }

    /// Creates a box as [`Self::new`] does, whose elements change their dtype.
    pub fn cast(
        memory: BoxMemory,
        offset: usize,
        place: usize,
        cast: Cast,
        dims: impl IntoIterator<Item = BoxDim>,
    ) -> Option<Self> {
        let sizes = cast.sizes()?;
        let mut made = Self::made(memory, (offset, sizes.0), (place, sizes.1), dims)?;
        made.cast = Some(Arc::new(Casting::new(cast)));
        Some(made)
    }

    /// Creates a box from the position and the size of its first element, on both sides.
    fn made(
        memory: BoxMemory,
        (offset, source_element): (usize, usize),
        (place, element): (usize, usize),
        dims: impl IntoIterator<Item = BoxDim>,
    ) -> Option<Self> {
        let mut dims: Vec<BoxDim> = dims.into_iter().filter(|dim| dim.count != 1).collect();
        dims.sort_by_key(|dim| (dim.source_stride, dim.stride));
        let (mut source_end, mut end) = (source_element, element);
        for dim in &dims {
            let steps = dim.count.checked_sub(1)?;
            if dim.source_stride < source_end {
                return None;
            }
            source_end = steps
                .checked_mul(dim.source_stride)?
                .checked_add(source_end)?;
            end = steps.checked_mul(dim.stride)?.checked_add(end)?;
        }
        source_end.checked_add(offset)?;
        if element == 0 || memory.address == 0 || end.checked_add(place)? > memory.len {
            return None;
        }
        let address = memory.address.checked_add(place)?;
        address.checked_add(end)?;
        let (mut source_run, mut run) = (source_element, element);
        let joined = dims.iter().take_while(|dim| {
            let is_joined = dim.source_stride == source_run && dim.stride == run;
            if is_joined {
                source_run *= dim.count;
                run *= dim.count;
            }
            is_joined
        });
        let joined = joined.count();
        dims.drain(..joined);
        dims.reverse();
        dims.iter().all(|dim| dim.stride >= run).then_some(())?;
        Some(Self {
            address,
            offset,
            run: source_run,
            dims: dims.into(),
            cast: None,
        })
    }

    /// Returns the address of the first element.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address as u64
    }

    /// Returns the offset behind the last byte, in the tensor.
    #[must_use]
    pub fn source_end(&self) -> usize {
        self.offset + span(&self.dims, self.run)
    }

    /// Returns whether elements change their dtype.
    #[must_use]
    pub fn is_cast(&self) -> bool {
        self.cast.is_some()
    }

    /// Returns whether none of `len` bytes at `first` of the tensor belong to the box.
    fn is_apart(&self, first: usize, len: usize) -> bool {
        len == 0 || first >= self.source_end() || first + len <= self.offset
    }

    /// Writes those of the `bytes` at `first` of the tensor that belong to the box.
    ///
    /// # Safety
    ///
    /// The memory of the box must be of the host and valid for writes, and nothing else may use the
    /// elements that these bytes go to. No byte of the tensor may come twice.
    pub unsafe fn write(&self, first: usize, bytes: &[u8]) {
        if self.is_apart(first, bytes.len()) {
            return;
        }
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(self.address));
        let bytes = Piece {
            bytes,
            first,
            start: start.expect("no memory begins at 0"),
            run: self.run,
            cast: self.cast.as_deref(),
        };
        // SAFETY: `made` has checked that all elements are inside the memory, for which the caller
        // vouches.
        unsafe { bytes.copy(&self.dims, self.offset, 0) };
    }
}

impl Piece<'_> {
    /// Copies what there is of the elements that begin at `offset` in the tensor, to `place`.
    ///
    /// # Safety
    ///
    /// As for [`TargetBox::write`]; the elements must be those of the box.
    unsafe fn copy(&self, dims: &[BoxDim], offset: usize, place: usize) {
        let end = self.first + self.bytes.len();
        let Some((dim, inner)) = dims.split_first() else {
            let (from, to) = (offset.max(self.first), (offset + self.run).min(end));
            if from < to {
                let bytes = &self.bytes[from - self.first..to - self.first];
                // SAFETY: inside the box, as the caller says.
                let start = unsafe { self.start.add(place) };
                if let Some(cast) = self.cast {
                    // SAFETY: as above, for all elements of the run.
                    unsafe { cast.write(offset, from, bytes, start) };
                    return;
                }
                // SAFETY: as above.
                let target = unsafe { start.add(from - offset) };
                // SAFETY: as above; the bytes come from staging memory, which is elsewhere.
                unsafe { copy_bytes(bytes, target) };
            }
            return;
        };
        for index in steps_in(dim, offset, span(inner, self.run), self.first..end) {
            let (offset, place) = (
                offset + index * dim.source_stride,
                place + index * dim.stride,
            );
            // SAFETY: the caller vouches for all steps.
            unsafe { self.copy(inner, offset, place) };
        }
    }
}

/// Returns the steps of a dimension that have bytes in a window of the tensor: the first begins at
/// `offset`, and each spans as many bytes. 10 bytes from 4 on, steps of 4 and spans of 2 are 1..4
/// (4..6, 8..10, 12..14).
fn steps_in(dim: &BoxDim, offset: usize, span: usize, window: Range<usize>) -> Range<usize> {
    let step = dim.source_stride;
    let before = window.start.checked_sub(offset + span);
    let first = before.map_or(0, |before| before / step + 1);
    let end = window.end.saturating_sub(offset).div_ceil(step);
    first..end.min(dim.count)
}

/// Copies bytes to `target`; single elements without a call.
///
/// # Safety
///
/// The target must be valid for writes of as many bytes, which nothing else uses.
unsafe fn copy_bytes(bytes: &[u8], target: NonNull<u8>) {
    let source = NonNull::from(bytes).cast::<u8>();
    match bytes.len() {
        // SAFETY: the caller vouches for the target; the bytes are elsewhere.
        1 => unsafe { target.copy_from_nonoverlapping(source, 1) },
        // SAFETY: as above.
        2 => unsafe { target.copy_from_nonoverlapping(source, 2) },
        // SAFETY: as above.
        4 => unsafe { target.copy_from_nonoverlapping(source, 4) },
        // SAFETY: as above.
        len => unsafe { target.copy_from_nonoverlapping(source, len) },
    }
}

/// Returns the bytes from the first to the last one of these dimensions, in the tensor.
fn span(dims: &[BoxDim], run: usize) -> usize {
    let steps = dims.iter().map(|dim| (dim.count - 1) * dim.source_stride);
    steps.sum::<usize>() + run
}

#[cfg(test)]
mod tests;
