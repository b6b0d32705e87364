//! The bytes of a box as copies of rows, for GPUs, whose copies have at most one stride.

use std::ops::Range;

use tload_cuda::RowCopy;

use super::{BoxDim, TargetBox, span, steps_in};

/// Rows of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Offset of the first row in the bytes that have come.
    pub from: usize,
    /// Address that it goes to.
    pub to: u64,
    /// Distances on both sides.
    pub copy: RowCopy,
}

impl TargetBox {
    /// Passes on the copies of those of `len` bytes at `first` of the tensor that belong to the
    /// box, which converts no elements.
    pub fn rows(&self, first: usize, len: usize, mut each: impl FnMut(Rows)) {
        debug_assert!(!self.is_cast(), "a copy of a GPU converts nothing");
        if !self.is_apart(first, len) {
            self.rows_of(&self.dims, self.offset, 0, first..first + len, &mut each);
        }
    }

    fn rows_of(
        &self,
        dims: &[BoxDim],
        offset: usize,
        place: usize,
        window: Range<usize>,
        each: &mut impl FnMut(Rows),
    ) {
        let Some((dim, inner)) = dims.split_first() else {
            let (from, end) = (
                offset.max(window.start),
                (offset + self.run).min(window.end),
            );
            if from < end {
                each(Rows {
                    from: from - window.start,
                    to: (self.address + place + (from - offset)) as u64,
                    copy: RowCopy {
                        width: end - from,
                        count: 1,
                        source_pitch: end - from,
                        pitch: end - from,
                    },
                });
            }
            return;
        };
        let steps = steps_in(dim, offset, span(inner, self.run), window.clone());
        // All steps of the innermost dimension are one copy, but for those that a read cuts.
        let mut whole = steps.end..steps.end;
        if inner.is_empty() {
            let is_whole = |index: &usize| {
                let start = offset + index * dim.source_stride;
                start >= window.start && start + self.run <= window.end
            };
            let mut at_ends = steps.clone();
            whole.start = at_ends.find(is_whole).unwrap_or(steps.end);
            let last = (whole.start..steps.end)
                .next_back()
                .filter(|it| !is_whole(it));
            whole.end = last.unwrap_or(steps.end).max(whole.start);
        }
        for index in (steps.start..whole.start).chain(whole.end..steps.end) {
            let (offset, place) = (
                offset + index * dim.source_stride,
                place + index * dim.stride,
            );
            self.rows_of(inner, offset, place, window.clone(), each);
        }
        if !whole.is_empty() {
            each(Rows {
                from: offset + whole.start * dim.source_stride - window.start,
                to: (self.address + place + whole.start * dim.stride) as u64,
                copy: RowCopy {
                    width: self.run,
                    count: whole.len(),
                    source_pitch: dim.source_stride,
                    pitch: dim.stride,
                },
            });
        }
    }
}
