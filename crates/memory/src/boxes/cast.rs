//! Conversion of elements on their way into a box. The bytes of one may come in several pieces.

#![expect(
    unsafe_code,
    reason = "writes into memory that the caller has vouched for"
)]

use std::ptr::NonNull;

use tload_format::Dtype;

use super::copy_bytes;
use crate::sync::lock::Mutex;

/// Bytes of converted elements that are on the stack at once.
const CONVERTED_BYTES: usize = 4096;

/// Longest element, bytes.
const ELEMENT_MAX: usize = 8;

/// Dtypes before and after a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Dtype of the tensor's elements.
    pub from: Dtype,
    /// Dtype of the elements in memory.
    pub to: Dtype,
}

/// Conversion of the elements of one box.
#[derive(Debug)]
pub(super) struct Casting {
    cast: Cast,
    /// Bytes of an element, before and after.
    sizes: (usize, usize),
    /// Elements that reads end in: at most one for each end of a read.
    split: Mutex<Vec<Split>>,
}

/// Element of which some bytes have come.
#[derive(Debug)]
struct Split {
    /// Offset in the tensor.
    offset: usize,
    bytes: [u8; ELEMENT_MAX],
    /// Number of bytes that have come.
    come: usize,
}

impl Cast {
    /// Returns the bytes of an element, before and after, if elements can be converted.
    pub(super) fn sizes(self) -> Option<(usize, usize)> {
        let Self { from, to } = self;
        tload_convert::converts(from, to).then(|| (from.bits() / 8, to.bits() / 8))
    }
}

impl Casting {
    pub(super) fn new(cast: Cast) -> Self {
        Self {
            cast,
            sizes: cast.sizes().unwrap_or((1, 1)),
            split: Mutex::default(),
        }
    }

    /// Converts the `bytes` at `first` of the tensor, which are of a run of elements that begins at
    /// `offset` there and at `start` in memory.
    ///
    /// # Safety
    ///
    /// The run's elements in memory must be valid for writes, and nothing else may use those that
    /// these bytes are of. No byte may come twice.
    pub(super) unsafe fn write(
        &self,
        offset: usize,
        first: usize,
        bytes: &[u8],
        start: NonNull<u8>,
    ) {
        let (size, to) = self.sizes;
        let begun = (first - offset) % size;
        let (front, bytes_left) = match begun {
            0 => (&bytes[..0], bytes),
            _ => bytes.split_at(bytes.len().min(size - begun)),
        };
        let (whole, back) = bytes_left.split_at(bytes_left.len() / size * size);
        let place = |at: usize| (at - offset) / size * to;
        let elements_at = first + front.len();
        for (at, some) in [(first, front), (elements_at + whole.len(), back)] {
            if let Some(element) = self.join(offset, at, some) {
                // SAFETY: the element is of the run, which the caller vouches for.
                let target = unsafe { start.add(place(at)) };
                // SAFETY: as above.
                unsafe { self.convert(&element[..size], target) };
            }
        }
        if !whole.is_empty() {
            // SAFETY: as above.
            let target = unsafe { start.add(place(elements_at)) };
            // SAFETY: as above.
            unsafe { self.convert(whole, target) };
        }
    }

    /// Converts whole elements.
    ///
    /// # Safety
    ///
    /// As many elements at `target` must be valid for writes.
    unsafe fn convert(&self, bytes: &[u8], target: NonNull<u8>) {
        // Most calls are of one element, or of thousands.
        if bytes.len() == self.sizes.0 {
            // SAFETY: as the caller says.
            unsafe { self.convert_through::<ELEMENT_MAX>(bytes, target) };
        } else {
            // SAFETY: as above.
            unsafe { self.convert_through::<CONVERTED_BYTES>(bytes, target) };
        }
    }

    /// Converts whole elements, some at a time.
    ///
    /// # Safety
    ///
    /// As for [`Self::convert`].
    unsafe fn convert_through<const BYTES: usize>(&self, bytes: &[u8], target: NonNull<u8>) {
        let (size, to) = self.sizes;
        let mut converted = [0; BYTES];
        let most = BYTES / to;
        for (index, bytes) in bytes.chunks(most * size).enumerate() {
            let converted = &mut converted[..bytes.len() / size * to];
            tload_convert::convert(bytes, self.cast.from, converted, self.cast.to);
            // SAFETY: as the caller says.
            let target = unsafe { target.add(index * most * to) };
            // SAFETY: as above; the converted bytes are on the stack.
            unsafe { copy_bytes(converted, target) };
        }
    }

    /// Keeps some bytes of one element of a run, and returns it if they are the last ones to come.
    fn join(&self, offset: usize, at: usize, some: &[u8]) -> Option<[u8; ELEMENT_MAX]> {
        let (size, _) = self.sizes;
        if some.is_empty() {
            return None;
        }
        let begun = (at - offset) % size;
        let mut split = self.split.lock();
        let known = split.iter().position(|it| it.offset == at - begun);
        let index = known.unwrap_or_else(|| {
            split.push(Split {
                offset: at - begun,
                bytes: [0; ELEMENT_MAX],
                come: 0,
            });
            split.len() - 1
        });
        let element = &mut split[index];
        element.bytes[begun..begun + some.len()].copy_from_slice(some);
        element.come += some.len();
        (element.come == size).then(|| split.swap_remove(index).bytes)
    }
}
